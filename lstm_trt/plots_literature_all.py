"""All pictures that recordings of the literature's workloads support, beside what the documents print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lstm_trt.errors import UsageError
from lstm_trt.literature import metrics, published, standing
from lstm_trt.literature.task import COSTS
from lstm_trt.literature.workloads import VARIANTS, Workload
from lstm_trt.plots_literature import bars, costs
from lstm_trt.plots_literature_sizes import over_size, table_of
from lstm_trt.plots_style import Picture, write_pictures

#: Families that are drawn over a size as well: workload -> (field, its name on the axis).
SIZES = {"stack": ("layers", "layers"), "text-classifier": ("hidden", "hidden size")}


def draw(rows: Iterable[metrics.Row], folder: str | Path) -> list[Path]:
    """Write `literature-*.png` into `folder`; returns their paths.

    Bars for every workload and mode (of `layer` all sizes in one picture, of `stack` and
    `text-classifier` a picture over the size instead), and what each document's implementations
    took before the first answer. Raises `UsageError` where the folder cannot be written.
    """
    rows = list(rows)
    pictures: dict[str, Callable[[], Picture]] = {}
    for name in dict.fromkeys(row.workload for row in rows):
        printed = published.load(VARIANTS[name][0].document)
        for mode in dict.fromkeys(row.mode for row in rows if row.workload == name):
            found = [(one, *_sides(rows, printed, one, mode)) for one in VARIANTS[name]]
            stem = f"literature-{name}-{mode}"
            if name == "layer":
                table = [(one.label + _at(now), then, now[0] if now else None) for one, then, now in found]
                pictures[f"{stem}.png"] = lambda table=table: table_of(table, "layer: batch x sequence x units")
            elif name in SIZES:
                pictures[f"{stem}.png"] = _over(name, mode, found)
            else:
                ((_, _, now),) = found
                sides = [*standing.printed(printed, found[0][0], mode), *now]
                title = f"{name}: {'a training step' if mode == 'training' else 'a forward run'}"
                pictures[f"{stem}.png"] = lambda sides=sides, title=title: bars(sides, title)
    for document in dict.fromkeys(row.source for row in rows):
        mine = [row for row in rows if row.source == document]
        if any(f"{row.statistic}_s" in COSTS for row in mine):
            title = f"Document {document}: what it took before the first answer"
            told = (mine, title, ["A mark a recording: the document's workloads, modes and sizes together."])
            pictures[f"literature-costs-{document}.png"] = lambda told=told: costs(*told)
    return write_pictures(pictures, folder)


def _sides(rows, printed, workload: Workload, mode: str) -> tuple[standing.Side | None, list[standing.Side]]:
    then = standing.printed(printed, workload, mode)
    try:
        now = standing.today(rows, workload, mode)
    except UsageError:
        now = []
    return (then[0] if then else None), now


def _at(now: list[standing.Side]) -> str:
    return f" ({now[0].name})" if now and now[0].name != "today" else ""


def _over(name: str, mode: str, found: list) -> Callable[[], Picture]:
    """Over the size that most of the family's variants differ in; at the smallest scale, which has all of them."""
    field, axis = SIZES[name]
    alike = [one for one, _, _ in found if (one.batch, one.sequence) == (found[0][0].batch, found[0][0].sequence)]
    mine = [(one, then, now) for one, then, now in found if one in alike]
    before = {getattr(one, field): then for one, then, _ in mine if then}
    today = {getattr(one, field): now[-1] for one, _, now in mine if now}
    words = "a training step" if mode == "training" else "a forward run"
    return lambda: over_size(before, today, axis, f"{name} by {axis}: {words}")
