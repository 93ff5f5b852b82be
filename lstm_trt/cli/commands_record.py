"""The commands `record` and `sweep`: their arguments, calls and printing.

Each has a function that adds its arguments to a parser and one that runs it and returns
the exit status. Importing this loads nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lstm_trt.cli.commands_soak import control_words, soak, tell_floor
from lstm_trt.cli.common import (
    draw_recordings,
    exit_status,
    options_of,
    print_json,
    protocol_of,
    runtime_arguments,
    shape_arguments,
    shape_of,
    stopped,
    warn,
)
from lstm_trt.config.errors import UsageError

RECORD_SUMMARY = "record the latencies of one shape on one runtime"

RECORD_EXAMPLE = (
    "lstm-trt record --layers 2 --hidden 200 --sequence 128 --runtime onnxruntime --trials 1000 --out recordings\n"
    "  lstm-trt record --layers 2 --hidden 64 --sequence 64 --arrival periodic --period-us 1000 --out recordings\n"
    "  lstm-trt record --layers 2 --hidden 64 --sequence 64 --for 3h --out soak"
)

SWEEP_SUMMARY = "record a grid of shapes on one or more runtimes; goes on where it was stopped"

SWEEP_EXAMPLE = (
    "lstm-trt sweep --layers 1 2 --hidden 32 64 128 --sequence 32 64 --batch 1 2 4"
    " --runtime onnxruntime pytorch --out recordings"
)


def record_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `record`."""
    shape_arguments(parser, many=False)
    parser.add_argument("--runtime", default="onnxruntime", help="see lstm-trt doctor (default onnxruntime)")
    runtime_arguments(parser)
    parser.add_argument(
        "--for",
        dest="for_time",
        default=None,
        metavar="TIME",
        help="a soak: as many trials as fit into 90s, 10m, 3h, 1h30m; the same command goes on with a stopped one",
    )
    parser.add_argument(
        "--no-control", dest="control", action="store_false", help="no control run of an empty step after the trials"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the recording")


def sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sweep`."""
    add = parser.add_argument
    add("--grid", default=None, metavar="NAME", help="founding: 2000 shapes; axes given beside it narrow it")
    shape_arguments(parser, many=True)
    add("--runtime", nargs="+", default=["onnxruntime"], metavar="NAME", help="see lstm-trt doctor")
    runtime_arguments(parser)
    add(
        "--rounds",
        type=int,
        default=None,
        metavar="N",
        help="repeat all in fresh processes (default 3 from 10000 trials on, else 1)",
    )
    add("--control", action="store_true", help="a control run of an empty step after each; takes as long again")
    add("--retry-failed", action="store_true", help="try configurations again that failed before")
    add("--memory-limit-gb", type=float, default=None, metavar="GB", help="memory a worker may hold")
    add("--figures", type=Path, default=None, metavar="DIR", help="draw the sweep's figures there")
    add("--deadline-us", type=float, default=None, metavar="US", help="drawn into the figures")
    add("--quiet", action="store_true", help="no progress line")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")


def record(arguments: argparse.Namespace) -> int:
    """Run `record`; returns the exit status."""
    if arguments.for_time is not None:
        return soak(arguments)
    from lstm_trt.analysis.summary import summarize
    from lstm_trt.analysis.tables import text_table
    from lstm_trt.recorder import pool
    from lstm_trt.store import files

    shape, quiet = shape_of(arguments), arguments.format == "json"

    def listen(answer: dict) -> None:
        if not quiet:
            tell_floor(answer, f"{shape.label} on {arguments.runtime}")
            if answer["event"] == "progress" and sys.stderr.isatty():
                end = "\r" if answer["done"] < answer["total"] else "\n"
                print(f"{answer['done']}/{answer['total']} trials", end=end, file=sys.stderr, flush=True)

    recording = pool.record(
        shape,
        arguments.runtime,
        protocol_of(arguments),
        options_of(arguments),
        control=arguments.control,
        out=arguments.out,
        time_limit_s=arguments.time_limit,
        listener=listen,
    )
    warn(recording.provenance["warnings"])
    path = files.make_folder(arguments.out) / recording.file_name
    row, control = summarize([recording])[0], recording.provenance["control"]
    if quiet:
        print_json({"path": str(path), "summary": row.as_dict(), "control": control})
    else:
        print(text_table([row]))
        if control:
            print(control_words(control))
        print(path)
    return 0


def configurations(arguments: argparse.Namespace) -> list:
    """The configurations of a sweep's grid."""
    from lstm_trt.config.shape import AXES, GRIDS, Grid
    from lstm_trt.recorder.session import describe

    given = {axis: tuple(getattr(arguments, axis)) for axis in AXES if getattr(arguments, axis) is not None}
    if arguments.grid is not None:
        if arguments.grid not in GRIDS:
            raise UsageError(f"unknown grid {arguments.grid!r}: choose from {', '.join(GRIDS)}")
        base = GRIDS[arguments.grid]
        given = {axis: given.get(axis, getattr(base, axis)) for axis in AXES}
    for axis in ("layers", "hidden", "sequence"):
        if axis not in given:
            raise UsageError(f"--{axis} is missing: give its values, or --grid founding")
    protocol = protocol_of(arguments)
    return [
        describe(shape, runtime, protocol, options_of(arguments))
        for shape in Grid(**given)
        for runtime in dict.fromkeys(arguments.runtime)
    ]


def sweep(arguments: argparse.Namespace) -> int:
    """Run `sweep`; returns the exit status."""
    from lstm_trt.recorder.sweep import run_sweep

    limit = arguments.memory_limit_gb
    if limit is not None and not limit > 0:
        raise UsageError(f"--memory-limit-gb must be above 0, not {limit:g}")
    report = run_sweep(
        configurations(arguments),
        arguments.out,
        rounds=arguments.rounds,
        seed=arguments.seed,
        control=arguments.control,
        time_limit_s=arguments.time_limit,
        memory_limit=int(limit * 1e9) if limit is not None else None,
        retry_failed=arguments.retry_failed,
        show_progress=not arguments.quiet,
    )
    if arguments.format == "json":
        print_json(report.as_dict())
    else:
        print("\n".join(report.lines()))
    if report.stopped:
        return stopped(arguments.given)
    if arguments.figures:
        draw_recordings(arguments.out, arguments.figures, arguments.deadline_us)
    return exit_status(report)
