"""A workload kind and its runtime, as in another package: a gated recurrent network in numpy.

It has no layers, batch or hidden size (null axes), two named inputs, two named outputs, and an additional
mode: in "stream" the state is carried from step to step until `reset`. `install` registers it through entry points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import ADDED, Workload, identity_fields, known_fields
from lstm_trt.runtimes.base import Availability, Gate, PreparedStep, Preparer, Request

ENTRY_POINTS = """\
[lstm_trt.workloads]
tests-gru = tests.support.other_kind:GruWorkload

[lstm_trt.preparers]
tests-gru = tests.support.other_kind:PREPARER

[lstm_trt.runtimes]
tests-numpy-gru = tests.support.other_kind:RUNTIME
"""


def install(folder: Path) -> Path:
    """Write the dist-info folder of an installed package, with its entry points; returns `folder`."""
    information = folder / "tests_gru-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-gru\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@dataclass(frozen=True)
class GruWorkload(Workload):
    """`sequence` steps of a gated network with `width` states; `leak` was added after recordings had been made."""

    KIND = "tests-gru"
    modes = ("forward", "stream")

    width: int
    sequence: int = 4
    leak: float = field(default=0.0, metadata=ADDED)

    @property
    def label(self) -> str:
        return f"gru-{self.width}x{self.sequence}" + (f"-leak{self.leak:g}" if self.leak else "")

    def as_dict(self) -> dict:
        return {"kind": self.KIND, **identity_fields(self)}

    @classmethod
    def from_dict(cls, plain) -> GruWorkload:
        try:
            return known_fields(cls, {name: value for name, value in plain.items() if name != "kind"})
        except TypeError as error:
            raise UsageError(f"not a workload of this version: {error}") from None

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"samples": (self.sequence, self.width), "gain": (self.width,)}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"states": (self.sequence, self.width), "energy": (1,)}


def make_inputs(workload: GruWorkload, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in workload.input_shapes.items()}


def make_weights(workload: GruWorkload, seed: int) -> dict[str, np.ndarray]:
    generator, shape = np.random.default_rng([seed, workload.width]), (workload.width, workload.width)
    return {name: generator.uniform(-0.5, 0.5, shape).astype(np.float32) for name in ("gate", "candidate", "state")}


def run(workload: GruWorkload, weights, inputs, state: np.ndarray) -> dict[str, np.ndarray]:
    """The network's outputs from the initial `state`, in the data type of its arguments."""
    states = []
    for sample in inputs["samples"] * inputs["gain"]:
        gate = 1 / (1 + np.exp(-weights["gate"] @ sample))
        candidate = np.tanh(weights["candidate"] @ sample + weights["state"] @ state)
        state = (1 - gate) * (1 - workload.leak) * state + gate * candidate
        states.append(state)
    return {"states": np.array(states), "energy": np.array([(np.array(states) ** 2).sum()])}


class GruStep(PreparedStep):
    """The network in float32; runs once on creation, so that there is carried state unless `reset` clears it."""

    def __init__(self, request: Request) -> None:
        self.request, self.calls, self.resets = request, 0, 0
        self.state = np.zeros(request.workload.width, np.float32)
        self.load_inputs(request.inputs)
        self.costs = {"build_s": 0.5}
        self.step()

    def step(self) -> None:
        self.calls += 1
        state = self.state if self.request.mode == "stream" else np.zeros_like(self.state)
        self.latest = run(self.request.workload, self.request.weights, self.inputs, state)
        self.state = self.latest["states"][-1]

    def load_inputs(self, inputs) -> None:
        self.inputs = {name: array.copy() for name, array in inputs.items()}

    def outputs(self) -> dict[str, np.ndarray]:
        return {name: array.astype(np.float32) for name, array in self.latest.items()}

    def reset(self) -> None:
        self.state, self.calls, self.resets = np.zeros_like(self.state), 0, self.resets + 1

    def facts(self) -> dict:
        return {"calls_since_reset": self.calls, "resets": self.resets}


class WrongEnergy(GruStep):
    """Only the second output is wrong."""

    def outputs(self) -> dict[str, np.ndarray]:
        return {**super().outputs(), "energy": 1.001 * super().outputs()["energy"]}


class NoEnergy(GruStep):
    """The second output has another name."""

    def outputs(self) -> dict[str, np.ndarray]:
        return {"states": super().outputs()["states"], "power": super().outputs()["energy"]}


class IgnoresGain(GruStep):
    """Ignores changes of its second input."""

    def load_inputs(self, inputs) -> None:
        super().load_inputs({**inputs, "gain": self.request.inputs["gain"]})


class NeverResets(GruStep):
    """Never resets its state."""

    def reset(self) -> None:
        pass


def _runtime(name: str, step: type[GruStep]) -> SimpleNamespace:
    return SimpleNamespace(
        NAME=name,
        DISTRIBUTION="numpy",
        DEVICES=("cpu",),
        MODES=("forward", "stream"),
        PRECISIONS={"cpu": ("fp32",)},
        availability=lambda device: Availability(True, np.__version__, "a planted device"),
        prepare=step,
        supports=lambda workload, mode, device: "it is too wide" if workload.width > 1000 else None,
    )


RUNTIME = _runtime("tests-numpy-gru", GruStep)
WRONG_ENERGY = _runtime("tests.support.other_kind:WRONG_ENERGY", WrongEnergy)
NO_ENERGY = _runtime("tests.support.other_kind:NO_ENERGY", NoEnergy)
IGNORES_GAIN = _runtime("tests.support.other_kind:IGNORES_GAIN", IgnoresGain)
NEVER_RESETS = _runtime("tests.support.other_kind:NEVER_RESETS", NeverResets)


class GruPreparer(Preparer):
    """The reference is the same network in float64; in "stream" the second inputs continue from the first's state."""

    def reference(self, configuration, gate_seed, reference_path, send) -> dict:
        workload, seed = configuration.workload, configuration.protocol.seed
        weights = {name: array.astype(np.float64) for name, array in make_weights(workload, seed).items()}
        state = np.zeros(workload.width)
        for inputs in self._questions(workload, gate_seed):
            outputs = run(workload, weights, inputs, state)
            state = outputs["states"][-1] if configuration.mode == "stream" else np.zeros_like(state)
        np.save(reference_path, np.concatenate([outputs[name].ravel() for name in ("states", "energy")]))
        return {"origin": "float64"}

    def _questions(self, workload, gate_seed) -> tuple[dict, dict]:
        return make_inputs(workload, gate_seed), make_inputs(workload, gate_seed + 1)

    def request(self, configuration, reference) -> Request:
        workload, seed = configuration.workload, configuration.protocol.seed
        inputs, weights = make_inputs(workload, seed), make_weights(workload, seed)
        return Request(workload, configuration.options, inputs, weights, mode=configuration.mode)

    def gate(self, configuration, reference) -> Gate:
        workload, values = configuration.workload, np.load(reference["reference_path"])
        expected = {"states": values[:-1].reshape(workload.output_shapes["states"]), "energy": values[-1:]}
        questions = self._questions(workload, reference["gate_seed"])
        return Gate(questions, expected, reference["gate_seed"], "numpy in float64")

    def provenance(self, configuration, reference) -> dict:
        return {"reference_origin": reference["origin"]}


PREPARER = GruPreparer()
