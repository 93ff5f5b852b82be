"""JAX on the CPU: the cell written out in `jax.lax.scan`, compiled once by XLA before the first step.

The batch and the variables are in place as JAX arrays. A step waits for all results and reads the outputs or the loss
as numpy. CTC is `optax.ctc_loss`.

XLA's number of threads is read when JAX starts, so each needs a new process.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from lstm_literature.data import Batch
from lstm_literature.implementations.functional import Array, Arrays, Functional, FunctionalStep
from lstm_trt.config.errors import UsageError
from lstm_trt.machine.facts import installed_version


def load_jax(threads: int) -> ModuleType:
    """JAX on the CPU, with `threads` threads for operators.

    Raises `UsageError` if JAX already runs with another number of threads in this process.
    """
    import jax

    os.environ["PJRT_NPROC"] = str(threads)
    jax.config.update("jax_platforms", "cpu")
    module: Any = jax
    if (running := _started(module)) != threads:
        raise UsageError(f"JAX already runs with {running} threads in this process, not {threads}: use a new process")
    return jax


@cache
def _started(jax: Any) -> int:
    """The number of threads for operators that starting JAX adds to this process; 0 if it was running already."""
    before = _pool_threads()
    jax.devices()
    return _pool_threads() - before


def _pool_threads() -> int:
    return sum("XLAEigen" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))


class JaxStep(FunctionalStep):
    """Functions that XLA compiled for the shapes of the batch."""

    def _load(self) -> None:
        jax = self._jax = load_jax(self._options.threads)
        self.arrays, self.sigmoid, self.log_softmax = jax.numpy, jax.nn.sigmoid, jax.nn.log_softmax
        self._facts = {
            "jax": installed_version("jax"),
            "jaxlib": installed_version("jaxlib"),
            "threads": _started(jax),
            "backend": jax.default_backend(),
        }
        if self._workload.loss == "ctc":
            self._facts["ctc"] = f"optax {installed_version('optax')}"

    def _scan(self, cell: Callable, gates: Array, state: tuple[Array, Array], reverse: bool) -> Array:
        def advance(state: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], Array]:
            state = cell(gates, *state)
            return state, state[0]

        return self._jax.lax.scan(advance, state, gates, reverse=reverse)[1]

    def _loss(self, weights: Arrays, batch: Arrays) -> Array:
        """In addition CTC with the defaults of `torch.nn.CTCLoss`: the mean over sequences of the loss per label."""
        if self._workload.loss != "ctc":
            return super()._loss(weights, batch)
        import optax

        labels = batch["targets"]
        steps = self.arrays.arange(self._workload.sequence)
        padding = (steps >= batch["lengths"][:, None]).astype("float32")
        outputs = self._outputs(weights, batch).swapaxes(0, 1)
        losses = optax.ctc_loss(outputs, padding, labels, self.arrays.zeros(labels.shape))
        return losses.mean() / self._workload.labels

    def _differentiated(self, loss: Callable[[Arrays], Array], weights: Arrays) -> tuple[Array, list[Array]]:
        value, gradients = self._jax.value_and_grad(loss)(weights)
        return value, [gradients[name] for name in weights]

    def _compiled(self, work: Callable) -> Callable[[], Any]:
        call = self._jax.jit(work).lower(self._variables, self._batch).compile()

        def run() -> Any:
            result, updated = self._jax.block_until_ready(call(self._variables, self._batch))
            self._variables = updated or self._variables
            return result

        return run

    def _place(self, batch: Batch) -> None:
        self._batch = {name: self.arrays.array(array) for name, array in self._read(batch).items()}

    def _rewind(self) -> None:
        super()._rewind()
        self._variables = {name: self.arrays.array(value) for name, value in self._initial().items()}


class Jax(Functional):
    """JAX as an implementation."""

    NAME = "jax-scan"
    TITLE = "JAX scan, XLA"
    FRAMEWORK = "JAX"
    EXECUTION = "xla"
    DISTRIBUTION = "jax"
    PACKAGES = ("jax", "optax")
    STEP = JaxStep


SCAN = Jax()
