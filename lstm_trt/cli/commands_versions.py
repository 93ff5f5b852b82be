"""The command `versions`: its arguments, call and printing. Importing this loads nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.cli.common import (
    EXIT_FAILED,
    options_of,
    print_json,
    protocol_of,
    runtime_arguments,
    shape_arguments,
    shape_of,
    stopped,
    warn,
)

if TYPE_CHECKING:
    from lstm_trt.analysis.compare import Comparison
    from lstm_trt.recorder.versions import Answer


VERSIONS_SUMMARY = "one shape under several versions of a library, interleaved in rounds, each compared with the first"

VERSIONS_EXAMPLE = (
    "lstm-trt versions onnxruntime 1.20.1 1.31.1 --layers 2 --hidden 64 --sequence 32 --out versions\n"
    "each version is installed into an environment of its own, which is kept in the cache"
)

VERSIONS_FORMATS = ("text", "csv", "json")

#: What a comparison has of median and tail, for tables.
_COMPARED = ("median", "median_ratio", "median_ratio_low", "median_ratio_high")

_COMPARED += ("tail", "tail_percentile", "tail_ratio", "tail_ratio_low", "tail_ratio_high")


def versions_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `versions`."""
    add = parser.add_argument
    add("library", metavar="LIBRARY", help="as pip has it: onnxruntime, torch, tensorrt, tensorrt-rtx")
    add("versions", nargs="+", metavar="VERSION", help="two or more; the first is what the others are held against")
    shape_arguments(parser, many=False)
    add("--runtime", default=None, metavar="NAME", help="where the library has several: see lstm-trt doctor")
    runtime_arguments(parser)
    add("--rounds", type=int, default=5, metavar="N", help="each in fresh processes (default 5, what compare needs)")
    add("--control", action="store_true", help="a control run of an empty step after each; takes as long again")
    add("--effect", type=float, default=0.02, metavar="E", help="what matters (default 0.02: 2 %%)")
    add("--confidence", type=float, default=0.95, metavar="C", help="of each comparison (default 0.95)")
    add("--retry-failed", action="store_true", help="try again what failed before")
    add("--quiet", action="store_true", help="no progress line")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")


def versions(arguments: argparse.Namespace) -> int:
    """Run `versions`; returns the exit status."""
    from lstm_trt.recorder.versions import record_versions

    def tell(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr, flush=True)

    answer = record_versions(
        arguments.library,
        arguments.versions,
        shape_of(arguments),
        out=arguments.out,
        runtime=arguments.runtime,
        rounds=arguments.rounds,
        protocol=protocol_of(arguments),
        options=options_of(arguments),
        control=arguments.control,
        time_limit_s=arguments.time_limit,
        retry_failed=arguments.retry_failed,
        effect=arguments.effect,
        confidence=arguments.confidence,
        show_progress=not arguments.quiet,
        tell=tell,
    )
    for line in answer.report.lines():
        print(line, file=sys.stderr)
    if answer.report.stopped:
        return stopped(arguments.given)
    if answer.not_in_turns:
        late, first = ", ".join(answer.not_in_turns), answer.sides[0].version
        told = f"{late} and {first} were not recorded in turns, since some were in {arguments.out} already"
        warn([f"{told}: the machine may be what differs; choose another --out"])
    if arguments.format == "json":
        print_json(answer.as_dict())
    elif arguments.format == "csv":
        _csv(answer)
    else:
        print(text(answer))
    return 0 if any(answer.comparisons) else EXIT_FAILED


def text(answer: Answer) -> str:
    """A row a version, and `compare`'s words for each version against the first."""
    from lstm_trt.analysis import text as analysis_text

    first = answer.sides[0]
    blocks = [_table(answer)]
    for side, one in zip(answer.sides[1:], answer.comparisons, strict=True):
        if one is not None:
            blocks.append(analysis_text.comparison_text(one, first.name, side.name))
            continue
        lacking = next(who for who in (first, side) if not who.numbers()["n"])
        blocks.append(f"{side.name}: not compared: {lacking.name}: {_reason(lacking.numbers())}")
    return "\n\n".join(blocks)


def _table(answer: Answer) -> str:
    configuration = answer.sides[0].configuration
    options, protocol = configuration.options, configuration.protocol
    head = f"{configuration.name} on {configuration.runtime}, {options.precision} on {options.device}"
    head += f", {protocol.trials} trials {protocol.arrival_words}; ratios are to {answer.sides[0].version}"
    names = ("version", "rounds", "n", "max us", "p99 us", "median us", "median ratio", "tail ratio")
    rows, reasons = [names], {}
    for side, one in zip(answer.sides, [None, *answer.comparisons], strict=True):
        told = side.numbers()
        times = [_time(told[name]) for name in ("max_us", "p99_us", "median_us")]
        rows.append((side.version, str(told["rounds"]), str(told["n"]), *times, *_words(one)))
        if not told["n"]:
            reasons[len(rows) - 1] = _reason(told)
    widths = [max(len(row[k]) for row in rows) for k in range(len(names))]
    left = {names.index(name) for name in ("version", "median ratio", "tail ratio")}
    lines = [head]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join([cells[0], reasons[number]] if number in reasons else cells).rstrip())
    return "\n".join(lines)


def _reason(told: dict) -> str:
    return told["failure"] or "not recorded"


def _words(one: Comparison | None) -> tuple[str, str]:
    """The two answers as cells: the word, the ratio, and its interval where there is one."""
    if one is None:
        return "", ""
    cells = []
    for name in ("median", "tail"):
        word, ratio, low, high = (getattr(one, f"{name}{end}") for end in ("", "_ratio", "_ratio_low", "_ratio_high"))
        cell = word if ratio is None else f"{word} {ratio:.3f}"
        cells.append(cell if low is None or high is None else f"{cell} ({low:.3f} to {high:.3f})")
    return cells[0], cells[1]


def _csv(answer: Answer) -> None:
    """A row a version; the first one's has no comparison."""
    import csv

    rows = []
    for side, one in zip(answer.sides, [None, *answer.comparisons], strict=True):
        plain = side.configuration.as_dict()
        row = {"library": side.place.library, "version": side.version, "runtime": plain["runtime"]}
        row |= {name: value for name, value in plain["workload"].items() if name != "kind"}
        row |= {name: plain["options"][name] for name in ("precision", "threads", "device")}
        row |= {**side.numbers(), "against": answer.sides[0].version if one else None}
        row |= {name: getattr(one, name, None) for name in _COMPARED}
        rows.append(row)
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _time(value_us: float | None) -> str:
    from lstm_trt.analysis.summary import microseconds

    return "" if value_us is None else microseconds(value_us)
