"""Periods and causes of the clusters and the tail of one configuration."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lstm_judge.outcomes import TimesBy
from lstm_judge.outliers.answer import TAIL, Cluster, Events, Outliers, Tail
from lstm_judge.outliers.search import search_outliers
from lstm_judge.read.rounds import Round
from lstm_judge.statistics.causes import BULK, CONTROL, find_causes, find_period
from lstm_judge.statistics.excess import Spent
from lstm_judge.statistics.trials import timed_rounds
from lstm_trt.config.configuration import unexplained_text


def explain_outliers(rounds: Sequence[Round]) -> Outliers:
    """Outliers of the rounds of one configuration.

    Raises `UsageError` if there are no trials after warm-up.
    """
    rounds = timed_rounds(rounds)
    found = search_outliers(rounds)
    labels = [each.labels for each in found.rounds]
    median_ns = found.median_us * 1e3
    parts: dict[int, Cluster | Tail] = dict(enumerate(found.clusters))
    if found.tail:
        parts[TAIL] = found.tail
    excess_ns = {}
    for label, part in parts.items():
        low, high = part.multiples
        excess_ns[label] = (median_ns * (low - 1), median_ns * (high - 1))
    causes = find_causes(rounds, labels, excess_ns)
    starts_ns = [_starts(round_) for round_ in rounds]
    spent = Spent(rounds)
    pooled = np.concatenate(labels)
    for label, part in parts.items():
        period = find_period(starts_ns, [kinds == label for kinds in labels], median_ns)
        parts[label] = replace(
            part,
            period_ms=period.ms if period else None,
            hint=period.hint if period and not causes[label] else None,
            causes=causes[label],
            excess=spent.excess(pooled == label, pooled == BULK),
        )
    tail = parts.pop(TAIL, None)
    return replace(found, clusters=tuple(parts.values()), tail=tail, events=_events(rounds, spent))


def _events(rounds: Sequence[Round], spent: Spent) -> Events:
    counted = sorted({name for round_ in rounds for name in (*round_.causes, *round_.block_causes)})
    if any(round_.control_ns is not None for round_ in rounds):
        counted.append(CONTROL)
    unexplained = []
    for round_ in rounds:
        text = unexplained_text(round_.unexplained_cpu_ns, float(np.mean(round_.timed_ns)))
        if text:
            unexplained.append(f"Round {round_.round}: {text} (telemetry: {round_.telemetry})")
    summed = any(round_.start_ns is None for round_ in rounds)
    return Events(
        period_by=TimesBy.SUMMED_LATENCIES if summed else TimesBy.TIMESTAMPS,
        counted=tuple(counted),
        slowest=spent.slowest(),
        control=Spent.of_control(rounds).slowest(),
        switches=tuple(round_.switches for round_ in rounds if round_.switches),
        unexplained=tuple(unexplained),
    )


def _starts(round_: Round) -> np.ndarray:
    """Start times of the timed trials; if not recorded, the sums of the preceding latencies, as in
    a closed loop."""
    start_ns = round_.start_ns
    if start_ns is None:
        start_ns = np.cumsum(round_.latency_ns) - round_.latency_ns
    return np.asarray(round_.timed(start_ns), dtype=np.float64)
