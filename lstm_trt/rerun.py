"""Run notebooks with parameters, strictly: a notebook that does not complete all cells is reported as failed.

Papermill accepts an unknown parameter with a warning, treats `sys.exit(0)` in a cell as success although the following
cells never ran, and treats a skipped cell as completed. Here all notebooks are checked before the first one runs
(unknown parameters, text instead of a number, kernels that are not installed), and a notebook succeeds only if its
kernel replied "ok" to every cell with code.

Notebooks run one after the other, since they would disturb each other's timings. Each has its own kernel in the folder
of the notebook, as in JupyterLab.
"""

from __future__ import annotations

import ast
import gc
import itertools
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count, duration
from lstm_trt.store.files import make_folder

if TYPE_CHECKING:
    from nbformat import NotebookNode


TAG, INJECTED = "parameters", "injected-parameters"

#: Value of a parameter that cannot be read without running its cell.
UNREAD = object()

#: Time limit for the start of a kernel.
START_LIMIT_S = 120

#: Suffix of the output of a notebook that failed.
FAILED = ".failed.ipynb"


@dataclass(frozen=True)
class Checked:
    """A checked notebook: content, number of the `parameters` cell, the values in that cell, and kernel."""

    path: Path
    notebook: NotebookNode
    tagged: int
    defaults: dict[str, object]
    kernel: str

    @property
    def cells(self) -> int:
        return len(self.notebook.cells)


@dataclass(frozen=True)
class Run:
    """Result of one notebook: `failure` is None or one line of text, `cell` the number of the cell that failed.

    All cells of the given notebook are counted, from 1, including text cells.
    """

    notebook: Path
    output: Path
    seconds: float
    cells: int
    failure: str | None = None
    cell: int | None = None

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "notebook": str(self.notebook),
            "output": str(self.output),
            "status": "ok" if self.failure is None else "failed",
            "seconds": self.seconds,
            "cells": self.cells,
            "cell": self.cell,
            "failure": self.failure,
        }

    def __str__(self) -> str:
        if self.failure is None:
            return f"{self.notebook}: {count(self.cells, 'cell')} in {duration(self.seconds)} -> {self.output}"
        place = f"cell {self.cell}: " if self.cell is not None else ""
        return f"{self.notebook}: {place}{self.failure}; the executed cells are in {self.output}"


def rerun(
    notebooks: Sequence[str | Path],
    parameters: Mapping[str, object] | None = None,
    *,
    raw: Mapping[str, str] | None = None,
    out: str | Path = "runs",
    kernel: str | None = None,
    cell_limit_s: int | None = None,
    show_progress: bool = True,
    listener: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Run notebooks one after the other; the next one runs even if one fails.

    The outputs are `<name>-<date>-<time>.ipynb` in `out`, and `.failed.ipynb` after a failure; existing files are never
    overwritten. `raw` are parameters that are always text. Raises `UsageError`, before anything runs, for the errors of
    `check_notebooks` and for a folder that cannot be written. Ctrl-C ends the kernel and raises KeyboardInterrupt.
    """
    checked = check_notebooks(notebooks, parameters or {}, raw or {}, kernel)
    if cell_limit_s is not None and cell_limit_s < 1:
        raise UsageError(f"--cell-limit must be at least 1 s, not {cell_limit_s}")
    folder = make_folder(Path(out))
    values = {**(parameters or {}), **(raw or {})}
    runs = []
    for number, notebook in enumerate(checked, 1):
        output = _new_file(folder, notebook.path.stem)
        bar = f"[{number}/{len(checked)}] {notebook.path.name} " + "{n_fmt}/{total_fmt} cells |{bar:20}| {elapsed}"
        run = _run(notebook, output, values, cell_limit_s, bar if show_progress else None)
        runs.append(run)
        if listener is not None:
            listener(run)
    return runs


def check_notebooks(
    paths: Sequence[str | Path], parameters: Mapping[str, object], raw: Mapping[str, str], kernel: str | None = None
) -> list[Checked]:
    """Read and check all notebooks; raises one `UsageError` that names each invalid one with the reason.

    Errors are: a missing file, invalid JSON or an invalid notebook, no or several cells tagged `parameters`, a cell
    that papermill injected earlier, a parameter that the `parameters` cell does not assign, text for a number, bool or
    list (unless it is in `raw`), and a kernel that is not installed or not for Python.
    """
    try:
        import papermill  # noqa: F401
    except ImportError:
        raise UsageError("rerun needs papermill: pip install -e '.[lab]'") from None
    if not paths:
        raise UsageError("give at least one notebook")
    twice = sorted(parameters.keys() & raw.keys())
    if twice:
        raise UsageError(f"{', '.join(twice)}: given both with -p and with -r")
    checked, refused = [], []
    for path in dict.fromkeys(map(Path, paths)):
        try:
            checked.append(_check(path, parameters, raw, kernel))
        except UsageError as error:
            refused.append(str(error))
    if refused:
        raise UsageError("; ".join(refused))
    return checked


def _check(path: Path, parameters: Mapping[str, object], raw: Mapping[str, str], kernel: str | None) -> Checked:
    notebook = _read(path)
    tagged = [(number, cell) for number, cell in enumerate(notebook.cells, 1) if TAG in cell.metadata.get("tags", [])]
    if not tagged:
        raise UsageError(f"{path}: no cell is tagged {TAG!r}: tag the cell that sets the defaults")
    if len(tagged) > 1:
        numbers = " and ".join(str(number) for number, _ in tagged)
        raise UsageError(f"{path}: cells {numbers} are tagged {TAG!r}: papermill would use only the first, keep one")
    number, cell = tagged[0]
    if cell.cell_type != "code":
        raise UsageError(f"{path}: cell {number}, tagged {TAG!r}, is not code")
    for place, other in enumerate(notebook.cells, 1):
        if INJECTED in other.metadata.get("tags", []):
            raise UsageError(
                f"{path}: cell {place} has the parameters of an earlier run: run the original notebook, or delete that"
                " cell"
            )
    kernel = _kernel(path, notebook, kernel)
    defaults = _defaults(f"{path}: cell {number}, tagged {TAG!r},", cell)
    for name, value in {**parameters, **raw}.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise UsageError(f"{path}: unknown parameter {name!r}; its {TAG} cell assigns {known}")
        wrong = _wrong_kind(name, value, defaults[name]) if name not in raw else None
        if wrong:
            raise UsageError(f"{path}: {wrong}")
    return Checked(path, notebook, number, defaults, kernel)


def _read(path: Path) -> NotebookNode:
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about cells without an id
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # nbformat raises errors of many classes
        raise UsageError(f"{path} is not a valid notebook: {_first_line(error)}") from None
    return notebook


def _kernel(path: Path, notebook: NotebookNode, wanted: str | None) -> str:
    """The name of a Python kernel that is installed."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    name = wanted or notebook.metadata.get("kernelspec", {}).get("name")
    if not name:
        raise UsageError(f"{path} has no kernel: choose one in JupyterLab, or with --kernel python3")
    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel:
        present = ", ".join(sorted(manager.find_kernel_specs())) or "none: pip install -e '.[lab]'"
        raise UsageError(
            f"{path}: kernel {name!r} is not installed; available: {present}; choose one with --kernel"
        ) from None
    if spec.language.casefold() != "python":
        raise UsageError(f"{path}: kernel {name!r} runs {spec.language}, not Python")
    return name


def _defaults(place: str, cell: NotebookNode) -> dict[str, object]:
    """Names that the parameters cell assigns, as papermill reads them, with their values if these are literals."""
    from IPython.core.inputtransformer2 import TransformerManager
    from papermill.translators import PythonTranslator

    try:
        ast.parse(TransformerManager().transform_cell(cell.source))  # it may contain magics
    except SyntaxError as error:
        raise UsageError(f"{place} is not Python: {error.msg} in line {error.lineno}") from None
    defaults: dict[str, object] = {}
    for parameter in PythonTranslator.inspect(cell):
        try:
            defaults[parameter.name] = ast.literal_eval(parameter.default)
        except (ValueError, TypeError, SyntaxError):
            defaults[parameter.name] = UNREAD
    return defaults


def _wrong_kind(name: str, value: object, default: object) -> str | None:
    """The error if a value does not match the type of its default; None if it may be valid."""
    if isinstance(default, bool):
        return f"{name} must be True or False, not {value!r}" if isinstance(value, str) else None
    if isinstance(default, int | float) and isinstance(value, str | bool | list | dict):
        return f"{name} must be a number (default {default}), not {value!r}; -r passes text unchecked"
    if isinstance(default, list | tuple | dict | set) and isinstance(value, str | int | float):
        kind, example = ("dictionary", "{...}") if isinstance(default, dict) else ("list", "[...]")
        return f"{name} must be a {kind}, for example -y '{name}: {example}'"
    return None


def parse_value(text: str) -> object:
    """A value as `papermill -p` reads it: True, False, None, a whole number, a number, else text."""
    if text in ("True", "False", "None"):
        return ast.literal_eval(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_yaml(text: str) -> dict[str, object]:
    """Parameters written in YAML, as `papermill -y` takes them: `"hidden: [64, 128]"`."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"-y {text!r} is not YAML: {_first_line(error)}") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"-y {text!r} is not of the form 'name: value'")
    return values


def _new_file(folder: Path, stem: str) -> Path:
    """Create an empty file with a new name, so that concurrent commands do not choose the same name."""
    name = f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        path = folder / (f"{name}.ipynb" if number == 1 else f"{name}-{number}.ipynb")
        try:
            if not path.with_suffix(FAILED).exists():
                path.touch(exist_ok=False)
                return path
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}; choose another --out") from None


def _run(notebook: Checked, output: Path, values: Mapping, cell_limit_s: int | None, bar: str | None) -> Run:
    import papermill

    replies: dict[int, dict] = {}  # replies of the kernel, by index in the executed notebook
    error, stopped = None, False

    def keep(cell: NotebookNode, cell_index: int, execute_reply: dict) -> None:
        replies[cell_index] = execute_reply.get("content", {})

    progress = {"bar_format": bar, "leave": False, "file": sys.stderr, "disable": not sys.stderr.isatty()}
    began = time.monotonic()
    with _quiet(), tempfile.TemporaryFile() as kernel_errors:
        try:
            papermill.execute_notebook(
                _braces(notebook.path),
                _braces(output),
                dict(values),
                kernel_name=notebook.kernel,
                language="python",
                cwd=str(notebook.path.parent),
                progress_bar=progress if bar else False,
                start_timeout=START_LIMIT_S,
                execution_timeout=cell_limit_s,
                kernel_manager_class=_kernel_manager(kernel_errors),
                on_cell_executed=keep,
            )
        except KeyboardInterrupt:
            stopped = True
        except Exception as caught:  # any error of a notebook or its kernel
            error = caught
        if stopped:
            output.rename(output.with_suffix(FAILED))  # it contains the cells executed so far
            gc.collect()  # otherwise asyncio prints a warning about the stopped task at exit
            raise KeyboardInterrupt
        kernel_errors.seek(0)
        complaints = kernel_errors.read().decode(errors="replace")
    cell, failure = _judge(_cells_run(notebook, bool(values)), replies, error, complaints, cell_limit_s)
    if failure is not None:
        output = output.rename(output.with_suffix(FAILED))
    return Run(notebook.path, output, time.monotonic() - began, notebook.cells, failure, cell)


def _braces(path: Path) -> str:
    """Escape braces, which papermill would replace in paths."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _kernel_manager(errors):
    """A kernel manager that redirects the standard error of kernels to a file."""
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options) -> None:
            await super().start_kernel(**{"stderr": errors, **options})

    return Manager


@contextmanager
def _quiet():
    """Suppress log lines and warnings of papermill and its dependencies; errors are reported at the end."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("papermill", "asyncio", "traitlets"))}
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _cells_run(notebook: Checked, injected: bool) -> list[tuple[int, str, str]]:
    """(number, source, title in messages) of each cell that papermill runs; source is "" for cells without code."""
    cells = [
        (number, cell.source.strip() if cell.cell_type == "code" else "", f'"{_first_line(cell.source)}"')
        for number, cell in enumerate(notebook.notebook.cells, 1)
    ]
    if injected:
        cells.insert(notebook.tagged, (notebook.tagged, INJECTED, "the injected parameters"))
    return cells


def _judge(
    cells: Sequence[tuple[int, str, str]],
    replies: Mapping[int, dict],
    error: Exception | None,
    complaints: str,
    cell_limit_s: int | None,
) -> tuple[int | None, str | None]:
    """(number of the failed cell, failure), or (None, None) if all cells with code completed."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    message = f"{type(error).__name__}: {_first_line(error)}"
    for index, (number, source, title) in enumerate(cells):
        if not source:
            continue
        if index not in replies:
            break
        reply = replies[index]
        if reply.get("status") != "ok":
            name, text = reply.get("ename", ""), reply.get("evalue", "")
            if name == "SystemExit" and text in ("", "0", "None"):
                return number, f"{title} ended the notebook with SystemExit, which papermill treats as success"
            return number, f"{title} raised {name}: {_first_line(text)}".rstrip(": ")
        if any(part.get("source") == "ask_exit" for part in reply.get("payload", [])):
            return number, f"{title} called exit()"
    else:
        return None, message if error else None
    if error is None:
        return number, f"{title} did not complete"
    if isinstance(error, CellTimeoutError):
        return number, f"{title} took longer than {cell_limit_s} s"
    if isinstance(error, DeadKernelError):
        lines = [line for line in complaints.splitlines() if line.strip() and "IPKernelApp] WARNING" not in line]
        return number, f"{title}: the kernel died" + (f" ({_first_line(lines[-1])})" if lines else "")
    return (number, f"{title}: {message}") if replies else (None, f"the kernel did not start: {message}")


def _first_line(text: object) -> str:
    """The first non-blank line of a text, shortened to 200 characters."""
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
    return line if len(line) <= 200 else line[:199] + "…"
