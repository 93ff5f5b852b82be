"""What the documents printed: the tables of `data/published`, one CSV a document, as rows.

One row is one printed figure, with the workload and sizes it belongs to. A cell that holds
no figure is a row as well, without a value, so that a failure, a dash and an empty cell stay
apart. Corrected figures are marked and carry what was printed. `data/published/README.md`
explains the columns and lists the corrections; that the tables hold to it is tested.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    from lstm_trt.literature.workloads import LiteratureWorkload


#: Document -> the name of its table. "further" are figures of other sources to stand beside.
DOCUMENTS = {
    "000": "tvm-cudnn",
    "001": "ptb-language-model",
    "002": "text-classifier",
    "004": "speech",
    "further": "further",
}

FOLDER = Path("data/published")


#: Units of time, in seconds; the other units are no times.
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

#: The time of one unit of work as each document prints it: one such row a configuration.
#: "mean" is stated; "wall" is elapsed time over batches; "time" is a figure whose statistic is not stated.
TYPICAL = ("mean", "wall", "time")

SIZES = ("batch", "sequence", "features", "hidden", "layers")


class Figure:
    """Base of one figure of a table, of a document or of a recording: a frozen dataclass with at least these fields."""

    value: float | None
    unit: str

    @property
    def seconds(self) -> float | None:
        """The value in seconds; None where there is no value or it is no time."""
        return None if self.value is None or self.unit not in SECONDS else self.value * SECONDS[self.unit]


@dataclass(frozen=True)
class Row(Figure):
    """One cell of a published table; sizes that its document does not state are None.

    `value` is None unless `status` is "ok"; else `status` is "failed", "no figure" (a printed dash) or "empty" (a cell
    with nothing in it), with the `reason` in the document's words where it gives one.
    `published_value` is the cell as printed where `value` differs from it or there is none.
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
        """Whether this row is about `workload`, whose sizes must be unscaled: every size that is stated is equal."""
        stated = [size for size in SIZES if getattr(self, size) is not None]
        same = all(getattr(self, size) == getattr(workload, size) for size in stated)
        return self.workload == workload.name and self.mode in workload.modes and same


def load(document: str) -> tuple[Row, ...]:
    """The rows of one document (`DOCUMENTS`), in its own order.

    Its table is looked for in `data/published` of the working folder, of the folders above it, and of the
    source tree that this package runs from: the tables are not part of an installed package.
    Raises `UsageError` where none of those folders has it.
    """
    path = FOLDER / f"{DOCUMENTS[document]}.csv"
    for folder in [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2]]:
        if (folder / path).is_file():
            with (folder / path).open(newline="", encoding="utf-8") as file:
                return tuple(_row(cells) for cells in csv.DictReader(file))
    raise UsageError(f"there is no {path} here or in a folder above: run in a checkout of the project")


def _row(cells: dict[str, str]) -> Row:
    sizes = {size: int(cells[size]) if cells[size] else None for size in SIZES}
    value = float(cells["value"]) if cells["value"] else None
    return Row(**{**cells, **sizes, "value": value, "corrected": cells["corrected"] == "true"})
