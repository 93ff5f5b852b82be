"""Run notebooks with parameters, strictly: a notebook that does not complete all cells is reported
as failed.

Papermill accepts an unknown parameter with a warning, treats `sys.exit(0)` in a cell as success
although the following cells never ran, and treats a skipped cell as completed. Here the parameters
are checked before the first notebook runs, and a notebook succeeds only if its kernel replied "ok"
to every cell with code.

Notebooks run one after the other, since they would disturb each other's timings. Each has its own
kernel in the folder of the notebook, as in JupyterLab.

Papermill and Jupyter are an extra: they are imported when notebooks are run, not with this module.
"""

import ast
import gc
import logging
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from lstm_trt.config.errors import RunFailed, UsageError, check_number, first_line, refused
from lstm_trt.config.fields import JsonFields, as_list
from lstm_trt.config.format import count, duration, listed, terminal_width
from lstm_trt.config.libraries import how_to_install
from lstm_trt.store.files import make_folder, refuse_named_pipe

#: Type of a parameter -> the types that may replace it, and what they are called.
KINDS: dict[type, tuple[Any, str]] = {
    bool: ((int, float), "True or False"),
    int: ((int, float), "a number"),
    float: ((int, float), "a number"),
    dict: (dict, "an object, such as {hidden: [64, 128]}"),
}

#: Tags of the cell with the defaults, and of the one that papermill adds after it.
TAG = "parameters"
INJECTED = "injected-parameters"

#: Seconds that a kernel may take to start.
START_LIMIT_S = 120

_COLOUR = re.compile("\033\\[[0-9;]*m")


@dataclass(frozen=True)
class Run(JsonFields):
    """Result of one notebook: `failure` is None or one line of text, `cell` the number of the cell
    that failed.

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
        return super().as_dict() | {"status": "ok" if self.failure is None else "failed"}

    def __str__(self) -> str:
        if self.failure is None:
            return (
                f"{self.notebook}: {count(self.cells, 'cell')} in {duration(self.seconds)}"
                f" -> {self.output}"
            )
        place = f"cell {self.cell}: " if self.cell is not None else ""
        return f"{self.notebook}: {place}{self.failure}; the executed cells are in {self.output}"


def rerun(
    notebooks: Sequence[str | Path],
    parameters: Mapping[str, object] | None = None,
    *,
    out: str | Path = "runs",
    kernel: str | None = None,
    cell_limit_s: int | None = None,
    show_progress: bool = True,
    listener: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Run notebooks one after the other; the next one runs even if one fails.

    The outputs are `<name>-<date>-<time>.ipynb` in `out`, and `.failed.ipynb` after a failure;
    existing files are never overwritten. Raises `UsageError`, before anything runs, for the errors
    of `check_notebooks` and for a folder that cannot be written. Ctrl-C ends the kernel and raises
    KeyboardInterrupt.
    """
    check_papermill()
    checked = check_notebooks(notebooks, parameters or {}, kernel)
    if cell_limit_s is not None:
        check_number(
            "--cell-limit must be at least 1 s", cell_limit_s, lambda seconds: seconds >= 1
        )
    folder = make_folder(Path(out))
    hidden = not (show_progress and terminal_width(sys.stderr))
    runs = []
    for number, (path, (cells, values)) in enumerate(checked.items(), 1):
        run = _run(
            path,
            cells,
            folder,
            parameters=values,
            kernel_name=kernel,
            execution_timeout=cell_limit_s,
            progress_bar={
                "desc": f"[{number}/{len(checked)}] {path.name}",
                "leave": False,
                "disable": hidden,
            },
        )
        runs.append(run)
        listener(run)
    return runs


def check_papermill() -> None:
    """Raise `UsageError` where the packages that run notebooks are not installed."""
    with refused(
        "rerun needs papermill", ImportError, hint=f"; install it with {how_to_install('lab')}"
    ):
        import papermill  # noqa: F401


def parse_value(text: str) -> object:
    """A value as papermill reads that of its option -p: `"1"` is a number, `"True"` a bool."""
    from papermill.cli import _resolve_type

    return _resolve_type(text)


def check_notebooks(
    paths: Sequence[str | Path], values: Mapping[str, object], kernel: str | None = None
) -> dict[Path, tuple[int, dict[str, object]]]:
    """The number of cells of each notebook, and the values of its parameters, see `fitted`.

    Raises one `UsageError` that names each file that is not a notebook, or has no kernel, or not
    exactly one cell tagged `parameters`, by its author and not by an earlier run; each parameter
    that this cell does not assign; and each value of another kind than the one it replaces.
    """
    checked = {}
    wrong = []
    for path in map(Path, as_list(paths)):
        try:
            cells, known = _read(path, kernel)
        except Exception as error:  # nbformat raises errors of many classes
            wrong.append(f"{path} is not a valid notebook: {first_line(error)}")
            continue
        of_notebook = {}
        for name, value in values.items():
            try:
                if name not in known:
                    raise UsageError(
                        f"unknown parameter {name!r}; its {TAG} cell assigns {listed(known)}"
                    )
                of_notebook[name] = fitted(name, known[name], value)
            except UsageError as error:
                wrong.append(f"{path}: {error}")
        checked[path] = cells, of_notebook
    if wrong or not checked:
        raise UsageError("; ".join(wrong) or "give at least one notebook")
    return checked


def _read(path: Path, kernel: str | None) -> tuple[int, dict[str, object]]:
    """The number of cells of a notebook, and what its parameters cell assigns; raises errors of
    many classes."""
    import nbformat

    refuse_named_pipe(path)
    with warnings.catch_warnings(action="ignore"):  # about cells without an id
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    tagged = [
        cell for cell in notebook.cells if {TAG, INJECTED} & set(cell.metadata.get("tags", []))
    ]
    if len(tagged) != 1:
        raise UsageError(f"{len(tagged)} cells are tagged {TAG!r} or {INJECTED!r}, not one")
    if not (kernel or notebook.metadata.get("kernelspec", {}).get("name")):
        raise UsageError("it has no kernel: choose one in JupyterLab, or with --kernel python3")
    return len(notebook.cells), assigned(tagged[0])


def assigned(cell: Mapping[str, Any]) -> dict[str, object]:
    """The names that a cell assigns anywhere, with the values of those that are literals, None for
    the others."""
    source = re.sub(r"(?m)^\s*[%!].*", "", cell["source"])  # magics and shell commands of IPython
    tree = ast.parse(source)
    known: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known[node.id] = None
    for line in tree.body:
        match line:
            case ast.Assign(targets=[ast.Name(name)], value=value) | ast.AnnAssign(
                ast.Name(name), value=value
            ):
                with suppress(ValueError, TypeError):
                    known[name] = ast.literal_eval(value or "None")
    return known


def fitted(name: str, default: object, value: object) -> object:
    """The value of a parameter in place of `default`: a single value in place of a list is a list
    of one.

    None replaces anything, and anything replaces None. Raises `UsageError` for a value of another
    kind.
    """
    if isinstance(default, list) and value is not None:
        return [fitted(name, default[0] if default else None, item) for item in as_list(value)]
    kinds, called = KINDS.get(type(default), (object, ""))
    if value is not None and not isinstance(value, kinds):
        raise UsageError(f"{name} must be {called}, not {value!r}")
    return value


def _run(path: Path, cells: int, folder: Path, **options: Any) -> Run:
    """Run one notebook; `options` are those of papermill."""
    import papermill

    hooks = _Hooks()
    output = folder / f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}.ipynb"
    output.touch(exist_ok=False)
    # Papermill replaces names in braces.
    source, target = (str(each).replace("{", "{{").replace("}", "}}") for each in (path, output))
    began = time.monotonic()
    failure = cell = None
    logging.disable()  # what papermill and its dependencies log is in the failure
    try:
        with warnings.catch_warnings(action="ignore"):
            papermill.execute_notebook(
                source,
                target,
                cwd=path.parent,
                start_timeout=START_LIMIT_S,
                kernel_manager_class=_quiet_kernels(hooks),
                on_cell_start=hooks.start,
                on_cell_executed=hooks.end,
                **options,
            )
    except BaseException as error:
        # It contains the cells executed so far.
        output = output.rename(output.with_suffix(".failed.ipynb"))
        if not isinstance(error, Exception):
            gc.collect()  # otherwise asyncio prints a warning about a stopped task at exit
            raise
        kind = "" if isinstance(error, RunFailed) else f"{type(error).__name__}: "
        failure = f"{hooks.place} {kind}{first_line(error)}"
        cell = len(hooks.started) or None
    finally:
        logging.disable(logging.NOTSET)
    return Run(path, output, time.monotonic() - began, cells, failure, cell)


@dataclass
class _Hooks:
    """What papermill calls for each cell: raises for what it takes for success.

    `started`: the cells of the given notebook that were started; `line`: where the last one failed;
    `program`: that of the kernel.
    """

    started: list[Any] = field(default_factory=list)
    line: int = 1
    program: str = ""

    def start(self, cell: Any, cell_index: int) -> None:
        if INJECTED not in cell.metadata.tags:
            self.started.append(cell)
        if "skip-execution" in cell.metadata.tags:
            raise RunFailed("did not complete")

    def end(self, cell: Any, cell_index: int, execute_reply: dict) -> None:
        reply = execute_reply["content"]
        if any(part.get("source") == "ask_exit" for part in reply.get("payload", [])):
            raise RunFailed("called exit()")
        if reply["status"] == "ok":
            return
        # As IPython states the line of this cell, and `LabError`.
        found = re.search(
            rf"(?:In ?\[{reply['execution_count']}\], |^)line (\d+)",
            _COLOUR.sub("", "\n".join(reply["traceback"])),
        )
        if found:
            self.line = int(found[1])
        raised = f"raised {reply['ename']}: {first_line(reply['evalue'])}"
        if reply["ename"] == "ModuleNotFoundError":
            raised += (
                f" in {self.program}: install it there, or choose another kernel with --kernel"
            )
        raise RunFailed(raised)

    @property
    def place(self) -> str:
        """The line that failed, in quotes."""
        if not self.started:
            return "the kernel did not start:"
        lines = self.started[-1].source.strip().splitlines()
        return f'"{lines[min(self.line, len(lines)) - 1].strip()}"'


def _quiet_kernels(hooks: _Hooks) -> Any:
    """A class of managers of kernels that print nothing, and tell their program."""
    from jupyter_client.manager import AsyncKernelManager

    class Quiet(AsyncKernelManager):
        async def start_kernel(self, **options) -> None:
            await super().start_kernel(**{"stderr": subprocess.DEVNULL, **options})
            hooks.program = self.format_kernel_cmd()[0]

    return Quiet
