"""Verdicts, outliers, clusters and what coincides with them as pandas tables, for notebooks; times in µs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from lstm_trt.analysis.deadline import Verdict
    from lstm_trt.analysis.outliers_values import Outliers
    from lstm_trt.samples import Group


def verdict_frame(groups: Sequence[Group], verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """A row a configuration, the largest maximum first.

    `at_most_percent`: the upper bound of the share of late calls; `trials_needed`: of a fresh
    recording, where the verdict is NOT ENOUGH EVIDENCE and a recording could tell.
    """
    import pandas as pd

    from lstm_trt.analysis.deadline import NOT_ENOUGH

    rows = []
    for group, verdict in zip(groups, verdicts, strict=True):
        open_ = verdict.verdict == NOT_ENOUGH
        rows.append(
            {
                "network": group.name,
                "verdict": verdict.verdict,
                "max_us": verdict.max_us,
                "n": verdict.n,
                "late": verdict.misses,
                "at_most_percent": None if verdict.miss_rate_high is None else 100 * verdict.miss_rate_high,
                "worth": verdict.effective_n,
                "trials_needed": verdict.trials_needed if open_ else None,
                "because": "; ".join(verdict.reasons),
            }
        )
    table = pd.DataFrame(rows).astype({"trials_needed": "Int64"})
    return table.sort_values("max_us", ascending=False, na_position="last", ignore_index=True)


def outlier_frame(groups: Sequence[Group], findings: Sequence[Outliers]) -> pd.DataFrame:
    """A row a configuration: outliers by 1.5 x IQR, steady state, and the clusters in a few words."""
    import pandas as pd

    from lstm_trt.analysis.outliers_words import clusters_line

    return pd.DataFrame(
        [
            {
                "network": group.name,
                "n": found.n,
                "median_us": found.median_us,
                "outliers": found.outliers,
                "outliers_percent": 100 * found.outliers / found.n,
                "steady_state": found.steady_state,
                "clusters": clusters_line(found.clusters),
            }
            for group, found in zip(groups, findings, strict=True)
        ]
    )


def cluster_frame(groups: Sequence[Group], findings: Sequence[Outliers]) -> pd.DataFrame:
    """A row a cluster: multiple of the local median, share in percent with its interval, period, causes."""
    import pandas as pd

    from lstm_trt.plots_outliers import causes_words

    columns = ("network", "multiplier", "trials", "percent", "percent_low", "percent_high", "period_ms", "comes_with")
    rows = [
        (
            group.name,
            cluster.multiplier,
            cluster.count,
            100 * cluster.share,
            100 * cluster.share_low,
            100 * cluster.share_high,
            cluster.period_ms,
            causes_words(cluster, found),
        )
        for group, found in zip(groups, findings, strict=True)
        for cluster in found.clusters
    ]
    return pd.DataFrame(rows, columns=columns)
