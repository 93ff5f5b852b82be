"""Writes docs/api, which git ignores: a page for each public name, from the tables of the registry."""

import inspect
import shutil
import sys
from dataclasses import is_dataclass
from operator import attrgetter
from pathlib import Path

import lstm_trt as lab
from lstm_trt import registry
from lstm_trt.config.fields import about


def write_page(folder: Path, name: str) -> str:
    """Write the page of a public name; returns its line in a list of names."""
    found = attrgetter(name)(lab)
    text = inspect.getdoc(found)
    summary = " ".join(text.split("\n\n")[0].split())
    if inspect.ismodule(found):
        text += "\n\n" + write_pages(folder, [f"{name}.{each}" for each in found.__all__])
    else:
        kind = "class" if isinstance(found, type) else "function"
        text = f".. auto{kind}:: lstm_trt.{name}\n\n"
    if is_dataclass(found):
        text += "".join(f"   * `{field.name}`: {field.help}\n" for field in about(found).values() if field.help)
    (folder / f"{name}.rst").write_text(f"lab.{name}\n{'=' * 40}\n\n{text}\n")
    return f"* :doc:`lab.{name} <{name}>`: {summary}\n"


def write_pages(folder: Path, names: list[str]) -> str:
    """Write their pages; returns a list of the names, and what puts them into the table of contents."""
    lines = [write_page(folder, name) for name in names]
    contents = [f"   {name}\n" for name in names]
    return "".join([".. toctree::\n   :hidden:\n\n", *contents, "\n", *lines, "\n"])


def write(folder: Path) -> None:
    """Write all pages, and a list of the names by package."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    text = f"Python API\n{'=' * 40}\n\n"
    for tables in (registry, *registry.packages()):
        if names := sorted(getattr(tables, "API", ())):
            package = sys.modules[tables.__package__]
            text += f"{package.__name__}\n{'-' * 40}\n\n{inspect.getdoc(package)}\n\n"
            text += write_pages(folder, names)
    (folder / "index.rst").write_text(text)
