"""Apache TVM: forward passes of `cell`, `layer` and `stack` of document 000, untuned and tuned.

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
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_literature.data import Batch
from lstm_literature.implementations import FrameworkStep, Implementation, mode_reason, timed
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.format import count, duration, latency
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

if TYPE_CHECKING:
    import tvm
    from tvm import relax

#: The document's `num_measure_trials`.
TRIALS = 200

#: Limit of the estimated time of building and `STEPS` steps.
LIMIT_S = 120.0
STEPS = 5

#: Most tensors that one operator splits or stacks.
GROUP = 32

CUDA_LIBRARIES = "pip install nvidia-cuda-runtime nvidia-cuda-nvrtc cuda-bindings, and add their lib to LD_LIBRARY_PATH"

#: With this FFI or a later one, TVM 0.27 crashes (segmentation fault) on saving a function, which tuning does.
_BROKEN_FFI = (0, 1, 15)

_FFI = "apache-tvm-ffi"


@dataclass(frozen=True)
class Tvm(Implementation):
    """TVM as an implementation: untuned (`trials` = 0) or tuned with this number of trials."""

    trials: int

    FRAMEWORK = "Apache TVM"
    STYLE = "basic"
    EXTRA = "frameworks"
    DISTRIBUTION = "apache-tvm"
    PACKAGES = ("tvm",)
    DEVICES = ("cpu", "cuda")

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
        """None for the workloads of document 000 whose estimate is within `LIMIT_S`; on a GPU steps count as 0."""
        if mode == "training":
            return "training is not supported"
        if workload.document != "000":
            return "only cell, layer and stack are supported"
        rates = self.RATES["forward"]
        build_s = rates.building_s(workload)
        step_s = rates.step_ms(workload) / 1e3
        if build_s + STEPS * step_s * (device == "cpu") > LIMIT_S:
            return (
                f"building {count(workload.cells, 'cell')} takes about {duration(build_s)} and each step"
                f" {latency(1e6 * step_s, 3)}; the limit is {duration(LIMIT_S)} for building and {STEPS} steps"
            )
        return mode_reason(workload, mode)

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if TVM is installed, and for `tuned` a compatible FFI; imports TVM only on a machine with a GPU."""
        state = super().availability(device)
        ffi = installed_version(_FFI)
        version = state.version or ""
        if state.ready and self.trials and version.startswith("0.27.") and _numbers(ffi) >= _BROKEN_FFI:
            return Availability(
                False,
                version,
                reason=f"TVM {version} crashes on tuning with {_FFI} {ffi}",
                remedy=f"pip install '{_FFI}<0.1.15'",
            )
        if state.ready and device != "cpu":
            import tvm

            if not tvm.runtime.enabled("cuda"):
                return Availability(False, version, reason="TVM cannot load its CUDA runtime", remedy=CUDA_LIBRARIES)
        return state

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        # Before TVM starts its threads. By default it pins them to cores that it chooses, but this process is pinned.
        os.environ |= {"TVM_NUM_THREADS": str(request.options.threads), "TVM_BIND_THREADS": "0"}
        return ForwardStep(self, request, batch)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version or "0")[:3])


def target(options: Options) -> tvm.target.Target:
    """The LLVM target of this machine's CPU; on "cuda" the GPU, with the CPU as its host."""
    import tvm

    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    host = tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": options.threads})
    return host if options.device == "cpu" else tvm.target.Target(tvm.target.Target.from_device(tvm.cuda()), host)


def unrolled(workload: LiteratureWorkload, weights: dict[str, np.ndarray]) -> tvm.IRModule:
    """A module with `main(inputs, hidden, cell)`: the hidden states of the last layer at all steps.

    Output shape (sequence, batch, hidden). `main` calls a function for each cell; `schedule` inlines these calls when
    the function is scheduled, so that equal cells are scheduled once. All layers start from the same `hidden` and
    `cell`. The weights are constants; the two bias vectors are summed, which is equivalent in a forward pass.
    """
    from tvm import relax

    length, batch, hidden = workload.sequence, workload.batch, workload.hidden
    builder = relax.BlockBuilder()
    first = _cell(builder, workload, (1, batch, workload.features))
    later = _cell(builder, workload, (batch, hidden)) if workload.layers > 1 else None
    given = _variables(workload.input_shape, (batch, hidden), (batch, hidden))
    groups = range(0, length, GROUP)
    with builder.function("main", given):
        with builder.dataflow():
            steps = []
            for start, group in zip(groups, _split(builder, given[0], length, GROUP), strict=True):
                steps += _split(builder, group, min(GROUP, length - start), 1)
            for layer in range(workload.layers):
                held = _constants(weights, layer)
                _, state, memory = given
                for step, inputs in enumerate(steps):
                    call = relax.Call(later if layer else first, [inputs, state, memory, *held])
                    both = builder.emit(call)
                    state = builder.emit(both[0])
                    memory = builder.emit(both[1])
                    steps[step] = state
            stacks = [builder.emit_output(relax.op.stack(steps[start : start + GROUP], axis=0)) for start in groups]
        with builder.dataflow():  # in a block of its own, since it would be fused with the stacks
            outputs = builder.emit_output(relax.op.concat(stacks, axis=0))
        builder.emit_func_output(outputs)
    return builder.get()


def _split(builder: relax.BlockBuilder, whole: relax.Expr, steps: int, size: int) -> list[relax.Expr]:
    """Parts of `size` steps, the last one with the rest."""
    from tvm import relax

    cuts = list(range(size, steps, size))
    if not cuts:
        return [whole]
    parts = builder.emit(relax.op.split(whole, cuts, axis=0))
    return [parts[index] for index in range(len(cuts) + 1)]


def _constants(weights: dict[str, np.ndarray], layer: int) -> list[relax.Expr]:
    """Both matrices of a layer, (inputs, 4 x hidden) and (hidden, 4 x hidden), and the sum of its bias vectors."""
    from tvm import relax

    matrices = [weights[f"lstm.weight_{name}_l{layer}"].T for name in ("ih", "hh")]
    bias = weights[f"lstm.bias_ih_l{layer}"] + weights[f"lstm.bias_hh_l{layer}"]
    return [relax.const(np.ascontiguousarray(each)) for each in (*matrices, bias)]


def _variables(*shapes: tuple[int, ...]) -> list[relax.Var]:
    from tvm import relax

    return [relax.Var(f"given_{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]


def _cell(builder: relax.BlockBuilder, workload: LiteratureWorkload, shape: tuple[int, ...]) -> tvm.ir.GlobalVar:
    """A function of an input with this shape, hidden, cell, both weights and bias; it returns hidden and cell."""
    from tvm import relax

    batch, width, hidden, op = workload.batch, shape[-1], workload.hidden, relax.op
    given = _variables(shape, *[(batch, hidden)] * 2, (width, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,))
    read, state, memory, by_input, by_hidden, bias = given
    with builder.function(f"cell_{len(shape)}", given, private=True):
        with builder.dataflow():
            products = op.matmul(op.reshape(read, (batch, width)), by_input) + op.matmul(state, by_hidden)
            gates = builder.emit(products + bias)
            input_gate, forget_gate, new, output_gate = (
                op.strided_slice(gates, [1], [gate * hidden], [(gate + 1) * hidden]) for gate in range(4)
            )
            memory = op.sigmoid(forget_gate) * memory + op.sigmoid(input_gate) * op.tanh(new)
            memory = builder.emit_output(memory)
            state = builder.emit_output(op.sigmoid(output_gate) * op.tanh(memory))
        return builder.emit_func_output(relax.Tuple([state, memory]))


def schedule(module: tvm.IRModule) -> tvm.IRModule:
    """The module with scheduled functions, its cells inlined."""
    from tvm.relax import transform
    from tvm.relax.pipeline import zero_pipeline

    for change in (
        zero_pipeline(), transform.InlinePrivateFunctions(), transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
    ):  # fmt: skip
        module = change(module)
    return module


class ForwardStep(FrameworkStep):
    """The hidden states of all steps, read as numpy."""

    def __init__(self, implementation: Tvm, request: Request, batch: Batch) -> None:
        import tvm
        from tvm import relax

        super().__init__(implementation, request)
        workload = self._workload
        threads = self._options.threads
        running = int(tvm.get_global_func("runtime.NumThreads")())
        if running != threads:
            raise BuildFailed(
                f"TVM already runs with {running} threads in this process, not {threads}: use a new process"
            )
        where = target(self._options)
        self._device = tvm.cuda() if self._options.device == "cuda" else tvm.cpu()
        self._facts = {"target": str(where), "threads": threads, "unrolled_cells": workload.cells, "bias_vectors": 1}
        module = self._scheduled(where)
        with timed(self.costs, "build_s"):
            self._machine = relax.VirtualMachine(tvm.compile(module, target=where), self._device)
            self._main: Any = self._machine["main"]
        self._facts["functions"] = sorted(str(found.name_hint) for found in module.get_global_vars())
        self._placed = tvm.runtime.empty(workload.input_shape, "float32", self._device)
        zeros = np.zeros((workload.batch, workload.hidden), np.float32)
        self._states = tuple(tvm.runtime.tensor(zeros, self._device) for _ in range(2))
        self._place(batch)
        self._finish()

    def _scheduled(self, where: tvm.target.Target) -> tvm.IRModule:
        """The network as scheduled functions, tuned if the implementation has trials."""
        with timed(self.costs, "schedule_s"), where:
            module = schedule(unrolled(self._workload, self._weights))
        if not self._implementation.trials:
            self._facts["tuning"] = "none: TVM's default loops"
            return module
        from lstm_literature.implementations import on_tvm_tuning

        tuned = on_tvm_tuning.tune(module, where, self._implementation.trials, self._options.threads)
        self.costs["tuning_s"] = tuned.facts["tuning_s"]
        self._facts["tuning"] = tuned.facts
        with timed(self.costs, "schedule_s"):
            return tuned.apply(module, where)

    def _run(self) -> np.ndarray:
        self._placed.copyfrom(self._inputs)
        return self._main(self._placed, *self._states).numpy()

    def _place(self, batch: Batch) -> None:
        self._inputs = np.array(batch.inputs, dtype=np.float32, order="C")


UNTUNED = Tvm(0)

TUNED = Tvm(TRIALS)
