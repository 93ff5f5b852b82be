"""The command `watch`, and `record --for`: their arguments, calls and printing. Importing this loads nothing."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path

from lstm_trt.cli.common import options_of, print_json, protocol_of, shape_of, stopped, warn
from lstm_trt.config.errors import UsageError
from lstm_trt.recorder.watch import Snapshot

WATCH_SUMMARY = "watch a soak, or a sweep, while it is recorded: one live line, no verdict before the end"

WATCH_EXAMPLE = "lstm-trt watch soak --deadline-us 1000"


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `watch`."""
    parser.add_argument("path", type=Path, metavar="DIR", help="the --out of what is being recorded")
    parser.add_argument("--deadline-us", type=float, default=None, metavar="US", help="count what is later")
    parser.add_argument("--once", action="store_true", help="one line, then end")


def tell_floor(answer: dict, name: str) -> None:
    """The speed of light, where the preparer has just told it."""
    if answer["event"] == "floor":
        print(f"{name}: speed of light {answer['floor_ns'] / 1e3:.1f} us", file=sys.stderr)


def control_words(control: dict) -> str:
    """What the machine did to an empty step, for the terminal."""
    return f"control run of an empty step: max {control['max_us']:.1f} us of {control['calls']}"


def soak(arguments: argparse.Namespace) -> int:
    """Run `record --for`; returns the exit status."""
    from lstm_trt.recorder.soak import seconds_of
    from lstm_trt.recorder.soak import soak as record_soak
    from lstm_trt.recorder.sweep import duration
    from lstm_trt.recorder.watch import LatencyHistogram, snapshot_of
    from lstm_trt.store import files

    for name in ("trials", "tier", "time_limit"):
        if getattr(arguments, name) is not None:
            flag = name.replace("_", "-")
            raise UsageError(f"--for says how long it records, --{flag} when it ends: give one of them")
    shape, quiet = shape_of(arguments), arguments.format == "json"
    live = not quiet and sys.stderr.isatty()

    def listen(answer: dict) -> None:
        if quiet:
            return
        tell_floor(answer, f"{shape.label} on {arguments.runtime}")
        if answer["event"] == "rest":
            told = f"round {answer['continues']} was stopped after {duration(answer['elapsed_s'])}"
            print(
                f"{told}: the remaining {duration(answer['asked_s'])} become round {answer['round']}", file=sys.stderr
            )
        elif answer["event"] == "soak" and live:
            left = duration(answer["asked_s"] - answer["elapsed_s"])
            line = f"{answer['trials']} trials, {answer['parts']} parts written, {left} left"
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        elif answer["event"] == "stage" and answer["stage"] == "store" and live:
            print(file=sys.stderr)

    try:
        done = record_soak(
            shape,
            seconds_of(arguments.for_time),
            arguments.runtime,
            protocol_of(arguments),
            options_of(arguments),
            out=arguments.out,
            control=arguments.control,
            listener=listen,
        )
    except KeyboardInterrupt:
        if live:
            print(file=sys.stderr)
        return stopped(arguments.given, "the parts written stay; ")
    warn(done.warnings)
    tally = LatencyHistogram()
    for path in done.paths:
        tally.add(files.read(path, ("latency_ns", "warmup")).timed_ns)
    sight = snapshot_of("complete", tally, done.configuration, done.parts)
    if quiet:
        answer = {"folder": str(done.folder), "config_id": done.configuration.id, "round": done.round}
        answer |= {"parts": done.parts, "trials": done.trials, "continues": done.continues}
        answer |= {"summary": sight.as_dict(), "control": done.control}
        print_json(answer)
        return 0
    print(f"round {done.round}, {done.parts} parts; {sight.words()}")
    if done.control:
        print(control_words(done.control))
    print(_verdict_command(done.folder, None))
    return 0


def _verdict_command(folder: Path, deadline_us: float | None) -> str:
    deadline = "US" if deadline_us is None else f"{deadline_us:g}"
    return f"complete: {shlex.join(['lstm-trt', 'verdict', str(folder), '--deadline-us', deadline])}"


def watch(arguments: argparse.Namespace) -> int:
    """Run `watch`; returns the exit status."""
    from lstm_trt.recorder.watch import follow

    plain, live = arguments.format == "json", sys.stdout.isatty()
    before: tuple | None = None
    sight: Snapshot | None = None
    try:
        for sight in follow(arguments.path, arguments.deadline_us):
            now = (sight.state, sight.files)
            if plain or not live or arguments.once:
                if now != before:
                    print(json.dumps(sight.as_dict()) if plain else sight.words(), flush=True)
            else:
                width = shutil.get_terminal_size().columns - 1
                print(f"\r{sight.words()[:width]}\x1b[K", end="", flush=True)
            before = now
            if arguments.once:
                break
    finally:
        if live and not plain and not arguments.once:
            print(flush=True)
    if plain:
        return 0
    if sight.state == "complete":
        print(_verdict_command(arguments.path, arguments.deadline_us))
    elif sight.state == "recorder gone":
        print("the recorder is gone: nothing holds the folder, and nothing new came for 15 s")
    return 0
