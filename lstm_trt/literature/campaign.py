"""What a notebook on the literature draws from: recordings that ship, or workloads recorded here and now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lstm_trt import registry
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import UsageError
from lstm_trt.literature import metrics, published
from lstm_trt.literature.workloads import VARIANTS, LiteratureWorkload, find
from lstm_trt.store import folders
from lstm_trt.store.folders import find_folder, project_folder
from lstm_trt.store.schema import Failure, Recording


@dataclass(frozen=True)
class Literature:
    """Recordings of some workloads with the figures they give, and what their documents print."""

    items: tuple[Recording | Failure, ...]
    rows: tuple[metrics.Row, ...]
    printed: tuple[published.Row, ...]
    variants: tuple[LiteratureWorkload, ...]
    source: Path

    def describe(self) -> str:
        """What it holds, in a line for people."""
        good = sum(isinstance(item, Recording) for item in self.items)
        names = dict.fromkeys(f"{item.configuration.workload.label}" for item in self.items)
        devices = dict.fromkeys(item.configuration.device_name for item in self.items)
        few = list(names)[:6]
        told = f"{good} recordings and {len(self.items) - good} failures of {', '.join(few)}"
        told += f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
        return f"{told}; on {', '.join(devices)}; from {self.source.name}"


def load(
    workloads: Sequence[str],
    *,
    data: str | Path,
    record: bool = False,
    out: str | Path | None = None,
    implementations: Sequence[str] = (),
    scale: str = "1",
    batches: int | None = None,
    threads: int = 1,
    most: int | None = None,
    show_progress: bool = True,
) -> Literature:
    """The recordings of workloads, by name, in all sizes that their documents have figures for.

    From `data`, at whatever scale they were made. With `record` they are recorded here first,
    into `out`, which goes on where it was: `implementations` (all that are ready if empty) at
    `scale`, with so many `batches` (the document's if None), in every mode of the document;
    `most` takes only the first so many sizes of each. Raises `UsageError` for unknown names and
    where there is nothing.
    """
    variants = tuple(one for name in workloads for one in VARIANTS[find(name).name][:most])
    printed = tuple(
        row for document in dict.fromkeys(one.document for one in variants) for row in published.load(document)
    )
    if record:
        items, source = _recorded(variants, out, implementations, scale, batches, threads, show_progress)
    else:
        source = find_folder(data)
        items = tuple(
            item
            for item in folders.read_many(source)
            if isinstance(item.configuration.workload, LiteratureWorkload)
            and item.configuration.workload.name in workloads
        )
    if not items:
        raise UsageError(f"{source} holds no recording of {', '.join(workloads)}: set record = True to record here")
    return Literature(items, tuple(metrics.rows(items)), printed, variants, source)


def _recorded(variants, out, implementations, scale, batches, threads, show_progress):
    from lstm_trt.literature.session import availability, describe_benchmark, reason
    from lstm_trt.recorder.sweep import run_sweep

    wanted = [
        describe_benchmark(one, name, mode, scale=scale, batches=batches, options=Options(threads=threads))
        for one in variants
        for mode in one.modes
        for name in implementations or [name for name in registry.table("IMPLEMENTATIONS") if availability(name).ready]
        if reason(name, one.scaled(scale), mode) is None
    ]
    source = project_folder(out or "data/local/literature")
    report = run_sweep(wanted, source, show_progress=show_progress)
    print("\n".join(report.lines()))
    if report.stopped:
        raise UsageError("stopped; run the cell again to go on")
    keys = {configuration.id for configuration in wanted}
    return tuple(item for item in folders.read_many(source) if item.configuration.id in keys), source
