"""Apache TVM on the CPU: `cell` and the smallest `layer` of document 000, untuned and tuned, forward.

Relax has no LSTM, so the cells are unrolled into primitive operators, as the document's TVM did.
`untuned` compiles TVM's own loops as they are; `tuned` searches schedules with MetaSchedule first,
by a stated number of measured trials. Costs, as the document has them: `schedule_s` (operators to
a scheduled module), `tuning_s` (of the search when it ran, also where its result came from the
cache, which the facts tell), `build_s` and `first_call_s`.

The threads of TVM belong to the process: the first step decides, another number is refused.

A step copies the batch into TVM's tensor, runs the virtual machine and copies the answer to numpy.
TVM computes on the calling thread and its pool, and returns when it is done. The first hidden and
cell states are zeros that the compiled function is given: known zeros would be folded, and with
them the product of the hidden state, half the work of a single step.
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

#: Saving a function of TVM 0.27 with this FFI or a later one is a segmentation fault, and tuning saves functions.
_BROKEN_FFI = (0, 1, 15)

_FFI = "apache-tvm-ffi"


@dataclass(frozen=True)
class Tvm(Implementation):
    """Untuned (`trials` 0) or tuned with that many trials, as an implementation."""

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
        """None for `cell` and `layer` up to the sizes that are unrolled and tuned within minutes."""
        largest = _LARGEST.get(workload.name)
        if mode == "training":
            return "it does not train"
        if largest is None:
            return "it is unrolled and tuned for cell and layer only"
        if any(getattr(workload, size) > getattr(largest, size) for size in _SIZES):
            return f"it is unrolled and tuned, minutes to hours for sizes above {largest.label}"
        return mode_reason(workload, mode)

    def availability(self, device: str = "cpu") -> Availability:
        """Ready where TVM is, and for `tuned` the FFI it can tune with; imports neither, never raises."""
        version = installed_version(self.DISTRIBUTION)
        if not is_installed("tvm"):
            return Availability(False, version, reason="tvm is not installed", remedy=FRAMEWORKS_REMEDY)
        ffi = installed_version(_FFI)
        if self.trials and (version or "").startswith("0.27.") and _numbers(ffi) >= _BROKEN_FFI:
            reason = f"TVM {version} cannot tune with {_FFI} {ffi}, it crashes"
            return Availability(False, version, reason=reason, remedy=f"pip install '{_FFI}<0.1.15'")
        return Availability(True, version)

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        # Before TVM starts its threads; it would pin them to cores of its own choice, and we pin the process.
        os.environ |= {"TVM_NUM_THREADS": str(request.options.threads), "TVM_BIND_THREADS": "0"}
        return ForwardStep(self, request, batch)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version or "0")[:3])


def target(threads: int) -> tvm.target.Target:
    """LLVM for this machine's CPU."""
    import tvm

    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": threads})


def unrolled(workload: LiteratureWorkload, weights: dict[str, np.ndarray]) -> tvm.IRModule:
    """`main(inputs, hidden, cell)` of one layer: the hidden states of every step, (sequence, batch, hidden).

    The weights are constants; the two bias vectors are added up, which is all that forward asks.
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
                enter, forget, new, leave = (
                    op.strided_slice(gates, [1], [gate * hidden], [(gate + 1) * hidden]) for gate in range(4)
                )
                kept, added = op.multiply(op.sigmoid(forget), cell), op.multiply(op.sigmoid(enter), op.tanh(new))
                cell = builder.emit(op.add(kept, added))
                state = builder.emit(op.multiply(op.sigmoid(leave), op.tanh(cell)))
                states.append(state)
            answer = builder.emit_output(op.stack(states, axis=0))
        builder.emit_func_output(answer)
    return builder.get()


class ForwardStep(FrameworkStep):
    """The hidden states of every step, read as numpy."""

    def __init__(self, implementation: Tvm, request: Request, batch: Batch) -> None:
        import tvm
        from tvm import relax

        super().__init__(implementation, request)
        workload, threads = self._workload, self._options.threads
        running = int(tvm.get_global_func("runtime.NumThreads")())
        if running != threads:
            raise BuildFailed(f"TVM has {running} threads in this process and not {threads}: start a fresh process")
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
        """The network as scheduled functions, tuned where the implementation has trials."""
        from tvm.relax.pipeline import zero_pipeline

        with timed(self.costs, "schedule_s"), where:
            module = zero_pipeline()(unrolled(self._workload, self._weights))
        if not self._implementation.trials:
            self._facts["tuning"] = "none: the loops as TVM writes them"
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
