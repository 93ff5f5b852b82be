"""What a comparison of two recorded sides found, in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lstm_trt.analysis.certainty import ROUNDS
from lstm_trt.analysis.comparison import Comparison
from lstm_trt.analysis.comparison_clusters import ClusterPair
from lstm_trt.analysis.comparison_ratio import AMBIGUOUS
from lstm_trt.analysis.summary_rows import microseconds


def words(comparison: Comparison, a_name: str = "A", b_name: str = "B") -> str:
    """The two answers first, then the ratios, what they rest on, the clusters, and what to record."""
    one = comparison
    lines = [f"median {one.median}, tail {one.tail}: {_which('B', b_name)} against {_which('A', a_name)}"]
    lines.append(_ratio("median", one.median_ratio, one.median_us_rounds_a, one.median_us_rounds_b))
    if one.tail_percentile is not None:
        lines.append(_ratio(f"p{one.tail_percentile:g}", one.tail_ratio, one.tail_us_rounds_a, one.tail_us_rounds_b))
    lines.append(f"  {'max':<7}A {microseconds(one.max_us_a)}, B {microseconds(one.max_us_b)} us")
    lines.append(f"  {_processes(one.rounds_a)} of A, n = {one.n_a}; {_processes(one.rounds_b)} of B, n = {one.n_b}")
    lines += [f"  {reason}" for reason in one.reasons]
    lines += _clusters(one)
    if one.differences:
        lines.append("differs beside the latencies, and may be the reason:")
        lines += [f"  {difference}" for difference in one.differences]
    return "\n".join(lines + _to_record(one))


def _which(letter: str, name: str) -> str:
    return letter if name == letter else f"{letter} ({name})"


def _ratio(name: str, ratio: float, a_us: Sequence[float], b_us: Sequence[float]) -> str:
    return f"  {name:<7}A {_middle(a_us)}, B {_middle(b_us)} us: B / A {ratio:.3f}"


def _middle(rounds_us: Sequence[float]) -> str:
    middle = microseconds(statistics.median_low(rounds_us))
    return (
        middle
        if len(rounds_us) == 1
        else f"{middle} ({microseconds(min(rounds_us))} to {microseconds(max(rounds_us))})"
    )


def _clusters(one: Comparison) -> list[str]:
    lines = []
    for label, pairs in (
        ("gone", one.clusters_gone),
        ("new", one.clusters_new),
        ("on both sides", one.clusters_kept),
        ("on one side, which may be chance", one.clusters_unclear),
    ):
        if pairs:
            lines.append(f"  {label}: {', '.join(map(_pair, pairs))}")
    few = min(one.rounds_a, one.rounds_b) < ROUNDS
    of = " in these processes, others may differ" if few and (one.clusters_gone or one.clusters_new) else ""
    head = f"clusters of late answers, share of A -> of B{of}:"
    return [head, *lines] if lines else ["clusters of late answers: none"]


def _pair(pair: ClusterPair) -> str:
    return f"{pair.multiplier:.2f}x {_percent(pair.share_a)} -> {_percent(pair.share_b)}"


def _to_record(one: Comparison) -> list[str]:
    if AMBIGUOUS not in (one.median, one.tail):
        return []
    if not one.rounds_needed:
        return ["to decide the tail record more trials in each process"]
    if one.command is None:
        return [
            f"to decide it record at least {one.rounds_needed} processes a side, in turns, and tell them apart by a"
            " column `round`"
        ]
    sides = ", once for each side into a folder of its own" if one.one_configuration else ""
    return [f"to decide it record rounds anew{sides}, and compare those:", f"  {one.command}"]


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
