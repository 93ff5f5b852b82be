"""Recordings of the literature's workloads as the figures that their documents print, one row a figure.

The columns are those of `data/published` where they apply, so that both stand in one table. A
failure is a row without a value, in the documents' own words where they fit. What it took before
the first batch (export, schedule, tuning, build, first call) is a row each.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.format import table
from lstm_trt.literature.published import SECONDS
from lstm_trt.literature.workloads import LiteratureWorkload, base_of
from lstm_trt.runtimes.base import COSTS
from lstm_trt.store.schema import Failure, Recording

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Row:
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

    @property
    def seconds(self) -> float | None:
        """The value in seconds; None where there is none or it is no time."""
        return None if self.value is None or self.unit not in SECONDS else self.value * SECONDS[self.unit]


COLUMNS = tuple(field.name for field in fields(Row))


def _ms(latency_ns: np.ndarray) -> dict[str, tuple[float, str]]:
    """Document 000: its benchmark tool takes the standard deviation with n in the denominator."""
    told = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min, "std": np.std}
    return {name: (float(of(latency_ns)) / 1e6, "ms") for name, of in told.items()}


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
    told = {"loss_first": (losses[0], "loss"), "loss_last": (losses[-1], "loss")}
    return told | {"loop_over_batches": (check["batches_loop_ns"] / check["batches_ns"], "ratio")}


def rows(items: Iterable[Recording | Failure]) -> list[Row]:
    """The rows of recordings and failures; other workloads are left out."""
    found = []
    for item in items:
        if not isinstance(item.configuration.workload, LiteratureWorkload):
            continue
        common = _common(item)
        document = common["source"]
        if isinstance(item, Failure):
            statistic, unit = LEADING[document]
            told = {"value": None, "unit": unit, "status": "failed", "reason": words(item), "detail": item.reason}
            found.append(Row(**common, statistic=statistic, **told, n=0))
            continue
        figures = of_document(document, item.timed_ns, item.configuration.workload.batch)
        figures |= self_checks(item) if document == "004" else {}
        figures["parameters"] = (item.configuration.workload.parameters, "count")
        costs = item.provenance.get("costs_s", {})
        figures |= {name.removesuffix("_s"): (costs[name], "s") for name in COSTS if name in costs}
        for statistic, (value, unit) in figures.items():
            told = {"value": value, "unit": unit, "status": "ok", "reason": "", "detail": ""}
            found.append(Row(**common, statistic=statistic, **told, n=len(item.timed_ns)))
    return sorted(found, key=_place)


def words(failure: Failure) -> str:
    """Why it failed in the documents' words where they fit, else the reason itself."""
    text = failure.reason.lower()
    if failure.stage == "memory":
        return "out of mem"
    if "recursion" in text:
        return "recursion depth"
    if "stack overflow" in text:
        return "stack overflow"
    return failure.reason if failure.stage in ("parity", "time") else "didn't run"


def _common(item: Recording | Failure) -> dict:
    configuration, workload = item.configuration, item.configuration.workload
    base = base_of(workload)
    told = {
        "source": workload.document,
        "workload": workload.name,
        "label": workload.label,
        "scale": workload.scale,
        "shape": shape_words(workload),
        **{name: getattr(workload, name) for name in ("batch", "sequence", "features", "hidden", "layers")},
        "published_batch": base and base.batch,
        "published_sequence": base and base.sequence,
        "mode": configuration.mode,
        "implementation": configuration.runtime,
        **_implementation(configuration, item.provenance),
        "framework_version": configuration.runtime_version,
        "device": "gpu" if configuration.options.device == "cuda" else configuration.options.device,
        "hardware": configuration.device_name,
        "precision": configuration.options.precision,
        "threads": configuration.options.threads,
        "document_n": workload.batches,
        "round": item.round,
        "machine": item.provenance.get("machine_fingerprint"),
        "config_id": configuration.id,
    }
    return told


def _implementation(configuration: Configuration, provenance: dict) -> dict:
    """Title and framework as recorded; of a failure, which has not got so far, as the registry has them."""
    told = provenance.get("implementation")
    if told is None:
        from lstm_trt.config.errors import LabError
        from lstm_trt.literature import implementations

        try:
            module = implementations.load(configuration.runtime)
            told = {"title": module.TITLE, "framework": module.FRAMEWORK}
        except LabError:  # an implementation of someone else's
            told = {"title": configuration.runtime, "framework": ""}
    return {name: told[name] for name in ("title", "framework")}


def shape_words(workload: LiteratureWorkload) -> str:
    """All sizes that were run, as the published tables write them."""
    told = f"layers {workload.layers}" + (" bidirectional" if workload.directions == 2 else "")
    told += f" hidden {workload.hidden} input {workload.features} sequence {workload.sequence} batch {workload.batch}"
    for name, value in (
        ("vocabulary", workload.vocabulary),
        ("outputs", workload.outputs),
        ("labels", workload.labels),
    ):
        told += f" {name} {value}" if value else ""
    return told + (f" lengths {workload.lengths[0]} to {workload.lengths[1]}" if workload.lengths else "")


def _place(row: Row) -> tuple:
    sizes = (row.hidden, row.layers, row.sequence, row.batch)
    return (row.source, row.workload, row.mode, sizes, row.scale, row.implementation, row.threads, row.round)


def frame(items: Iterable[Recording | Failure]) -> pd.DataFrame:
    """`rows` as a pandas table, with `seconds`; what has no value is None or NaN."""
    import pandas as pd

    found = rows(items)
    table = pd.DataFrame({name: [getattr(row, name) for row in found] for name in (*COLUMNS, "seconds")})
    types = {"value": "float64", "seconds": "float64", "published_batch": "Int64", "published_sequence": "Int64"}
    return table.astype(types)


@dataclass(frozen=True)
class Metrics:
    """Rows as answers: JSON values, CSV, and text for the terminal."""

    rows: tuple[Row, ...]

    def as_dict(self) -> list[dict]:
        """JSON values, one object a row."""
        return [asdict(row) for row in self.rows]

    def csv_text(self) -> str:
        """One line a row; None is an empty cell."""
        target = io.StringIO()
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([getattr(row, name) for name in COLUMNS] for row in self.rows)
        return target.getvalue()

    def __str__(self) -> str:
        """A block a document, a line a recording, its figures in the document's order and units."""
        blocks = []
        for document in sorted({row.source for row in self.rows}):
            recordings: dict[tuple, list[Row]] = {}
            for row in self.rows:
                if row.source == document:
                    recordings.setdefault((row.config_id, row.machine, row.round), []).append(row)
            blocks.append(f"document {document}\n{_table(list(recordings.values()))}")
        return "\n\n".join(blocks)


def _table(recordings: list[list[Row]]) -> str:
    # Those of a recording first: a failure has one only, and the order is the document's.
    complete = sorted(recordings, key=lambda rows: rows[0].status != "ok")
    figures = list(dict.fromkeys((row.statistic, row.unit) for rows in complete for row in rows))
    figures.sort(key=lambda figure: f"{figure[0]}_s" in COSTS)
    names = ["workload", "scale", "mode", "implementation"]
    numbers = ["n", *(f"{name} {unit}" if unit in SECONDS else name for name, unit in figures)]
    lines = []
    for rows in recordings:
        first = rows[0]
        threads, round = f" x{first.threads}" * (first.threads > 1), f" r{first.round}" * (first.round > 0)
        line = [first.label, first.scale, first.mode, f"{first.implementation}{threads}{round}"]
        if first.status != "ok":
            detail = "" if first.detail == first.reason else f" ({first.detail})"
            lines.append([*line, "-", f"{first.reason}{detail}"])
            continue
        values = {row.statistic: row for row in rows}
        lines.append([*line, str(first.n), *(_cell(values.get(name)) for name, _ in figures)])
    return table([*names, *numbers], lines, left=names, right=numbers)


def _cell(row: Row | None) -> str:
    if row is None or row.value is None:
        return "-"
    if row.unit == "count":
        return f"{row.value:.0f}"
    digits = max(0, 3 - math.floor(math.log10(abs(row.value)))) if row.value else 0
    return f"{row.value:.{min(digits, 4)}f}"
