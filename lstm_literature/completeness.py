"""Document x system x size: each published time, the recording that takes its place today, or why there is none.

A recording that differs in more than the machine is marked (`MARKS`), and a published time that is doubtful has a
question mark and the reason. `lstm-literature table --coverage` prints it; `SHIPPED` is that of the recordings that
ship.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Any

from lstm_judge.read import numbers
from lstm_judge.read.labels import record_command
from lstm_literature import implementations, metrics, published, schedule, sides
from lstm_literature.preparer import protocol_of, reason
from lstm_literature.workloads import VARIANTS, LiteratureWorkload
from lstm_trt.config import format
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import UsageError
from lstm_trt.config.libraries import pd

#: Mark -> whether a recording has it, given the published row. Times drift if they change by more than is a tie.
MARKS = {
    "scaled": lambda item, row: item.scale != LiteratureWorkload.scale,
    "few batches": lambda item, row: item.n <= schedule.FEWEST,
    "other threads": lambda item, row: row.threads not in (None, item.threads),
    "drift": lambda item, row: not 1 / sides.APART < 1 + item.drift < sides.APART,
}

#: The coverage of the recordings in `data/xeon/literature`, which `make figures` writes.
SHIPPED = Path("data/measured/literature-coverage.csv")

#: Columns of numbers, which `SHIPPED` has as text.
_NUMBERS = {
    **dict.fromkeys(("published", "today"), float),
    **dict.fromkeys(("n", "document_n", "threads", "document_threads"), int),
}

#: The columns with their values where nothing takes the place of a published system.
_COLUMNS = dict.fromkeys(
    (
        "document", "source", "system", "workload", "label", "mode", "device", "published", "printed", "unit",
        "implementation", "today", "device_today", "hardware", "framework_version", "scale", "n", "document_n",
        "reason", "threads", "document_threads", "marks", "doubt",
    ),
    "",
) | dict.fromkeys(_NUMBERS)  # fmt: skip

#: Columns of a table in a notebook.
IN_NOTEBOOKS = ("system", "workload", "published", "implementation", "today", "scale", "n", "marks")

#: Document 003: its times are means of networks that `lstm_trt` records, not of workloads of this package.
_QUESTIONS = {
    "document": "003",
    "source": "003",
    "system": "TensorRT",
    "label": "stacked LSTMs",
    "mode": "forward",
    "device": "gpu",
    "printed": "means",
    "unit": "ms",
    "reason": "notebooks 01 to 04 show them beside recordings, notebook 05 answers its questions",
}


class Coverage(metrics.Table):
    """A row for each published time and implementation that takes the place of its system today, by document.

    `document` is a key of `published.DOCUMENTS`, `system` the title of the published implementation. `published` and
    `today` are times per batch in `unit`; `printed` is the published cell as text, such as the reason of a failure.
    The columns from `device_today` on describe the recording: `n` batches were timed, `document_n` by the document.
    Without a recording, `today` is None and `reason` says why. `marks` are those of `MARKS`, separated by commas;
    `doubt` is why the published time is doubtful.
    """

    def __str__(self) -> str:
        """One table per document; a row without a recording ends with the reason."""
        tables = []
        for title, header, cells, doubts in self._blocks():
            table = numbers.table(header, cells, drop=("n", "threads", "version", "on", "scale"))
            tables.append("\n".join([title, table, *doubts]))
        return "\n\n".join(tables)

    def _repr_html_(self) -> str:
        """The columns `IN_NOTEBOOKS` in Jupyter; a reason goes across the columns that it takes the place of."""
        lines = []
        for title, header, cells, doubts in self._blocks():
            lines += [
                f"<p>{escape(title)}</p>",
                f"<table><thead>{_html_row(header, header)}</thead>",
                *(_html_row(header, row) for row in cells),
                "</table>",
            ]
            lines += [f"<p>{escape(doubt)}</p>" for doubt in doubts]
        return "\n".join(lines)

    def _blocks(self) -> Iterator[tuple[str, list[str], list[list[str]], list[str]]]:
        """Of each document title, header, the cells of its rows, and doubts; a repeated system is left empty."""
        for document, group in itertools.groupby(self, key=lambda row: row.document):
            rows = list(group)
            title = f"document {document}" if document.isdigit() else rows[0].source
            if any(row.workload for row in rows):
                recorded = [row for row in rows if row.today is not None]
                title += f": {len(recorded)} of {format.count(len(rows), 'row')} recorded"
                if marks := Counter(mark for row in recorded for mark in filter(None, row.marks.split(", "))):
                    numbers = ", ".join(f"{mark}: {number}" for mark, number in marks.items())
                    title += f", {sum(bool(row.marks) for row in recorded)} of them marked ({numbers})"
            names = ["system", "workload", "device", f"published {rows[0].unit}", "implementation"]
            header = [*names, f"today {rows[0].unit}", "on", "version", "scale", "n", "threads", "marks"]
            repeated = [False, *(a.system == b.system for a, b in itertools.pairwise(rows))]
            doubts = dict.fromkeys(f"? {row.system}, {row.mode}: {row.doubt}" for row in rows if row.doubt)
            yield title, header, [_cells(row, again) for row, again in zip(rows, repeated, strict=True)], list(doubts)


def _html_row(header: list[str], row: list[str]) -> str:
    """A row of the columns `IN_NOTEBOOKS`, each workload in one line; a reason goes across the columns that it takes
    the place of."""
    kind = "th" if row is header else "td"
    cells = []
    for name, cell in zip(header, row, strict=False):
        if name.split()[0] in IN_NOTEBOOKS:
            wrap = "nowrap" if name == "workload" else "normal"
            cells.append(f'<{kind} style="white-space: {wrap}">{escape(cell)}</{kind}>')
    if len(row) < len(header):
        rest = 1 + len(IN_NOTEBOOKS) - len(cells)
        cells[-1] = f'<td colspan="{rest}" style="text-align: left">{escape(row[-1])}</td>'
    return f"<tr>{''.join(cells)}</tr>"


def _cells(row: Any, again: bool) -> list[str]:
    printed = row.printed + (" ?" if row.doubt else "")
    names = ["" if again else row.system, row.label, row.device, printed, row.implementation or "-"]
    if row.today is None:
        return [*names, row.reason]
    n = str(row.n) + (f" of {row.document_n}" if row.n < row.document_n else "")
    threads = str(row.threads) + (f" of {row.document_threads}" if row.document_threads else "")
    return [*names, metrics.short(row.today), row.device_today, row.framework_version, row.scale, n, threads, row.marks]


def coverage(recorded: Iterable, documents: Collection[str] = published.DOCUMENTS) -> Coverage:
    """All published times of documents and of their authors' further sources, with the best of `recorded` for each.

    The best recording is on the device of the published time if there is one, with the fewest threads, at the largest
    scale, and of these `sides.chosen`.
    """
    leading = [row for row in recorded if metrics.is_leading(row)]
    found = [_QUESTIONS] if "003-times" in documents else []
    for document in documents:
        every: Any = published.read_document(document).itertuples()
        rows = [row for row in every if row.statistic in published.TYPICAL and row.workload in VARIANTS]
        titles = list(dict.fromkeys(map(sides.printed_title, rows)))
        for row in sorted(rows, key=lambda row: titles.index(sides.printed_title(row))):
            found += _rows(document, row, leading)
    found = [{**_COLUMNS, **row} for row in sorted(found, key=itemgetter("document"))]
    return Coverage(pd.DataFrame(found, dtype=object))


def shipped() -> Coverage:
    """The coverage of the recordings that ship, without reading them; raises `UsageError` outside a checkout."""
    return Coverage(published.read_table(SHIPPED, _NUMBERS))


def _rows(document: str, row: Any, leading: list) -> list[dict]:
    """One row per successor of a published row's implementation."""
    workload = next(variant for variant in VARIANTS[published.as_there(row)] if published.matches(row, variant))
    printed = row.reason or row.status if row.value is None else format.short_number(row.value)
    if row.corrected:
        printed += f" (printed {row.published_value})"
    label = workload.label if len(workload.modes) == 1 else workload.title(row.mode)
    common = {
        "document": document,
        "source": row.source,
        "system": sides.printed_title(row),
        "workload": workload.name,
        "label": label,
        "mode": row.mode,
        "device": row.device,
        "published": row.value,
        "printed": printed,
        "unit": row.unit,
        "document_threads": row.threads,
        "doubt": row.doubt,
    }
    return [
        {**common, "implementation": name, **_today(row, workload, name, leading)}
        for name in sides.successors_of(row.implementation)
    ]


def _today(row: Any, workload: LiteratureWorkload, name: str, leading: list) -> dict:
    """The columns that describe the best recording of an implementation, or why there is none."""

    def rank(item: Any) -> tuple:
        return item.status == "ok", item.device == row.device, -item.threads, Fraction(item.scale)

    own = [item for item in leading if item.implementation == name and sides.is_of(item, workload, row.mode)]
    if not own:
        return {"reason": _why_not(workload, name, row.mode)}
    best = max(map(rank, own))
    item = sides.chosen([item for item in own if rank(item) == best])
    if item.status != "ok":
        return {"reason": f"failed at scale {item.scale}: {item.reason}"}
    kept = ("hardware", "framework_version", "scale", "n", "document_n", "threads")
    same = {field: getattr(item, field) for field in kept}
    return {
        "today": item.value,
        "device_today": item.device,
        **same,
        "marks": ", ".join(mark for mark, has in MARKS.items() if has(item, row)),
    }


def _why_not(workload: LiteratureWorkload, name: str, mode: str) -> str:
    try:
        refusal = reason(name, workload, mode)
    except UsageError as error:
        return str(error)
    if refusal:
        return refusal
    if implementations.load_implementation(name).DEVICES[0] == "cuda":
        return "needs an NVIDIA GPU"
    protocol = protocol_of(workload)
    estimate_s = schedule.estimate_s(workload, name, mode, protocol.warmup + protocol.trials)
    takes = f"takes about {format.duration(estimate_s)}: " if estimate_s else ""
    configuration = Configuration(workload, name, "", "", protocol=protocol, mode=mode)
    return f"not recorded; {takes}{record_command(configuration, 'FOLDER')}"
