"""What a summary tells of a configuration: one row, its fields in the order of tables.

One row a configuration: the latency distribution in a dozen numbers, with what they are known to.

Percentiles are order statistics (`inverted_cdf`: a latency that was really seen), and so are
their intervals; only the 1.5 x IQR rule for outliers uses linear quartiles, as the founding
document and every box plot do. Statistics use the trials after warm-up; `n` counts those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from lstm_trt.analysis.quantiles import PERCENTILES, count_outliers, interval, percentile
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import STAGES
from lstm_trt.store.samples import Group, Sample, groups_of
from lstm_trt.store.schema import Failure, Recording


@dataclass(frozen=True)
class SummaryRow:
    """Latencies in microseconds; None where there is nothing to state.

    `std_us` has n - 1 in its denominator. `outliers` lie outside 1.5 x IQR on either
    side. `max_with_warmup_us` counts the warm-up trials too. With several rounds the
    trials are pooled, and the lists give each round's own median and maximum.

    `_low` and `_high` are the exact 95 % interval of the percentile (order statistics, whatever
    the distribution; None for a bound that does not exist at this n). It says how well these
    trials know it, taken as independent. What it does not hold is what *other processes* would
    give: those differ by more than the interval is wide, and only rounds show by how much.

    `clusters` of late trials are objects with at least multiplier, count and share;
    `steady_state` is flat, warm-up, slowdown or no steady state (of rounds that are not alike,
    the worst); both are None where they were not looked for. `group` tells a row from the others
    of its source. Where latencies come from elsewhere the shape, the runtime and what else is not
    known of them are None.
    """

    layers: int | None
    hidden: int | None
    sequence: int | None
    batch: int | None
    features: int | None
    directions: int | None
    runtime: str | None
    runtime_version: str | None
    device_name: str | None
    precision: str | None
    threads: int | None
    mode: str | None
    status: str
    n: int
    min_us: float | None
    mean_us: float | None
    std_us: float | None
    median_us: float | None
    median_us_low: float | None
    median_us_high: float | None
    p90_us: float | None
    p90_us_low: float | None
    p90_us_high: float | None
    p99_us: float | None
    p99_us_low: float | None
    p99_us_high: float | None
    p999_us: float | None
    p999_us_low: float | None
    p999_us_high: float | None
    max_us: float | None
    outliers: int | None
    clusters: tuple[dict, ...] | None
    steady_state: str | None
    max_with_warmup_us: float | None
    floor_us: float | None
    graph: bool | None
    device_clocks: str | None
    arrival: str | None
    wait: str | None
    period_us: float | None
    pause_ms: float | None
    for_s: float | None
    trials: int | None
    warmup: int | None
    seed: int | None
    rounds: int
    round: int | None
    median_us_rounds: tuple[float, ...]
    max_us_rounds: tuple[float, ...]
    stage: str | None
    reason: str | None
    machine: str | None
    config_id: str | None
    group: dict

    def as_dict(self) -> dict:
        """JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


FIELDS = tuple(field.name for field in fields(SummaryRow))

#: Of a configuration, beside what comes before `status`.
PROTOCOL = (
    *("graph", "device_clocks", "arrival", "wait", "period_us", "pause_ms", "for_s", "trials", "warmup", "seed"),
    "config_id",
)


def microseconds(value_us: float) -> str:
    """As tables have it: a tenth of a microsecond, and none of five digits and more."""
    return f"{value_us:.1f}" if value_us < 10_000 else f"{value_us:.0f}"


def clusters_text(clusters: Sequence[dict], most: int | None = None) -> str:
    """`1.25x 2.0 %, 2.01x 1.0 %`, the most frequent first; what is left out beyond `most` is counted."""
    ordered = sorted(clusters, key=lambda one: -one["share"])
    told = ", ".join(f"{one['multiplier']:.2f}x {_percent(one['share'])}" for one in ordered[:most])
    left = len(ordered) - len(ordered[:most])
    return f"{told}, +{left}" if told and left else f"{left} cluster{'s' * (left > 1)}" if left else told or "none"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.1g} %"


def statistics(latency_ns: np.ndarray) -> dict:
    """The numbers of one sample of latencies in ns (any order, at least one)."""
    ordered = np.sort(latency_ns)
    mean = float(np.mean(ordered, dtype=np.float64))
    return {
        "n": len(ordered),
        "min_us": float(ordered[0]) / 1e3,
        "mean_us": mean / 1e3,
        "std_us": float(np.std(ordered.astype(np.float64), ddof=1)) / 1e3 if len(ordered) > 1 else None,
        **_percentiles(ordered),
        "max_us": float(ordered[-1]) / 1e3,
        "outliers": count_outliers(ordered),
    }


def _percentiles(ordered: np.ndarray) -> dict:
    told = {}
    for name, share in PERCENTILES.items():
        low, high = interval(ordered, share)
        told[name] = percentile(ordered, share) / 1e3
        told[f"{name}_low"] = None if low is None else low / 1e3
        told[f"{name}_high"] = None if high is None else high / 1e3
    return told


def summarize(items: Iterable[Recording | Failure], by_round: bool = False, clusters: bool = True) -> list[SummaryRow]:
    """One row a configuration and machine, or one a round as well; sorted by shape, then runtime.

    Recordings of unlike machines are never pooled; one that is given twice counts once. A
    configuration that failed in one round and ran in another is told by its recordings, unless
    each round has its row. To look for clusters and segments takes most of the time: without
    `clusters` neither is looked for.
    """
    items = list(items)
    rows = summarize_groups(groups_of(items), by_round, clusters)
    if by_round:  # groups tell a failure only where nothing was measured, and of no round
        rows = [row for row in rows if row.status == "ok"]
        failures = [item for item in items if isinstance(item, Failure)]
        marks = {(one.configuration.id, one.provenance.get("machine_fingerprint"), one.round): one for one in failures}
        for one in marks.values():
            told = Group(
                one.configuration.name,
                (),
                one.configuration.workload.group_fields(one.configuration.mode),
                one.configuration,
            )
            machine = one.provenance.get("machine_fingerprint")
            rows.append(_failed(told, one.stage, one.reason, machine, one.round))
    return sorted(rows, key=_place)


def summarize_groups(groups: Iterable[Group], by_round: bool = False, clusters: bool = True) -> list[SummaryRow]:
    """One row a group, in their order, or one for each round of it."""
    rows = []
    for group in groups:
        if group.failure is not None or not group.n:
            stage, reason = _failure(group.failure or "no trials after warm-up")
            rows.append(_failed(group, stage, reason, group.group.get("machine")))
        else:
            samples = [sample for sample in group.samples if len(sample.timed_ns)]
            parts = [([one], one.round) for one in samples] if by_round else [(samples, None)]
            rows += [_recorded(group, part, round, clusters) for part, round in parts]
    return rows


def _place(row: SummaryRow) -> tuple:
    """Rows of recordings by shape, then by what they ran on; an axis that means nothing comes first."""
    values = (getattr(row, name) for name in FIELDS[: FIELDS.index("mode")])
    return (*((value is not None, value) for value in values), row.config_id, row.round or 0)


def _failure(text: str) -> tuple[str | None, str]:
    """`failed at memory: too large` -> its stage and reason."""
    stage, colon, reason = text.removeprefix("failed at ").partition(": ")
    return (stage, reason) if colon and stage in STAGES else (None, text)


def _common(group: Group, machine: str | None, round: int | None) -> dict:
    told = dict.fromkeys((*FIELDS[: FIELDS.index("status")], *PROTOCOL))
    if group.configuration is not None:
        told |= _configured(group.configuration)
    return told | {"round": round, "machine": machine, "group": group.group}


def _configured(config: Configuration) -> dict:
    return {
        **config.workload.axes,
        "runtime": config.runtime,
        "runtime_version": config.runtime_version,
        "device_name": config.device_name,
        "precision": config.options.precision,
        "threads": config.options.threads,
        "mode": config.mode,
        "graph": config.options.graph,
        "device_clocks": config.options.device_clocks,
        "arrival": config.protocol.arrival,
        "wait": config.protocol.wait,
        "period_us": config.protocol.period_us,
        "pause_ms": config.protocol.pause_ms,
        "for_s": config.protocol.for_s,
        "trials": config.protocol.trials,
        "warmup": config.protocol.warmup,
        "seed": config.protocol.seed,
        "config_id": config.id,
    }


def _recorded(group: Group, samples: list[Sample], round: int | None, look: bool) -> SummaryRow:
    timed = [sample.timed_ns for sample in samples]
    floors = [sample.floor_us for sample in samples if sample.floor_us is not None]
    clusters, steady_state = _shape_of(samples) if look else (None, None)
    return SummaryRow(
        **_common(group, samples[0].machine, round),
        **statistics(np.concatenate(timed)),
        status="ok",
        clusters=clusters,
        steady_state=steady_state,
        max_with_warmup_us=max(float(sample.latency_ns.max()) for sample in samples) / 1e3,
        floor_us=min(floors) if floors else None,
        rounds=len(samples),
        median_us_rounds=tuple(percentile(np.sort(one), PERCENTILES["median_us"]) / 1e3 for one in timed),
        max_us_rounds=tuple(float(one.max()) / 1e3 for one in timed),
        stage=None,
        reason=None,
    )


def _shape_of(samples: list[Sample]) -> tuple[tuple[dict, ...], str | None]:
    """Clusters and steady-state class; without periods and causes, which are not looked for here."""
    from lstm_trt.analysis.outliers import quick

    seen = quick(samples).as_dict()
    unasked = ("period_ms", "causes")
    clusters = ({name: one[name] for name in one if name not in unasked} for one in seen["clusters"])
    return tuple(clusters), seen["steady_state"]


def _failed(group: Group, stage: str | None, reason: str, machine: str | None, round: int | None = None) -> SummaryRow:
    bounds = [f"{name}_{side}" for name in PERCENTILES for side in ("low", "high")]
    nothing = dict.fromkeys(
        ("min_us", "mean_us", "std_us", *PERCENTILES, *bounds, "max_us", "outliers", "max_with_warmup_us", "floor_us")
    )
    return SummaryRow(
        **_common(group, machine, round),
        **nothing,
        n=0,
        status="failed",
        clusters=(),
        steady_state=None,
        rounds=0,
        median_us_rounds=(),
        max_us_rounds=(),
        stage=stage,
        reason=reason,
    )
