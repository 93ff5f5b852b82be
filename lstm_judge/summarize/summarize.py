"""Summary statistics of the latency, one row per configuration.

Percentiles and their intervals are order statistics (`inverted_cdf`), that is, latencies that
occurred; only the 1.5 x IQR rule for outliers uses linear quartiles, as box plots do. Statistics
use the trials after warm-up; `n` is their number.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from lstm_judge.answers import Answers
from lstm_judge.outcomes import SteadyState
from lstm_judge.outliers.answer import Cluster
from lstm_judge.outliers.search import search_outliers
from lstm_judge.read.labels import flat
from lstm_judge.read.rounds import Group, NoTrials, Round, facts_of, group_key, least_of_floor
from lstm_judge.read.runs import RunsSource, as_runs
from lstm_judge.statistics.dependence import independent_n
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.quantiles import (
    PERCENTILES,
    AskedPercentiles,
    Percentile,
    finite,
    mean_and_deviation,
    percentile,
    shares_of,
)
from lstm_judge.statistics.segments import not_judged
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_trt.config.configuration import PRECISIONS, Configuration
from lstm_trt.config.format import csv_text
from lstm_trt.config.libraries import pd
from lstm_trt.store import provenance
from lstm_trt.store.schema import Failure


@dataclass(frozen=True, kw_only=True)
class SummaryRow(AskedPercentiles):
    """Statistics of one configuration, latencies in us; None if not known. The fields are in the
    order of CSV and JSON.

    `std_us` has n - 1 in its denominator. `outliers`: trials outside 1.5 x IQR, on both sides.
    `max_with_warmup_us` includes the warm-up trials. With several rounds the trials are pooled;
    `median_us_rounds` and `max_us_rounds` are the values of each round.

    `_low` and `_high` are the 95 % interval of the percentile (order statistics, for any
    distribution), exact for independent trials; if those above it come in bursts, it is that of as
    many independent trials as they count for. None for a bound that does not exist at this number.
    *Other processes* differ by more than this interval; only several rounds show by how much.

    `parity_error`: relative difference of the outputs from those in float32 for the same inputs, by
    norm, before timing (in training: of the first loss); the largest of all rounds. None in a
    recording: not checked, for the reason `not_checked`, which older recordings lack.

    `below_floor`: whether the median of a round is below its roofline bound `floor_us`; None
    without one.

    `graph_captured`: whether a CUDA graph was timed; False with `graph` if it was refused.
    `not_alone`: number of the rounds during which other programs used the CPU. Both are None if not
    known. `clusters` and `steady_state` (the worst of the rounds) are None if they were not
    searched. `group` distinguishes the row from others of its source. For tables from elsewhere,
    fields that are not known, such as shape and runtime, are None. `percentiles`: those that were
    asked for, which the table shows instead of the others; CSV and JSON have both. `facts`: what
    recordings state besides (`store.provenance.Fact`), by column.
    """

    layers: int | None = None
    hidden: int | None = None
    sequence: int | None = None
    batch: int | None = None
    features: int | None = None
    directions: int | None = None
    runtime: str | None = None
    runtime_version: str | None = None
    device_name: str | None = None
    precision: str | None = None
    threads: int | None = None
    mode: str | None = None
    status: str
    n: int = 0
    min_us: float | None = None
    mean_us: float | None = None
    std_us: float | None = None
    median_us: float | None = None
    median_us_low: float | None = None
    median_us_high: float | None = None
    p90_us: float | None = None
    p90_us_low: float | None = None
    p90_us_high: float | None = None
    p99_us: float | None = None
    p99_us_low: float | None = None
    p99_us_high: float | None = None
    p999_us: float | None = None
    p999_us_low: float | None = None
    p999_us_high: float | None = None
    max_us: float | None = None
    outliers: int | None = None
    not_alone: int | None = None
    clusters: tuple[Cluster, ...] | None = ()
    steady_state: SteadyState | None = None
    max_with_warmup_us: float | None = None
    parity_error: float | None = None
    not_checked: str | None = None
    floor_us: float | None = None
    below_floor: bool | None = None
    graph: bool | None = None
    graph_captured: bool | None = None
    device_clocks: str | None = None
    arrival: str | None = None
    wait: str | None = None
    period_us: float | None = None
    pause_ms: float | None = None
    for_s: float | None = None
    trials: int | None = None
    warmup: int | None = None
    seed: int | None = None
    rounds: int = 0
    round: int | None = None
    median_us_rounds: tuple[float | None, ...] = ()
    max_us_rounds: tuple[float | None, ...] = ()
    stage: str | None = None
    reason: str | None = None
    machine: str | None = None
    config_id: str | None = None
    group: dict
    percentiles: tuple[Percentile, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict:
        """JSON values; periods and causes of clusters, which are not searched here, are left out."""
        row = super().as_dict()
        del row["facts"]
        row |= {name: self.facts.get(name) for name in OTHER_FACTS}
        for cluster in row["clusters"] or ():
            del cluster["period_ms"], cluster["hint"], cluster["causes"]
        return row


#: Columns of CSV and JSON that are fields of a row, and those of `SummaryRow.facts`.
FIELDS = tuple(
    column.name for column in fields(SummaryRow) if column.name not in ("percentiles", "facts")
)
OTHER_FACTS = tuple(
    fact.column for fact in provenance.columns().values() if fact.column not in FIELDS
)


class Summary(Answers):
    """Rows of configurations, or of their rounds; `str` gives the text table, `frame` all fields of
    `SummaryRow`."""

    @property
    def _columns(self) -> list[str]:
        asked = (each.as_dict() for row in self.answers for each in row.percentiles)
        return list(dict.fromkeys([*FIELDS, *OTHER_FACTS, *itertools.chain(*asked)]))

    def as_dict(self) -> list[dict]:
        """JSON values: an object per row, with the warnings."""
        return [{**row.as_dict(), "warnings": list(self.warnings)} for row in self.answers]

    def csv_text(self) -> str:
        """CSV with a header; lists of values per round are separated by spaces, other structures
        are JSON."""
        rows = []
        for row in self.as_dict():
            lists = {
                name: " ".join(map(str, row[name]))
                for name in ("median_us_rounds", "max_us_rounds")
            }
            others = {
                name: json.dumps(value)
                for name, value in row.items()
                if isinstance(value, list | dict)
            }
            rows.append({**row, **others, **lists})
        return csv_text(pd.DataFrame(rows, columns=self._columns, dtype=object))

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.as_dict(), columns=self._columns)


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
    if (
        by_round and runs.recordings
    ):  # groups have a failure only if all rounds failed, and without the round
        rows = [row for row in rows if row.status == "ok"]
        failures = [item for item in runs.recordings if isinstance(item, Failure)]
        last = {(*group_key(item)[:2], item.round): item for item in failures}
        for (_, machine, number), item in last.items():
            group = item.configuration.workload.group_fields(item.configuration.mode)
            rows.append(
                _failed(
                    item.configuration, group, NoTrials(item.stage, item.reason), machine, number
                )
            )
    missing = dict.fromkeys(
        f"no roofline bound: {group.floor_missing}" for group in runs if group.floor_missing
    )
    reasons: list[str | None] = []
    if clusters and any(
        row.n and row.clusters is None for row in rows
    ):  # asked again only if some were not judged
        reasons = [not_judged(group.rounds) for group in runs]
    unjudged = dict.fromkeys(
        f"clusters and steady state are not judged: {why}" for why in reasons if why
    )
    return Summary(
        runs,
        tuple(sorted(rows, key=_place) if runs.own else rows),
        (*runs.remarks, *missing, *unjudged),
    )


def summarize_groups(
    groups: Iterable[Group],
    by_round: bool = False,
    clusters: bool = True,
    shares: Sequence[Fraction] = (),
) -> list[SummaryRow]:
    """One row per group, in their order, or one per round."""
    parts: list[tuple[Group, tuple[Round, ...], int | None]] = []
    for group in groups:
        rounds = timed_rounds(group.rounds)
        whole = [(group, rounds, None)]
        parts += (
            [(group, (round_,), round_.round) for round_ in rounds]
            if by_round and rounds
            else whole
        )
    looked = {}
    for place, (_, rounds, _) in enumerate(parts):
        if clusters and rounds and not not_judged(rounds):
            looked[place] = tuple(Round.of(round_.timed_ns) for round_ in rounds)
    sizes = [sum(len(round_.latency_ns) for round_ in rounds) for rounds in looked.values()]
    found = dict(zip(looked, computed(_clusters, list(looked.values()), sizes), strict=True))
    rows = []
    for place, (group, rounds, number) in enumerate(parts):
        if rounds:
            rows.append(_recorded(group, rounds, number, found.get(place, (None, None)), shares))
        else:
            failure = group.failure or NoTrials(None, "no trials after warm-up")
            rows.append(_failed(group.configuration, group.group, failure, group.machine))
    return rows


#: Clusters and steady state of a configuration; None if they were not searched.
Found = tuple[tuple[Cluster, ...] | None, SteadyState | None]


def _clusters(rounds: Sequence[Round]) -> Found:
    """Clusters and steady state of a configuration."""
    found = search_outliers(rounds)
    return found.clusters, found.steady_state


def statistics_of(series: Trials, rounds: Sequence[Trials] = ()) -> dict:
    """Statistics of a series, by the names of a row; None for those above the range of a histogram.

    `rounds`: the processes of which it has the trials, if there are several.
    """
    found: dict[str, Any] = {
        name: finite(series.statistic(name)) for name in ("min_us", "mean_us", "max_us")
    }
    _, deviation_ns = mean_and_deviation(series.ordered_ns)
    found |= {
        "n": series.n,
        "std_us": deviation_ns and deviation_ns / 1e3,
        "outliers": series.outliers,
    }
    for each in _percentiles(series, rounds or (series,), PERCENTILES.values()):
        found |= each.as_dict()
    return found


def _percentiles(
    pooled: Trials, rounds: Sequence[Trials], shares: Iterable[Fraction]
) -> tuple[Percentile, ...]:
    """Percentiles, each with the interval of as many independent trials as those above it count
    for."""
    shares = tuple(shares)
    limits_ns = [percentile(pooled.ordered_ns, share) for share in shares]
    counted = independent_n(rounds, limits_ns) if shares else []
    return tuple(
        pooled.percentile(share, independent_n=independent)
        for share, independent in zip(shares, counted, strict=True)
    )


def _place(row: SummaryRow) -> tuple:
    """Sort key of rows: shape, then runtime, version and so on; None comes first."""
    shown = {**vars(row), "precision": row.precision and PRECISIONS.index(row.precision)}
    values = (shown[name] for name in FIELDS[: FIELDS.index("mode") + 1])
    workload = str(row.group.get("workload", ""))
    return (
        workload,
        *((value is not None, value) for value in values),
        row.config_id,
        row.round or 0,
    )


def _configured(configuration: Configuration | None) -> dict:
    """The fields of a row that come from the configuration."""
    if configuration is None:
        return {}
    found = {**configuration.workload.axes, "config_id": configuration.id}
    return found | {name: value for name, value in flat(configuration).items() if name in FIELDS}


def _recorded(
    group: Group,
    rounds: Sequence[Round],
    number: int | None,
    found: Found,
    shares: Sequence[Fraction],
) -> SummaryRow:
    trials = list(map(Trials.of, rounds))
    pooled = trials[0] if len(trials) == 1 else Trials.of(*rounds)
    stated = facts_of(rounds)
    of_floor = least_of_floor(rounds)
    return SummaryRow(
        **_configured(group.configuration),
        **statistics_of(pooled, trials),
        **{name: value for name, value in stated.items() if name in FIELDS},
        facts={name: stated[name] for name in OTHER_FACTS},
        percentiles=_percentiles(pooled, trials, shares),
        status="ok",
        clusters=found[0],
        steady_state=found[1],
        max_with_warmup_us=finite(max(round_.edge(1).most_ns for round_ in rounds) / 1e3),
        below_floor=None if of_floor is None else of_floor < 1,
        floor_us=min(
            (round_.floor_us for round_ in rounds if round_.floor_us is not None), default=None
        ),
        rounds=len(rounds),
        round=number,
        median_us_rounds=tuple(finite(part.median_us) for part in trials),
        max_us_rounds=tuple(finite(part.max_us) for part in trials),
        machine=rounds[0].machine,
        group=group.group,
    )


def _failed(
    configuration: Configuration | None,
    group: dict,
    failure: NoTrials,
    machine: str | None,
    number: int | None = None,
) -> SummaryRow:
    known = _configured(configuration) | vars(failure)
    return SummaryRow(**known, status="failed", round=number, machine=machine, group=group)
