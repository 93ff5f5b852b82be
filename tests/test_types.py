"""What an editor sees: stubs with the names that are loaded when they are first used, held against the registry.

`python -m tests.test_types` writes the stubs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

import lstm_trt as lab
from lstm_judge import plots
from lstm_trt import registry
from tests.conftest import ROOT
from tests.support.packages import PACKAGES

STUBS = {
    "lstm_trt/__init__.pyi": (registry.table("API"), "__version__: str\n"),
    "lstm_judge/plots/__init__.pyi": (registry.table("PICTURES"), "FORMATS: tuple[str, ...]\n"),
}


def stub(names: Mapping[str, str], more: str) -> str:
    """The stub of a module that offers these names (name -> where it is defined), and `more` as it stands."""
    imported: dict[str, list[str]] = {}
    for name, target in names.items():
        module, _, attribute = target.partition(":")
        package, _, last = module.rpartition(".")
        source, found = (module, attribute) if attribute else (package, last)
        imported.setdefault(source, []).append(f"{found} as {name}".replace(" ", "\0"))
    lines = []
    for source, renamed in sorted(imported.items()):
        parts = textwrap.wrap(", ".join(sorted(renamed)), 120 - len(f"from {source} import "))
        lines += [f"from {source} import {part.strip(',')}\n".replace("\0", " ") for part in parts]
    exported = [
        f'    "{name}",\n' for name in sorted(names)
    ]  # also those that have another name where they are defined
    return "".join([*lines, "\n", "__all__ = [\n", *exported, "]\n", more])


@pytest.mark.parametrize("path", STUBS)
def test_a_stub_has_the_names_of_the_registry(path):
    assert (ROOT / path).read_text() == stub(*STUBS[path]), "run python -m tests.test_types"


# Loads all that the names need, PyTorch as well, where no test before did.
@pytest.mark.parametrize("module", [lab, plots])
def test_what_a_stub_names_exists(module):
    assert module.__all__ == dir(module)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_all_packages_are_typed_and_say_so():
    assert [name for name in PACKAGES if not (ROOT / name / "py.typed").exists()] == []
    assert plots.FORMATS == ("png", "svg", "pdf")


if __name__ == "__main__":
    for path, (names, more) in STUBS.items():
        Path(ROOT / path).write_text(stub(names, more))
