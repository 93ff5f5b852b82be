"""The documents' published figures: the tables of `data/published`, one CSV per document or further source, as rows.

One row is one published figure, with its workload and sizes. A cell without a figure is a row
without a value, so that failures, dashes and empty cells can be distinguished. Corrected figures
are marked and include the printed value. `data/published/README.md` explains the columns and
lists the corrections; tests check the tables against it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    from lstm_literature.workloads import LiteratureWorkload


#: Document -> name of its table. A suffix marks figures of the same authors that the document does not print: a later
#: revision of it, the times behind its pictures. "further": figures of other sources for comparison.
DOCUMENTS = {
    "000": "tvm-cudnn",
    "001": "ptb-language-model",
    "001-later": "ptb-language-model-later",
    "002": "text-classifier",
    "004": "speech",
    "004-times": "speech-times",
    "further": "further",
}

FOLDER = Path("data/published")


#: Units of time in seconds; figures with other units are not times.
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

#: Statistics for the time of one batch; each configuration has one such row. "mean": stated as a mean;
#: "wall": elapsed time divided by batches; "time": the document does not state the statistic.
TYPICAL = ("mean", "wall", "time")

SIZES = ("batch", "sequence", "features", "hidden", "layers")


class Figure:
    """Base class of a figure of a document or a recording: a frozen dataclass with at least these fields."""

    value: float | None
    unit: str

    @property
    def seconds(self) -> float | None:
        """The value in seconds; None if there is no value or it is not a time."""
        return None if self.value is None or self.unit not in SECONDS else self.value * SECONDS[self.unit]


@dataclass(frozen=True)
class Row(Figure):
    """One cell of a published table; sizes that its document does not state are None.

    `value` is None unless `status` is "ok"; otherwise `status` is "failed", "no figure" (a printed dash) or "empty"
    (an empty cell), with the `reason` in the document's words if it gives one.
    `published_value` is the cell as printed if `value` differs from it or is None.
    """

    source: str
    table: str
    workload: str
    shape: str
    batch: int | None
    sequence: int | None
    features: int | None
    hidden: int | None
    layers: int | None
    mode: str
    implementation: str
    framework: str
    framework_version: str
    device: str
    hardware: str
    precision: str
    statistic: str
    value: float | None
    unit: str
    status: str
    reason: str
    corrected: bool
    published_value: str
    note: str

    def matches(self, workload: LiteratureWorkload) -> bool:
        """Whether this row belongs to the unscaled `workload`: all sizes that are stated are equal."""
        stated = [size for size in SIZES if getattr(self, size) is not None]
        same = all(getattr(self, size) == getattr(workload, size) for size in stated)
        return self.workload == workload.name and self.mode in workload.modes and same


def of(document: str) -> tuple[Row, ...]:
    """The rows of one document ("001"), then those of the same authors' further sources ("001-later"); as `load`."""
    return tuple(row for name in DOCUMENTS if name.partition("-")[0] == document for row in load(name))


def load(document: str) -> tuple[Row, ...]:
    """The rows of one table (`DOCUMENTS`), in its order.

    Its table is searched for in `data/published` of the working folder, of its parent folders, and of the
    source tree from which this package runs, since the tables are not part of an installed package.
    Raises `UsageError` if none of these folders has it.
    """
    path = FOLDER / f"{DOCUMENTS[document]}.csv"
    for folder in [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]]:
        if (folder / path).is_file():
            with (folder / path).open(newline="", encoding="utf-8") as file:
                return tuple(_row(cells) for cells in csv.DictReader(file))
    raise UsageError(f"{path} not found in the working folder or its parents: run in a checkout of the project")


def _row(cells: dict[str, str]) -> Row:
    sizes = {size: int(cells[size]) if cells[size] else None for size in SIZES}
    value = float(cells["value"]) if cells["value"] else None
    return Row(**{**cells, **sizes, "value": value, "corrected": cells["corrected"] == "true"})
