"""Networks of random sizes for the C kernel, as ONNX models, and their outputs in float64."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from lstm_onnx.c.compile import LoadedNetwork, find_compiler
from lstm_onnx.c.export import with_packed_weights
from lstm_onnx.c.file import CFile, c_file
from lstm_onnx.c.targets import TARGETS, Target, native_target
from lstm_onnx.evaluate import evaluate, in_float64
from lstm_trt.export.sizes import sizes_of
from tests.support.own_networks import model_of, value

KINDS = {"LSTM": ("LSTM", {}), "GRU": ("GRU", {"linear_before_reset": 1}), "GRU, reset first": ("GRU", {})}
KINDS["RNN"] = ("RNN", {})

#: Pointwise operators with attributes.
FUNCTIONS = {
    "Relu": {}, "Tanh": {}, "Sigmoid": {}, "Elu": {"alpha": 0.7}, "LeakyRelu": {"alpha": 0.2}, "Softsign": {},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
}  # fmt: skip


DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclass(frozen=True)
class Plan:
    """A network: input (sequence, 1, features), recurrent layers, and what is around them if `around`."""

    kinds: tuple[str, ...]
    hidden: tuple[int, ...]
    sequence: int
    features: int
    bias: bool = True
    around: bool = False
    directions: tuple[str, ...] = ()
    seed: int = 0
    precision: str = "fp32"

    @property
    def carries(self) -> bool:
        """Whether it can be computed step by step."""
        return not any(direction != "forward" for direction in self.directions)


def drawn(rng: np.random.Generator, largest: int = 400, kinds: Sequence[str] = tuple(KINDS)[:3]) -> Plan:
    """Up to 4 layers, `largest` units, 300 time steps and 64 features, small sizes more often than large ones."""

    def size(most: int) -> int:
        return int(np.exp(rng.uniform(0, np.log(most + 1))))

    def several(what: Callable[[], object]) -> tuple:
        """For all layers the same, or for each its own."""
        return tuple(what() for _ in range(layers)) if rng.random() < 0.3 else (what(),) * layers

    layers = int(rng.integers(1, 5))
    return Plan(
        kinds=several(lambda: str(rng.choice(kinds))),
        hidden=several(lambda: size(largest)),
        sequence=size(300),
        features=size(64),
        bias=rng.random() < 0.75,
        around=rng.random() < 0.4,
        directions=several(lambda: str(rng.choice(DIRECTIONS))) if rng.random() < 0.2 else (),
        seed=int(rng.integers(2**31)),
    )


def network(plan: Plan, rows: int | None = None) -> onnx.ModelProto:
    """The ONNX model for so many time steps (default: all of the plan); the weights do not depend on them.

    Outputs: `y` for each time step and `last`, the state h of the last layer.
    """
    random, rows = np.random.default_rng(plan.seed), rows or plan.sequence
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(*shape: int, bound: float = 1.0) -> str:
        name = f"c{len(constants)}"
        constants.append(numpy_helper.from_array(random.uniform(-bound, bound, shape).astype(np.float32), name))
        return name

    def add(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def around(name: str, width: int, new: int) -> str:
        name = add("Add", add("MatMul", name, constant(width, new, bound=width**-0.5)), constant(new))
        function = random.choice(list(FUNCTIONS))
        return add(function, name, **FUNCTIONS[function])

    name, width = "x", plan.features
    if plan.around:
        name = add("Mul", add("Sub", name, constant(width)), constant(width))
        if random.random() < 0.5:
            width, old = int(random.integers(1, 40)), width
            name = around(name, old, width)
    last = ""
    for number, (kind, units) in enumerate(zip(plan.kinds, plan.hidden, strict=True)):
        direction = plan.directions[number] if plan.directions else "forward"
        count = 2 if direction == "bidirectional" else 1
        operator, attributes = KINDS[kind]
        gates, bound = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator] * units, units**-0.5
        weights = [constant(count, gates, width, bound=bound), constant(count, gates, units, bound=bound)]
        weights += [constant(count, 2 * gates, bound=bound)] if plan.bias else []
        last = f"h{number}"
        nodes.append(
            helper.make_node(
                operator,
                [name, *weights],
                [f"y{number}", last],
                name=f"layer_{number}",
                hidden_size=units,
                direction=direction,
                **attributes,
            )
        )
        width = count * units
        shape = numpy_helper.from_array(np.array([rows, 1, width]), f"shape{number}")
        constants.append(shape)
        name = add("Reshape", add("Transpose", f"y{number}", perm=[0, 2, 1, 3]), shape.name)
        if plan.around and random.random() < 0.3:
            function = random.choice(list(FUNCTIONS))
            name = add(function, name, **FUNCTIONS[function])
    if plan.around:
        new = int(random.choice([1, 2, 4, 5, 17, 40]))
        name, width = around(name, width, new), new
    nodes.append(helper.make_node("Identity", [name], ["y"]))
    nodes.append(helper.make_node("Identity", [last], ["last"]))
    count = 2 if plan.directions and plan.directions[-1] == "bidirectional" else 1
    outputs = [value("y", [rows, 1, width]), value("last", [count, 1, plan.hidden[-1]])]
    return model_of(nodes, [value("x", [rows, 1, plan.features])], outputs, constants)


def right(model: onnx.ModelProto, x: np.ndarray, **states: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs by name, computed in float64."""
    name = next(entry.name for entry in model.graph.input if entry.name not in states)
    copy = onnx.load_from_string(model.SerializeToString())
    return evaluate(in_float64(copy), {name: x.astype(np.float64), **states})


def right_of(plan: Plan, x: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a plan, with the weights as packed."""
    model = network(plan)
    bounded = [node.output[0] for node in model.graph.node if node.op_type == "Reshape"]  # outputs of layers
    return right(with_packed_weights(model, plan.precision, bounded), x)


def runnable() -> list[str]:
    """The names of the targets with vectors that this processor can run."""
    if platform.machine() != "x86_64":
        return ["aarch64"]
    most = native_target().vector_length
    return [name for name, target in TARGETS.items() if name != "aarch64" and 1 < target.vector_length <= most]


def loaded(file: CFile, *flags: str) -> LoadedNetwork:
    """A compiled network; of two flags the last counts, those of its target come first."""
    target = Target(file.target.name, file.target.vector_length, (*file.target.flags, *flags))
    return LoadedNetwork(replace(file, target=target), find_compiler())


def computed(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], target: str, *flags: str, precision: str = "fp32"
) -> dict[str, np.ndarray]:
    """The outputs of a window by name, compiled with -O1 and these flags.

    Raises `BuildFailed` for what cannot be generated.
    """
    how = {"include_weights": False, "precision": precision}
    file = c_file({"run": model.SerializeToString()}, TARGETS[target], "network", **how)
    shapes = {entry.name: sizes_of(entry) for entry in model.graph.output}
    outputs = {name: np.full(shapes[name], np.nan, np.float32) for name in file.reader.output_names}
    compiled = loaded(file, "-O1", *flags)
    compiled.bound("run", *inputs.values(), *outputs.values())()
    return outputs


def models_of(plan: Plan, block: int = 1) -> dict[str, bytes]:
    """The window of a plan, and a step of `block` rows if it has one."""
    models = {"run": network(plan).SerializeToString()}
    if plan.carries:
        models["step"] = network(plan, block).SerializeToString()
    return models


def file_of(plan: Plan, target: str, block: int) -> CFile:
    """The file of a network, with a step of `block` rows if it has one."""
    how = {"include_weights": False, "precision": plan.precision}
    return c_file(models_of(plan, block), TARGETS[target], "network", **how)


def scale_of(*outputs: np.ndarray) -> float:
    """What errors are relative to: the largest output, and at least 0.1.

    What a unit adds up is of about 1 in all networks here, and its rounding errors stay where the sum cancels, or a
    rectifier makes it 0.
    """
    return max(0.1, *(float(np.abs(array).max()) for array in outputs))


def largest_error(plan: Plan, target: str, block: int, rng: np.random.Generator, *flags: str) -> float:
    """The largest error of an output of a window, and of the same samples in blocks, relative to `scale_of` them.

    `prepare_next` is called before `reset`, and before some of the blocks, chosen at random.
    """
    file = file_of(plan, target, block)
    compiled = loaded(file, *flags)
    x = rng.standard_normal((plan.sequence, 1, plan.features)).astype(np.float32)
    expected = right_of(plan, x)
    y, last = (np.full(expected[name].shape, np.nan, np.float32) for name in ("y", "last"))
    compiled.bound("run", x, y, last)()
    pairs = [(y, expected["y"]), (last.copy(), expected["last"])]
    if plan.carries:
        given, answers = np.empty_like(x[:block]), np.full(y[:block].shape, np.nan, np.float32)
        step = compiled.bound("step", given, answers, last)
        prepare_next = compiled.bound("prepare_next") if file.prepares else lambda: None
        prepare_next()
        compiled.bound("reset")()
        for at in range(0, plan.sequence - block + 1, block):
            if rng.random() < 0.5:
                prepare_next()
            given[...] = x[at : at + block]
            step()
            pairs.append((answers.copy(), expected["y"][at : at + block]))
    errors = [np.abs(found - wanted).max() for found, wanted in pairs]
    return float(np.max(errors)) / scale_of(*expected.values())
