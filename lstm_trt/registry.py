"""Tables of names: runtimes, workload kinds, commands, the public API, and what else packages add
to this one.

This is the only module that names modules of higher layers. It holds strings and imports nothing
from the package, so that using one name loads one module.

A package adds to these tables by a module with tables of the same names, of which it leaves out
what it lacks. An entry point of the group `PACKAGES` names that module; it is read when a name is
asked for that this package does not have. Single runtimes and workload kinds can also be added
through the entry point groups in `GROUPS`, by a program through `add`, and a dotted name
(`my_package.my_runtime`, `my_package.module:OBJECT`) is imported directly.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

#: Entry point group of the modules with tables of other packages.
PACKAGES = "lstm_trt.packages"

#: Name for `--runtime` -> module or object that implements the contract of `runtimes/__init__.py`.
RUNTIMES = {
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
    "step": "lstm_trt.config.step:Step",
}

#: Workload kind -> object that prepares it (`runtimes.base.Preparer`).
PREPARERS = {
    "stacked-lstm": "lstm_trt.recorder.preparers.stacked:PREPARER",
    "step": "lstm_trt.recorder.preparers.step:PREPARER",
}

#: Workload kind -> module with its flags in `record` and `sweep` (`cli.workloads`).
FLAGS = {"step": "lstm_trt.cli.step_flags"}

#: Value of `Protocol.until` -> class of what decides when a recording ends: `of(protocol)` makes
#: one, `look(latency_ns)` adds a block and returns whether to end, `as_dict()` gives what
#: provenance states of it.
STOPPING: dict[str, str] = {}

#: What else is kept in the cache, as JSON names it -> a `store.cache.Uncounted`.
CACHES: dict[str, str] = {}

#: Command that records -> module of what is drawn and printed after it: `check(deadline_us)` is
#: called before it, then `conclude(arguments, folders, protocol, deadline_us)`.
AFTER: dict[str, str] = {}


class Command(NamedTuple):
    """A command: its place in `--help`, which no other one has, its module or object (`imported`),
    and its group and summary in `--help`.

    The module is imported when the command is used. It has `EXAMPLE`, `add_arguments(parser)`,
    `run(arguments)`, and optionally `FORMATS`. `run` returns the exit status, or None for 0.
    """

    place: int
    module: str
    group: str
    summary: str


#: Command -> what it is.
COMMANDS = {
    "doctor": Command(
        10,
        "lstm_trt.cli.doctor",
        "setup",
        "show which runtimes work here, what is missing, and host settings that affect latency",
    ),
    "cache": Command(
        20,
        "lstm_trt.cli.cache",
        "setup",
        "show or clear the cache of exported networks and engines",
    ),
    "record": Command(
        30, "lstm_trt.cli.record", "recording", "record the latencies of one network on one runtime"
    ),
    "sweep": Command(
        40,
        "lstm_trt.cli.sweep",
        "recording",
        "record a grid of networks on one or more runtimes; resumes if interrupted",
    ),
    "consolidate": Command(
        70,
        "lstm_trt.cli.consolidate",
        "recording",
        "merge many recordings into trials.parquet and configs.parquet",
    ),
    "build": Command(
        180,
        "lstm_trt.cli.build",
        "networks as files",
        "build a TensorRT engine, also for other GPUs, and count its kernel launches",
    ),
}


def defined(package: str, modules: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Name -> where it is defined; `modules`: module of the package -> names that it defines."""
    return {
        name: f"{package}.{module}:{name}" for module, names in modules.items() for name in names
    }


#: Name in `import lstm_trt as lab` -> where it is defined. No name may be that of a module in
#: `lstm_trt`: importing that module would replace it.
API = defined(
    "lstm_trt",
    {
        "config.configuration": ("Configuration", "Options", "Protocol"),
        "config.errors": ("LabError", "UsageError"),
        "config.shape": ("Grid", "LstmShape"),
        "config.step": ("Step",),
        "export.tensorrt.build": ("build_engine",),
        "export.tensorrt.engine": ("EngineOptions",),
        "export.to_onnx": ("export_onnx",),
        "recorder.cached": ("cache_contents", "clear_cache"),
        "recorder.describe": ("describe",),
        "recorder.pool": ("record",),
        "recorder.soak": ("soak",),
        "recorder.sweep": ("sweep",),
        "store.schema": ("Failure", "Recording"),
    },
)
API |= {
    "consolidate": "lstm_trt.store.folders:consolidate_folder",
    "doctor": "lstm_trt.recorder.doctor:examine",
}

#: Name in `lab.plots` -> where it is defined: in a module of another name.
PICTURES: dict[str, str] = {}

#: Class of answers -> the module that makes its text, imported when it is printed. It has `text`,
#: and where its first line and the frame do not do in Jupyter, also `headline`, `legend`, `cells`
#: (header and rows) and `least`.
TEXTS: dict[str, str] = {}

#: Table -> entry point group that adds single entries to it.
GROUPS = {
    "RUNTIMES": "lstm_trt.runtimes",
    "WORKLOADS": "lstm_trt.workloads",
    "PREPARERS": "lstm_trt.preparers",
}

#: Table -> the entries of `add`; they travel to the processes that record.
added: dict[str, dict[str, str]] = {}


def add(table: str, name: str, target: str) -> None:
    """Add an entry to a table for this process and those that it starts: `add("RUNTIMES", "mine",
    "my_module:OBJECT")`.

    Entries of packages stay.
    """
    added.setdefault(table, {})[name] = target


@cache
def _offered(group: str) -> dict[str, str]:
    """What other packages add through an entry point group: installed ones, then those that lie
    beside this package.

    A package beside this one, as in a checkout, needs no installation if it has its entry points in
    a file `entry_points.txt`, in the format of installed packages.
    """
    import importlib.metadata  # slow to import, and only needed for other packages

    entries = [*importlib.metadata.entry_points(group=group)]
    for path in sorted(Path(__file__).parent.parent.glob("*/entry_points.txt")):
        if (path.parent / "__init__.py").exists():
            beside = importlib.metadata.Distribution.at(path.parent)
            entries += beside.entry_points.select(group=group)
    return {entry.name: entry.value for entry in entries}


def packages() -> list[ModuleType]:
    """The modules with tables of other packages."""
    return [importlib.import_module(module) for module in _offered(PACKAGES).values()]


def table(name: str) -> dict[str, Any]:
    """A table, such as "RUNTIMES", or an entry point group, by its name: entries of packages, then
    further ones."""
    entries: dict[str, Any] = {}
    for package in packages():
        entries |= getattr(package, name, {})
    entries |= globals().get(name, {})
    group = GROUPS.get(name, name)
    further = _offered(group) if "." in group else {}
    return {**entries, **further, **added.get(name, {}), **entries}


def commands() -> dict[str, Command]:
    """The commands of all packages in the order of their places."""
    return dict(sorted(table("COMMANDS").items(), key=lambda item: item[1].place))


def load_entry(name: str, key: str) -> Any:
    """Import the object that the table `name` has at `key`; raises as `load_from`."""
    builtin = globals()[name]
    return load_from(builtin if key in builtin else table(name), key)


def find(name: str, key: str) -> Any:
    """The object that the table `name` has at `key`; None if no package has it."""
    entries = table(name)
    return load_from(entries, key) if key in entries else None


def load_from(entries: Mapping[str, str], key: str) -> Any:
    """Import the object that `entries` have at `key`.

    A dotted key that they lack is imported directly. Raises `KeyError` for any other unknown key,
    `ImportError` or `AttributeError` if the module cannot be imported or lacks the object.
    """
    target = entries.get(key, key if "." in key else None)
    if target is None:
        raise KeyError(key)
    return imported(target)


def imported(target: str) -> Any:
    """The module `package.module`, or the object `package.module:OBJECT`."""
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def offer(
    module: str, names: Mapping[str, str], table_name: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module that loads each name of `names` when it is first
    used, and has `__all__` of them.

    With `table_name` also those that packages add to this table.
    """

    def every() -> Mapping[str, str]:
        return table(table_name) if table_name else names

    def fetch(attribute: str) -> Any:
        if attribute in names:
            return load_from(names, attribute)
        # `from package import module` asks first for an attribute: packages are not read for that.
        spec = importlib.util.find_spec(f"{module}.{attribute}")
        # A folder that an older version left has no origin.
        is_module = spec and spec.origin
        entries = {} if is_module else every()
        if attribute == "__all__":
            return sorted(entries)
        if attribute in entries:
            return load_from(entries, attribute)
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")

    return fetch, lambda: fetch("__all__")
