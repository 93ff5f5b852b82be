"""Apache TVM on the CPU: forward passes of `cell` and the smallest `layer` of document 000, untuned and tuned.

Relax has no LSTM operator, so the cells are unrolled into primitive operators, as TVM did in the
document. `untuned` compiles TVM's default loops; `tuned` first searches for schedules with
MetaSchedule, with a given number of measured trials. Costs, as in the document: `schedule_s` (from
operators to a scheduled module), `tuning_s` (the search; if its result was cached, which the facts
show, the time of the original search), `build_s` and `first_call_s`.

TVM's number of threads is set once per process by the first step; other numbers are rejected later.

A step copies the batch into TVM's tensor, runs the virtual machine and copies the outputs to numpy.
TVM computes on the calling thread and its thread pool, and returns when it is done. The initial
hidden and cell states are zeros passed as arguments: constant zeros would be folded, together with
the product of the hidden state, which is half the work of a single step.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.config.errors import BuildFailed
from lstm_trt.literature.data import Batch
from lstm_trt.literature.implementations import (
    FRAMEWORKS_REMEDY,
    FrameworkStep,
    Implementation,
    Rates,
    is_installed,
    mode_reason,
    timed,
)
from lstm_trt.literature.workloads import WORKLOADS, LiteratureWorkload
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

if TYPE_CHECKING:
    import tvm
    from tvm import relax

#: The document's `num_measure_trials`.
TRIALS = 200

_LARGEST = {name: WORKLOADS[name] for name in ("cell", "layer")}

_SIZES = ("batch", "sequence", "features", "hidden", "layers", "directions")

#: With this FFI or a later one, TVM 0.27 crashes (segmentation fault) on saving a function, which tuning does.
_BROKEN_FFI = (0, 1, 15)

_FFI = "apache-tvm-ffi"


@dataclass(frozen=True)
class Tvm(Implementation):
    """TVM as an implementation: untuned (`trials` = 0) or tuned with this number of trials."""

    trials: int
    forward: Rates

    FRAMEWORK = "Apache TVM"
    STYLE = "basic"
    EXTRA = "frameworks"
    DISTRIBUTION = "apache-tvm"

    @property
    def EXECUTION(self) -> str:
        return "tuned" if self.trials else "untuned"

    @property
    def NAME(self) -> str:
        return f"tvm-{self.EXECUTION}"

    @property
    def TITLE(self) -> str:
        return f"Apache TVM, tuned in {self.trials} trials" if self.trials else "Apache TVM, untuned"

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None for `cell` and `layer` up to sizes that can be unrolled and tuned within minutes."""
        largest = _LARGEST.get(workload.name)
        if mode == "training":
            return "training is not supported"
        if largest is None:
            return "only cell and layer are supported"
        if any(getattr(workload, size) > getattr(largest, size) for size in _SIZES):
            return f"unrolling and tuning sizes above {largest.label} would take minutes to hours"
        return mode_reason(workload, mode)

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if TVM is installed, and for `tuned` a compatible FFI; imports neither, never raises."""
        version = installed_version(self.DISTRIBUTION)
        if not is_installed("tvm"):
            return Availability(False, version, reason="tvm is not installed", remedy=FRAMEWORKS_REMEDY)
        ffi = installed_version(_FFI)
        if self.trials and (version or "").startswith("0.27.") and _numbers(ffi) >= _BROKEN_FFI:
            reason = f"TVM {version} crashes on tuning with {_FFI} {ffi}"
            return Availability(False, version, reason=reason, remedy=f"pip install '{_FFI}<0.1.15'")
        return Availability(True, version)

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        # Before TVM starts its threads. By default it pins them to cores that it chooses, but this process is pinned.
        os.environ |= {"TVM_NUM_THREADS": str(request.options.threads), "TVM_BIND_THREADS": "0"}
        return ForwardStep(self, request, batch)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version or "0")[:3])


def target(threads: int) -> tvm.target.Target:
    """The LLVM target of this machine's CPU."""
    import tvm

    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": threads})


def unrolled(workload: LiteratureWorkload, weights: dict[str, np.ndarray]) -> tvm.IRModule:
    """A module with `main(inputs, hidden, cell)` for one layer: the hidden states of all steps.

    Output shape (sequence, batch, hidden). The weights are constants; the two bias vectors are summed, which is
    equivalent in a forward pass.
    """
    from tvm import relax

    steps, batch, hidden, op = workload.sequence, workload.batch, workload.hidden, relax.op
    by_input, by_hidden = (
        relax.const(np.ascontiguousarray(weights[f"lstm.weight_{name}_l0"].T)) for name in ("ih", "hh")
    )
    bias = relax.const(weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"])

    def variable(name: str, *sizes: int) -> relax.Var:
        return relax.Var(name, relax.TensorType(sizes, "float32"))

    given = (
        variable("inputs", *workload.input_shape), variable("hidden", batch, hidden), variable("cell", batch, hidden),
    )  # fmt: skip
    builder = relax.BlockBuilder()
    with builder.function("main", list(given)):
        with builder.dataflow():
            inputs, state, cell = given
            parts = builder.emit(op.split(inputs, steps, axis=0)) if steps > 1 else [inputs]
            states = []
            for step in range(steps):
                read = builder.emit(op.reshape(parts[step], (batch, workload.features)))
                products = op.add(op.matmul(read, by_input), op.matmul(state, by_hidden))
                gates = builder.emit(op.add(products, bias))
                input_gate, forget_gate, new, output_gate = (
                    op.strided_slice(gates, [1], [gate * hidden], [(gate + 1) * hidden]) for gate in range(4)
                )
                kept = op.multiply(op.sigmoid(forget_gate), cell)
                added = op.multiply(op.sigmoid(input_gate), op.tanh(new))
                cell = builder.emit(op.add(kept, added))
                state = builder.emit(op.multiply(op.sigmoid(output_gate), op.tanh(cell)))
                states.append(state)
            outputs = builder.emit_output(op.stack(states, axis=0))
        builder.emit_func_output(outputs)
    return builder.get()


class ForwardStep(FrameworkStep):
    """The hidden states of all steps, read as numpy."""

    def __init__(self, implementation: Tvm, request: Request, batch: Batch) -> None:
        import tvm
        from tvm import relax

        super().__init__(implementation, request)
        workload, threads = self._workload, self._options.threads
        running = int(tvm.get_global_func("runtime.NumThreads")())
        if running != threads:
            raise BuildFailed(
                f"TVM already runs with {running} threads in this process, not {threads}: use a new process"
            )
        where = target(threads)
        self._facts = {"target": str(where), "threads": threads, "unrolled_cells": workload.cells, "bias_vectors": 1}
        module = self._scheduled(where)
        with timed(self.costs, "build_s"):
            self._machine = relax.VirtualMachine(tvm.compile(module, target=where), tvm.cpu())
            self._main = self._machine["main"]
        self._facts["functions"] = sorted(str(found.name_hint) for found in module.get_global_vars())
        self._placed = tvm.runtime.empty(workload.input_shape, "float32")
        zeros = np.zeros((workload.batch, workload.hidden), np.float32)
        self._states = tuple(tvm.runtime.tensor(zeros) for _ in range(2))
        self._place(batch)
        self._finish()

    def _scheduled(self, where: tvm.target.Target) -> tvm.IRModule:
        """The network as scheduled functions, tuned if the implementation has trials."""
        from tvm.relax.pipeline import zero_pipeline

        with timed(self.costs, "schedule_s"), where:
            module = zero_pipeline()(unrolled(self._workload, self._weights))
        if not self._implementation.trials:
            self._facts["tuning"] = "none: TVM's default loops"
            return module
        from lstm_trt.literature.implementations import tvm_tuning

        tuned = tvm_tuning.tune(module, where, self._implementation.trials, self._options.threads)
        self.costs["tuning_s"], self._facts["tuning"] = tuned.facts["tuning_s"], tuned.facts
        with timed(self.costs, "schedule_s"):
            return tuned.apply(module, where)

    def _run(self) -> np.ndarray:
        self._placed.copyfrom(self._inputs)
        return self._main(self._placed, *self._states).numpy()

    def _place(self, batch: Batch) -> None:
        self._inputs = np.array(batch.inputs, dtype=np.float32, order="C")

    def close(self) -> None:
        super().close()
        self._main = self._machine = None
        self._states = ()


UNTUNED = Tvm(0, Rates(1450, 0.0, start_s=5.0, build_s=1.0, build_cell_s=0.8))

TUNED = Tvm(TRIALS, Rates(12, 0.03, start_s=5.0, build_s=70.0, build_cell_s=0.8))
