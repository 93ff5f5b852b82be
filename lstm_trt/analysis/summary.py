"""One row a configuration: the latency distribution in a dozen numbers, with what they are known to.

Percentiles are order statistics (`inverted_cdf`: a latency that was really seen), and so are
their intervals; only the 1.5 x IQR rule for outliers uses linear quartiles, as the founding
document and every box plot do. Statistics use the trials after warm-up; `n` counts those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from lstm_trt.analysis.quantiles import interval
from lstm_trt.analysis.summary_rows import FIELDS, PROTOCOL, SummaryRow
from lstm_trt.configuration import Configuration
from lstm_trt.errors import STAGES
from lstm_trt.samples import Group, Sample, groups_of, literature_words
from lstm_trt.store import Failure, Recording

PERCENTILES = {
    "median_us": Fraction("0.5"),
    "p90_us": Fraction("0.9"),
    "p99_us": Fraction("0.99"),
    "p999_us": Fraction("0.999"),
}


def percentile(sorted_values: np.ndarray, share: Fraction) -> float:
    """The order statistic at rank ceil(n share): the smallest value that this share of the trials does not exceed.

    The rank is exact. `numpy.percentile(..., 99.9, method="inverted_cdf")` computes it in
    floating point and gives the largest of 1000 values where the 999th is right.
    """
    rank = math.ceil(len(sorted_values) * share)
    return float(sorted_values[max(rank, 1) - 1])


def count_outliers(values: np.ndarray) -> int:
    """Values outside 1.5 x IQR of the quartiles, both sides, numpy's linear quartiles."""
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.count_nonzero((values < low - reach) | (values > high + reach)))


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
            told = Group(one.configuration.name, (), literature_words(one.configuration), one.configuration)
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
    """Rows of recordings by shape, then by what they ran on."""
    return (*(getattr(row, name) for name in FIELDS[:11]), row.config_id, row.round or 0)


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
        **config.shape.as_dict(),
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
