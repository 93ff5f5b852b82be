"""Where things live by name: runtimes, workload kinds, implementations, commands and the public API.

The only module that names what lies above it. It holds strings and imports nothing of the package, so
that asking for one name loads one module. What ships stands in the tables below, so that the package
runs from a checkout too; an installed package adds its own through entry points of the groups in
`GROUPS`, and a name with a dot (`my_package.my_runtime`, `my_package.module:OBJECT`) is taken as a module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

#: What users type as `--runtime` -> module or object with the contract of `runtimes/__init__.py`.
RUNTIMES = {
    "onnxruntime": "lstm_trt.runtimes.onnxruntime",
    "pytorch": "lstm_trt.runtimes.pytorch:RUNTIME",
    "pytorch-cudagraph": "lstm_trt.runtimes.pytorch_cudagraph:RUNTIME",
    "tensorrt": "lstm_trt.runtimes.tensorrt:RUNTIME",
    "tensorrt-rtx": "lstm_trt.runtimes.tensorrt_rtx:RUNTIME",
    "torch-compile": "lstm_trt.runtimes.torch_compile:RUNTIME",
    "torchscript": "lstm_trt.runtimes.torchscript:RUNTIME",
}

#: Workload kind, as recordings store it -> the class (`config.workload.Workload`).
WORKLOADS = {
    "stacked-lstm": "lstm_trt.config.shape:LstmShape",
    "literature": "lstm_trt.literature.workloads:LiteratureWorkload",
}

#: Workload kind -> who prepares it (`runtimes.base.Preparer`).
PREPARERS = {
    "stacked-lstm": "lstm_trt.recorder.shapes:PREPARER",
    "literature": "lstm_trt.literature.session:PREPARER",
}

_IMPLEMENTATIONS = "lstm_trt.literature.implementations"

#: What users type as `--implementation` -> module or object with the same contract as a runtime, and more.
IMPLEMENTATIONS = {
    "pytorch-basic-eager": f"{_IMPLEMENTATIONS}.pytorch:BASIC_EAGER",
    "pytorch-basic-scripted": f"{_IMPLEMENTATIONS}.pytorch:BASIC_SCRIPTED",
    "pytorch-basic-compiled": f"{_IMPLEMENTATIONS}.pytorch:BASIC_COMPILED",
    "pytorch-fused-eager": f"{_IMPLEMENTATIONS}.pytorch:FUSED_EAGER",
    "pytorch-fused-scripted": f"{_IMPLEMENTATIONS}.pytorch:FUSED_SCRIPTED",
    "pytorch-fused-compiled": f"{_IMPLEMENTATIONS}.pytorch:FUSED_COMPILED",
    "pytorch-one-call-eager": f"{_IMPLEMENTATIONS}.pytorch:ONE_CALL_EAGER",
    "pytorch-one-call-scripted": f"{_IMPLEMENTATIONS}.pytorch:ONE_CALL_SCRIPTED",
    "pytorch-one-call-compiled": f"{_IMPLEMENTATIONS}.pytorch:ONE_CALL_COMPILED",
    "tensorflow-basic-eager": f"{_IMPLEMENTATIONS}.tensorflow:BASIC_EAGER",
    "tensorflow-basic-graph": f"{_IMPLEMENTATIONS}.tensorflow:BASIC_GRAPH",
    "tensorflow-while-graph": f"{_IMPLEMENTATIONS}.tensorflow:WHILE_GRAPH",
    "tensorflow-static-eager": f"{_IMPLEMENTATIONS}.tensorflow:STATIC_EAGER",
    "tensorflow-static-graph": f"{_IMPLEMENTATIONS}.tensorflow:STATIC_GRAPH",
    "tensorflow-xla": f"{_IMPLEMENTATIONS}.tensorflow:XLA",
    "tensorflow-one-call-eager": f"{_IMPLEMENTATIONS}.tensorflow:ONE_CALL_EAGER",
    "tensorflow-one-call-graph": f"{_IMPLEMENTATIONS}.tensorflow:ONE_CALL_GRAPH",
    "onnxruntime": f"{_IMPLEMENTATIONS}.onnxruntime:ONNXRUNTIME",
    "tensorrt": f"{_IMPLEMENTATIONS}.tensorrt:TENSORRT",
    "tensorrt-rtx": f"{_IMPLEMENTATIONS}.tensorrt:TENSORRT_RTX",
    "tvm-untuned": f"{_IMPLEMENTATIONS}.tvm:UNTUNED",
    "tvm-tuned": f"{_IMPLEMENTATIONS}.tvm:TUNED",
}

#: Command -> the line that `lstm-trt --help` shows. Its module is `lstm_trt.cli.<command>`, imported when it is run.
COMMANDS = {
    "doctor": "show which runtimes work here, what is missing, and how the host is set up",
    "cache": "show or clear the cache of exported networks and engines",
    "export": "write a network of given sizes as an ONNX file",
    "build": "build a TensorRT engine, also for a GPU that is not here, and count its launches",
    "record": "record the latencies of one network on one runtime",
    "sweep": "record a grid of networks on one or more runtimes; resumes if interrupted",
    "watch": "follow a running recording in one live line; no verdict before the end",
    "consolidate": "merge many recordings into trials.parquet and configs.parquet",
    "summarize": "print one row per configuration: n, maximum, percentiles with exact intervals, outliers, clusters",
    "verdict": "test whether a latency percentile meets a deadline, with stated confidence",
    "outliers": "explain the latency tail: outliers, their clusters and periods,"
    " and the events that coincide with them",
    "compare": "test whether B is faster than A, slower or the same, in median and tail",
    "replay": "estimate what a closed-loop recording would have shown at a fixed call rate",
    "scaling": "show how latency grows with each network size: linearity, breaks, inversions, batching",
    "literature": "record published LSTM benchmarks with current implementations, in the metrics of their documents",
    "versions": "compare versions of a library on one network, recorded in interleaved rounds",
    "rerun": "run notebooks with other parameters; fails if any cell fails",
}

#: Name in `import lstm_trt as lab` -> where it lives. None of them is the name of a top-level module, which Python
#: would put in its place, but for the two folders that offer names of their own.
API = {
    "LabError": "lstm_trt.config.errors:LabError",
    "UsageError": "lstm_trt.config.errors:UsageError",
    "LstmShape": "lstm_trt.config.shape:LstmShape",
    "Grid": "lstm_trt.config.shape:Grid",
    "Configuration": "lstm_trt.config.configuration:Configuration",
    "Options": "lstm_trt.config.configuration:Options",
    "Protocol": "lstm_trt.config.configuration:Protocol",
    "Recording": "lstm_trt.store.schema:Recording",
    "Failure": "lstm_trt.store.schema:Failure",
    "Runs": "lstm_trt.store.runs:Runs",
    "load": "lstm_trt.store.runs:load",
    "consolidate": "lstm_trt.store.folders:consolidate_folder",
    "summarize": "lstm_trt.analysis.summary:summarize",
    "verdict": "lstm_trt.analysis.deadline:verdict",
    "outliers": "lstm_trt.analysis.outliers:outliers",
    "compare": "lstm_trt.analysis.compare:compare",
    "replay": "lstm_trt.analysis.replay:replay",
    "scaling": "lstm_trt.analysis.scaling:scaling",
    "export_onnx": "lstm_trt.export.to_onnx:export_onnx",
    "build_engine": "lstm_trt.export.build:build_engine",
    "check_engine": "lstm_trt.export.engine:check_file",
    "EngineOptions": "lstm_trt.export.engine:EngineOptions",
    "plots": "lstm_trt.plots",
    "describe": "lstm_trt.recorder.session:describe",
    "record": "lstm_trt.recorder.pool:record",
    "soak": "lstm_trt.recorder.soak:soak",
    "sweep": "lstm_trt.recorder.sweep:sweep",
    "watch": "lstm_trt.recorder.watch:follow",
    "versions": "lstm_trt.recorder.versions:record_versions",
    "doctor": "lstm_trt.recorder.doctor:examine",
    "cache_contents": "lstm_trt.recorder.environments:cache_contents",
    "clear_cache": "lstm_trt.recorder.environments:clear_cache",
    "literature": "lstm_trt.literature",
    "load_or_record": "lstm_trt.campaign:load_or_record",
    "load_literature": "lstm_trt.campaign:load_literature",
    "describe_runs": "lstm_trt.campaign:describe_runs",
    "largest_that_meets": "lstm_trt.campaign:largest_that_meets",
    "size_of": "lstm_trt.campaign:size_of",
    "confirm": "lstm_trt.campaign:confirm",
    "rerun_notebooks": "lstm_trt.rerun:rerun",
}

#: Picture in `lab.plots` -> where it is drawn. No module there has the name of a picture, which would take its place.
PICTURES = {
    "arrival_tails": "lstm_trt.plots.tail:arrival_tails",
    "batching": "lstm_trt.plots.scaling:batching",
    "box_plots": "lstm_trt.plots.box:box_plots",
    "choose_tails": "lstm_trt.plots.tail:choose_tails",
    "curves": "lstm_trt.plots.curve:curves",
    "draw_outliers": "lstm_trt.plots.page:draw_outliers",
    "draw_scaling": "lstm_trt.plots.scaling:draw_scaling",
    "draw_sweep": "lstm_trt.plots.sweep:draw_sweep",
    "draw_verdicts": "lstm_trt.plots.page:draw_verdicts",
    "failures": "lstm_trt.plots.sweep:failures",
    "fits": "lstm_trt.plots.scaling:fits",
    "heat_map": "lstm_trt.plots.heatmap:heat_map",
    "inversions": "lstm_trt.plots.scaling:inversions",
    "outliers_page": "lstm_trt.plots.page:outliers_page",
    "replay_tails": "lstm_trt.plots.tail:replay_tails",
    "runtimes": "lstm_trt.plots.runtime:runtimes",
    "tails": "lstm_trt.plots.tail:tails",
    "trials_in_order": "lstm_trt.plots.trials:trials_in_order",
    "verdict_page": "lstm_trt.plots.page:verdict_page",
}

#: Name in `lab.literature` -> where it lives.
LITERATURE = {
    "describe_benchmark": "lstm_trt.literature.session:describe_benchmark",
    "printed": "lstm_trt.literature.compare:printed",
    "today": "lstm_trt.literature.compare:today",
    "order_text": "lstm_trt.literature.compare:order_text",
    "filled": "lstm_trt.literature.compare:filled",
    "succeeded_by": "lstm_trt.literature.compare:succeeded_by",
    "bars": "lstm_trt.literature.plots:bars",
    "costs": "lstm_trt.literature.plots:costs",
    "over_size": "lstm_trt.literature.plots:over_size",
    "table_of": "lstm_trt.literature.plots:table_of",
}

#: Table -> the entry points' group that adds to it.
GROUPS = {
    "RUNTIMES": "lstm_trt.runtimes",
    "WORKLOADS": "lstm_trt.workloads",
    "PREPARERS": "lstm_trt.preparers",
    "IMPLEMENTATIONS": "lstm_trt.implementations",
}


@lru_cache(maxsize=len(GROUPS))
def _added(group: str) -> dict[str, str]:
    """What installed packages add to a table by entry points of a group."""
    import importlib.metadata  # slow to load, and not needed for what ships

    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}


def table(name: str) -> dict[str, str]:
    """A table by its name, such as "RUNTIMES", with what installed packages add to it; what ships comes first."""
    ships = globals()[name]
    return {**ships, **(_added(GROUPS[name]) if name in GROUPS else {}), **ships}


def load(name: str, key: str) -> object:
    """What stands in the table `name` at `key`; only its own module is imported.

    Raises `KeyError` for a key that the table lacks, unless it has a dot and so names a module itself;
    `ImportError` or `AttributeError` where the module cannot be imported or lacks the object.
    """
    target = globals()[name].get(key) or table(name).get(key, key if "." in key else None)
    if target is None:
        raise KeyError(key)
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def offer(name: str, module: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module that offers the names of a table, each fetched when it is first used."""

    def fetch(attribute: str) -> object:
        if attribute not in globals()[name]:
            raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
        return load(name, attribute)

    return fetch, lambda: sorted(globals()[name])
