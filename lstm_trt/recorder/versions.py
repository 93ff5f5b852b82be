"""Record one workload under several versions of a library in interleaved rounds; compare each with the first version.

Each version has its own environment (`environments.py`). A round records the workload once under each version, in a
new random order, in fresh processes of that environment's Python. The parity gate's reference is made in the current
environment for all versions, and so is the exported network of a shape. The version is part of a configuration's
identity, so all recordings share one folder, and existing recordings are not repeated.
"""

from __future__ import annotations

import csv
import io
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt.analysis.compare import Comparison, check_effect, compare_groups
from lstm_trt.analysis.pairing import recorded_first
from lstm_trt.analysis.quantiles import DEFAULT_CONFIDENCE, EFFECT, ROUNDS, check_confidence, percentile
from lstm_trt.analysis.text import comparison_text
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import RuntimeUnavailable, UsageError
from lstm_trt.config.format import microseconds, table
from lstm_trt.config.labels import versions_command
from lstm_trt.config.workload import Workload
from lstm_trt.machine.facts import installed_version
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.environments import Environment, Tell, described, normal
from lstm_trt.recorder.pool import check_limits
from lstm_trt.recorder.sweep import Report, run_sweep
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import files, folders
from lstm_trt.store.samples import Group, groups_of

_VERSION = re.compile(r"\d[\w.+!-]*")

#: Columns of a comparison of medians and tails.
_COMPARED = (
    *("median", "median_ratio", "median_ratio_low", "median_ratio_high"),
    *("tail", "tail_percentile", "tail_ratio", "tail_ratio_low", "tail_ratio_high"),
)

_SHARES = {"median_us": Fraction(1, 2), "p99_us": Fraction(99, 100)}


@dataclass(frozen=True)
class Side:
    """The recordings of one version; `group` is None if an interrupted run has none of it yet."""

    version: str
    configuration: Configuration
    place: Environment
    group: Group | None

    @property
    def name(self) -> str:
        return f"{self.place.library} {self.version}"

    def numbers(self) -> dict:
        """Rounds, n, and in us the median over rounds of each round's percentiles, and the overall maximum."""
        samples = [sample for sample in self.group.samples if len(sample.timed_ns)] if self.group else []
        if not samples:
            failure = str(self.group.failure) if self.group and self.group.failure else None
            return {"rounds": 0, "n": 0, **dict.fromkeys([*_SHARES, "max_us"]), "failure": failure}
        ordered = [np.sort(sample.timed_ns) for sample in samples]
        middles = {
            name: statistics.median_low(percentile(latency_ns, share) for latency_ns in ordered) / 1e3
            for name, share in _SHARES.items()
        }
        max_us = max(float(latency_ns[-1]) for latency_ns in ordered) / 1e3
        return {"rounds": len(ordered), "n": sum(map(len, ordered)), **middles, "max_us": max_us, "failure": None}


@dataclass(frozen=True)
class Answer:
    """The versions in the given order, and each further version compared with the first.

    A comparison is None if one of its versions has no recording.
    """

    sides: tuple[Side, ...]
    comparisons: tuple[Comparison | None, ...]
    report: Report = field(repr=False)

    @property
    def not_in_turns(self) -> list[str]:
        """Versions with all rounds before, or all after, the first version's: the machine may have changed between."""
        first, *others = self.sides
        recorded = (side for side, compared in zip(others, self.comparisons, strict=True) if compared)
        return [side.version for side in recorded if recorded_first(first.group, side.group)]

    def as_dict(self) -> dict:
        """JSON values; a ratio is a version's latency divided by the first version's."""
        first = self.sides[0]
        plain = first.configuration.as_dict()
        compared = [
            {"a": first.version, "b": side.version}
            | (comparison.as_dict() if comparison else {"median": None, "tail": None})
            for side, comparison in zip(self.sides[1:], self.comparisons, strict=True)
        ]
        return {
            "library": first.place.library,
            **{name: plain[name] for name in ("workload", "mode", "runtime", "device_name", "options", "protocol")},
            "versions": [
                {
                    "version": side.version,
                    "config_id": side.configuration.id,
                    "environment": {"packages": side.place.packages, "reused": side.place.reused},
                    **side.numbers(),
                }
                for side in self.sides
            ],
            "comparisons": compared,
            "not_in_turns": self.not_in_turns,
            "warnings": self.warnings,
            "report": self.report.as_dict(),
        }

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the comparison, as text."""
        if not self.not_in_turns:
            return []
        others, first = ", ".join(self.not_in_turns), self.sides[0].version
        return [
            f"{others} and {first} were recorded one after the other, not alternately, because the folder already"
            " contained recordings: a difference may be due to the machine; record again into a new --out folder"
        ]

    def __str__(self) -> str:
        """One row per version, and the comparison of each version with the first."""
        first = self.sides[0]
        blocks = [self._table()]
        for side, comparison in zip(self.sides[1:], self.comparisons, strict=True):
            if comparison is not None:
                blocks.append(comparison_text(comparison, first.name, side.name))
                continue
            missing = next(candidate for candidate in (first, side) if not candidate.numbers()["n"])
            blocks.append(f"{side.name}: not compared: {missing.name}: {_reason(missing.numbers())}")
        return "\n\n".join(blocks)

    def _table(self) -> str:
        configuration = self.sides[0].configuration
        options, protocol = configuration.options, configuration.protocol
        caption = f"{configuration.name} on {configuration.runtime}, {options.precision} on {options.device}"
        caption += f", {protocol.trials} trials {protocol.arrival_text}; ratios relative to {self.sides[0].version}"
        header = ("version", "rounds", "n", "max us", "p99 us", "median us", "median ratio", "tail ratio")
        rows = []
        for side, comparison in zip(self.sides, [None, *self.comparisons], strict=True):
            numbers = side.numbers()
            if not numbers["n"]:
                rows.append((side.version, _reason(numbers)))
                continue
            times = [microseconds(numbers[name]) for name in ("max_us", "p99_us", "median_us")]
            ratios = [_ratio(comparison, name) for name in ("median", "tail")]
            rows.append((side.version, str(numbers["rounds"]), str(numbers["n"]), *times, *ratios))
        return "\n".join(
            [caption, table(header, rows, left=("version", "median ratio", "tail ratio"), drop=("n", "p99 us"))]
        )

    def csv_text(self) -> str:
        """One row per version; the first version's row has no comparison."""
        rows = []
        for side, comparison in zip(self.sides, [None, *self.comparisons], strict=True):
            plain = side.configuration.as_dict()
            row = {"library": side.place.library, "version": side.version, "runtime": plain["runtime"]}
            row |= {name: value for name, value in plain["workload"].items() if name != "kind"}
            row["mode"] = plain["mode"]
            row |= {name: plain["options"][name] for name in ("precision", "threads", "device")}
            row |= {**side.numbers(), "against": self.sides[0].version if comparison else None}
            rows.append(row | {name: getattr(comparison, name, None) for name in _COMPARED})
        target = io.StringIO()
        writer = csv.DictWriter(target, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return target.getvalue()


def _reason(numbers: dict) -> str:
    return numbers["failure"] or "not recorded"


def _ratio(comparison: Comparison | None, name: str) -> str:
    """The comparison of the median or tail as a cell: verdict, ratio, and its interval if there is one."""
    if comparison is None:
        return ""
    verdict, ratio, low, high = (
        getattr(comparison, f"{name}{end}") for end in ("", "_ratio", "_ratio_low", "_ratio_high")
    )
    cell = verdict if ratio is None else f"{verdict} {ratio:.3f}"
    return cell if low is None or high is None else f"{cell} ({low:.3f} to {high:.3f})"


def runtime_of(library: str, workload: Workload, runtime: str | None = None) -> Any:
    """The runtime of the workload's kind that uses a library, the first of several.

    Raises `UsageError` if none uses it.
    """
    preparer = preparer_of(workload)
    if runtime is not None:
        found = preparer.runtime(runtime)
        if library not in _libraries(found):
            raise UsageError(f"{runtime} uses {found.DISTRIBUTION}, not {library}: omit --runtime")
        return found
    known: dict[str, Any] = {}
    for name in preparer.entries():
        found = preparer.runtime(name)
        for used in _libraries(found):
            known.setdefault(used, found)
    if library not in known:
        raise UsageError(f"no runtime uses the library {library}: choose from {', '.join(sorted(known))}")
    return known[library]


def _libraries(runtime: Any) -> set[str]:
    """The packages that install what a runtime uses; this one has no other version to install beside itself."""
    return {normal(name) for name in getattr(runtime, "DISTRIBUTIONS", (runtime.DISTRIBUTION,))} - {"lstm-trt"}


def check_versions(versions: Sequence[str]) -> list[str]:
    """The versions without repetitions; raises `UsageError` if one is malformed or there are fewer than two."""
    for version in versions:
        if not _VERSION.fullmatch(version):
            raise UsageError(f"{version!r} is not a version: write it as in pip, for example 1.20.1")
    distinct = list(dict.fromkeys(versions))
    if len(distinct) < 2:
        raise UsageError(f"give at least two different versions to compare, not {len(distinct)}")
    return distinct


def record_versions(
    library: str,
    versions: Sequence[str],
    workload: Workload,
    *,
    out: str | os.PathLike,
    mode: str | None = None,
    runtime: str | None = None,
    rounds: int = ROUNDS,
    protocol: Protocol | None = None,
    options: Options | None = None,
    control: bool = False,
    time_limit_s: float | None = None,
    retry_failed: bool = False,
    wait: bool = True,
    effect: float = EFFECT,
    confidence: float = DEFAULT_CONFIDENCE,
    show_progress: bool = True,
    tell: Tell = lambda line: None,
) -> Answer:
    """Record one workload, such as an `LstmShape`, under several versions of a library; compare each with the first.

    Missing versions are installed; then all are recorded alternately, `rounds` times, into `out`. `mode` is by default
    the first of the workload, `protocol` that of its kind: of a workload of the literature, its document's.
    A run that was interrupted with Ctrl-C (`report.stopped`) resumes when called again. The other
    arguments are those of `run_sweep` and `compare_groups`; `confidence` holds for each comparison
    separately. Raises `UsageError` for an unknown library or version, and what `describe` and
    `run_sweep` raise.
    """
    library, versions = normal(library), check_versions(versions)
    preparer, module = preparer_of(workload), runtime_of(library, workload, runtime)
    check_confidence(confidence)  # before anything is installed
    check_effect(effect)
    check_limits(time_limit_s, rounds)
    protocol = protocol or preparer.protocol(workload)
    options = options or Options()
    name = module.NAME if runtime is None else runtime
    try:
        preparer.check(describe(workload, name, protocol, options, mode))
    except RuntimeUnavailable:
        if installed_version(library) is not None:
            raise  # another version would not run here either
    folder = files.make_folder(Path(out))
    asked = {"workload": workload.as_dict(), "mode": mode, "runtime": name}
    asked |= {"protocol": protocol.as_dict(), "options": options.as_dict()}
    pins = getattr(module, "ENVIRONMENT", ())[1:]
    installed = {version: described(library, version, asked, tell, pins) for version in versions}
    known: dict[str, str] = {}
    for version, (_, configuration) in installed.items():
        if configuration.id in known:
            raise UsageError(f"{known[configuration.id]} and {version} are the same version: give different versions")
        known[configuration.id] = version
    report = run_sweep(
        [configuration for _, configuration in installed.values()],
        folder,
        rounds=rounds,
        seed=protocol.seed,
        control=control,
        time_limit_s=time_limit_s,
        retry_failed=retry_failed,
        wait=wait,
        show_progress=show_progress,
        interpreters={configuration.id: place.interpreter for place, configuration in installed.values()},
    )
    groups = _groups(folder, set(known))
    sides = tuple(
        Side(version, configuration, place, groups.get(configuration.id))
        for version, (place, configuration) in installed.items()
    )
    return Answer(sides, tuple(_compared(sides[0], side, effect, confidence) for side in sides[1:]), report)


def _groups(folder: Path, wanted: set[str]) -> dict[str, Group]:
    """The folder's recordings of these configurations, by id."""
    items = (item for item in folders.read_many(folder) if item.configuration.id in wanted)
    groups = {}
    for group in groups_of(items):
        if group.configuration.id in groups:
            raise UsageError(f"{folder} holds recordings of several machines: choose another --out")
        groups[group.configuration.id] = group
    return groups


def _compared(first: Side, side: Side, effect: float, confidence: float) -> Comparison | None:
    if not (first.numbers()["n"] and side.numbers()["n"]):
        return None
    comparison = compare_groups(first.group, side.group, effect, confidence)
    if comparison.command is None:
        return comparison
    # The configurations differ only in the version, which the `sweep` command cannot select.
    versions = (first.version, side.version)
    rounds = comparison.rounds_needed
    command = versions_command(first.place.library, versions, side.configuration, "rounds", rounds)
    return replace(comparison, command=command)
