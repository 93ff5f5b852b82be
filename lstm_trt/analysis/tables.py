"""Recordings as pandas tables, for pictures and people.

Verdicts, outliers, clusters and what coincides with them as pandas tables, for notebooks; times in µs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from lstm_trt.analysis.summary import FIELDS, SummaryRow, clusters_text, microseconds, summarize
from lstm_trt.store.schema import Failure, Recording

if TYPE_CHECKING:
    import pandas as pd

    from lstm_trt.analysis.deadline import Verdict
    from lstm_trt.analysis.outliers import Outliers
    from lstm_trt.store.samples import Group


#: Beside these, `trials` has what `plots.py` draws and nothing else, to stay small.
TRIAL_COLUMNS = ("trial", "warmup", "latency_ns")

#: Characters of a line for the terminal.
WIDTH = 140

#: Of a table from elsewhere, a column that tells groups apart is not cut below so many characters.
LEAST_NAME = 6


def frames(items: Iterable[Recording | Failure]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`(summary, trials)`: a row a configuration and round, and a row a trial with config_id and round.

    Clusters are not looked for, which of a large sweep takes minutes: ask `analysis.outliers`.
    """
    import pandas as pd

    items = list(items)
    summary = pd.DataFrame(
        [row.as_dict() for row in summarize(items, by_round=True, clusters=False)], columns=list(FIELDS)
    )
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
    return summary, pd.concat(parts, ignore_index=True) if parts else empty


def text_table(rows: Sequence[SummaryRow]) -> str:
    """For the terminal, at most `WIDTH` wide: the maximum comes first, since it rules; times in microseconds.

    A star marks a percentile without an upper bound at this n. What was measured elsewhere is
    told by its group instead of its shape. The reason of a failure may make a line longer, and the names of
    the literature.
    """
    named = _names(rows)
    floors = any(row.floor_us is not None for row in rows)
    header = [*named, *NUMBERS, *(["floor"] if floors else []), "outliers"]
    lines = []
    for row in rows:
        line = [str(cell(row)) for cell in named.values()]
        if row.status == "ok":
            numbers = [str(row.n), *(_marked(row, name) for name in NUMBERS.values() if name)]
            line += [*numbers, *([_time(row.floor_us)] * floors), str(row.outliers)]
        lines.append(line)
    stars = _align_stars(header, lines, len(named))
    widths = [max(len(line[k]) for line in [header, *lines] if k < len(line)) for k in range(len(header))]
    last = _fit(widths, len(named), rows)
    left = {k for k in range(len(named)) if not all(_is_number(line[k]) for line in lines)}

    def put(line: list[str], more: str) -> str:
        cells = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=False)):
            text = cell if len(cell) <= width else cell[: width - 1] + "…"
            cells.append(text.ljust(width) if column in left else text.rjust(width))
        return "  ".join([*cells, more]).rstrip()

    caption = "latencies in us after warm-up, n trials; outliers lie outside 1.5 x IQR"
    caption += "; floor: arithmetic and weight traffic" if floors else ""
    caption += "; * no upper bound at this n" if stars else ""
    return "\n".join([caption, put(header, "clusters"), *map(put, lines, last)])


#: Column of the table -> field of a row.
NUMBERS = {
    "n": None,
    "max": "max_us",
    "p99.9": "p999_us",
    "p99": "p99_us",
    "p90": "p90_us",
    "median": "median_us",
    "mean": "mean_us",
    "std": "std_us",
    "min": "min_us",
}


def _names(rows: Sequence[SummaryRow]) -> dict[str, Callable[[SummaryRow], object]]:
    """Columns that tell the rows apart, each with what it shows of a row."""
    several = any(row.rounds > 1 or row.round is not None for row in rows)
    rounds = {"rounds": lambda row: row.rounds if row.round is None else f"r{row.round}"} if several else {}
    if any(row.runtime is None for row in rows):
        keys = dict.fromkeys(key for row in rows for key in row.group)
        return {str(key): lambda row, key=key: row.group.get(key, "-") for key in keys} | rounds
    both = any(row.directions == 2 for row in rows)
    options = len({(row.precision, row.threads) for row in rows} | {("fp32", 1)}) > 1
    arrivals = any(row.arrival != "closed" for row in rows)

    def network(row: SummaryRow) -> str:
        if row.layers is None or row.hidden is None:
            return "-"
        return f"{row.layers}x{row.hidden}" + ("" if not both else " bi" if row.directions == 2 else "   ")

    named = {"network": network, "seq": lambda row: row.sequence, "batch": lambda row: row.batch}
    literature = [name for name in ("workload", "mode") if any("workload" in row.group for row in rows)]
    if literature:  # a workload's name tells its sizes
        named = {} if all("workload" in row.group for row in rows) else named
        named = {name: lambda row, name=name: row.group.get(name, "-") for name in literature} | named
    named |= {"runtime": lambda row: row.runtime}
    named |= {"precision": lambda row: row.precision, "threads": lambda row: row.threads} if options else {}
    return named | ({"arrival": _arrival} if arrivals else {}) | rounds


def _arrival(row: SummaryRow) -> str:
    if row.arrival == "periodic":
        return f"{row.period_us / 1e3:g} ms {row.wait}"
    return f"pause {row.pause_ms:g} ms" if row.arrival == "paused" else str(row.arrival)


def _marked(row: SummaryRow, name: str) -> str:
    bounded = getattr(row, f"{name}_high", row.max_us) is not None
    return _time(getattr(row, name)) + ("" if bounded else "*")


def _align_stars(header: list[str], lines: list[list[str]], names: int) -> bool:
    """Put a space where others of a column of numbers have a star, in place; returns whether there are any."""
    starred = {k for line in lines for k in range(names, len(line)) if line[k].endswith("*")}
    for line in [header, *lines]:
        for column in starred:
            if column < len(line) and not line[column].endswith("*"):
                line[column] += " "
    return bool(starred)


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).isdigit()


def _fit(widths: list[int], names: int, rows: Sequence[SummaryRow]) -> list[str]:
    """The last cell of each row: clusters as far as there is room, or why it failed. Narrows long names, in place.

    Names of the literature's workloads and implementations differ in their ends: they stay whole.
    """
    whole = any(row.runtime is not None and "workload" in row.group for row in rows)
    least = len("clusters")
    room = WIDTH - sum(widths) - 2 * len(widths)
    while room < least and names and not whole:
        widest = max(range(names), key=lambda column: widths[column])
        if widths[widest] <= LEAST_NAME:
            break
        widths[widest] -= 1
        room += 1
    room = max(room, least)
    told = []
    for row in rows:
        if row.status != "ok":
            told.append(f"failed at {row.stage}: {row.reason}" if row.stage else f"failed: {row.reason}")
            continue
        found = row.clusters
        fitting = (clusters_text(found, most) for most in range(len(found or ()), -1, -1))
        told.append("-" if found is None else next((text for text in fitting if len(text) <= room), str(len(found))))
    return told


def _time(value_us: float | None) -> str:
    return "-" if value_us is None else microseconds(value_us)


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

    from lstm_trt.analysis.text import clusters_line

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

    from lstm_trt.analysis.text import causes_text as causes_words

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
