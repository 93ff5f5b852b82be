"""What was found of the outliers, in words."""

from __future__ import annotations

from collections.abc import Sequence

from lstm_trt.analysis.causes import Cause
from lstm_trt.analysis.outliers_values import Cluster, Outliers, Round

NAMES = {
    "involuntary_switches": "involuntary context switches",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "steal_ns": "CPU time stolen by the host",
    "throttled_periods": "CPU throttling",
}
SEGMENTS_TOLD = 5
#: A cause that fewer of a cluster's trials have explains it in part only.
MOSTLY = 0.5
#: Fast trials and a segment are of one state where their medians differ by at most this share.
SAME_STATE = 0.02


def words(outliers: Outliers, name: str = "") -> str:
    """The answer as lines of text for a terminal."""
    told = [f"{name}:"] if name else []
    rounds = outliers.rounds
    over = f" in {len(rounds)} rounds" if len(rounds) > 1 else ""
    told.append(
        f"{outliers.n} trials{over}, median {_time(outliers.median_us)};"
        f" {outliers.outliers} outside 1.5 x IQR ({_percent(outliers.outliers / outliers.n)})"
    )
    told += _order(rounds)
    if outliers.clusters:
        told.append(f"{_count(len(outliers.clusters), 'cluster')}, as multiples of the local median:")
        told += [f"  {_cluster(one, outliers)}" for one in outliers.clusters]
        told += _uneven(outliers)
    else:
        told.append("No cluster of outliers.")
    if outliers.tail is not None:
        tail = outliers.tail
        what = "Besides, a smooth tail" if outliers.clusters else "A smooth tail"
        if tail.count < 5:
            what = "Besides, stragglers" if outliers.clusters else "Stragglers"
        line = f"{what}: {_count(tail.count, 'trial')}, {_percent(tail.share)}, from {tail.start:.2f}x"
        line += f" to {tail.stop:.2f}x" if tail.count > 1 else ""
        line += f", {tail.shape}" if tail.count >= 5 else ""
        line += _every(tail.period_ms, outliers) + (f", {_causes(tail.causes)}" if tail.causes else "")
        told.append(line)
    if outliers.clusters and outliers.period_by is not None and not outliers.causes_counted:
        told.append("No causes were counted here: recordings of this lab count switches, faults, steal and throttling.")
    return "\n".join(told)


def clusters_line(clusters: Sequence[Cluster]) -> str:
    """`1.25x 2.0 %, 2.01x 1.0 %`, or `none`."""
    return ", ".join(f"{one.multiplier:.2f}x {_percent(one.share)}" for one in clusters) or "none"


def _cluster(cluster: Cluster, outliers: Outliers) -> str:
    told = f"{cluster.multiplier:.2f}x ({_time(cluster.time_us)}): {_count(cluster.count, 'trial')},"
    told += f" {_percent(cluster.share)} ({_number(cluster.share_low)} to {_percent(cluster.share_high)})"
    told += _every(cluster.period_ms, outliers) + _level_elsewhere(cluster, outliers.rounds)
    if outliers.period_by is None:
        return told
    return f"{told}, {_causes(cluster.causes)}"


def _level_elsewhere(cluster: Cluster, rounds: Sequence[Round]) -> str:
    """Of fast trials, the longest stretch whose level is theirs: short visits to a state in which the machine stays."""
    if cluster.multiplier >= 1:
        return ""
    near = [
        (segment.stop - segment.start, segment, one.round)
        for one in rounds
        for segment in one.segments
        if abs(segment.median_ns / 1e3 / cluster.time_us - 1) <= SAME_STATE
    ]
    if not near:
        return ""
    _, segment, number = max(near, key=lambda found: found[0])
    of = f" of round {number}" if len(rounds) > 1 else ""
    return f", the level of trials {segment.start + 1} to {segment.stop}{of} as well"


def _every(period_ms: float | None, outliers: Outliers) -> str:
    if period_ms is None:
        return ""
    by = "" if outliers.period_by == "timestamps" else " (period by summed latencies)"
    return f", every {_beat(period_ms)}{by}"


def _causes(causes: Sequence[Cause]) -> str:
    if not causes:
        return "unexplained"
    told = []
    for cause in causes:
        if cause.by == "control":
            told.append(
                f"explained by the machine's own noise: the control run stalls as long in {_percent(cause.share_body)}"
                " of its calls"
            )
        else:
            name = NAMES.get(cause.name, cause.name)
            odds = f"odds {_ratio(cause.odds_ratio)}, p {_p(cause.p_corrected)}"
            if cause.share >= MOSTLY:
                part = f"coincides with {name} ({_percent(cause.share)} of these"
            else:
                part = f"in part coincides with {name} (only {_percent(cause.share)} of these"
            told.append(f"{part}, {_percent(cause.share_body)} of the body; {odds})")
    return ", ".join(told)


def _order(rounds: Sequence[Round]) -> list[str]:
    """Steady state and segments, one line where all rounds agree on a flat course."""
    if all(one.steady_state == "flat" and len(one.segments) == 1 for one in rounds):
        return [f"Steady state: flat{' in every round' if len(rounds) > 1 else ''}"]
    return [
        (f"Round {one.round}: " if len(rounds) > 1 else "Steady state: ") + f"{one.steady_state}{_segments(one)}"
        for one in rounds
    ]


def _segments(one: Round) -> str:
    if len(one.segments) == 1 and not one.segments[0].change:
        return ""
    told = []
    for segment in one.segments[:SEGMENTS_TOLD]:
        drifts = f" ({100 * segment.change:+.1f} % over them)" if segment.change else ""
        told.append(f"{_time(segment.median_ns / 1e3)} in trials {segment.start + 1} to {segment.stop}{drifts}")
    more = len(one.segments) - len(told)
    told += [f"and {more} more"] if more else []
    return f", {100 * one.drift:+.1f} % from start to end: {'; '.join(told)}"


def _uneven(outliers: Outliers) -> list[str]:
    """Clusters whose share differs between rounds beyond chance, and rounds of their own level."""
    told = []
    if len(outliers.rounds) < 2:
        return told
    from scipy.special import chdtrc

    for cluster in outliers.clusters:
        expected = [cluster.share * one.n for one in outliers.rounds]
        if min(expected) <= 0:
            continue
        square = sum((seen - mean) ** 2 / mean for seen, mean in zip(cluster.counts, expected, strict=True))
        if min(expected) >= 5 and chdtrc(len(expected) - 1, square) < 0.001:
            counts = ", ".join(map(str, cluster.counts))
            told.append(f"  {cluster.multiplier:.2f}x is not as frequent in every round: {counts} trials")
    return told


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _number(share: float) -> str:
    percent = 100 * share
    return f"{percent:.1f}" if percent >= 1 or percent == 0 else f"{percent:#.2g}" if percent >= 1e-3 else "below 0.001"


def _percent(share: float) -> str:
    return f"{_number(share)} %"


def _time(time_us: float) -> str:
    if time_us >= 1e6:
        return f"{time_us / 1e6:.4g} s"
    return f"{time_us:.4g} us" if time_us < 1e3 else f"{time_us / 1e3:.4g} ms"


def _beat(period_ms: float) -> str:
    digits = f"{period_ms:#.3g}".rstrip(".") if period_ms < 1e3 else f"{period_ms:.0f}"
    return f"{digits} ms" if period_ms >= 0.1 else f"{1e3 * period_ms:.3g} us"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}" if value < 1e4 else f"{value:.0e}"


def _p(value: float) -> str:
    if value < 1e-99:
        return "below 1e-99"
    return f"{value:.0e}" if value < 0.001 else f"{value:.3f}"
