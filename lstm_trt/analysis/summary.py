"""One row a configuration: the latency distribution in a dozen numbers.

Percentiles are order statistics (`inverted_cdf`: a latency that was really seen);
only the 1.5 x IQR rule for outliers uses linear quartiles, as the founding document
and every box plot do. Statistics use the trials after warm-up; `n` counts those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from fractions import Fraction

import numpy as np

from lstm_trt.store import Failure, Recording

PERCENTILES = {
    "median_us": Fraction("0.5"),
    "p90_us": Fraction("0.9"),
    "p99_us": Fraction("0.99"),
    "p999_us": Fraction("0.999"),
}


@dataclass(frozen=True)
class SummaryRow:
    """Latencies in microseconds; None where there is nothing to state.

    `std_us` has n - 1 in its denominator. `outliers` lie outside 1.5 x IQR on either
    side. `max_with_warmup_us` counts the warm-up trials too. With several rounds the
    trials are pooled, and the lists give each round's own median and maximum.
    """

    layers: int
    hidden: int
    sequence: int
    batch: int
    features: int
    directions: int
    runtime: str
    runtime_version: str
    device_name: str
    precision: str
    threads: int
    mode: str
    status: str
    n: int
    min_us: float | None
    mean_us: float | None
    std_us: float | None
    median_us: float | None
    p90_us: float | None
    p99_us: float | None
    p999_us: float | None
    max_us: float | None
    outliers: int | None
    max_with_warmup_us: float | None
    floor_us: float | None
    graph: bool
    device_clocks: str
    arrival: str
    trials: int
    warmup: int
    seed: int
    rounds: int
    round: int | None
    median_us_rounds: tuple[float, ...]
    max_us_rounds: tuple[float, ...]
    stage: str | None
    reason: str | None
    machine: str | None
    config_id: str

    def as_dict(self) -> dict:
        """JSON values."""
        plain = asdict(self)
        plain["median_us_rounds"] = list(self.median_us_rounds)
        plain["max_us_rounds"] = list(self.max_us_rounds)
        return plain


FIELDS = tuple(field.name for field in fields(SummaryRow))


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
        **{name: percentile(ordered, share) / 1e3 for name, share in PERCENTILES.items()},
        "max_us": float(ordered[-1]) / 1e3,
        "outliers": count_outliers(ordered),
    }


def summarize(items: Iterable[Recording | Failure], by_round: bool = False) -> list[SummaryRow]:
    """One row a configuration and machine, or one a round as well; sorted by shape, then runtime.

    Recordings of unlike machines are never pooled.
    """
    groups: dict[tuple, list[Recording]] = {}
    failures: dict[tuple, Failure] = {}
    for item in items:
        key = (item.configuration.id, _machine(item), item.round if by_round else None)
        if isinstance(item, Failure):
            failures.setdefault(key, item)
        else:
            groups.setdefault(key, []).append(item)
    measured = {key[0] for key in groups}
    rows = [_recorded(key, recordings) for key, recordings in groups.items()]
    # A configuration that failed in one round and ran in another is told by its recordings.
    rows += [_failed(key, failure) for key, failure in failures.items() if by_round or key[0] not in measured]
    return sorted(rows, key=lambda row: (*(getattr(row, name) for name in FIELDS[:11]), row.config_id, row.round or 0))


def _machine(item: Recording | Failure) -> str | None:
    return item.provenance.get("machine_fingerprint")


def _common(item: Recording | Failure, key: tuple) -> dict:
    config = item.configuration
    return {
        **config.workload.as_dict(),
        "runtime": config.runtime,
        "runtime_version": config.runtime_version,
        "device_name": config.device_name,
        "precision": config.options.precision,
        "threads": config.options.threads,
        "mode": config.mode,
        "graph": config.options.graph,
        "device_clocks": config.options.device_clocks,
        "arrival": config.protocol.arrival,
        "trials": config.protocol.trials,
        "warmup": config.protocol.warmup,
        "seed": config.protocol.seed,
        "round": key[2],
        "machine": key[1],
        "config_id": config.id,
    }


def _recorded(key: tuple, recordings: list[Recording]) -> SummaryRow:
    recordings = sorted(recordings, key=lambda recording: recording.round)
    samples = [recording.timed_ns for recording in recordings]
    floors = [r.provenance["floor_ns"] for r in recordings if r.provenance.get("floor_ns") is not None]
    return SummaryRow(
        **_common(recordings[0], key),
        **statistics(np.concatenate(samples)),
        status="ok",
        max_with_warmup_us=max(float(r.columns["latency_ns"].max()) for r in recordings) / 1e3,
        floor_us=min(floors) / 1e3 if floors else None,
        rounds=len(recordings),
        median_us_rounds=tuple(percentile(np.sort(sample), PERCENTILES["median_us"]) / 1e3 for sample in samples),
        max_us_rounds=tuple(float(sample.max()) / 1e3 for sample in samples),
        stage=None,
        reason=None,
    )


def _failed(key: tuple, failure: Failure) -> SummaryRow:
    nothing = dict.fromkeys(
        ("min_us", "mean_us", "std_us", *PERCENTILES, "max_us", "outliers", "max_with_warmup_us", "floor_us")
    )
    return SummaryRow(
        **_common(failure, key),
        **nothing,
        n=0,
        status="failed",
        rounds=0,
        median_us_rounds=(),
        max_us_rounds=(),
        stage=failure.stage,
        reason=failure.reason,
    )
