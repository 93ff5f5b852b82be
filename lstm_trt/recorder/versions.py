"""Record one workload under several versions of a library in interleaved rounds; compare each with the first version.

Each version has its own environment (`environments.py`). A round records the workload once under each version, in a
new random order, in fresh processes of that environment's Python. The parity gate's reference is made in the current
environment for all versions, and so is the exported network of a shape. The version is part of a configuration's
identity, so all recordings share one folder, and existing recordings are not repeated.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lstm_trt.analysis.compare import COMPARED, Comparison, check_question, compare_groups
from lstm_trt.analysis.pairing import recorded_first
from lstm_trt.analysis.quantiles import DEFAULT_CONFIDENCE, EFFECT, ROUNDS
from lstm_trt.analysis.series import Series
from lstm_trt.analysis.text.comparison import comparison_text
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import RuntimeUnavailable, UsageError
from lstm_trt.config.format import microseconds, table
from lstm_trt.config.labels import versions_command
from lstm_trt.config.workload import Workload
from lstm_trt.machine.facts import installed_version
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.environments import Environment, Tell, described, normal
from lstm_trt.recorder.pool import check_limits
from lstm_trt.recorder.sweep import SweepReport, run_sweep
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import files, folders
from lstm_trt.store.samples import Group, groups_of

if TYPE_CHECKING:
    import pandas as pd

_VERSION = re.compile(r"\d[\w.+!-]*")

#: Columns of one version's latencies.
_NUMBERS = ("rounds", "n", "median_us", "p99_us", "max_us", "failure")


def _numbers(group: Group | None) -> dict:
    """`_NUMBERS`: in us, the median over rounds of each round's percentiles, and the overall maximum."""
    rounds = [Series(sample.timed_ns) for sample in (group.samples if group else ()) if len(sample.timed_ns)]
    if not rounds:
        failure = str(group.failure) if group and group.failure else None
        return {**dict.fromkeys(_NUMBERS), "rounds": 0, "n": 0, "failure": failure}
    names = ("median_us", "p99_us")
    median, p99 = (statistics.median_low(series.statistic(name) for series in rounds) for name in names)
    max_us = max(series.max_us for series in rounds)
    n = sum(series.n for series in rounds)
    return dict(zip(_NUMBERS, (len(rounds), n, median, p99, max_us, None), strict=True))


@dataclass(frozen=True)
class Answer:
    """The environment, configuration and recordings of each version, and each further version compared with the first.

    A group is None if an interrupted run has none of that version yet. A comparison is None for the first version, and
    if one of its versions has no recording.
    """

    library: str
    environments: tuple[Environment, ...]
    configurations: tuple[Configuration, ...]
    groups: tuple[Group | None, ...]
    comparisons: tuple[Comparison | None, ...]
    report: SweepReport = field(repr=False)

    @property
    def versions(self) -> list[str]:
        """The versions in the given order."""
        return [place.asked for place in self.environments]

    @property
    def names(self) -> list[str]:
        """Library and version."""
        return [f"{self.library} {version}" for version in self.versions]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per version: network, options, latencies, and the comparison with the first version."""
        import pandas as pd

        rows = []
        for version, configuration, group, comparison in zip(
            self.versions, self.configurations, self.groups, self.comparisons, strict=True
        ):
            plain = configuration.as_dict()
            row = {"library": self.library, "version": version, "runtime": plain["runtime"]} | plain["workload"]
            row |= {"mode": plain["mode"]}
            row |= {name: plain["options"][name] for name in ("precision", "threads", "device")}
            row |= {**_numbers(group), "against": self.versions[0] if comparison else None}
            rows.append(row | {name: getattr(comparison, name, None) for name in COMPARED})
        return pd.DataFrame(rows, dtype=object).drop(columns="kind")

    @property
    def not_in_turns(self) -> list[str]:
        """Versions with all rounds before, or all after, the first version's: the machine may have changed between."""
        compared = zip(self.versions, self.groups, self.comparisons, strict=True)
        first = self.groups[0]
        return [name for name, group, found in compared if found and first and group and recorded_first(first, group)]

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the comparison, as text."""
        if not self.not_in_turns:
            return []
        return [
            f"{', '.join(self.not_in_turns)} and {self.versions[0]} were recorded one after the other, not alternately,"
            " because the folder already contained recordings: a difference may be due to the machine; record again"
            " into a new --out folder"
        ]

    def as_dict(self) -> dict:
        """JSON values; a ratio is a version's latency divided by the first version's."""
        plain, nothing = self.configurations[0].as_dict(), {"median": None, "tail": None}
        return {
            "library": self.library,
            **{name: plain[name] for name in ("workload", "mode", "runtime", "device_name", "options", "protocol")},
            "versions": [
                {
                    "version": place.asked,
                    "config_id": configuration.id,
                    "environment": {"packages": place.packages, "reused": place.reused},
                    **_numbers(group),
                }
                for place, configuration, group in zip(self.environments, self.configurations, self.groups, strict=True)
            ],
            "comparisons": [
                {"a": self.versions[0], "b": version, **(found.as_dict() if found else nothing)}
                for version, found in zip(self.versions[1:], self.comparisons[1:], strict=True)
            ],
            "not_in_turns": self.not_in_turns,
            "warnings": self.warnings,
            "report": self.report.as_dict(),
        }

    def __str__(self) -> str:
        """One row per version, and the comparison of each version with the first."""
        configuration = self.configurations[0]
        options, protocol = configuration.options, configuration.protocol
        caption = f"{configuration.name} on {configuration.runtime}, {options.precision} on {options.device}"
        caption += f", {protocol.trials} trials {protocol.arrival_text}; ratios relative to {self.versions[0]}"
        header = ("version", "rounds", "n", "max us", "p99 us", "median us", "median ratio", "tail ratio")
        rows, blocks, reasons = [], [], []
        for row, name, comparison in zip(self.frame.to_dict("records"), self.names, self.comparisons, strict=True):
            reasons += [] if row["n"] else [(name, row["failure"] or "not recorded")]
            if row["n"]:
                times = [microseconds(row[column]) for column in ("max_us", "p99_us", "median_us")]
                ratios = [_ratio(row, column) for column in ("median", "tail")]
                rows.append((row["version"], str(row["rounds"]), str(row["n"]), *times, *ratios))
            else:
                rows.append((row["version"], reasons[-1][1]))
            if comparison is not None:
                blocks.append(comparison_text(comparison, self.names[0], name))
            elif rows[1:]:
                missing, reason = reasons[0] if reasons[0][0] == self.names[0] else reasons[-1]
                blocks.append(f"{name}: not compared: {missing}: {reason}")
        shown = table(header, rows, left=("version", "median ratio", "tail ratio"), drop=("n", "p99 us"))
        return "\n\n".join([f"{caption}\n{shown}", *blocks])

    def csv_text(self) -> str:
        """`frame` as CSV."""
        return self.frame.to_csv(index=False)


def _ratio(row: dict, name: str) -> str:
    """The comparison of the median or tail as a cell: verdict, ratio, and its interval if there is one."""
    verdict, ratio, low, high = (row[f"{name}{end}"] for end in ("", "_ratio", "_ratio_low", "_ratio_high"))
    cell = " ".join([*([verdict] if verdict else []), *([f"{ratio:.3f}"] if ratio else [])])
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
        with suppress(UsageError):  # one that cannot run this kind
            found = preparer.runtime(name)
            known |= {used: found for used in _libraries(found) - known.keys()}
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
    time_limit_s: float | None = None,
    effect: float = EFFECT,
    confidence: float = DEFAULT_CONFIDENCE,
    tell: Tell = lambda line: None,
    **sweep: Any,
) -> Answer:
    """Record one workload, such as an `LstmShape`, under several versions of a library; compare each with the first.

    Missing versions are installed; then all are recorded alternately, `rounds` times, into `out`. `mode` is by default
    the first of the workload, `protocol` that of its kind: of a workload of the literature, its document's.
    A run that was interrupted with Ctrl-C (`report.stopped`) resumes when called again. The other
    arguments, such as `control` and `show_progress`, are those of `run_sweep` and `compare_groups`; `confidence` holds
    for each comparison separately. Raises `UsageError` for an unknown library or version, and what `describe` and
    `run_sweep` raise.
    """
    library, versions = normal(library), check_versions(versions)
    preparer, module = preparer_of(workload), runtime_of(library, workload, runtime)
    check_question(effect, confidence)  # before anything is installed
    check_limits(time_limit_s, rounds)
    protocol, options, name = protocol or preparer.protocol(workload), options or Options(), runtime or module.NAME
    try:
        preparer.check(describe(workload, name, protocol, options, mode))
    except RuntimeUnavailable:
        if installed_version(library) is not None:
            raise  # another version would not run here either
    folder = files.make_folder(Path(out))
    asked = {"workload": workload.as_dict(), "mode": mode, "runtime": name}
    asked |= {"protocol": protocol.as_dict(), "options": options.as_dict()}
    pins = getattr(module, "ENVIRONMENT", ())[1:]
    places, configurations = zip(*(described(library, each, asked, tell, pins) for each in versions), strict=True)
    ids = [configuration.id for configuration in configurations]
    for place, found in enumerate(ids):
        if found in ids[:place]:
            same = f"{versions[ids.index(found)]} and {versions[place]}"
            raise UsageError(f"{same} are the same version: give different versions")
    interpreters = {found: place.interpreter for found, place in zip(ids, places, strict=True)}
    how = {"rounds": rounds, "seed": protocol.seed, "time_limit_s": time_limit_s, "interpreters": interpreters}
    report = run_sweep(configurations, folder, **how, **sweep)
    found = groups_of(item for item in folders.read_many(folder) if item.configuration.id in ids)
    groups = {group.configuration.id: group for group in found}
    if len(groups) < len(found):
        raise UsageError(f"{folder} holds recordings of several machines: choose another --out")
    comparisons: list[Any] = [None]
    for version, configuration in zip(versions[1:], configurations[1:], strict=True):
        sides: list[Any] = [groups.get(ids[0]), groups.get(configuration.id)]
        if not all(_numbers(side)["n"] for side in sides):
            comparisons.append(None)
            continue
        comparison = compare_groups(sides[0], sides[1], effect, confidence)
        if comparison.command is not None:  # the `sweep` command cannot select the version, which is all that differs
            both = (versions[0], version)
            command = versions_command(library, both, configuration, "rounds", comparison.rounds_needed)
            comparison = replace(comparison, command=command)
        comparisons.append(comparison)
    return Answer(library, places, configurations, tuple(map(groups.get, ids)), tuple(comparisons), report)
