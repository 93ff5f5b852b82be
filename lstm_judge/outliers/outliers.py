"""Outliers: the course of the level, clusters and tail, their periods and causes."""

from __future__ import annotations

from typing import Any, ClassVar

from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.outliers.answer import Outliers
from lstm_judge.outliers.explain import explain_outliers
from lstm_judge.outliers.search import search_outliers
from lstm_judge.outliers.text import causes_text, clusters_text
from lstm_judge.read.frames import numeric
from lstm_judge.read.runs import RunsSource
from lstm_judge.statistics.parallel import computed
from lstm_trt.config.libraries import pd


def outliers(runs: RunsSource, causes: bool = True) -> OutlierAnswers:
    """Outliers of each configuration and their clusters; with `causes`, also periods and associated
    events.

    `runs`: the result of `load`, or a path, recordings or groups. Raises `UsageError` if a
    configuration has fewer than 2 trials after warm-up.
    """
    runs = runs_to_judge(runs)
    measured = [group if causes else group.plain for group in runs if group.failure is None]
    found = computed(
        explain_outliers if causes else search_outliers,
        [group.rounds for group in measured],
        [group.n for group in measured],
    )
    known = iter(found)
    answers: tuple[Any, ...] = tuple(
        next(known) if group.failure is None else group.failure for group in runs
    )
    return OutlierAnswers(runs, answers, runs.remarks)


class OutlierAnswers(Answers[Outliers]):
    """Outliers of configurations, a `NoTrials` for each that failed; `clusters` is a DataFrame."""

    _NOTHING_FOUND: ClassVar = {"outliers": None, "partition": None, "clusters": []}

    def _row(self, answer: Outliers) -> dict:
        return {
            "n": answer.n,
            "median_us": answer.median_us,
            "outliers": answer.outliers,
            "outliers_percent": 100 * answer.outliers / answer.n,
            **answer.partition,
            "steady_state": answer.steady_state,
            "clusters": clusters_text(answer.clusters),
        }

    @property
    def clusters(self) -> pd.DataFrame:
        """A row per cluster: multiple of the local median, share in percent with its interval,
        period, causes."""
        rows = []
        for group, found in self.items():
            for cluster in found.clusters if isinstance(found, Outliers) else ():
                rows.append(
                    (
                        group.name,
                        cluster.multiplier,
                        cluster.count,
                        100 * cluster.share,
                        100 * cluster.share_low,
                        100 * cluster.share_high,
                        cluster.period_ms,
                        causes_text(cluster, found.events, short=True),
                    )
                )
        columns = [
            "network",
            "multiplier",
            "trials",
            "percent",
            "percent_low",
            "percent_high",
            "period_ms",
            "causes",
        ]
        return numeric(pd.DataFrame(rows, columns=columns))
