"""Recordings of the literature's workloads as the figures that their documents print, one row a figure.

The columns are those of `data/published` where they apply, so that both stand in one table. A
failure is a row without a value, in the documents' own terms where they fit. What it took before
the first batch (export, schedule, tuning, build, first call) is a row each.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.config import format
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import UsageError
from lstm_trt.literature import implementations, published
from lstm_trt.literature.published import SECONDS, Figure
from lstm_trt.literature.workloads import LiteratureWorkload, base_of
from lstm_trt.runtimes.base import COSTS
from lstm_trt.store.schema import Failure, Recording

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Row(Figure):
    """One figure of one recording; `value` is None unless `status` is "ok", and `reason` then says why.

    `workload` is its name and `label` the name with sizes and scale. `scale` is the fraction of
    the document's sizes that was run, and `batch` and `sequence` are what was run;
    `published_batch` and `published_sequence` the document's own (None where the sizes are no
    variant of it). `n` counts the timed batches, `document_n` the document's.
    """

    source: str
    workload: str
    label: str
    scale: str
    shape: str
    batch: int
    sequence: int
    features: int
    hidden: int
    layers: int
    published_batch: int | None
    published_sequence: int | None
    mode: str
    implementation: str
    title: str
    framework: str
    framework_version: str
    device: str
    hardware: str
    precision: str
    threads: int
    statistic: str
    value: float | None
    unit: str
    status: str
    reason: str
    detail: str
    n: int
    document_n: int
    round: int
    machine: str | None
    config_id: str


def _ms(latency_ns: np.ndarray) -> dict[str, tuple[float, str]]:
    """Document 000: its benchmark tool takes the standard deviation with n in the denominator."""
    statistics = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min, "std": np.std}
    return {name: (float(statistic(latency_ns)) / 1e6, "ms") for name, statistic in statistics.items()}


def _elapsed(latency_ns: np.ndarray, batch: int) -> dict[str, tuple[float, str]]:
    """Document 001: time of all timed batches, of one, and sequences a second."""
    elapsed = float(latency_ns.sum()) / 1e9
    wall = elapsed / len(latency_ns)
    return {"elapsed": (elapsed, "s"), "wall": (wall, "s"), "sequences_per_s": (batch / wall, "sequences/s")}


def _mean(latency_ns: np.ndarray) -> dict[str, tuple[float, str]]:
    """Documents 002 and 004: the mean of the batches after warm-up."""
    return {"mean": (float(latency_ns.mean()) / 1e6, "ms")}


#: Statistic that a document leads with, by document; it carries the reason of a failure.
LEADING = {"000": ("mean", "ms"), "001": ("wall", "s"), "002": ("mean", "ms"), "004": ("mean", "ms")}


def of_document(document: str, latency_ns: np.ndarray, batch: int) -> dict[str, tuple[float, str]]:
    """statistic -> (value, unit), as the document has them; `latency_ns` (n,) of the timed batches."""
    known: dict[str, Callable[[], dict]] = {
        "000": lambda: _ms(latency_ns),
        "001": lambda: _elapsed(latency_ns, batch),
    }
    return known.get(document, lambda: _mean(latency_ns))()


def self_checks(recording: Recording) -> dict[str, tuple[float, str]]:
    """Document 004: the loss before the loop and after it, and the loop's time over that of its batches."""
    losses, check = recording.provenance.get("losses"), recording.provenance["self_check"]
    if not losses:
        return {}
    figures = {"loss_first": (losses[0], "loss"), "loss_last": (losses[-1], "loss")}
    return figures | {"loop_over_batches": (check["batches_loop_ns"] / check["batches_ns"], "ratio")}


@dataclass(frozen=True)
class Table:
    """The figures of recordings and failures; iterates over its rows."""

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a figure, with `seconds`; what has no value is None or NaN."""
        return published.frame(self.rows, Row)

    def as_dict(self) -> list[dict]:
        """JSON values, an object a row."""
        return [asdict(row) for row in self.rows]

    def csv_text(self) -> str:
        """CSV with the fields of `Row` as columns; None is an empty cell."""
        target = io.StringIO()
        writer = csv.writer(target, lineterminator="\n")
        columns = published.columns_of(Row)
        writer.writerow(columns)
        writer.writerows([getattr(row, name) for name in columns] for row in self.rows)
        return target.getvalue()

    def __str__(self) -> str:
        """A block a document, a line a recording, its figures in the document's order and units."""
        documents: dict[str, dict[tuple, list[Row]]] = {}
        for row in sorted(self.rows, key=lambda row: row.source):
            recordings = documents.setdefault(row.source, {})
            recordings.setdefault((row.config_id, row.machine, row.round), []).append(row)
        return "\n\n".join(_block(document, list(found.values())) for document, found in documents.items())


def table(items: Iterable[Recording | Failure]) -> Table:
    """The figures of recordings and failures, in the order of the documents; other workloads are left out."""
    return Table(tuple(rows(items)))


def rows(items: Iterable[Recording | Failure]) -> list[Row]:
    """The rows of `table`."""
    found = []
    for item in items:
        workload = item.configuration.workload
        if not isinstance(workload, LiteratureWorkload):
            continue
        common = _common(item)
        if isinstance(item, Failure):
            statistic, unit = LEADING[workload.document]
            failed = {"value": None, "unit": unit, "status": "failed", "reason": reason(item), "detail": item.reason}
            found.append(Row(**common, statistic=statistic, **failed, n=0))
            continue
        good = {"status": "ok", "reason": "", "detail": "", "n": len(item.timed_ns)}
        for statistic, (value, unit) in _figures(item, workload).items():
            found.append(Row(**common, statistic=statistic, value=value, unit=unit, **good))
    return sorted(found, key=_place)


def _figures(recording: Recording, workload: LiteratureWorkload) -> dict[str, tuple[float, str]]:
    """Statistic -> (value, unit): the document's own, its checks, the number of parameters, the costs."""
    figures = of_document(workload.document, recording.timed_ns, workload.batch)
    figures |= self_checks(recording) if workload.document == "004" else {}
    figures["parameters"] = (workload.parameters, "count")
    costs = recording.provenance.get("costs_s", {})
    return figures | {name.removesuffix("_s"): (costs[name], "s") for name in COSTS if name in costs}


def reason(failure: Failure) -> str:
    """Why it failed, in the documents' terms where they fit ("out of mem"), else the reason itself."""
    text = failure.reason.lower()
    if failure.stage == "memory":
        return "out of mem"
    for term, documents_term in (("recursion", "recursion depth"), ("stack overflow", "stack overflow")):
        if term in text:
            return documents_term
    return failure.reason if failure.stage in ("parity", "time") else "didn't run"


def _common(item: Recording | Failure) -> dict:
    """What all rows of one recording or failure have in common."""
    configuration, workload, options = item.configuration, item.configuration.workload, item.configuration.options
    base = base_of(workload)
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
        **_implementation(configuration, item.provenance),
        "framework_version": configuration.runtime_version,
        "device": "gpu" if options.device == "cuda" else options.device,
        "hardware": configuration.device_name,
        "precision": options.precision,
        "threads": options.threads,
        "document_n": workload.batches,
        "round": item.round,
        "machine": item.provenance.get("machine_fingerprint"),
        "config_id": configuration.id,
    }


def _implementation(configuration: Configuration, provenance: dict) -> dict[str, str]:
    """Title and framework as recorded; of a failure, which has not got so far, as the implementation has them."""
    if recorded := provenance.get("implementation"):
        return {name: recorded[name] for name in ("title", "framework")}
    try:
        implementation = implementations.load(configuration.runtime)
    except UsageError:  # an implementation of someone else's
        return {"title": configuration.runtime, "framework": ""}
    return {"title": implementation.TITLE, "framework": implementation.FRAMEWORK}


def _place(row: Row) -> tuple:
    sizes = (row.hidden, row.layers, row.sequence, row.batch)
    return (row.source, row.workload, row.mode, sizes, row.scale, row.implementation, row.threads, row.round)


def _block(document: str, recordings: list[list[Row]]) -> str:
    # Those of a recording first: a failure has one only, and the order is the document's.
    complete = sorted(recordings, key=lambda rows: rows[0].status != "ok")
    figures = list(dict.fromkeys((row.statistic, row.unit) for rows in complete for row in rows))
    figures.sort(key=lambda figure: f"{figure[0]}_s" in COSTS)
    names = ["workload", "scale", "mode", "implementation"]
    numbers = ["n", *(f"{name} {unit}" if unit in SECONDS else name for name, unit in figures)]
    lines = [_line(rows, [name for name, _ in figures]) for rows in recordings]
    return f"document {document}\n{format.table([*names, *numbers], lines, left=names, right=numbers)}"


def _line(recording: list[Row], statistics: list[str]) -> list[str]:
    """The cells of one recording; of a failure its reason in place of the figures."""
    first = recording[0]
    name = first.implementation
    name += f" x{first.threads}" if first.threads > 1 else ""
    name += f" r{first.round}" if first.round else ""
    cells = [first.label, first.scale, first.mode, name]
    if first.status != "ok":
        detail = "" if first.detail == first.reason else f" ({first.detail})"
        return [*cells, "-", f"{first.reason}{detail}"]
    values = {row.statistic: row for row in recording}
    return [*cells, str(first.n), *(_cell(values.get(name)) for name in statistics)]


def _cell(row: Row | None) -> str:
    """Four digits, at most four of them behind the point."""
    if row is None or row.value is None:
        return "-"
    if row.unit == "count":
        return f"{row.value:.0f}"
    return format.number(row.value, 4) if abs(row.value) >= 1 else f"{row.value:.4f}"
