"""What a summary tells of a configuration: one row, its fields in the order of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields


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
