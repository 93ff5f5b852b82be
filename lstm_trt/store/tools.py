"""What other benchmark tools write: single times become columns, and aggregates are refused with the reason.

Single times are in hyperfine's `--export-json` (`times`), pytest-benchmark's JSON (`data`, if a round is one call),
the lines of `cyclictest -v`, and the trace of rtla's timerlat. `cyclictest -h` and `rtla timerlat hist` write
histograms, which say how many calls were above their range in a last line; one without it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lstm_trt.config.errors import UsageError, refused

#: Columns by name, and for text the number of the line of each row.
Columns = dict[str, list]

#: Lines of `cyclictest -v` (thread, cycle, time) and of timerlat's trace: the values of these columns.
_SINGLE = (
    (re.compile(r"\s*(\d+):\s+(\d+):\s+(-?\d+)\s*"), ("thread", "trial", "latency")),
    (
        re.compile(r".*\[(\d+)\].*#(\d+)\s+context\s+(\S+)\s+timer_latency\s+(\d+)\s+ns\s*"),
        ("cpu", "trial", "context", "latency_ns"),
    ),
)

#: Columns of numbers among these; the others tell configurations apart.
_NUMBERS = ("trial", "latency", "latency_ns")

#: A histogram of `cyclictest -h` or of rtla: a line of its heading, of its columns, of a bin, and of the calls above.
_HISTOGRAM = re.compile(r"# (RTLA \w+ h|H)istogram")
_BIN = re.compile(r"\s*(\d+)((?:\s+\d+)+)\s*")
_ABOVE = re.compile(r"(?:# Histogram Overflows|over):((?:\s+\d+)+)\s*")
_UNIT = re.compile(r"# Time unit is .*\((\w+)\)")

#: A line of what has nothing but aggregates: what that is, and how to get single times.
_AGGREGATES = (
    (
        re.compile(r"&&&& \w+ TensorRT\.trtexec.*|\[.*\] \[I\] === Performance summary ===.*"),
        "a log of trtexec",
        "run trtexec with --exportTimes=times.json, and read that file",
    ),
    (
        re.compile(r"\s*\"?Value\"?[\s,]+\"?Percentile\"?[\s,]+\"?TotalCount.*"),
        "a table of percentiles of HdrHistogram",
        "save the recorded values and their counts, and read them with --counts",
    ),
)

#: A tool is recognized by this number of lines at the beginning and at the end.
_SEEN = 200


def aggregates(what: str, instead: str = "write the time of each call") -> UsageError:
    """The refusal of what holds aggregates, and what to do instead."""
    return UsageError(f"{what} aggregates, which say nothing of single calls: {instead}")


def columns_of_json(where: str, value: Any) -> Columns | None:
    """Single times in the JSON of hyperfine or pytest-benchmark; None for JSON of anything else.

    Raises `UsageError` for aggregates: of Google Benchmark, and rounds of several calls.
    """
    if not isinstance(value, dict):
        return None
    results, benchmarks = value.get("results"), value.get("benchmarks")
    if _objects(results) and all("times" in each for each in results):
        return _rows("command", [(each.get("command"), each["times"]) for each in results])
    if not _objects(benchmarks):
        return None
    if any("real_time" in each or "runs" in each for each in benchmarks):
        raise aggregates(f"{where} is of Google Benchmark or pyperf, and has")
    stats = [each.get("stats") for each in benchmarks]
    if not _objects(stats):
        return None
    for each, found in zip(benchmarks, stats, strict=True):
        test = f"{where}: {each.get('fullname')} has"
        if found.get("iterations") != 1:
            once = "benchmark.pedantic(..., iterations=1) times each call"
            raise aggregates(f"{test} means of {found.get('iterations')} calls, that is", once)
        if not found.get("data"):
            raise aggregates(test, "pytest --benchmark-json writes all times")
    return _rows("name", [(each.get("fullname"), each["stats"]["data"]) for each in benchmarks])


def _objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _rows(name: str, several: Sequence[tuple[Any, list]]) -> Columns:
    """A row per time, in seconds, with the name of what was timed."""
    labels = [str(label) for label, times_s in several for _ in times_s]
    return {name: labels, "latency_s": [time_s for _, times_s in several for time_s in times_s]}


def columns_of_text(where: str, lines: Sequence[str]) -> tuple[Columns, list[int]] | None:
    """Columns and line numbers of a text with lines of one of these tools; None for any other text.

    A histogram has a last row with the latency inf: the calls above its range. Raises `UsageError` for aggregates, and
    for a histogram that does not say how many calls there were.
    """
    seen = [*lines[:_SEEN], *lines[-_SEEN:]]
    for pattern, what, instead in _AGGREGATES:
        if any(map(pattern.fullmatch, seen)):
            raise aggregates(f"{where} is {what}, and has", instead)
    if any(map(_HISTOGRAM.fullmatch, seen)):
        with refused(f"{where} is a histogram with rows of different lengths", ValueError):
            return _histogram(where, lines)
    for pattern, names in _SINGLE:
        if not any(map(pattern.fullmatch, seen)):
            continue
        found = {place: match.groups() for place, line in enumerate(lines, 1) if (match := pattern.fullmatch(line))}
        cells = zip(names, zip(*found.values(), strict=True), strict=True)
        return {name: list(map(int, each) if name in _NUMBERS else each) for name, each in cells}, list(found)
    return None


def _histogram(where: str, lines: Sequence[str]) -> tuple[Columns, list[int]]:
    rows, places, above = [], [], None
    for place, line in enumerate(lines, 1):
        if match := _BIN.fullmatch(line):
            rows.append([float(match[1]), *map(int, match[2].split())])
            places.append(place)
        elif match := _ABOVE.fullmatch(line):
            above = [*map(int, match[1].split())]
            places.append(place)
    if not rows or above is None:
        lacks = "does not say how many calls were longer than its last bin (# Histogram Overflows, or over:)"
        raise UsageError(f"{where} is a histogram that {lacks}: read the whole output of the tool")
    rows.append([float("inf"), *above])
    heading = next((line.split()[1:] for line in lines if line.startswith("Index")), None)
    unit = next((f"_{match[1]}" for line in lines if (match := _UNIT.fullmatch(line))), "")
    names = heading or [f"thread {number}" for number in range(len(rows[0]) - 1)]
    return dict(zip([f"latency{unit}", *names], map(list, zip(*rows, strict=True)), strict=True)), places
