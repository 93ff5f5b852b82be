"""The network as operators of Relax, and the prepared task of the TVM implementations: what is timed.

A step copies the batch into TVM's tensor, runs the virtual machine and copies the answer to numpy.
TVM computes on the calling thread and its pool, and returns when it is done. The first hidden and
cell states are zeros that the compiled function is given: known zeros would be folded, and with
them the product of the hidden state, half the work of a single step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax
from tvm.relax.pipeline import zero_pipeline

from lstm_trt.errors import BuildFailed, RunFailed
from lstm_trt.failures import run_failure
from lstm_trt.literature.data import Batch
from lstm_trt.literature.task import Task, check_inputs
from lstm_trt.literature.workloads import Workload

if TYPE_CHECKING:
    from lstm_trt.literature.implementations.tvm import Tvm


def target(threads: int) -> tvm.target.Target:
    """LLVM for this machine's CPU."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": threads})


def unrolled(workload: Workload, weights: dict[str, np.ndarray]) -> tvm.IRModule:
    """`main(inputs, hidden, cell)` of one layer: the hidden states of every step, (sequence, batch, hidden).

    The weights are constants; the two bias vectors are added up, which is all that forward asks.
    """
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


class ForwardTask(Task):
    """The hidden states of every step, read as numpy."""

    def __init__(
        self, implementation: Tvm, workload: Workload, weights: dict[str, np.ndarray], batch: Batch, threads: int
    ) -> None:
        running = int(tvm.get_global_func("runtime.NumThreads")())
        if running != threads:
            raise BuildFailed(f"TVM has {running} threads in this process and not {threads}: start a fresh process")
        self._name, self._workload = implementation.NAME, workload
        where = target(threads)
        self._told = {"target": str(where), "threads": threads, "unrolled_cells": workload.sequence, "bias_vectors": 1}
        self._main = None
        began = time.perf_counter()
        with where:
            module = zero_pipeline()(unrolled(workload, weights))
        self.costs = {"schedule_s": time.perf_counter() - began}
        if implementation.trials:
            from lstm_trt.literature.implementations.tvm_tuning import tune

            tuned = tune(module, where, implementation.trials, threads)
            self.costs["tuning_s"] = tuned.facts["tuning_s"]
            self._told["tuning"] = tuned.facts
            began = time.perf_counter()
            module = tuned.apply(module, where)
            self.costs["schedule_s"] += time.perf_counter() - began
        else:
            self._told["tuning"] = "none: the loops as TVM writes them"
        began = time.perf_counter()
        self._machine = relax.VirtualMachine(tvm.compile(module, target=where), tvm.cpu())
        self._main = self._machine["main"]
        self.costs["build_s"] = time.perf_counter() - began
        self._told["functions"] = sorted(str(found.name_hint) for found in module.get_global_vars())
        self._placed = tvm.runtime.empty(workload.input_shape, "float32")
        zeros = np.zeros((workload.batch, workload.hidden), np.float32)
        self._states = tuple(tvm.runtime.tensor(zeros) for _ in range(2))
        self._answer: np.ndarray | None = None
        self.load_batch(batch)
        began = time.perf_counter()
        self.step()
        self.costs["first_call_s"] = time.perf_counter() - began
        self._answer = None

    def step(self) -> None:
        if self._main is None:
            raise RunFailed("the task is closed")
        try:
            self._placed.copyfrom(self._inputs)
            self._answer = self._main(self._placed, *self._states).numpy()
        except Exception as error:
            raise run_failure(self._name, error) from error

    def load_batch(self, batch: Batch) -> None:
        check_inputs(self._workload, batch)
        self._inputs = np.array(batch.inputs, dtype=np.float32, order="C")

    def outputs(self) -> np.ndarray:
        if self._answer is None:
            raise RunFailed("there is no answer yet")
        return self._answer.copy()

    def facts(self) -> dict:
        return self._told

    def close(self) -> None:
        self._main = self._machine = None
        self._states = ()
