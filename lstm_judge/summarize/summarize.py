"""Summary statistics of the latency, one row per configuration.

Percentiles and their intervals are order statistics (`inverted_cdf`), that is, latencies that
occurred; only the 1.5 x IQR rule for outliers uses linear quartiles, as box plots do. Statistics
use the trials after warm-up; `n` is their number.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lstm_judge import columns
from lstm_judge.answers import Answers
from lstm_judge.outcomes import SteadyState
from lstm_judge.outliers.answer import Cluster
from lstm_judge.outliers.search import search_outliers
from lstm_judge.read.labels import LEFT_OUT, flat
from lstm_judge.read.rounds import Group, NoTrials, Round, facts_of, group_key, least_of_floor
from lstm_judge.read.runs import Runs, RunsSource, as_runs
from lstm_judge.statistics.dependence import independent_n
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.quantiles import PERCENTILES, Percentile, finite, percentile, shares_of
from lstm_judge.statistics.segments import not_judged
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_trt.config.configuration import PRECISIONS, Configuration
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import csv_text
from lstm_trt.config.libraries import pd
from lstm_trt.store.schema import Failure


def _names_at(level: str) -> tuple[str, ...]:
    """The names of the columns at a level of the JSON."""
    places = (path.partition(".") for path in columns.SUMMARY.values())
    return tuple(name for at, _, name in places if at == level)


#: The columns that come from the configuration, from the trials (properties of `Trials`), and from
#: what recordings state (`store.provenance.Fact`).
CONFIGURED = _names_at("configuration")
STATISTICS = _names_at("statistics")
FACTS = _names_at("facts")

#: The columns by which rows are sorted: shape, then runtime, version and so on.
SORTED_BY = CONFIGURED[: CONFIGURED.index("mode") + 1]


@dataclass(frozen=True)
class RoundsOfRow(JsonFields):
    """The number of rounds that a row pools, and the median and maximum of each."""

    count: int = 0
    median_us: tuple[float | None, ...] = ()
    max_us: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Floor(JsonFields):
    """The roofline bound, and whether the median of a round is `below` it."""

    us: float
    below: bool


@dataclass(frozen=True, kw_only=True)
class SummaryRow(JsonFields):
    """One configuration, or one of its rounds; `columns.SUMMARY` has the places of its columns.

    `group` distinguishes the row from others of its source. `configuration`: by column, None for
    what is not known, such as the shape and runtime of a table from elsewhere. `statistics`: by
    column, in us; `std_us` has n - 1 in its denominator, `outliers` are trials outside 1.5 x IQR,
    on both sides. With several rounds the trials are pooled. `max_with_warmup_us` includes the
    warm-up trials. A failed row has no statistics, but the reason as `failure`.

    `percentiles`: by key (`median`, `p999`), those that were `asked` for as well, which the text
    shows instead of the others. Their interval, of 95 %, is exact for independent trials, of any
    distribution; if those above it come in bursts, it is that of as many independent trials as they
    count for. A bound that does not exist at this number is None. *Other processes* differ by more
    than this interval; only several rounds show by how much.

    `floor`: None without a roofline bound. `clusters` and `steady_state` (the worst of the rounds)
    are None if they were not searched. `facts`: what recordings state, by column; None if not
    known. `parity_error`: relative difference of the outputs from those in float32 for the same
    inputs, by norm, before timing (in training: of the first loss); the largest of all rounds.
    `not_checked`: why there is none, which older recordings lack. `graph_captured`: whether a CUDA
    graph was timed; False with `graph` if it was refused. `not_alone`: number of the rounds during
    which other programs used the CPU.
    """

    group: dict
    machine: str | None
    configuration: dict[str, Any]
    round: int | None = None
    n: int = 0
    statistics: dict[str, float | None] = field(default_factory=dict)
    percentiles: dict[str, Percentile] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    max_with_warmup_us: float | None = None
    rounds: RoundsOfRow = RoundsOfRow()
    clusters: tuple[Cluster, ...] | None = ()
    steady_state: SteadyState | None = None
    floor: Floor | None = None
    facts: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(FACTS))
    failure: NoTrials | None = None

    def __repr__(self) -> str:
        return f"<SummaryRow: {self.group}, {self.n} trials, {self.status}>"

    @property
    def status(self) -> str:
        """`ok` or `failed`."""
        return "ok" if self.failure is None else "failed"

    def as_dict(self) -> dict[str, Any]:
        """JSON values, without the periods and causes of clusters, which are not searched here."""
        found = super().as_dict()
        del found["asked"]
        if self.failure is not None:
            found |= {"statistics": None, "percentiles": None}
        for cluster in found["clusters"] or ():
            del cluster["period_ms"], cluster["hint"], cluster["causes"]
        return {**found, "status": self.status}

    @property
    def flat(self) -> dict[str, Any]:
        """Its values in CSV and frames, by column."""
        paths = dict(columns.SUMMARY)
        for key in self.asked:
            paths |= columns.percentile_columns(key)
        paths |= columns.within("configuration", *self.configuration)
        return columns.row(self.as_dict(), paths)


class Summary(Answers[SummaryRow]):
    """Rows of configurations, or of their rounds; `str` gives the text table, `frame` the columns
    of `columns.SUMMARY` and the percentiles that were asked for."""

    def as_dict(self) -> list[dict]:
        """JSON values: an object per row, with the warnings."""
        return [{**row.as_dict(), "warnings": list(self.warnings)} for row in self.answers]

    def _rows(self) -> Iterator[dict[str, Any]]:
        return (row.flat for row in self.answers)

    def csv_text(self) -> str:
        """CSV with a header; lists of values per round are separated by spaces, other structures
        are JSON."""
        rows = list(self._rows())
        for row in rows:
            for name in ("median_us_rounds", "max_us_rounds"):
                row[name] = " ".join(map(str, row[name]))
            for name, value in row.items():
                if isinstance(value, list | dict):
                    row[name] = json.dumps(value)
        return csv_text(pd.DataFrame(rows, dtype=object))


def summarize(
    runs: RunsSource,
    by_round: bool = False,
    clusters: bool = True,
    percentiles: Iterable[str | float] = (),
) -> Summary:
    """One row per configuration and machine, or per round; recordings are sorted by shape, then
    runtime.

    `runs`: the result of `load`, or a path, recordings or groups. A configuration that failed in
    some rounds only is represented by its recordings, unless there is a row per round. Most of the
    time is spent on clusters and segments; `clusters=False` leaves them out. `percentiles`: those
    to show, in percent, instead of 50, 90, 99 and 99.9; raises `UsageError` for less than 50 or 100
    and more.
    """
    shares = shares_of(percentiles)
    runs = as_runs(runs)
    rows = summarize_groups(runs.groups, by_round, clusters, shares)
    if by_round and runs.recordings:  # groups have a failure only if all of their rounds failed
        rows = [row for row in rows if row.failure is None] + _failed_rounds(runs)
    warnings = dict.fromkeys(
        f"no roofline bound: {group.floor_missing}" for group in runs if group.floor_missing
    )
    if clusters:
        for group in runs:
            why = not_judged(group.rounds)
            if why is not None:
                warnings[f"clusters and steady state are not judged: {why}"] = None
    if runs.own:
        rows.sort(key=_place)
    return Summary(runs, tuple(rows), (*runs.remarks, *warnings))


def summarize_groups(
    groups: Iterable[Group],
    by_round: bool = False,
    clusters: bool = True,
    shares: Sequence[Fraction] = (),
) -> list[SummaryRow]:
    """One row per group, in their order, or one per round."""
    rows = []
    judged: dict[int, list[Round]] = {}
    for group in groups:
        rounds = timed_rounds(group.rounds)
        if not rounds:
            rows.append(_failed(group))
            continue
        for part in [(round_,) for round_ in rounds] if by_round else [rounds]:
            if clusters and not_judged(part) is None:
                judged[len(rows)] = [Round.of(round_.timed_ns) for round_ in part]
            rows.append(_recorded(group, part, part[0].round if by_round else None, shares))
    found = computed(_clusters, list(judged.values()), [rows[place].n for place in judged])
    for place, (of_row, steady_state) in zip(judged, found, strict=True):
        rows[place] = replace(rows[place], clusters=of_row, steady_state=steady_state)
    return rows


def _clusters(rounds: Sequence[Round]) -> tuple[tuple[Cluster, ...], SteadyState]:
    found = search_outliers(rounds)
    return found.clusters, found.steady_state


def percentiles_of(
    pooled: Trials, rounds: Sequence[Trials], shares: Iterable[Fraction] = PERCENTILES.values()
) -> dict[str, Percentile]:
    """Percentiles by key, each with the interval of as many independent trials as those above it
    count for."""
    shares = tuple(shares)
    counted = independent_n(rounds, [percentile(pooled.ordered_ns, share) for share in shares])
    found = {}
    for share, independent in zip(shares, counted, strict=True):
        each = pooled.percentile(share, independent_n=independent)
        found[each.key] = each
    return found


def _place(row: SummaryRow) -> tuple:
    """Sort key of rows: shape, then runtime, version and so on; None comes first."""
    shown = dict(row.configuration)
    if shown["precision"] is not None:
        shown["precision"] = PRECISIONS.index(shown["precision"])
    return (
        str(row.group.get("workload", "")),
        *((shown[name] is not None, shown[name]) for name in SORTED_BY),
        shown.get("beside", ""),
        shown["config_id"],
        row.round or 0,
    )


def _configured(configuration: Configuration | None) -> dict[str, Any]:
    """What the configuration says, by column."""
    if configuration is None:
        return dict.fromkeys(CONFIGURED)
    known = configuration.workload.axes | flat(configuration)
    known["config_id"] = configuration.id
    names = [*CONFIGURED, *(name for name in LEFT_OUT if name in known)]
    return {name: known.get(name) for name in names}


def _recorded(
    group: Group, rounds: Sequence[Round], number: int | None, shares: Sequence[Fraction]
) -> SummaryRow:
    """The row of these rounds, without clusters."""
    trials = list(map(Trials.of, rounds))
    pooled = trials[0] if len(trials) == 1 else Trials.of(*rounds)
    asked = percentiles_of(pooled, trials, shares) if shares else {}
    of_floor = least_of_floor(rounds)
    floors_us = [round_.floor_us for round_ in rounds if round_.floor_us is not None]
    return SummaryRow(
        group=group.group,
        machine=rounds[0].machine,
        round=number,
        configuration=_configured(group.configuration),
        n=pooled.n,
        statistics={name: finite(getattr(pooled, name)) for name in STATISTICS},
        percentiles=percentiles_of(pooled, trials) | asked,
        asked=tuple(asked),
        max_with_warmup_us=finite(max(round_.edge(1).most_ns for round_ in rounds) / 1e3),
        rounds=RoundsOfRow(
            count=len(rounds),
            median_us=tuple(finite(part.median_us) for part in trials),
            max_us=tuple(finite(part.max_us) for part in trials),
        ),
        clusters=None,
        floor=Floor(min(floors_us), of_floor < 1) if floors_us and of_floor is not None else None,
        facts=facts_of(rounds),
    )


def _failed(group: Group, number: int | None = None) -> SummaryRow:
    return SummaryRow(
        group=group.group,
        machine=group.machine,
        round=number,
        configuration=_configured(group.configuration),
        failure=group.failure or NoTrials(None, "no trials after warm-up"),
    )


def _failed_rounds(runs: Runs) -> list[SummaryRow]:
    """A row for each round that failed, of the last attempt."""
    last = {}
    for item in runs.recordings:
        if isinstance(item, Failure):
            configuration = item.configuration
            key = group_key(item)
            group = Group(
                "",
                (),
                configuration.workload.group_fields(configuration.mode),
                configuration,
                NoTrials(item.stage, item.reason),
                key,
            )
            last[key[:2], item.round] = _failed(group, item.round)
    return list(last.values())
