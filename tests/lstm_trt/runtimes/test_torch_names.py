"""Every name of PyTorch that the code uses exists in 2.11.0, the version of the GPU machines that are lent.

That version needs gigabytes of CUDA libraries, so the names are compared with `data/torch_names.json`, in which each
was found by importing torch 2.11.0. A name that is not there: look whether 2.11.0 has it, then add it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT
from tests.support.packages import PACKAGES

NAMES = set(json.loads((ROOT / "tests/data/torch_names.json").read_text())["2.11.0"])
FILES = sorted(
    path
    for folder in (*PACKAGES, "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if "torch" in path.read_text()
)


def used(source: str) -> Iterator[str]:
    """Dotted names of torch in a file, of imports and of attributes, also by way of a variable."""
    tree, bound = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {
                each.asname or "torch": each.name if each.asname else "torch"
                for each in node.names
                if is_torch(each.name)
            }
            yield from (each.name for each in node.names if is_torch(each.name))
        elif isinstance(node, ast.ImportFrom) and is_torch(node.module or ""):
            bound |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value and is_torch(ast.unparse(node.value)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {ast.unparse(target): ast.unparse(node.value) for target in targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if first in bound and rest.replace(".", "").isidentifier():
                yield f"{bound[first]}.{rest}"


def is_torch(name: str) -> bool:
    """Whether a text is a dotted name of PyTorch."""
    return name.replace(".", "").isidentifier() and name.split(".")[0] == "torch"


def test_names_are_found_in_imports_and_attributes():
    source = "import torch\nfrom torch import nn as layers\ntorch.cuda.Stream()\nlayers.LSTM\nother.torch.x\n"
    source += "known = torch.backends\nknown.cudnn\n"
    expected = {"torch", "torch.nn", "torch.cuda", "torch.cuda.Stream", "torch.nn.LSTM"}
    assert set(used(source)) == expected | {"torch.backends", "torch.backends.cudnn"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_is_newer_than_the_version_of_the_lent_machines(path):
    assert set(used(path.read_text())) <= NAMES
