"""Data for notebooks: recordings of the literature's workloads with their metrics, and the published results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lstm_judge.campaign import find_folder, record_missing
from lstm_judge.read.runs import Incomplete, Runs, as_runs, load as load_runs, paths_of
from lstm_literature import implementations as registered, metrics, published
from lstm_literature.preparer import availability, describe_benchmark, interpreters, reason
from lstm_literature.workloads import VARIANTS, LiteratureWorkload, find
from lstm_trt.config.configuration import Configuration, Options
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import pd


@dataclass(frozen=True)
class Literature:
    """Runs of workloads of the literature with their metrics, and the published results of their documents."""

    runs: Runs
    rows: metrics.Table
    printed: pd.DataFrame
    variants: tuple[LiteratureWorkload, ...]


def load(
    workloads: Sequence[str],
    *,
    data: str | Path | Sequence[str | Path],
    record: bool = False,
    out: str | Path = "data/local/literature",
    implementations: Sequence[str] = (),
    scale: str = "1",
    batches: int | None = None,
    options: Options | None = None,
    most: int | None = None,
    show_progress: bool = True,
) -> Literature:
    """The recordings of workloads, by name, in all sizes for which their documents have results.

    They are loaded from `data`, a folder or several, at any scale. With `record` they are recorded here first, into
    `out`, which resumes if interrupted: `implementations` (if empty, all that are available) at `scale`, with `batches`
    (if None, the number of the document), in every mode of the document; `most` limits the number of sizes of each
    workload. Raises `UsageError` for unknown names, and if there are no such recordings.
    """
    workloads, implementations = as_list(workloads), as_list(implementations)
    variants = tuple(variant for name in workloads for variant in VARIANTS[find(name).name][:most])
    documents = dict.fromkeys(variant.document for variant in variants)
    printed = pd.concat([published.of(document) for document in documents], ignore_index=True)
    for name in implementations:
        registered.load_implementation(name)  # raises UsageError for an unknown name
    if record:
        wanted = _wanted(variants, implementations, scale, batches, options or Options())
        pythons = interpreters(wanted, print, optional=not implementations)
        wanted = [configuration for configuration in wanted if configuration.id in pythons]
        runs = record_missing(wanted, out, show_progress=show_progress, interpreters=pythons)
    else:
        runs = _read(paths_of(data), workloads)
    return Literature(_told(runs, workloads), metrics.table(runs.recordings), printed, variants)


def _wanted(
    variants: Sequence[LiteratureWorkload],
    implementations: Sequence[str],
    scale: str,
    batches: int | None,
    options: Options,
) -> list[Configuration]:
    """What is to be recorded: every mode of each workload with each implementation that can run it."""
    names = implementations or [name for name in registered.names() if availability(name).ready]
    return [
        describe_benchmark(variant, name, mode, scale=scale, batches=batches, options=options)
        for variant in variants
        for mode in variant.modes
        for name in names
        if reason(name, variant.scaled(scale), mode) is None
    ]


def _read(sources: Sequence[str | Path], workloads: Sequence[str]) -> Runs:
    """The recordings of the workloads in folders."""
    runs = load_runs([find_folder(path) for path in sources])
    items = [
        item
        for item in runs.recordings
        if isinstance(item.configuration.workload, LiteratureWorkload) and item.configuration.workload.name in workloads
    ]
    return replace(as_runs(items), source=listed(sources, 3), warnings=runs.warnings)


def _told(runs: Runs, workloads: Sequence[str]) -> Runs:
    """The runs, which say what of the workloads they lack; raises `UsageError` if they lack all."""
    recorded = {item.configuration.workload.name for item in runs.recordings}
    missing = {name: {"workload": name} for name in workloads if name not in recorded}
    if not missing:
        return runs
    lacks = f"{runs.source} has no recording of {listed(missing)}: set record = True to record here"
    if not runs:
        raise UsageError(lacks)
    return replace(runs, missing=missing, warnings=(*runs.warnings, Incomplete(lacks)))
