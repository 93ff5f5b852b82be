"""Document x system x size: each published time, the recording that takes its place today, or why there is none.

`lstm-literature table --coverage` prints it; `docs/literature.md` has it as Markdown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from lstm_literature import implementations, metrics, published, schedule, sides
from lstm_literature.preparer import protocol_of, reason
from lstm_literature.workloads import VARIANTS, LiteratureWorkload
from lstm_trt.config import format
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import UsageError
from lstm_trt.config.labels import record_command


@dataclass(frozen=True)
class Row:
    """One published time and an implementation that takes the place of its system today.

    `document` is a key of `published.DOCUMENTS`, `system` the title of the published implementation. `published` and
    `today` are times per batch in `unit`; `printed` is the published cell as text, such as the reason of a failure.
    The fields from `device_today` on describe the recording: `n` batches were timed, `document_n` by the document.
    Without a recording, `today` is None and `reason` says why.
    """

    document: str
    source: str
    system: str
    workload: str
    label: str
    mode: str
    device: str
    published: float | None
    printed: str
    unit: str
    implementation: str = ""
    today: float | None = None
    device_today: str = ""
    hardware: str = ""
    framework_version: str = ""
    scale: str = ""
    n: int | None = None
    document_n: int | None = None
    reason: str = ""


#: Document 003, which prints no times.
_QUESTIONS = Row(
    "003", "003", "TensorRT", "", "stacked LSTMs", "forward", "gpu", None, "no times", "ms",
    reason="notebooks 01 to 05 answer its questions",
)  # fmt: skip


class Coverage(metrics.Table):
    """The rows, by document and system; iterates over them."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        """One table per document; a row without a recording ends with the reason."""
        drop = ("n", "version", "on", "scale")
        tables = [f"{title}\n{format.table(header, cells, drop=drop)}" for title, header, cells in self._blocks()]
        return "\n\n".join(tables)

    def markdown_text(self) -> str:
        """The same tables in Markdown."""
        lines = []
        for title, header, cells in self._blocks():
            complete = [[*row, *[""] * (len(header) - len(row))] for row in (header, ["---"] * len(header), *cells)]
            lines += [f"**{title}**", "", *(f"| {' | '.join(row)} |" for row in complete), ""]
        return "\n".join(lines)

    def _blocks(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """Of each document the title, the header, and the cells of its rows; a repeated system is left empty."""
        for document, group in itertools.groupby(self.rows, key=lambda row: row.document):
            rows = list(group)
            title = f"document {document}" if document.isdigit() else rows[0].source
            if any(row.workload for row in rows):
                title += f": {sum(row.today is not None for row in rows)} of {format.count(len(rows), 'row')} recorded"
            names = ["system", "workload", "device", f"published {rows[0].unit}", "implementation"]
            header = [*names, f"today {rows[0].unit}", "on", "version", "scale", "n"]
            repeated = [False, *(a.system == b.system for a, b in itertools.pairwise(rows))]
            yield title, header, [_cells(row, again) for row, again in zip(rows, repeated, strict=True)]


def _cells(row: Row, again: bool) -> list[str]:
    names = ["" if again else row.system, row.label, row.device, row.printed, row.implementation or "-"]
    if row.today is None:
        return [*names, row.reason]
    n = str(row.n) + (f" of {row.document_n}" if row.n < row.document_n else "")
    return [*names, metrics.short(row.today), row.device_today, row.framework_version, row.scale, n]


def coverage(recorded: Iterable[metrics.Row]) -> Coverage:
    """All published times of the documents and of their authors' further sources, with the best of `recorded` for each.

    The best recording is on the device of the published time if there is one, with the fewest threads, at the largest
    scale, and of these `sides.chosen`.
    """
    leading = [row for row in recorded if row.leading]
    found = [_QUESTIONS]
    for document in published.DOCUMENTS:
        if document != "further":
            rows = [row for row in published.load(document) if row.statistic in published.TYPICAL]
            titles = list(dict.fromkeys(map(sides.printed_title, rows)))
            for row in sorted(rows, key=lambda row: titles.index(sides.printed_title(row))):
                found += _rows(document, row, leading)
    return Coverage(tuple(sorted(found, key=lambda row: row.document)))


def _rows(document: str, row: published.Row, leading: list[metrics.Row]) -> list[Row]:
    """One row per successor of a published row's implementation."""
    workload = next(variant for variant in VARIANTS[row.workload] if row.matches(variant))
    printed = row.reason or row.status if row.value is None else format.short_number(row.value)
    printed += f" (printed {row.published_value})" if row.corrected else ""
    label = workload.label if len(workload.modes) == 1 else workload.title(row.mode)
    names = (row.workload, label, row.mode, row.device, row.value, printed, row.unit)
    common = (document, row.source, sides.printed_title(row), *names)
    successors = sides.SUCCESSORS.get((workload.document, row.implementation), (row.implementation,))
    if isinstance(successors, str):
        return [Row(*common, reason=successors)]
    return [Row(*common, name, **_today(row, workload, name, leading)) for name in successors]


def _today(row: published.Row, workload: LiteratureWorkload, name: str, leading: list[metrics.Row]) -> dict:
    """The fields of `Row` that describe the best recording of an implementation, or why there is none."""

    def rank(item: metrics.Row) -> tuple:
        return item.status == "ok", item.device == row.device, -item.threads, Fraction(item.scale)

    own = [item for item in leading if item.implementation == name and sides.is_of(item, workload, row.mode)]
    if not own:
        return {"reason": _why_not(workload, name, row.mode)}
    best = max(map(rank, own))
    item = sides.chosen([item for item in own if rank(item) == best])
    if item.status != "ok":
        return {"reason": f"failed at scale {item.scale}: {item.reason}"}
    same = {field: getattr(item, field) for field in ("hardware", "framework_version", "scale", "n", "document_n")}
    return {"today": item.value, "device_today": item.device, **same}


def _why_not(workload: LiteratureWorkload, name: str, mode: str) -> str:
    try:
        refusal = reason(name, workload, mode)
    except UsageError as error:
        return str(error)
    if refusal:
        return refusal
    if implementations.load(name).DEVICES[0] == "cuda":
        return "needs an NVIDIA GPU"
    protocol = protocol_of(workload)
    estimate_s = schedule.estimate_s(workload, name, mode, protocol.warmup + protocol.trials)
    takes = f"takes about {format.duration(estimate_s)}: " if estimate_s else ""
    configuration = Configuration(workload, name, "", "", protocol=protocol, mode=mode)
    return f"not recorded; {takes}{record_command(configuration, 'FOLDER')}"
