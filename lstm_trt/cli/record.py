"""The command `record`, and with `--for` a soak."""

import argparse
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt import registry
from lstm_trt.cli import common
from lstm_trt.cli.main import show
from lstm_trt.cli.workloads import one_workload, workload_arguments
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count, duration, latency, terminal_width
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import carried_text
from lstm_trt.recorder import pool
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store.schema import Recording
from lstm_trt.store.whole import percentile

EXAMPLE = (
    "lstm-trt record --layers 2 --hidden 200 --sequence 128 --runtime onnxruntime"
    " --trials 1000 --out recordings\n"
    "  lstm-trt record --layers 2 --hidden 64 --sequence 64 --arrival periodic --period-us 1000"
    " --out recordings\n"
    "  lstm-trt record --layers 2 --hidden 64 --sequence 64 --for 3h --out soak\n"
    "  lstm-trt record --onnx model.onnx --size batch=1 --size time=64 --runtime openvino"
    " --out recordings"
)

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `record`."""
    workload_arguments(parser)
    add = parser.add_argument
    add("--runtime", metavar="NAME", help=f"{common.RUNTIME_HELP} (default onnxruntime)")
    common.runtime_arguments(parser)
    add(
        "--for",
        dest="for_time",
        metavar="TIME",
        help="recording time (90s, 10m, 3h, 1h30m) instead of a number of trials;"
        " resumes if interrupted",
    )
    add(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds, each in a new process; resumes if interrupted"
        " (default: one more than the folder has)",
    )
    add(
        "--no-control",
        dest="control",
        action="store_false",
        help="do not also time an empty step, which measures the delays of the machine itself",
    )
    common.recording_arguments(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recording")


def run(arguments: argparse.Namespace) -> int:
    """Run `record`; returns the exit status."""
    workload = one_workload(arguments)
    mode = arguments.mode or workload.modes[0]
    workload = workload.in_mode(mode)
    protocol = common.protocol_of(arguments)
    options = common.options_of(arguments)
    name = workload.title(mode)
    runtime = arguments.runtime or preparer_of(workload).DEFAULT_RUNTIME
    progress = _Progress(f"{name} on {runtime}", quiet=arguments.format == "json")
    if arguments.mode == "stream" and not isinstance(workload, LstmShape):
        progress.say(f"{name}: {carried_text(workload.states)}")
    if arguments.for_time is None:
        recording = pool.record(
            workload,
            arguments.runtime,
            protocol,
            options,
            rounds=arguments.rounds,
            mode=arguments.mode,
            control=arguments.control,
            out=arguments.out,
            time_limit_s=arguments.time_limit,
            wait=arguments.lock_wait,
            listener=progress,
        )
        return _record(arguments, recording)
    from lstm_trt.recorder import soak  # with what reads recordings; others need none of it

    for field in ("trials", "tier", "time_limit", "rounds"):
        if getattr(arguments, field) is not None:
            flag = field.replace("_", "-")
            raise UsageError(f"--for and --{flag} exclude each other: give one of them")
    try:
        done = soak.soak(
            workload,
            soak.seconds_of(arguments.for_time),
            arguments.runtime,
            protocol,
            options,
            mode=arguments.mode,
            control=arguments.control,
            out=arguments.out,
            wait=arguments.lock_wait,
            listener=progress,
        )
    except KeyboardInterrupt:
        progress.end_line()
        return common.stopped(arguments.given, "parts already written are kept; ")
    common.print_answer(done, arguments.format, done.warnings)
    return 0


def _record(arguments: argparse.Namespace, recording: Recording) -> int:
    """Print what was recorded; with --rounds each of them, in JSON as a list."""
    recordings = [recording]
    if arguments.rounds is not None:
        recordings = pool.recorded_rounds(recording.configuration, arguments.out, arguments.rounds)
    for each in recordings:
        common.warn(each.provenance["warnings"])
    if arguments.format == "json":
        values = [_json_values(each, arguments.out) for each in recordings]
        common.print_json(values[0] if arguments.rounds is None else values)
    else:
        for each in recordings:
            show("\n".join([latencies_text(each), *pool.remarks(**_checks(each))]))
            print(arguments.out / each.file_name)
    protocol = recording.configuration.protocol
    return common.verdict_status(recordings, protocol) if protocol.until else 0


def _json_values(recording: Recording, out: Path) -> dict:
    """Path, summary (if a package summarizes), checks and warnings of one recording."""
    values: dict[str, Any] = {"path": str(out / recording.file_name)}
    summarize = registry.find("API", "summarize")
    if summarize is not None:
        (row,) = summarize([recording])
        values["summary"] = row.as_dict()
    return {**values, **_checks(recording), "warnings": recording.provenance["warnings"]}


def _checks(recording: Recording) -> dict:
    """Its control run, the costs of its clock, what a NaN does, and its loads: arguments of
    `pool.remarks`."""
    provenance = recording.provenance
    return {
        "control": provenance["control"],
        "clock": provenance["clock"],
        "nan_reaches_output": provenance["parity"]["nan_reaches_output"],
        "beside": provenance.get("beside", []),
    }


def latencies_text(recording: Recording) -> str:
    """Number, maximum, 99th percentile (the order statistic at rank 0.99 n, rounded up) and median,
    in us."""
    ordered = np.sort(recording.timed_ns)
    if not len(ordered):
        return "no trials after warm-up"

    def of_share(numerator: int, denominator: int = 1) -> str:
        return latency(percentile(ordered, Fraction(numerator, denominator)) / 1e3)

    shown = f"max {of_share(1)}, p99 {of_share(99, 100)}, median {of_share(1, 2)}"
    return f"{count(len(ordered), 'trial')} after warm-up: {shown}"


def _bound_text(event: dict) -> str:
    if "missing" in event:
        return f"no roofline bound: {event['missing']}"
    at_least = "at least " if event.get("at_least") else ""
    return f"roofline bound {at_least}{latency(event['floor_ns'] / 1e3, 3)}"


class _Progress:
    """Prints events of the recorder to standard error; live counters only on a terminal."""

    def __init__(self, name: str, quiet: bool = False) -> None:
        self._name = name
        self._quiet = quiet
        self._terminal = terminal_width(sys.stderr) is not None
        self._open = False

    def __call__(self, event: dict) -> None:
        match event["event"]:
            case "floor":
                self.say(f"{self._name}: {_bound_text(event)}")
            case "progress":
                self._rewrite(f"{event['done']}/{event['total']} trials")
                if event["done"] >= event["total"]:
                    self.end_line()
            case "round":
                self.say(f"{self._name}: round {event['round']}")
            case "waiting":
                self.say(f"{self._name} {pool.waiting_text(event)}")
            case "rest":
                elapsed = duration(event["elapsed_s"])
                rest = f"the remaining {duration(event['asked_s'])} as round {event['round']}"
                interrupted = f"round {event['continues']} was interrupted after {elapsed}"
                self.say(f"{interrupted}: recording {rest}")
            case "soak":
                left = duration(event["asked_s"] - event["elapsed_s"])
                parts = count(event["parts"], "part")
                self._rewrite(f"{event['trials']} trials, {parts} written, {left} left")
            case "stage" if event["stage"] == "store":
                self.end_line()

    def say(self, line: str) -> None:
        """Print a line, unless quiet."""
        if not self._quiet:
            common.print_progress(line)

    def end_line(self) -> None:
        """End the line that is being rewritten, if any."""
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False

    def _rewrite(self, text: str) -> None:
        if self._terminal and not self._quiet:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = True
