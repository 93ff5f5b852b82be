"""Answers as tables: the text table of a summary, and pandas DataFrames for notebooks; times in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from lstm_trt.analysis.outcomes import Outcome
from lstm_trt.analysis.text import causes_text, clusters_line
from lstm_trt.config.format import microseconds, milliseconds, table_lines
from lstm_trt.store.samples import NoTrials
from lstm_trt.store.schema import Failure, Recording

if TYPE_CHECKING:
    import pandas as pd

    from lstm_trt.analysis.compare import Comparison, NotCompared
    from lstm_trt.analysis.deadline import Verdict
    from lstm_trt.analysis.outliers import Outliers
    from lstm_trt.analysis.replay import Replay
    from lstm_trt.analysis.scaling import Findings
    from lstm_trt.analysis.summary import SummaryRow
    from lstm_trt.store.samples import Group

#: Columns of a frame of trials, beside config_id and round: what is drawn, to stay small.
TRIAL_COLUMNS = ("trial", "warmup", "latency_ns")

#: Characters of a line for the terminal.
WIDTH = 140


def summary_table(rows: Sequence[SummaryRow]) -> str:
    """For the terminal, at most `WIDTH` wide: the maximum comes first, since it rules; times in microseconds.

    A star marks a percentile without an upper bound at this n. What was measured elsewhere is named by its group
    instead of its shape. The reason of a failure may make a line longer, and the names of workloads, which differ
    in their ends.
    """
    named = _name_columns(rows)
    shown = sorted((column for column in fields(rows[0]) if column.metadata), key=lambda c: c.metadata["place"])
    if all(row.floor_us is None for row in rows):
        shown = [column for column in shown if column.name != "floor_us"]
    lines = []
    for row in rows:
        cells = ["-" if value is None else str(value) for value in (cell(row) for cell in named.values())]
        if row.status == "ok":
            cells += [_cell(row, column.name) for column in shown]
        else:
            cells.append(f"failed at {row.stage}: {row.reason}" if row.stage else f"failed: {row.reason}")
        lines.append(cells)
    whole = any(row.runtime is not None and "workload" in row.group for row in rows)
    header = [*named, *(column.metadata["title"] for column in shown)]
    last = "clusters"
    head, *texts = table_lines(header, lines, width=None if whole else WIDTH - len(last) - 2)
    room = max(WIDTH - len(head) - 2, len(last))
    texts = [
        f"{text}  {_clusters(row, room)}" if row.status == "ok" else text for text, row in zip(texts, rows, strict=True)
    ]
    caption = "latencies in us after warm-up, n trials; outliers lie outside 1.5 x IQR"
    caption += "; floor: arithmetic and weight traffic" if "floor" in header else ""
    caption += "; * no upper bound at this n" if any("*" in cell for cells in lines for cell in cells) else ""
    return "\n".join([caption, f"{head}  {last}", *texts])


def _name_columns(rows: Sequence[SummaryRow]) -> dict[str, Callable[[SummaryRow], object]]:
    """Columns that tell the rows apart, each with what it shows of a row."""
    several = any(row.rounds > 1 or row.round is not None for row in rows)
    rounds = {"rounds": lambda row: row.rounds if row.round is None else f"r{row.round}"} if several else {}
    if any(row.runtime is None for row in rows):
        keys = dict.fromkeys(key for row in rows for key in row.group)
        return {str(key): lambda row, key=key: row.group.get(key, "-") for key in keys} | rounds
    both = any(row.directions == 2 for row in rows)
    options = len({(row.precision, row.threads) for row in rows} | {("fp32", 1)}) > 1

    def network(row: SummaryRow) -> str:
        if row.layers is None or row.hidden is None:
            return "-"
        return f"{row.layers}x{row.hidden}" + ("" if not both else " bi" if row.directions == 2 else "   ")

    named = {"network": network, "seq": lambda row: row.sequence, "batch": lambda row: row.batch}
    workloads = [name for name in ("workload", "mode") if any("workload" in row.group for row in rows)]
    if workloads:  # a workload's name says its sizes
        named = {} if all("workload" in row.group for row in rows) else named
        named = {name: lambda row, name=name: row.group.get(name, "-") for name in workloads} | named
    named |= {"runtime": lambda row: row.runtime}
    named |= {"precision": lambda row: row.precision, "threads": lambda row: row.threads} if options else {}
    named |= {"arrival": _arrival} if any(row.arrival != "closed" for row in rows) else {}
    return named | rounds


def _arrival(row: SummaryRow) -> str:
    if row.period_us:
        return f"{milliseconds(row.period_us / 1e3)} {row.wait}"
    return f"pause {milliseconds(row.pause_ms)}" if row.pause_ms else str(row.arrival)


def _cell(row: SummaryRow, name: str) -> str:
    value = getattr(row, name)
    if not name.endswith("_us"):
        return str(value)
    return microseconds(value) + "*" * (getattr(row, f"{name}_high", row.max_us) is None)


def _clusters(row: SummaryRow, room: int) -> str:
    """The most frequent clusters, as many as there is room for."""
    if row.clusters is None:
        return "-"
    texts = (clusters_line(row.clusters, most) for most in range(len(row.clusters), -1, -1))
    return next((text for text in texts if len(text) <= room), str(len(row.clusters)))


def summary_frame(rows: Sequence[SummaryRow], columns: Sequence[str]) -> pd.DataFrame:
    """A row a configuration (or round), with all fields of `SummaryRow`."""
    import pandas as pd

    return pd.DataFrame([row.as_dict() for row in rows], columns=list(columns))


def trial_frame(items: Iterable[Recording | Failure]) -> pd.DataFrame:
    """A row a trial with config_id and round."""
    import pandas as pd

    parts = [
        pd.DataFrame(
            {
                "config_id": pd.Categorical.from_codes([0] * len(item.columns["trial"]), [item.configuration.id]),
                "round": item.round,
                **{name: item.columns[name] for name in TRIAL_COLUMNS},
            }
        ).astype({"config_id": object})
        for item in items
        if isinstance(item, Recording)
    ]
    empty = pd.DataFrame(columns=["config_id", "round", *TRIAL_COLUMNS])
    return pd.concat(parts, ignore_index=True) if parts else empty


def verdict_frame(groups: Iterable[Group], verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """A row a configuration, the largest maximum first.

    `miss_rate_upper_percent`: the one-sided upper bound of the share of late calls; `trials_needed`: of a fresh
    recording, where the verdict is NOT ENOUGH EVIDENCE and a recording could tell.
    """
    import pandas as pd

    rows = [
        {
            "network": group.name,
            "verdict": verdict.verdict,
            "max_us": verdict.max_us,
            "n": verdict.n,
            "misses": verdict.misses,
            "miss_rate_upper_percent": None if verdict.miss_rate_high is None else 100 * verdict.miss_rate_high,
            "effective_n": verdict.effective_n,
            "trials_needed": verdict.trials_needed if verdict.verdict == Outcome.NOT_ENOUGH_EVIDENCE else None,
            "because": "; ".join(verdict.reasons),
        }
        for group, verdict in zip(groups, verdicts, strict=True)
    ]
    frame = pd.DataFrame(rows).astype({"trials_needed": "Int64"})
    return frame.sort_values("max_us", ascending=False, na_position="last", ignore_index=True)


def outlier_frame(groups: Iterable[Group], findings: Iterable[Outliers]) -> pd.DataFrame:
    """A row a configuration: outliers by 1.5 x IQR, steady state, and the clusters as text."""
    import pandas as pd

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


def cluster_frame(groups: Iterable[Group], findings: Iterable[Outliers]) -> pd.DataFrame:
    """A row a cluster: multiple of the local median, share in percent with its interval, period, causes."""
    import pandas as pd

    columns = ("network", "multiplier", "trials", "percent", "percent_low", "percent_high", "period_ms", "causes")
    rows = [
        (
            group.name,
            cluster.multiplier,
            cluster.count,
            100 * cluster.share,
            100 * cluster.share_low,
            100 * cluster.share_high,
            cluster.period_ms,
            causes_text(cluster, found),
        )
        for group, found in zip(groups, findings, strict=True)
        for cluster in found.clusters
    ]
    return pd.DataFrame(rows, columns=columns)


def comparison_frame(answers: Sequence[Comparison | NotCompared], groups: Sequence[dict]) -> pd.DataFrame:
    """A row a configuration of both sides: what they share, and the ratios with their intervals over rounds."""
    import pandas as pd

    names = ("median", "median_ratio", "median_ratio_low", "median_ratio_high")
    names += ("tail", "tail_percentile", "tail_ratio", "tail_ratio_low", "tail_ratio_high", "rounds_a", "rounds_b")
    return pd.DataFrame(
        [
            {**group, **{name: getattr(answer, name, None) for name in names}}
            for group, answer in zip(groups, answers, strict=False)
        ]
    )


def replay_frame(groups: Iterable[Group], answers: Iterable[Replay | NoTrials]) -> pd.DataFrame:
    """A row a configuration: what queued at the period, and the latencies of both ways, `closed_` and `replayed_`."""
    import pandas as pd

    rows = []
    for group, found in zip(groups, answers, strict=True):
        if isinstance(found, NoTrials):
            rows.append({"network": group.name, "n": group.n, "failure": str(found)})
            continue
        plain = found.as_dict()
        sides = {f"{side}_{name}": value for side in ("closed", "replayed") for name, value in plain.pop(side).items()}
        rows.append({"network": group.name, **plain, **sides})
    return pd.DataFrame(rows)


def scaling_frame(findings: Findings) -> pd.DataFrame:
    """A row a series along one axis: the other sizes, slope, R2, and where it leaves its line."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "system": line.system,
                "axis": line.axis,
                **line.fixed,
                **{name: getattr(line, name) for name in ("slope_us", "intercept_us", "r2", "breaks_at")},
            }
            for line in findings.linearity
        ]
    )
