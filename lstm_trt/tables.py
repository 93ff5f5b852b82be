"""Recordings as pandas tables, for pictures and people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lstm_trt.analysis.summary import FIELDS, SummaryRow, summarize
from lstm_trt.store import Failure, Recording

if TYPE_CHECKING:
    import pandas as pd

#: Beside these, `trials` has what `plots.py` draws and nothing else, to stay small.
TRIAL_COLUMNS = ("trial", "warmup", "latency_ns")


def frames(items: Iterable[Recording | Failure]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`(summary, trials)`: a row a configuration and round, and a row a trial with config_id and round."""
    import pandas as pd

    items = list(items)
    summary = pd.DataFrame([row.as_dict() for row in summarize(items, by_round=True)], columns=list(FIELDS))
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
    """For the terminal: the maximum comes first, since it rules; times in microseconds."""
    several = any(row.rounds > 1 or row.round is not None for row in rows)
    bidirectional = any(row.directions == 2 for row in rows)
    options = len({(row.precision, row.threads) for row in rows} | {("fp32", 1)}) > 1
    floors = any(row.floor_us is not None for row in rows)
    header = ["network", "seq", "batch", "runtime"]
    header += ["precision", "threads"] * options + ["rounds"] * several
    header += ["n", "max", "p99.9", "p99", "p90", "median", "mean", "std", "min"] + ["floor"] * floors + ["outliers"]
    lines = []
    for row in rows:
        name = f"{row.layers}x{row.hidden}" + ("" if not bidirectional else " bi" if row.directions == 2 else "   ")
        cells = [name, row.sequence, row.batch, row.runtime]
        cells += [row.precision, row.threads] * options
        cells += [row.rounds if row.round is None else f"r{row.round}"] * several
        if row.status != "ok":
            lines.append([str(cell) for cell in cells] + [f"failed at {row.stage}: {row.reason}"])
            continue
        times = [row.max_us, row.p999_us, row.p99_us, row.p90_us, row.median_us, row.mean_us, row.std_us, row.min_us]
        times += [row.floor_us] * floors
        lines.append([str(cell) for cell in [*cells, row.n, *map(_time, times), row.outliers]])
    whole = [line for line in lines if len(line) == len(header)]
    widths = [max(len(line[column]) for line in [header, *whole]) for column in range(len(header))]
    for line in lines:  # failures are shorter: their text may run on
        for column in range(min(len(line), header.index("n"))):
            widths[column] = max(widths[column], len(line[column]))
    left = {0, 3}

    def put(line: list[str]) -> str:
        cells = [
            cell.ljust(width) if column in left or len(line) < len(header) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        return "  ".join(cells).rstrip()

    caption = "latencies in us after warm-up, n trials; outliers lie outside 1.5 x IQR" + (
        "; floor: what arithmetic and weight traffic need here" if floors else ""
    )
    return "\n".join([caption, *map(put, [header, *lines])])


def _time(value_us: float | None) -> str:
    return "-" if value_us is None else f"{value_us:.1f}" if value_us < 10_000 else f"{value_us:.0f}"
