"""Record one workload under several versions of a library in interleaved rounds; compare each with
the first version.

Each version has its own environment (`environments.py`). A round records the workload once under
each version, in a new random order, in fresh processes of that environment's Python. The parity
gate's reference is made in the current environment for all versions, and so is the exported network
of a shape. The version is part of a configuration's identity, so all recordings share one folder,
and existing recordings are not repeated.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from lstm_judge import columns
from lstm_judge.compare.answer import NOTHING, Comparison, Question
from lstm_judge.compare.compare import compare_groups
from lstm_judge.compare.pairing import recorded_first
from lstm_judge.compare.text import comparison_text
from lstm_judge.environments import Environment, Tell, described
from lstm_judge.read.frames import numeric
from lstm_judge.read.labels import versions_command
from lstm_judge.read.rounds import Group, groups_of
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, EFFECT, ROUNDS
from lstm_judge.statistics.trials import trials_of
from lstm_judge.summarize import text as summary
from lstm_judge.summarize.summarize import summarize_groups
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import RuntimeUnavailable, UsageError, nearest
from lstm_trt.config.fields import as_list
from lstm_trt.config.libraries import pd
from lstm_trt.config.workload import Workload
from lstm_trt.machine.facts import installed_version
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import check_limits
from lstm_trt.recorder.report import SweepReport
from lstm_trt.recorder.sweep import run_sweep
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import files, folders

_VERSION = re.compile(r"\d[\w.+!-]*")


def _row(place: Environment, identity: str, group: Group | None) -> dict:
    """JSON values of one version; in us the median over rounds of each round's percentiles, and the
    largest maximum."""
    rounds = trials_of(group) if group else ()
    medians: dict[str, float | None] = dict.fromkeys(("median_us", "p99_us"))
    if rounds:
        for name in medians:
            medians[name] = statistics.median_low(series.statistic(name) for series in rounds)
    return {
        "version": place.asked,
        "config_id": identity,
        "environment": {"packages": place.packages, "reused": place.reused},
        "rounds": len(rounds),
        "n": sum(series.n for series in rounds),
        **medians,
        "max_us": max((series.max_us for series in rounds), default=None),
        "failure": str(group.failure) if group and group.failure else None,
    }


@dataclass(frozen=True)
class Answer:
    """What was recorded under each version of a library, and each further version compared with the
    first.

    `first` is the version that the others are compared with, `configuration` its configuration.
    `versions`: JSON values of each. `groups`: version -> its recordings; an interrupted run may
    have none of some. `comparisons`: further version -> its comparison, None if it or the first has
    no trials.
    """

    library: str
    first: str
    configuration: Configuration
    versions: list[dict]
    groups: dict[str, Group]
    comparisons: dict[str, Comparison | None]
    report: SweepReport = field(repr=False)

    @property
    def not_in_turns(self) -> list[str]:
        """Versions with all rounds before, or all after, the first version's: the machine may have
        changed between."""
        return [
            version
            for version, found in self.comparisons.items()
            if found and found.b.rounds > 1
            if recorded_first(self.groups[self.first], self.groups[version])
        ]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per version: network, options, latencies, and the comparison with the first
        version."""
        plain = self.configuration.as_dict()
        shared = {
            "library": self.library,
            "version": None,
            "runtime": plain["runtime"],
            **plain["workload"],
            "mode": plain["mode"],
            **{name: plain["options"][name] for name in ("precision", "threads", "device")},
        }
        rows = []
        for row in self.versions:
            comparison = self.comparisons.get(row["version"])
            plain = NOTHING if comparison is None else comparison.as_dict()
            rows.append(
                {
                    **shared,
                    **row,
                    "against": self.first if comparison else None,
                    **columns.row(plain, columns.CHANGES),
                }
            )
        frame = pd.DataFrame(rows, dtype=object)  # whole numbers stay so
        return numeric(frame.drop(columns=["kind", "config_id", "environment"]))

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the comparison, as text."""
        return [
            f"{version} and {self.first} were recorded one after the other, not alternately: a"
            " difference may be due to the machine; record again into a new --out folder"
            for version in self.not_in_turns
        ]

    def as_dict(self) -> dict:
        """JSON values; a ratio is a version's latency divided by the first version's."""
        plain = self.configuration.as_dict()
        names = ("workload", "mode", "runtime", "device_name", "options", "protocol")
        return {
            "library": self.library,
            "versions": self.versions,
            "not_in_turns": self.not_in_turns,
            "warnings": self.warnings,
            **{name: plain[name] for name in names},
            "comparisons": [
                self._compared(version, found) for version, found in self.comparisons.items()
            ],
            "report": self.report.as_dict(),
        }

    def _compared(self, version: str, comparison: Comparison | None) -> dict:
        """JSON values of a comparison, whose sides state their version."""
        found = NOTHING if comparison is None else comparison.as_dict()
        return {
            **found,
            "a": {"version": self.first, **(found["a"] or {})},
            "b": {"version": version, **(found["b"] or {})},
        }

    def __str__(self) -> str:
        """The summary of each version, and the comparison of each further one with the first."""
        protocol = self.configuration.protocol
        rows = []
        for row in summarize_groups(self.groups.values()):
            runtime = f"{self.library} {row.configuration['runtime_version']}"
            rows.append(replace(row, configuration={**row.configuration, "runtime": runtime}))
        blocks = [
            f"{self.configuration.title} on {self.configuration.options.device},"
            f" {protocol.trials} trials {protocol.arrival_text}\n{summary.text(rows)}"
        ]
        missing = {
            row["version"]: row["failure"] or "not recorded"
            for row in self.versions
            if not row["n"]
        }
        for version, found in self.comparisons.items():
            name = f"{self.library} {version}"
            if found:
                blocks.append(comparison_text(found, f"{self.library} {self.first}", name))
            else:
                lacking = self.first if self.first in missing else version
                why = f"{self.library} {lacking}: {missing.get(lacking)}"
                blocks.append(f"{name}: not compared: {why}")
        return "\n\n".join(blocks)


def runtime_of(library: str, workload: Workload, runtime: str | None = None) -> Any:
    """The runtime of the workload's kind that uses a library, the first of several.

    Raises `UsageError` if none uses it.
    """
    preparer = preparer_of(workload)
    known: dict[str, Any] = {}
    if runtime is not None:
        found = preparer.runtime(runtime)
        if library not in _libraries(found):
            raise UsageError(f"{runtime} uses {found.DISTRIBUTION}, not {library}: omit --runtime")
        return found
    for name in preparer.entries():
        with suppress(UsageError):  # one that cannot run this kind
            found = preparer.runtime(name)
            known |= {used: found for used in _libraries(found) - known.keys()}
    if library not in known:
        raise UsageError(
            f"no runtime uses the library {library}{nearest(library, known)}: choose from"
            f" {', '.join(sorted(known))}"
        )
    return known[library]


def _libraries(runtime: Any) -> Set[str]:
    """The packages that install what a runtime uses; this one has no other version to install
    beside itself."""
    used = getattr(runtime, "DISTRIBUTIONS", (runtime.DISTRIBUTION,))
    return {*map(canonicalize_name, used)} - {"lstm-trt"}


def record_versions(  # noqa: PLR0913
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
    effect: float = EFFECT,
    confidence: float = DEFAULT_CONFIDENCE,
    tell: Tell = lambda line: None,
    **sweep: Any,
) -> Answer:
    """Record one workload, such as an `LstmShape`, under several versions of a library; compare
    each with the first.

    Missing versions are installed; then all are recorded alternately, `rounds` times, into `out`.
    `mode` is by default the first of the workload, `protocol` that of its kind: of a workload of
    the literature, its document's. A run that was interrupted with Ctrl-C (`report.stopped`)
    resumes when called again. The other arguments, such as `control` and `show_progress`, are those
    of `run_sweep` and `compare_groups`; `confidence` holds for each comparison separately. Raises
    `UsageError` for an unknown library or version, and what `describe` and `run_sweep` raise.
    """
    library = canonicalize_name(library)
    versions = _distinct(versions)
    preparer = preparer_of(workload)
    module = runtime_of(library, workload, runtime)
    name = runtime or module.NAME
    protocol = protocol or preparer.protocol(workload)
    options = options or Options()
    question = Question(effect, confidence)  # refused before anything is installed
    check_limits(sweep.get("time_limit_s"), rounds)
    # What is not installed here may run elsewhere.
    elsewhere: Any = RuntimeUnavailable if installed_version(library) is None else ()
    with suppress(elsewhere):
        preparer.check(describe(workload, name, protocol, options, mode))

    folder = files.make_folder(Path(out))
    asked = {
        "workload": workload.as_dict(),
        "mode": mode,
        "runtime": name,
        "protocol": protocol.as_dict(),
        "options": options.as_dict(),
    }
    pins = getattr(module, "ENVIRONMENT", ())[1:]
    sides = [described(library, version, asked, tell, pins) for version in versions]
    places = _by_configuration(sides)
    configurations = [configuration for _, configuration in sides]
    report = run_sweep(
        configurations,
        folder,
        rounds=rounds,
        seed=protocol.seed,
        interpreters={identity: place.interpreter for identity, place in places.items()},
        **sweep,
    )
    groups = _recorded(folder, places)
    rows = [_row(place, identity, groups.get(place.asked)) for identity, place in places.items()]
    return Answer(
        library,
        versions[0],
        configurations[0],
        rows,
        groups,
        _comparisons(library, versions, groups, question, rounds),
        report,
    )


def _comparisons(
    library: str,
    versions: Sequence[str],
    groups: Mapping[str, Group],
    question: Question,
    rounds: int,
) -> dict[str, Comparison | None]:
    """Further version -> its comparison with the first, None without trials of both."""
    comparisons: dict[str, Comparison | None] = {}
    for version in versions[1:]:
        first = groups.get(versions[0])
        group = groups.get(version)
        comparisons[version] = None
        if first and group and first.n and group.n:
            found = compare_groups(first, group, question)
            if found.command:  # that of `sweep` cannot select the version
                command = versions_command(
                    library,
                    (versions[0], version),
                    group.configuration,
                    "rounds",
                    found.rounds_needed or max(rounds, ROUNDS),
                )
                found = replace(found, command=command)
            comparisons[version] = found
    return comparisons


def _distinct(versions: Sequence[str]) -> list[str]:
    """The versions to compare, checked before anything is installed."""
    distinct = list(dict.fromkeys(as_list(versions)))
    for version in distinct:
        if not _VERSION.fullmatch(version):
            raise UsageError(
                f"{version!r} is not a version: write it as in pip, for example 1.20.1"
            )
    if len(distinct) < 2:
        raise UsageError(f"give at least two different versions to compare, not {len(distinct)}")
    return distinct


def _by_configuration(
    sides: Sequence[tuple[Environment, Configuration]],
) -> dict[str, Environment]:
    """Configuration id -> the environment that records it."""
    places: dict[str, Environment] = {}
    for place, configuration in sides:
        other = places.setdefault(configuration.id, place)
        if other is not place:
            raise UsageError(
                f"{other.asked} and {place.asked} are the same version: give different versions"
            )
    return places


def _recorded(folder: Path, places: Mapping[str, Environment]) -> dict[str, Group]:
    """Version -> what was recorded of it."""
    groups: dict[str, Group] = {}
    items = (item for item in folders.read_many(folder) if item.configuration.id in places)
    for group in groups_of(items):
        version = places[group.configuration.id].asked
        if version in groups:
            raise UsageError(f"{folder} holds recordings of several machines: choose another --out")
        groups[version] = group
    return groups
