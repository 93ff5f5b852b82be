"""The documents' published figures: the tables of `data/published`, one CSV per document or further source, as rows.

One row is one published figure, with its workload and sizes. A cell without a figure is a row
without a value, so that failures, dashes and empty cells can be distinguished. Corrected figures
are marked and include the printed value. `data/published/README.md` explains the columns and
lists the corrections; tests check the tables against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lstm_literature.workloads import AS_THERE, LiteratureWorkload
from lstm_trt.config.errors import UsageError
from lstm_trt.config.libraries import pd

#: Document -> name of its table. A suffix marks figures of the same authors that the document does not print: a later
#: revision of it, the times in its repository or behind its pictures. "further": figures of other sources for
#: comparison.
DOCUMENTS = {
    "000": "tvm-cudnn",
    "001": "ptb-language-model",
    "001-later": "ptb-language-model-later",
    "001-newest": "ptb-language-model-newest",
    "002": "text-classifier",
    "003-times": "tensorrt-a100",
    "003-projection": "groq-projection",
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

#: Statistics of `points`; "projection": not measured.
POINTS = (*TYPICAL, "projection")

SIZES = ("batch", "sequence", "features", "hidden", "layers")

#: Columns that a table lacks where it has nothing in them.
OPTIONAL = ("threads", "doubt")


def seconds(value: float | None, unit: str) -> float | None:
    """A published or recorded value in seconds; None if there is no value or it is not a time."""
    return None if value is None or unit not in SECONDS else value * SECONDS[unit]


def matches(row: Any, workload: LiteratureWorkload) -> bool:
    """Whether a published row belongs to the unscaled `workload`: all sizes that are stated are equal.

    A row of a program that differs from its document's workload also belongs to the workload as that program has it.
    """
    same = all(getattr(row, size) in (None, getattr(workload, size)) for size in SIZES)
    return workload.name in (row.workload, as_there(row)) and row.mode in workload.modes and same


def as_there(row: Any) -> str:
    """The name of the workload as the program of a published row has it."""
    return AS_THERE.get((row.workload, row.implementation)) or row.workload


def of(document: str) -> pd.DataFrame:
    """The rows of one document ("001"), then those of the same authors' further sources ("001-later")."""
    return pd.concat(
        [read_document(name) for name in DOCUMENTS if name.partition("-")[0] == document], ignore_index=True
    )


def points(document: str) -> pd.DataFrame:
    """The times of `read_document(document)` as points of figures (`lab.plots.curves`, argument `beside`).

    The columns are the sizes, `table`, `label` (what ran it, the statistic, the table), and `latency_us`. Rows without
    a time or with another statistic than those in `POINTS` are left out; all sizes must be stated.
    """
    found = read_document(document)
    found = found[found["statistic"].isin(POINTS) & found["seconds"].notna()]
    every: Any = found.itertuples()
    sizes = pd.DataFrame(found, columns=[*SIZES, "table"]).infer_objects()
    times_us = 1e6 * found["seconds"].astype(float)
    return sizes.assign(label=list(map(_what_ran, every)), latency_us=times_us).reset_index(drop=True)


def _what_ran(row: Any) -> str:
    machine = " on ".join(filter(None, (row.framework, row.hardware)))
    return f"{machine} ({row.statistic}, {row.table})"


def read_document(document: str) -> pd.DataFrame:
    """One table (`DOCUMENTS`): a row per cell, in its order, as Python values; sizes that are not stated are None.

    `value` is None unless `status` is "ok"; otherwise `status` is "failed", "no figure" (a printed dash) or "empty"
    (an empty cell), with the `reason` in the document's words if it gives one. `threads` is None, and `doubt` empty,
    unless the document or its code has reasons for them.
    `published_value` is the cell as printed if `value` differs from it or is None. `seconds` is added: the value if it
    is a time.
    Raises `UsageError` where `read_table` does not find it.
    """
    kinds = {**dict.fromkeys((*SIZES, "threads"), int), "value": float}
    found = read_table(FOLDER / f"{DOCUMENTS[document]}.csv", kinds)
    found["corrected"] = found["corrected"] == "true"
    return found.assign(seconds=pd.Series(list(map(seconds, found["value"], found["unit"])), dtype=object))


def read_table(path: Path, kinds: Mapping[str, Callable[[str], Any]]) -> pd.DataFrame:
    """A CSV of the project as text, but for the columns of `kinds`, where an empty cell is None.

    It is searched for in the working folder, in its parent folders, and in the source tree from which this package
    runs, since the tables are not part of an installed package. Raises `UsageError` if none of these folders has it.
    """
    for folder in [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]]:
        if (folder / path).is_file():
            found = pd.read_csv(folder / path, dtype=str, keep_default_na=False).astype(object)
            found = found.assign(**{name: "" for name in OPTIONAL if name not in found})
            for name, kind in kinds.items():
                found[name] = pd.Series([kind(cell) if cell else None for cell in found[name]], dtype=object)
            return found
    raise UsageError(f"{path} not found in the working folder or its parents: run in a checkout of the project")
