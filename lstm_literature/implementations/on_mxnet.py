"""Apache MXNet 1.9 on the CPU: its fused operator `RNN`, which computes all layers in one call.

MXNet was retired in 2023. Its last release reads names that numpy has no longer, so it is recorded in an environment
of its own with an older numpy (`ENVIRONMENT`), made at its first use. PyTorch and ONNX are not imported there.

The operator has one array of parameters: all weights by layer and direction, then all biases in the same order. Gate
order (i, f, g, o) and the two bias vectors are PyTorch's. MXNet's formula for Adam puts epsilon before the correction
of the second moment; here epsilon is scaled in each step so that the update is PyTorch's.

Operators run one after another in MXNet's own thread. A forward step reads the outputs as numpy, which waits for
them; a training step waits until the weights are updated, then reads the loss. Costs: `build_s` is making the arrays,
`first_call_s` the first step; its weight update is undone.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_literature.data import Batch, weight_shapes
from lstm_literature.implementations import ADAM_BETAS, ADAM_EPSILON, FrameworkStep, Implementation, mode_reason, timed
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.config.errors import RuntimeUnavailable, first_line
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

if TYPE_CHECKING:
    from types import ModuleType

    from mxnet.ndarray import NDArray

#: Where wheels of both packages of the environment exist: system, machine, Python.
WHEELS = ("Linux", "x86_64", (3, 11))

#: The name of the packed parameters of the LSTM.
_LSTM = "lstm"


class MxNet(Implementation):
    """MXNet as an implementation."""

    NAME = "mxnet-one-call"
    TITLE = "MXNet RNN, eager"
    FRAMEWORK = "MXNet"
    STYLE = "one-call"
    EXECUTION = "eager"
    DISTRIBUTION = "mxnet"
    ENVIRONMENT = ("mxnet==1.9.1", "numpy==1.23.5", "pyarrow==21.0.0")

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None for sequences of one length."""
        if workload.lengths is not None:
            return "variable lengths are not supported: on a CPU, the RNN operator ignores them"
        return mode_reason(workload, mode)

    def availability(self, device: str = "cpu") -> Availability:
        """Ready where its environment can be made; imports nothing, never raises."""
        framework, *others = self.ENVIRONMENT
        version = installed_version(self.DISTRIBUTION) or framework.partition("==")[2]
        if (platform.system(), platform.machine(), sys.version_info[:2]) != WHEELS:
            reason = f"there are no wheels of {' and '.join(self.ENVIRONMENT)} for this Python or system"
            return Availability(False, version, reason=reason, remedy="use Python 3.11 on Linux on x86_64")
        reason = f"installed at its first use, with {', '.join(others)}, into an environment of its own"
        return Availability(True, version, reason=reason)

    def load_module(self) -> ModuleType:
        """MXNet without its part for ONNX, whose current version cannot be imported with the older numpy."""
        modules: dict[str, Any] = sys.modules
        modules.setdefault("onnx", None)  # an import raises ImportError, which MXNet catches
        try:
            import mxnet
        except ImportError as error:
            reason = f"{first_line(error)}; it is recorded with lstm-trt literature, which makes its environment"
            raise RuntimeUnavailable(self.NAME, reason) from error
        return mxnet

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        return (ForwardStep if request.mode == "forward" else TrainingStep)(self, request, batch)


def packed_names(workload: LiteratureWorkload) -> list[str]:
    """PyTorch's names of the LSTM's weights in the order of MXNet's packed parameters."""
    names = (name for name in weight_shapes(workload) if name.startswith("lstm."))
    return sorted(names, key=lambda name: "bias" in name)


class _MxNetStep(FrameworkStep):
    """Parameters, batch and network, common to both modes."""

    def __init__(self, implementation: MxNet, request: Request, batch: Batch) -> None:
        super().__init__(implementation, request)
        self._mx = implementation.load_module()
        self._nd = self._mx.nd
        with timed(self.costs, "build_s"):
            self._held = {name: self._nd.array(value) for name, value in self._given().items()}
            workload = self._workload
            self._zeros = self._nd.zeros((workload.layers * workload.directions, workload.batch, workload.hidden))
            self._prepare_mode()
            self._place(batch)
            self._nd.waitall()
        self._finish()

    def _prepare_mode(self) -> None:
        """Prepare what the mode needs in addition to the network."""

    def _given(self) -> dict[str, np.ndarray]:
        """The given weights, those of the LSTM packed."""
        names = packed_names(self._workload)
        packed = np.concatenate([self._weights[name].ravel() for name in names])
        return {_LSTM: packed} | {name: value for name, value in self._weights.items() if name not in names}

    def _place(self, batch: Batch) -> None:
        self._inputs = self._nd.array(batch.inputs, dtype="int32" if self._workload.vocabulary else "float32")
        self._targets = self._nd.array(batch.targets, dtype="int32") if self._trains else None

    def _outputs(self) -> NDArray:
        nd, workload, held = self._nd, self._workload, self._held
        read = self._inputs
        if workload.vocabulary:
            read = nd.Embedding(
                read, held["embedding.weight"], input_dim=workload.vocabulary, output_dim=workload.features
            )
        every = nd.RNN(
            read,
            held[_LSTM],
            self._zeros,
            self._zeros,
            mode="lstm",
            bidirectional=workload.directions == 2,
            state_size=workload.hidden,
            num_layers=workload.layers,
        )
        if workload.head == "none":
            return every
        read = every[-1] if workload.head == "last-step" else every
        dense = [held[name] for name in ("dense.weight", "dense.bias") if name in held]
        return nd.FullyConnected(read, *dense, num_hidden=workload.outputs, flatten=False, no_bias=len(dense) == 1)

    def facts(self) -> dict:
        onednn = self._mx.runtime.Features().is_enabled("MKLDNN") and os.environ.get("MXNET_USE_MKLDNN_RNN", "1") != "0"
        return {
            "mxnet": self._mx.__version__,
            "numpy": np.__version__,
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "engine": os.environ.get("MXNET_ENGINE_TYPE", "ThreadedEnginePerDevice"),
            "onednn": onednn,
            "bias_vectors": 2,
            **super().facts(),
        }


class ForwardStep(_MxNetStep):
    """The network's outputs, read as numpy."""

    def _run(self) -> np.ndarray:
        return self._outputs().asnumpy()


class TrainingStep(_MxNetStep):
    """Forward, loss, gradients, update; waits for all of it and reads the loss as a number."""

    def _prepare_mode(self) -> None:
        for parameter in self._held.values():
            parameter.attach_grad()
        self._facts = {"gradients": "on", "optimizer": f"{self._workload.optimizer}_update"}
        self._restart()

    def _restart(self) -> None:
        """The initial state of the optimizer: no steps, moments of zero."""
        self._steps = 0
        adam = self._workload.optimizer == "adam"
        self._moments = {
            name: [self._nd.zeros_like(parameter) for _ in range(2)] if adam else []
            for name, parameter in self._held.items()
        }

    def _loss(self) -> NDArray:
        """The mean cross-entropy over all outputs, with the gradients computed."""
        with self._mx.autograd.record():
            logarithms = self._nd.log_softmax(self._outputs())
            loss = -self._nd.pick(logarithms, self._targets).mean()
        loss.backward()
        return loss

    def _run(self) -> float:
        loss = self._loss()
        self._steps += 1
        update = self._nd.sgd_update
        settings = {"lr": self._workload.learning_rate}
        if self._workload.optimizer == "adam":
            first, second = ADAM_BETAS
            root = math.sqrt(1 - second**self._steps)
            update = self._nd.adam_update
            settings = {
                "beta1": first,
                "beta2": second,
                "epsilon": ADAM_EPSILON * root,
                "lr": self._workload.learning_rate * root / (1 - first**self._steps),
            }
        for name, parameter in self._held.items():
            update(parameter, parameter.grad, *self._moments[name], out=parameter, **settings)
        self._nd.waitall()
        return loss.asscalar().item()

    def _rewind(self) -> None:
        super()._rewind()
        for name, value in self._given().items():
            self._held[name][:] = value
        self._restart()
        self._nd.waitall()


ONE_CALL = MxNet()
