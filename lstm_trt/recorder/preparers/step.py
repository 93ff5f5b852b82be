"""How a step of the user's own is prepared: the worker imports its function, calls it, and times
what it returns.

This module is also the only runtime of such steps, "python", with the contract of
`runtimes/__init__.py`. Nothing independent of the step exists, so its outputs are compared with
nothing.
"""

import hashlib
import importlib
import importlib.metadata
import inspect
import itertools
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np

from lstm_trt.config import configuration
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import BuildFailed, RunFailed, UsageError
from lstm_trt.config.libraries import has_packages
from lstm_trt.config.step import Step
from lstm_trt.machine.facts import cpu_name
from lstm_trt.runtimes.base import Availability, Gate, PreparedStep, Preparer, Request, Send, on_gpu

NAME = "python"

DISTRIBUTION = "lstm_trt"

DEVICES = ("cpu", "cuda")

#: The step decides what it computes in: here the precision is a label.
PRECISIONS = dict.fromkeys(DEVICES, configuration.PRECISIONS)


def availability(device: str = "cpu") -> Availability:
    """Ready if there is such a device."""
    version = platform.python_version()
    return Availability(True, version, cpu_name()) if device == "cpu" else on_gpu(version)


def prepare(request: Request) -> PreparedStep:
    """Import the function and call it; raises `BuildFailed` if it returns nothing to time, and what
    it raises.

    The working folder joins the path only now, and is its end afterwards: no file there takes the
    place of what this package imports before or later.
    """
    function = request.workload.function
    module, _, name = function.partition(":")
    spec = find_module(module)
    afterwards = list(sys.path) if "" in sys.path else [*sys.path, ""]
    sys.path[:] = search_path()
    try:
        imported = importlib.import_module(module)
        if spec and spec.has_location and imported.__file__ != spec.origin:
            raise BuildFailed(
                f"{spec.origin} cannot be imported beside another module {module!r}: rename it"
            )
        return UserStep(function, getattr(imported, name)())
    finally:
        sys.path[:] = afterwards


class UserStep(PreparedStep):
    """What the function returned; its `step` is called directly."""

    def __init__(self, function: str, made: object) -> None:
        step = next(filter(callable, (getattr(made, "step", None), made)), None)
        if step is None:
            found = "None" if made is None else f"an object of type {type(made).__name__}"
            raise BuildFailed(
                f"{function}() returns {found}, not a callable or an object with a method `step`"
            )
        if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
            what = "a coroutine or generator function: a call of it computes nothing"
            raise BuildFailed(f"{function}() returns {what}")
        setattr(self, "step", step)  # noqa: B010  in place of the method
        for name in ("reset", "outputs", "close"):
            if hasattr(made, name):
                setattr(self, name, getattr(made, name))
        self._facts = getattr(made, "facts", dict)
        self.facts()  # an error in it would lose the trials

    def step(self) -> None:
        raise RunFailed("the step is not prepared")

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Does nothing: the step has its own inputs."""

    def facts(self) -> dict:
        """`step`: the user's facts; values that JSON lacks are stored as text."""
        text = json.dumps(self._facts(), default=str, skipkeys=True)
        return {"step": json.loads(text, parse_constant=str)}


class StepPreparer(Preparer):
    """No reference and no inputs; a process of its own for each configuration."""

    DEFAULT_RUNTIME = NAME
    FRESH_PROCESS = True  # what an earlier function left in the process would affect the times

    def runtime(self, name: str):
        if name != NAME:
            raise UsageError(
                f"a step brings its own code: it cannot be recorded on {name}, omit the runtime"
            )
        return sys.modules[__name__]

    def entries(self) -> dict[str, str]:
        return {NAME: __name__}

    def version(self, workload: Step) -> str:
        return code_version(workload.module)

    def reference(
        self, configuration: Configuration, gate_seed: int, reference_path: Path, send: Send
    ) -> dict:
        return {}

    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        return Request(configuration.workload, configuration.options, {}, mode=configuration.mode)

    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        return Gate((), None, reference["gate_seed"], reference=None)


PREPARER = StepPreparer()


def code_version(module: str) -> str:
    """Distinguishes versions of a module that is not imported for it.

    The version of the installed distribution that contains its file; without one, as in a checkout,
    "source" and 12 digits of the file's SHA-256. Raises `UsageError` if there is no such module.
    """
    spec = find_module(module)
    if spec is None or spec.origin is None:
        where = "install it, put its folder on PYTHONPATH, or run the command in its folder"
        raise UsageError(f"there is no module {module!r}: {where}")
    if not spec.has_location:  # built into Python
        return platform.python_version()
    path = Path(spec.origin)
    for distribution in distributions_beside(path, module):
        same = [file for file in distribution.files or () if file.name == path.name]
        if any(Path(file.locate()).resolve() == path.resolve() for file in same):
            return distribution.version
    return f"source {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def distributions_beside(path: Path, module: str) -> Iterable[importlib.metadata.Distribution]:
    """What is installed in the folder of the module path in which this file of a module was found.

    In the folder of one's own modules nothing is, and the files of all distributions need not be
    read.
    """
    levels = module.count(".") + (path.stem == "__init__")
    folder = path.parents[levels].resolve()
    here = [entry for entry in sys.path if Path(entry).resolve() == folder]
    return importlib.metadata.distributions(path=here)


def search_path() -> list[str]:
    """Where modules of steps are: the folders of `sys.path`, the working folder, and then the
    installed packages."""
    return sorted([*sys.path, ""], key=has_packages)


def find_module(name: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec` on `search_path`, without importing the packages that contain
    the module."""
    spec = None
    path = search_path()
    for whole in itertools.accumulate(name.split("."), "{}.{}".format):
        found = (
            finder.find_spec(whole, path)
            for finder in sys.meta_path
            if hasattr(finder, "find_spec")
        )
        spec = next(filter(None, found), None)
        path = (spec and spec.submodule_search_locations) or []
    return spec
