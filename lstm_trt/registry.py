"""Tables of names: runtimes, workload kinds, commands and the public API.

This is the only module that names modules of higher layers. It holds strings and imports nothing from the package,
so that using one name loads one module. The tables list the contents of this package, so that it also runs from a
checkout. Other packages add entries through the entry point groups in `GROUPS`, a program through `add`; a dotted name
(`my_package.my_runtime`, `my_package.module:OBJECT`) is imported directly.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

#: Name for `--runtime` -> module or object that implements the contract of `runtimes/__init__.py`.
RUNTIMES = {
    "c": "lstm_trt.runtimes.c",
    "onnxruntime": "lstm_trt.runtimes.onnxruntime",
    "openvino": "lstm_trt.runtimes.openvino",
    "pytorch": "lstm_trt.runtimes.pytorch:RUNTIME",
    "pytorch-cudagraph": "lstm_trt.runtimes.pytorch_cudagraph:RUNTIME",
    "tensorrt": "lstm_trt.runtimes.cuda.tensorrt:RUNTIME",
    "tensorrt-rtx": "lstm_trt.runtimes.cuda.tensorrt_rtx:RUNTIME",
    "torch-compile": "lstm_trt.runtimes.torch_compile:RUNTIME",
    "torchscript": "lstm_trt.runtimes.torchscript:RUNTIME",
}

#: Workload kind, as recordings store it -> the class (`config.workload.Workload`).
WORKLOADS = {
    "stacked-lstm": "lstm_trt.config.shape:LstmShape",
    "onnx-network": "lstm_trt.export.own_network:OnnxNetwork",
    "step": "lstm_trt.config.step:Step",
}

#: Workload kind -> object that prepares it (`runtimes.base.Preparer`).
PREPARERS = {
    "stacked-lstm": "lstm_trt.recorder.preparers.stacked:PREPARER",
    "onnx-network": "lstm_trt.recorder.preparers.onnx:PREPARER",
    "step": "lstm_trt.recorder.preparers.step:PREPARER",
}

#: Command -> its group and its summary in `lstm-trt --help`, in this order. Its module is `lstm_trt.cli.<command>`,
#: imported when it is used.
COMMANDS = {
    "doctor": ("setup", "show which runtimes work here, what is missing, and host settings that affect latency"),
    "cache": ("setup", "show or clear the cache of exported networks and engines"),
    "record": ("recording", "record the latencies of one network on one runtime"),
    "sweep": ("recording", "record a grid of networks on one or more runtimes; resumes if interrupted"),
    "versions": ("recording", "compare versions of a library on one network, recorded in interleaved rounds"),
    "watch": ("recording", "show the progress of a running recording in one line; no verdict before the end"),
    "consolidate": ("recording", "merge many recordings into trials.parquet and configs.parquet"),
    "summarize": (
        "answers",
        "print one row per configuration: n, maximum, percentiles with exact intervals, outliers, clusters",
    ),
    "verdict": ("answers", "test whether a latency percentile meets a deadline, with stated confidence"),
    "outliers": ("answers", "explain the latency tail: outliers, clusters, periods, and coinciding events"),
    "compare": ("answers", "test whether others are faster than, slower than, or the same as A, in median and tail"),
    "replay": ("answers", "estimate the latencies of a closed-loop recording at a fixed call rate"),
    "scaling": (
        "answers",
        "show how latency grows with network size: linearity, breaks, batching, larger networks that are faster",
    ),
    "report": ("answers", "write verdicts and what they rest on as one HTML file to hand over"),
    "rerun": ("notebooks", "run notebooks with other parameters; fails if any cell fails"),
    "inspect": ("networks as files", "show what is in an ONNX file, and which runtimes run it or why not"),
    "export": ("networks as files", "write a network as an ONNX file, or as C code"),
    "build": ("networks as files", "build a TensorRT engine, also for other GPUs, and count its kernel launches"),
}


def _defined(modules: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Name -> where it is defined; `modules`: module of this package -> names that it defines."""
    return {name: f"lstm_trt.{module}:{name}" for module, names in modules.items() for name in names}


#: Name in `import lstm_trt as lab` -> where it is defined. Except for the subpackage `plots`, no name may be that of
#: a module in `lstm_trt`: importing that module would replace it.
API = _defined(
    {
        "analysis.compare": ("compare",),
        "analysis.deadline": ("verdict",),
        "analysis.outliers": ("outliers",),
        "analysis.replay": ("replay",),
        "analysis.scaling": ("scaling",),
        "analysis.summary": ("summarize",),
        "campaign": (
            *("confirm", "describe_runs", "gpu_runs", "largest_that_meets"),
            *("load_or_record", "own_networks", "show"),
        ),
        "config.configuration": ("Configuration", "Options", "Protocol"),
        "config.errors": ("LabError", "UsageError"),
        "config.shape": ("Grid", "LstmShape"),
        "config.step": ("Step",),
        "config.workload": ("size_of",),
        "export.own_network": ("OnnxNetwork", "TorchNetwork"),
        "export.tensorrt.build": ("build_engine",),
        "export.tensorrt.engine": ("EngineOptions",),
        "export.to_c": ("export_c",),
        "export.to_onnx": ("export_onnx",),
        "recorder.cached": ("cache_contents", "clear_cache"),
        "recorder.describe": ("describe",),
        "recorder.inspect": ("inspect",),
        "recorder.pool": ("record",),
        "recorder.soak": ("soak",),
        "recorder.sweep": ("sweep",),
        "reports.facts": ("report",),
        "store.runs": ("Runs", "load"),
        "store.schema": ("Failure", "Recording"),
    }
)
API |= {
    "consolidate": "lstm_trt.store.folders:consolidate_folder",
    "doctor": "lstm_trt.recorder.doctor:examine",
    "plots": "lstm_trt.plots",
    "rerun_notebooks": "lstm_trt.rerun:rerun",
    "versions": "lstm_trt.recorder.versions:record_versions",
    "watch": "lstm_trt.recorder.watch:follow",
}

#: Name in `lab.plots` -> where it is defined. No name may be that of a module in `lstm_trt.plots`, see `API`.
PICTURES = _defined(
    {
        "plots.box": ("box_plots", "violins"),
        "plots.curve": ("curves",),
        "plots.heatmap": ("heat_map",),
        "plots.over_time": ("timeline",),
        "plots.page": ("draw_outliers", "draw_verdicts", "outliers_page", "verdict_page"),
        "plots.precision": ("precisions",),
        "plots.runtime": ("runtimes",),
        "plots.scaling": ("batching", "draw_scaling", "fits", "growth", "inversions"),
        "plots.sweep": ("draw_sweep", "failures"),
        "plots.tail": ("arrival_tails", "choose_tails", "replay_tails", "tails"),
        "plots.trials": ("trials_in_order",),
        "plots.version": ("versions",),
    }
)

#: Class of answers -> the module that makes its text, imported when it is printed.
TEXTS = {
    "Comparisons": "lstm_trt.analysis.text.comparison",
    "ComparisonSeries": "lstm_trt.analysis.text.comparison",
    "OutlierAnswers": "lstm_trt.analysis.text.outliers",
    "Replays": "lstm_trt.analysis.text.replay",
    "ScalingAnswers": "lstm_trt.analysis.text.scaling",
    "Summary": "lstm_trt.analysis.text.summary",
    "Verdicts": "lstm_trt.analysis.text.verdict",
}

#: Table -> entry point group that adds to it.
GROUPS = {"RUNTIMES": "lstm_trt.runtimes", "WORKLOADS": "lstm_trt.workloads", "PREPARERS": "lstm_trt.preparers"}


#: Names of `API` that moved -> what to write now.
MOVED = {
    "check_engine": "tensorrt.Runtime(logger).deserialize_cuda_engine(plan), which logs why an engine cannot be loaded",
    "literature": "import lstm_literature as literature",
    "load_literature": "lstm_literature.load(...)",
}

#: Commands that moved -> what to write now.
MOVED_COMMANDS = {"literature": "lstm-literature record, table, list or plan"}

#: Table -> the entries of `add`; they travel to the processes that record.
added: dict[str, dict[str, str]] = {}


def add(table: str, name: str, target: str) -> None:
    """Add an entry to a table for this process and those that it starts: `add("RUNTIMES", "mine", "my_module:OBJECT")`.

    Built-in entries stay.
    """
    added.setdefault(table, {})[name] = target


@cache
def _offered(group: str) -> dict[str, str]:
    """What other packages add through an entry point group: installed ones, then those that lie beside this package.

    A package beside this one, as in a checkout, needs no installation if it has its entry points in a file
    `entry_points.txt`, in the format of installed packages.
    """
    import configparser  # slow to import, and only needed for other packages
    import importlib.metadata

    found = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}
    for path in sorted(Path(__file__).parent.parent.glob("*/entry_points.txt")):
        if (path.parent / "__init__.py").exists():
            file: Any = configparser.ConfigParser(delimiters="=")
            file.optionxform = str  # keeps capitals
            file.read_string(path.read_text(encoding="utf-8"))
            found |= dict(file[group]) if group in file else {}
    return found


def table(name: str) -> dict[str, str]:
    """A table, such as "RUNTIMES", or an entry point group, by its name: built-in entries, then those of others."""
    builtin = globals().get(name, {})
    group = GROUPS.get(name, name)
    return {**builtin, **(_offered(group) if "." in group else {}), **added.get(name, {}), **builtin}


def load_entry(name: str, key: str) -> Any:
    """Import the object that the table `name` has at `key`; raises as `load_from`."""
    builtin = globals()[name]
    return load_from(builtin if key in builtin else table(name), key)


def load_from(entries: Mapping[str, str], key: str) -> Any:
    """Import the object that `entries` have at `key`.

    A dotted key that they lack is imported directly. Raises `KeyError` for any other unknown key, `ImportError`
    or `AttributeError` if the module cannot be imported or lacks the object.
    """
    target = entries.get(key, key if "." in key else None)
    if target is None:
        raise KeyError(key)
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def offer(names: Mapping[str, str], module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module that loads each name of `names` when it is first used."""

    def fetch(attribute: str) -> Any:
        if attribute in names:
            return load_from(names, attribute)
        instead = f": write {MOVED[attribute]}" if names is API and attribute in MOVED else ""
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}{instead}")

    return fetch, lambda: sorted(names)
