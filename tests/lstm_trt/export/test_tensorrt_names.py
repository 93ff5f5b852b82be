"""All names of TensorRT that the code uses exist in the versions where it uses them.

The full TensorRT cannot be loaded without a GPU machine, so the names are compared with
`data/tensorrt_api_names.json`: the public classes and members of the bindings of tensorrt 10.13.3,
10.16.1, 11.4.0 and tensorrt_rtx 1.7.1, as `dir()` lists them. The names in the code are
found in its syntax trees: `trt` is the module, and the type of an object follows from the call that
created it (MADE_BY), or from the tables below if it is passed to a function.
"""

from __future__ import annotations

import ast
import json
import re
from operator import attrgetter

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.packages import PACKAGES

PACKAGE = ROOT / "lstm_trt"
MODULE = "trt"
#: Version -> "class.member"; the module itself is the class `trt`.
NAMES = {
    version: {
        f"{name.replace('module', MODULE)}.{member}" for name, members in classes.items() for member in members.split()
    }
    for version, classes in json.loads((ROOT / "tests/data/tensorrt_api_names.json").read_text()).items()
}
RTX = "tensorrt_rtx 1.7.1"

#: The files that touch TensorRT's objects.
FILES = (
    "export/tensorrt/trt.py",
    "export/tensorrt/engine.py",
    "export/tensorrt/build.py",
    "export/tensorrt/layers.py",
    "runtimes/cuda/_cuda.py",
    *sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("runtimes/cuda/*tensorrt*.py")),
)

#: Method or attribute of a class -> class of its result.
MADE_BY = {
    "Builder.create_network": "INetworkDefinition",
    "Builder.create_builder_config": "IBuilderConfig",
    "Builder.create_optimization_profile": "IOptimizationProfile",
    "Builder.build_serialized_network": "IHostMemory",
    "INetworkDefinition.get_input": "ITensor",
    "INetworkDefinition.get_layer": "ILayer",
    "ILayer.type": "LayerType",
    "OnnxParser.get_error": "ParserError",
    "IBuilderConfig.create_timing_cache": "ITimingCache",
    "IBuilderConfig.get_timing_cache": "ITimingCache",
    "Runtime.deserialize_cuda_engine": "ICudaEngine",
    "ICudaEngine.create_engine_inspector": "EngineInspector",
    "ICudaEngine.create_execution_context": "IExecutionContext",
    "ICudaEngine.create_runtime_config": "IRuntimeConfig",
    "IRuntimeConfig.create_runtime_cache": "IRuntimeCache",
}

#: Names of parameters and attributes that hold such an object, in any of the files.
HELD_IN = {
    "trt": MODULE,
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "builder": "Builder",
    "self._engine": "ICudaEngine",
    "self._runtime": "Runtime",
    "self._opened.context": "IExecutionContext",
}
#: The same for one file only.
HELD_IN_FILE: dict[str, dict[str, str | None]] = {
    "export/tensorrt/engine.py": {"runtime": "Runtime"},
    "export/tensorrt/build.py": {"config": "IBuilderConfig", "tensor": "ITensor"},
    "runtimes/cuda/tensorrt.py": {"engine": "ICudaEngine"},
    "runtimes/cuda/tensorrt_rtx.py": {
        "engine": "ICudaEngine",
        "config": "IRuntimeConfig",
        "kernels": "IRuntimeCache",
    },
}
#: Members of all pybind11 enumerations, which the stored lists leave out.
UNLISTED = "name.value"
#: Calls that return the module.
MODULE_CALLS = ("load_module", "export_trt.load_module")

#: Names that are used only with TensorRT for RTX, and are missing in some versions of TensorRT.
ONLY_RTX = {
    "BuilderFlag.REQUIRE_USER_ALLOCATION",
    "trt.ComputeCapability",
    "trt.CudaGraphStrategy",
    "trt.DynamicShapesKernelSpecializationStrategy",
    "CudaGraphStrategy.DISABLED",
    "DynamicShapesKernelSpecializationStrategy.EAGER",
    "IBuilderConfig.num_compute_capabilities",
    "IBuilderConfig.set_compute_capability",
    "IExecutionContext.is_stream_capturable",
    "IRuntimeCache.deserialize",
    "IRuntimeCache.serialize",
    "IRuntimeConfig.create_runtime_cache",
    "IRuntimeConfig.cuda_graph_strategy",
    "IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy",
    "IRuntimeConfig.set_runtime_cache",
}


class Uses(ast.NodeVisitor):
    """Collects "class.member" of every access to an object of TensorRT; `found` maps them to line numbers."""

    def __init__(self, held: dict[str, str]) -> None:
        self.held, self.found = dict(held), {}

    def type_of(self, node: ast.AST) -> str | None:
        """The class of an expression, also where that is the class itself."""
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.held:
            return self.held[ast.unparse(node)]
        if isinstance(node, ast.Attribute):
            owner = self.type_of(node.value)
            return node.attr if owner == MODULE else MADE_BY.get(f"{owner}.{node.attr}")
        if isinstance(node, ast.Call):
            return MODULE if ast.unparse(node.func) in MODULE_CALLS else self.type_of(node.func)
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = self.type_of(node.value)
        if owner and node.attr not in UNLISTED and not node.attr.startswith("__"):
            self.found.setdefault(f"{owner}.{node.attr}", node.lineno)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        made = self.type_of(node.value)
        if made:
            self.held |= {ast.unparse(target): made for target in node.targets}


def uses(source: str, held: dict[str, str]) -> dict[str, int]:
    """Member of a class -> a line; each function is walked separately, since names differ in meaning."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = {}
    for function in functions:
        walk = Uses(held)
        # Twice: an inner function may use names that are assigned further down.
        walk.visit(function)
        walk.visit(function)
        found |= walk.found
    return found


def lacking(used: dict[str, int]) -> list[str]:
    """The used names that are missing in a version where they are used."""
    return [
        f"{use} (line {line}) is not in {version}"
        for use, line in sorted(used.items())
        for version, names in NAMES.items()
        if use not in names and (use not in ONLY_RTX or version == RTX)
    ]


def uses_in(name: str) -> dict[str, int]:
    return uses((PACKAGE / name).read_text(), {**HELD_IN, **HELD_IN_FILE.get(name, {})})


@pytest.mark.parametrize("name", FILES)
def test_every_name_exists_where_it_is_used(name):
    assert lacking(uses_in(name)) == []


def test_no_other_file_of_a_package_uses_the_module():
    using = set()
    for package in PACKAGES:
        using |= {path for path in (ROOT / package).rglob("*.py") if re.search(r"\btrt\.[A-Z]", path.read_text())}
    assert len(using) > 3 and using <= {PACKAGE / name for name in FILES}


def test_the_walk_finds_the_known_names():
    everything = {use for name in FILES for use in uses_in(name)}
    assert everything >= ONLY_RTX | {"trt.Builder", "NetworkDefinitionCreationFlag.STRONGLY_TYPED", "ILayer.type"}
    assert everything >= {"ITensor.shape", "ITimingCache.serialize", "ICudaEngine.get_tensor_name"}
    assert len(everything) > 40
    for use in ONLY_RTX:  # an unneeded exception could hide a mistake
        assert any(use not in names for version, names in NAMES.items() if version != RTX), use


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("builder.build_engine(network, config)", "Builder.build_engine (line 2) is not in tensorrt 10.13.3"),
        ("config = trt.Builder(0).create_builder_config(); config.set_flag(trt.BuilderFlag.FP16)", "BuilderFlag.FP16"),
        (
            "trt.Runtime(0).deserialize_cuda_engine(b'').create_execution_context().execute_async_v2()",
            "execute_async_v2",
        ),
        ("trt.Runtime(0).get_validity(b'')", "Runtime.get_validity"),
        ("trt.NoSuchThing", "trt.NoSuchThing"),
        ("[network.get_layer(i).kind for i in range(3)]", "ILayer.kind"),
        ("parser.get_error(0).operator()", "ParserError.operator"),
        ("engine = trt.Runtime(0).deserialize_cuda_engine(b''); engine.num_bindings", "ICudaEngine.num_bindings"),
    ],
)
def test_a_wrong_name_is_found(line, message):
    source = f"def function(trt, network, builder, parser):\n    {line}\n"
    assert any(message in text for text in lacking(uses(source, HELD_IN)))


@pytest.mark.parametrize("module", ("tensorrt", "tensorrt_rtx"))
def test_every_name_is_in_the_installed_version(module):
    trt = pytest.importorskip(module, exc_type=ImportError)
    names = {use for name in FILES for use in uses_in(name)}
    if module == "tensorrt":
        names -= ONLY_RTX
    elif trt.__version__.startswith("1.7.1."):
        names |= NAMES[RTX]
    for name in names:
        attrgetter(name.removeprefix("trt."))(trt)  # raises for one that is not there
    assert trt.nptype(trt.float16) is np.float16


def test_names_that_are_looked_up_as_text_exist_too():
    from lstm_trt.export.tensorrt.engine import COMPUTE_CAPABILITIES

    assert {f"ComputeCapability.{name.upper()}" for name in COMPUTE_CAPABILITIES} <= NAMES[RTX]
    for version, names in NAMES.items():
        assert {"LayerType.TRIP_LIMIT", "LayerType.RECURRENCE", "LayerType.MATRIX_MULTIPLY"} <= names, version
