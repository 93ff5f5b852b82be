"""What other benchmark tools write: single times become columns, and aggregates are refused with
the reason.

Single times are in hyperfine's `--export-json` (`times`), pytest-benchmark's JSON (`data`, if a
round is one call), the lines of `cyclictest -v`, and the trace of rtla's timerlat. `cyclictest -h`
and `rtla timerlat hist` write histograms, which say in their last line how many calls were above
their range; one without it is refused.
"""

import re
from collections.abc import Sequence
from typing import Any

from lstm_trt.config.errors import UsageError

#: Lines of `cyclictest -v`, and of timerlat's trace.
_SINGLE = (
    re.compile(r"(?a)\s*(?P<thread>\d+):\s+(?P<trial>\d+):\s+(?P<latency>-?\d+)\s*"),
    re.compile(
        r"(?a).*\[(?P<cpu>\d+)\].*#(?P<trial>\d+)\s+context\s+(?P<context>\S+)\s+timer_latency\s+(?P<latency_ns>\d+)\s+ns\s*"
    ),
)

#: Lines of `cyclictest -h` and of rtla: above a histogram, and a bin, or what is above all bins.
_HISTOGRAM = re.compile(r"# (RTLA \w+ h|H)istogram")
_BIN = re.compile(r"(?a)\s*(?P<latency>\d+|# Histogram Overflows:|over:)(?P<calls>(?:\s+\d+)+)\s*")

#: Lines of a log of trtexec.
_TRTEXEC = re.compile(r"&&&& \w+ TensorRT\.trtexec.*|.*\[I\] === Performance summary ===.*")

#: A tool is recognized by this number of lines at the beginning and at the end.
_SEEN = 200


def aggregates(what: str, instead: str = "write the time of each call") -> UsageError:
    """The refusal of what holds aggregates, and what to do instead."""
    return UsageError(f"{what} aggregates, which say nothing of single calls: {instead}")


def columns_of_json(where: str, value: dict[str, Any]) -> dict[str, list] | None:
    """Single times in the JSON of hyperfine or pytest-benchmark; None if it is not of a benchmark
    tool.

    Raises `UsageError` for aggregates: Google Benchmark, pyperf, and rounds of several calls.
    """
    results = value.get("results") or value.get("benchmarks")
    if not (isinstance(results, list) and all(isinstance(result, dict) for result in results)):
        return None
    columns: dict[str, list] = {"name": [], "latency_s": []}
    for result in results:
        name = result.get("command") or result.get("fullname") or result.get("name")
        found = result.get("stats", result)
        times_s = None
        if isinstance(found, dict) and found.get("iterations", 1) == 1:
            times_s = found.get("times") or found.get("data")
        if not isinstance(times_s, list):
            raise aggregates(
                f"{where} has no single times of {name or 'a benchmark'}, but",
                "write them; pytest-benchmark times each call with benchmark.pedantic(...,"
                " iterations=1)",
            )
        columns["name"] += [str(name)] * len(times_s)
        columns["latency_s"] += times_s
    return columns


def columns_of_text(where: str, lines: Sequence[str]) -> tuple[dict[str, list], list[int]] | None:
    """Columns and line numbers of a text with lines of one of these tools; None for any other text.

    Raises `UsageError` for aggregates, and for a histogram that does not say how many calls were
    above it.
    """
    seen = [*lines[:_SEEN], *lines[-_SEEN:]]
    if any(map(_TRTEXEC.fullmatch, seen)):
        raise aggregates(
            f"{where} is a log of trtexec, and has",
            "run it with --exportTimes=times.json, and read that",
        )
    histogram = any(map(_HISTOGRAM.fullmatch, seen))
    for pattern in (_BIN,) if histogram else _SINGLE:
        if not any(map(pattern.fullmatch, seen)):
            continue
        matches = map(pattern.fullmatch, lines)
        found = {place: match for place, match in enumerate(matches, 1) if match}
        columns = {name: [match[name] for match in found.values()] for name in pattern.groupindex}
        if histogram:
            columns = _histogram(where, lines, **columns)
        return columns, list(found)
    return None


def _histogram(
    where: str, lines: Sequence[str], latency: list[str], calls: list[str]
) -> dict[str, list]:
    """A column of the bins, and one of the calls of each thread, with the names that the tool gives
    them."""
    if latency[-1].isdigit():
        raise UsageError(
            f"{where} is a histogram that does not say how many calls were above its last bin"
            ' (the line "# Histogram Overflows" or "over"): read the whole output of the tool'
        )
    heading = []
    for line in lines:
        if line.startswith("Index"):
            heading = line.split()[1:]
            break
    columns: dict[str, list] = {"latency": latency}
    of_threads = zip(*(map(int, numbers.split()) for numbers in calls), strict=False)
    for place, of_thread in enumerate(of_threads):
        columns[heading[place] if heading else f"thread {place}"] = list(of_thread)
    return columns
