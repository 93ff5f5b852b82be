"""What a notebook needs to be run with parameters, checked before any of them runs.

A parameter that no cell reads, a text where the notebook wants a number, a kernel that is
not installed: found after an hour of recording they have cost an hour.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.errors import UsageError

if TYPE_CHECKING:
    from nbformat import NotebookNode

TAG, INJECTED = "parameters", "injected-parameters"
#: A name that the parameters cell assigns, whose value cannot be read without running it.
UNREAD = object()


@dataclass(frozen=True)
class Checked:
    """A notebook that can run: how many cells it has, its kernel, and its parameters' values."""

    path: Path
    cells: int
    kernel: str
    defaults: dict[str, object]


def check_notebooks(
    paths: Sequence[str | Path], parameters: Mapping[str, object], raw: Mapping[str, str], kernel: str | None = None
) -> list[Checked]:
    """Read and check every notebook; raises one `UsageError` that names each that cannot run, and why.

    Refused are: a missing file, invalid JSON or an invalid notebook, none or several cells tagged
    `parameters`, a cell that papermill injected before, a name that the `parameters` cell does
    not assign, text for what is a number, truth value or list there (unless it is in `raw`), and
    a kernel that is not installed or not Python's.
    """
    try:
        import papermill  # noqa: F401
    except ImportError:
        raise UsageError("rerun needs papermill: pip install -e '.[dev]'") from None
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
        raise UsageError(f"{path}: no cell is tagged {TAG!r}: tag the one that sets the defaults")
    if len(tagged) > 1:
        numbers = " and ".join(str(number) for number, _ in tagged)
        raise UsageError(f"{path}: cells {numbers} are tagged {TAG!r}: papermill would take the first, leave one")
    number, cell = tagged[0]
    if cell.cell_type != "code":
        raise UsageError(f"{path}: cell {number}, tagged {TAG!r}, is not code")
    for number_injected, one in enumerate(notebook.cells, 1):
        if INJECTED in one.metadata.get("tags", []):
            raise UsageError(
                f"{path}: cell {number_injected} holds the parameters of an earlier run: run the notebook it came"
                " from, or delete that cell"
            )
    kernel = _kernel(path, notebook, kernel)
    defaults = _defaults(f"{path}: cell {number}, tagged {TAG!r},", cell.source)
    for name, value in {**parameters, **raw}.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise UsageError(f"{path}: unknown parameter {name!r}; its {TAG} cell assigns {known}")
        wrong = _wrong_kind(name, value, defaults[name]) if name not in raw else None
        if wrong:
            raise UsageError(f"{path}: {wrong}")
    return Checked(path, len(notebook.cells), kernel, defaults)


def _read(path: Path) -> NotebookNode:
    import warnings

    import nbformat

    if path.is_dir():
        raise UsageError(f"{path} is a folder: name its notebooks, as in {path}/*.ipynb")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no notebook {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without an id are fine
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # nbformat raises many kinds for what is no notebook
        raise UsageError(f"{path} is not a valid notebook: {first_line(str(error))}") from None
    return notebook


def _kernel(path: Path, notebook: NotebookNode, wanted: str | None) -> str:
    """The name of a Python kernel that is installed."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    name = wanted or notebook.metadata.get("kernelspec", {}).get("name")
    if not name:
        raise UsageError(f"{path} names no kernel: choose one in JupyterLab, or with --kernel python3")
    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel:
        present = ", ".join(sorted(manager.find_kernel_specs())) or "none: pip install -e '.[dev]'"
        raise UsageError(
            f"{path}: kernel {name!r} is not installed; there is {present}; --kernel chooses one"
        ) from None
    if spec.language.casefold() != "python":
        raise UsageError(f"{path}: kernel {name!r} runs {spec.language}, not Python")
    return name


def _defaults(where: str, source: str) -> dict[str, object]:
    """Names that a cell assigns at its top level, with their values where those are literals."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        statements = ast.parse(TransformerManager().transform_cell(source)).body  # it may hold magics
    except SyntaxError as error:
        raise UsageError(f"{where} is not Python: {error.msg} in its line {error.lineno}") from None
    found: dict[str, object] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = _literal(value)
            else:
                found |= {one.id: UNREAD for one in ast.walk(target) if isinstance(one, ast.Name)}
    return found


def _literal(value: ast.expr) -> object:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        return UNREAD


def _wrong_kind(name: str, value: object, default: object) -> str | None:
    """Why a value cannot be meant; None where it can, or where it cannot be told."""
    given = repr(value)
    if isinstance(default, bool):
        return f"{name} is True or False there, not {given}" if isinstance(value, str) else None
    if isinstance(default, int | float) and isinstance(value, str | bool | list | dict):
        return f"{name} is a number there ({default}), not {given}; -r passes text all the same"
    if isinstance(default, list | tuple | dict | set) and isinstance(value, str | int | float):
        return (
            f"{name} is a list there: -y '{name}: [...]' gives one"
            if not isinstance(default, dict)
            else (f"{name} is a dictionary there: -y '{name}: {{...}}' gives one")
        )
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
        raise UsageError(f"-y {text!r} is not YAML: {first_line(str(error))}") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"-y {text!r} is not of the form 'name: value'")
    return values


def first_line(text: str, most: int = 200) -> str:
    """The first line that says something, shortened."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= most else line[: most - 1] + "…"
