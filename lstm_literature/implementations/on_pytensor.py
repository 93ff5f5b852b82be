"""PyTensor, the successor of Theano, on the CPU: the cell written out in `pytensor.scan`, compiled by Numba.

The batch and the variables are shared variables, which the compiled function updates. Numba compiles at the first
call, which is part of `build_s`; its cache on disk is not used. Products of matrices are those of scipy's BLAS.
"""

from collections.abc import Callable
from typing import Any

from lstm_literature.data import Batch
from lstm_literature.implementations.functional import Array, Arrays, Functional, FunctionalStep
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.machine.facts import installed_version

#: Most scans (layers x directions) with gradients. On one core of a 2-core EPYC compiling a training step took about
#: 20 s and 30 s per scan.
SCANS = 3


class PyTensorStep(FunctionalStep):
    """Functions without arguments, of shared variables."""

    #: The mode of PyTensor that compiles; the tests have gradients interpreted.
    mode: Any = "NUMBA"

    def _load(self) -> None:
        import pytensor
        import scipy.linalg  # noqa: F401 - loads the BLAS
        from pytensor.tensor.special import log_softmax
        from threadpoolctl import threadpool_info, threadpool_limits

        threadpool_limits(self._options.threads, "blas")
        self._pytensor = pytensor
        self.arrays = pytensor.tensor
        self.sigmoid = pytensor.tensor.sigmoid
        self.log_softmax = log_softmax
        self._variables = {}
        self._batch = {}
        blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
        self._facts = {
            "pytensor": installed_version("pytensor"),
            "numba": installed_version("numba"),
            "threads": max(library["num_threads"] for library in blas),
            "mode": "NUMBA",
        }

    def _scan(self, cell: Callable, gates: Array, state: tuple[Array, Array], reverse: bool) -> Array:
        hidden, _ = self._pytensor.scan(cell, [gates], list(state), go_backwards=reverse, return_updates=False)
        return hidden[::-1] if reverse else hidden

    def _differentiated(self, loss: Callable[[Arrays], Array], weights: Arrays) -> tuple[Array, list[Array]]:
        value = loss(weights)
        return value, self._pytensor.grad(value, list(weights.values()))

    def _compiled(self, work: Callable) -> Callable[[], Any]:
        with self._pytensor.config.change_flags(floatX="float32", mode=self.mode, numba__cache=False):
            result, updated = work(self._variables, self._batch)
            updates = [(self._variables[name], value) for name, value in updated.items()]
            call = self._pytensor.function([], result, updates=updates, mode=self.mode)
            call()
        return call

    def _place(self, batch: Batch) -> None:
        self._share(self._batch, self._read(batch))

    def _rewind(self) -> None:
        super()._rewind()
        self._share(self._variables, self._initial())

    def _share(self, shared: Arrays, arrays: Arrays) -> None:
        """Copy arrays to the shared variables with these names."""
        for name, array in arrays.items():
            if name in shared:
                shared[name].set_value(array)
            else:
                shared[name] = self._pytensor.shared(array, name, shape=array.shape)


class PyTensor(Functional):
    """PyTensor as an implementation."""

    NAME = "pytensor-scan"
    TITLE = "PyTensor scan, Numba"
    FRAMEWORK = "PyTensor"
    EXECUTION = "numba"
    DISTRIBUTION = "pytensor"
    PACKAGES = ("pytensor", "threadpoolctl")
    STEP = PyTensorStep

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None for workloads without CTC; in training, the number of scans has a limit."""
        scans = workload.layers * workload.directions
        if workload.loss == "ctc":
            return "PyTensor has no CTC loss"
        if mode == "training" and scans > SCANS:
            return f"compiling the gradients of {scans} scans would take minutes, the limit is {SCANS}"
        return super().supports(workload, mode, device)


SCAN = PyTensor()
