"""Recordings of the literature's workloads as the figures that their documents report, one row per figure.

The columns are those of `data/published` where applicable, so both can be put in one table. A
failure is a row without a value, described in the documents' terms if possible. The costs before
the first batch (export, schedule, tuning, build, first call) have one row each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from lstm_judge.read import numbers
from lstm_literature import implementations, published
from lstm_literature.published import SECONDS, seconds
from lstm_literature.workloads import LiteratureWorkload, base_of
from lstm_trt.config import format
from lstm_trt.config.libraries import pd
from lstm_trt.store.schema import Failure, Recording

#: Keys that the `costs` of a step may have, all in seconds.
COSTS = ("export_s", "schedule_s", "tuning_s", "build_s", "first_call_s")

#: Columns by which the rows are sorted.
_ORDER = (
    "source", "workload", "mode", "hidden", "layers", "sequence", "batch", "scale", "implementation", "threads",
    "round",
)  # fmt: skip

#: Main statistic of each document; a failure's reason is in its row.
LEADING = {"000": ("mean", "ms"), "001": ("wall", "s"), "002": ("mean", "ms"), "004": ("mean", "ms")}


def is_leading(row: Any) -> bool:
    """Whether a row has the main statistic of its document (`LEADING`)."""
    return (row.statistic, row.unit) == LEADING[row.source]


def document_statistics(document: str, latency_ns: np.ndarray, batch: int) -> dict[str, tuple[float, str]]:
    """statistic -> (value, unit), as defined by the document; `latency_ns` (n,) of the timed batches."""
    if document == "000":  # its benchmark tool divides by n in the standard deviation
        statistics = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min, "std": np.std}
        return {name: (float(statistic(latency_ns)) / 1e6, "ms") for name, statistic in statistics.items()}
    if document == "001":  # time of all timed batches, time per batch, and sequences per second
        elapsed = float(latency_ns.sum()) / 1e9
        wall = elapsed / len(latency_ns)
        return {"elapsed": (elapsed, "s"), "wall": (wall, "s"), "sequences_per_s": (batch / wall, "sequences/s")}
    return {"mean": (float(latency_ns.mean()) / 1e6, "ms")}


@dataclass(frozen=True)
class Table:
    """The figures of recordings and failures, one row each; iterates over the rows.

    Two columns of `frame` are not in text, CSV and JSON: `seconds`, the value if it is a time, and `drift`, the median
    of the last third of the batches over that of the first third, minus 1, None for a failure.
    """

    frame: pd.DataFrame

    def __iter__(self) -> Iterator[Any]:
        return iter(self.frame.itertuples(index=False))

    def __len__(self) -> int:
        return len(self.frame)

    def as_dict(self) -> list[dict]:
        """JSON values, one object per row."""
        return self._printed.to_dict("records")

    def csv_text(self) -> str:
        """The frame as CSV; None is an empty cell."""
        return format.csv_text(self._printed.map(_whole))

    @property
    def _printed(self) -> pd.DataFrame:
        return self.frame.drop(columns=["seconds", "drift"], errors="ignore")

    def __str__(self) -> str:
        """One block per document, one line per recording, with figures in the document's order and units."""
        blocks = []
        for document, rows in itertools.groupby(self, key=lambda row: row.source):
            recordings = itertools.groupby(rows, key=lambda row: (row.config_id, row.machine, row.round))
            blocks.append(_block(document, [list(of_recording) for _, of_recording in recordings]))
        return "\n\n".join(blocks)


def table(items: Iterable[Recording | Failure]) -> Table:
    """The figures of recordings and failures of the literature's workloads, in the order of the documents.

    `value` is None unless `status` is "ok", otherwise `reason` gives the cause. `workload` is its name and `label` the
    name with sizes and scale. `scale` is the fraction of the document's sizes that was run; `batch` and `sequence` are
    the sizes that were run, `published_batch` and `published_sequence` the document's (None if the sizes are no variant
    of the document). `n` is the number of timed batches, `document_n` that of the document.
    """
    found = []
    for item in items:
        workload = item.configuration.workload
        good = isinstance(item, Recording)
        statistic, unit = LEADING[workload.document]
        figures = _figures(item, workload) if good else {statistic: (None, unit)}
        if good:
            state = {"status": "ok", "reason": "", "detail": "", "n": len(item.timed_ns)}
        else:
            state = {"status": "failed", "reason": reason(item), "detail": item.reason, "n": 0}
        origin = {
            "document_n": workload.batches,
            "round": item.round,
            "drift": _drift(item.timed_ns) if good else None,
            "machine": item.provenance.get("machine_fingerprint"),
            "config_id": item.configuration.id,
        }
        network = _network(item)
        for statistic, (value, unit) in figures.items():
            figure = {"statistic": statistic, "value": value, "unit": unit}
            found.append({**network, **figure, **state, **origin, "seconds": seconds(value, unit)})
    found.sort(key=itemgetter(*_ORDER))
    return Table(pd.DataFrame(found, dtype=object))


def _whole(cell: Any) -> Any:
    """A whole number as text: pandas would write a 3 beside None as 3.0."""
    return str(cell) if isinstance(cell, int) else cell


def _drift(latency_ns: np.ndarray) -> float:
    third = max(1, len(latency_ns) // 3)
    return float(np.median(latency_ns[-third:]) / np.median(latency_ns[:third])) - 1


def _figures(recording: Recording, workload: LiteratureWorkload) -> dict[str, tuple[float, str]]:
    """Statistic -> (value, unit): the document's statistics, the number of parameters, the costs.

    For document 004 also its checks: first and last loss, and the loop's time divided by the sum of its batches.
    """
    figures = document_statistics(workload.document, recording.timed_ns, workload.batch)
    losses = recording.provenance.get("losses")
    check = recording.provenance.get("self_check", {})
    if workload.document == "004" and losses and check.get("batches_ns"):
        figures |= {
            "loss_first": (losses[0], "loss"),
            "loss_last": (losses[-1], "loss"),
            "loop_over_batches": (check["batches_loop_ns"] / check["batches_ns"], "ratio"),
        }
    figures["parameters"] = (workload.parameters, "count")
    costs = recording.provenance.get("costs_s", {})
    return figures | {name.removesuffix("_s"): (costs[name], "s") for name in COSTS if name in costs}


def reason(failure: Failure) -> str:
    """The cause of a failure, in the documents' terms if possible ("out of mem"), else the reason itself."""
    text = failure.reason.lower()
    if failure.stage == "memory":
        return "out of mem"
    for term, documents_term in (("recursion", "recursion depth"), ("stack overflow", "stack overflow")):
        if term in text:
            return documents_term
    return failure.reason if failure.stage in ("parity", "time") else "didn't run"


def _network(item: Recording | Failure) -> dict:
    """The columns before the figure."""
    configuration = item.configuration
    workload = configuration.workload
    options = configuration.options
    base = base_of(workload)
    title, framework = implementations.title_and_framework(configuration.runtime)
    # As recorded; a failure may lack it.
    recorded = item.provenance.get("implementation") or {"title": title, "framework": framework}
    return {
        "source": workload.document,
        "workload": workload.name,
        "label": workload.label,
        "scale": workload.scale,
        "shape": workload.sizes,
        **{name: getattr(workload, name) for name in published.SIZES},
        "published_batch": base and base.batch,
        "published_sequence": base and base.sequence,
        "mode": configuration.mode,
        "implementation": configuration.runtime,
        "title": recorded["title"],
        "framework": recorded["framework"],
        "framework_version": configuration.runtime_version,
        "device": "gpu" if options.device == "cuda" else options.device,
        "hardware": configuration.device_name,
        "precision": options.precision,
        "threads": options.threads,
    }


def _block(document: str, recordings: list[list]) -> str:
    # Recordings first, since their figures are in the document's order and a failure has only one row.
    complete = sorted(recordings, key=lambda rows: rows[0].status != "ok")
    figures = list(dict.fromkeys((row.statistic, row.unit) for rows in complete for row in rows))
    figures.sort(key=lambda figure: f"{figure[0]}_s" in COSTS)
    names = ["workload", "scale", "mode", "implementation"]
    measured = ["n", *(f"{name} {unit}" if unit in SECONDS else name for name, unit in figures)]
    lines = [_line(rows, [name for name, _ in figures]) for rows in recordings]
    table = numbers.table([*names, *measured], lines, left=names, right=measured, drop=measured[:1:-1])
    return f"document {document}\n{table}"


def _line(recording: list, statistics: list[str]) -> list[str]:
    """The cells of one recording; for a failure its reason in place of the figures."""
    first = recording[0]
    name = first.implementation
    if first.threads > 1:
        name += f" x{first.threads}"
    if first.round:
        name += f" r{first.round}"
    cells = [first.label, first.scale, first.mode, name]
    if first.status != "ok":
        detail = "" if first.detail == first.reason else f" ({first.detail})"
        return [*cells, "-", f"{first.reason}{detail}"]
    values = {row.statistic: row for row in recording}
    return [*cells, str(first.n), *(_cell(values.get(name)) for name in statistics)]


def _cell(row: Any) -> str:
    """The value in `short`, or a dash."""
    if row is None or row.value is None:
        return "-"
    return f"{row.value:.0f}" if row.unit == "count" else short(row.value)


def short(value: float) -> str:
    """Four significant digits, at most four after the decimal point."""
    return format.number(value, 4) if abs(value) >= 1 else f"{value:.4f}"
