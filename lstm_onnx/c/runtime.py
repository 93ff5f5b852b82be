"""C code that is generated for the network, and compiled by the C compiler of this machine.

A trial is one call of its function `run` (in the mode "stream" `step`) on host arrays that it reads
and writes in place. Weights, states and buffers are in memory of the step
(`compile.LoadedNetwork`).
"""

import os
import time

import numpy as np

from lstm_onnx.c.compile import LoadedNetwork, find_compiler
from lstm_onnx.c.file import VERSION, c_file
from lstm_onnx.c.targets import native_target
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable, building
from lstm_trt.config.workload import Workload
from lstm_trt.machine.facts import cpu_name
from lstm_trt.machine.linux import cpuinfo_flags
from lstm_trt.runtimes.base import Availability, HostStep, PreparedStep, Request

NAME = "c"

DISTRIBUTION = "lstm_trt"

DEVICES = ("cpu",)

#: In bf16 only the weights of matrices are rounded, see `weights.as_packed`; all else is float32.
#: In int8 the products with outputs of recurrent layers are of whole numbers.
PRECISIONS = {"cpu": ("fp32", "bf16", "int8")}

NEEDS_ONNX = True

MODES = ("forward", "stream")

PREPARES = True


def availability(device: str = "cpu") -> Availability:
    """Ready if there is a C compiler; the version is that of the code and of the compiler."""
    try:
        return Availability(True, f"{VERSION}, {find_compiler().version}", cpu_name())
    except RuntimeUnavailable as error:
        return Availability(False, reason=error.reason, remedy=error.remedy)


def supports(workload: Workload, mode: str, device: str = "cpu") -> str | None:
    """None for batch size 1; what else is refused is known when the network is prepared."""
    batch = workload.axes["batch"]
    return f"the batch size must be 1, not {batch}" if batch not in (None, 1) else None


def prepare(request: Request) -> PreparedStep:
    """A compiled network, after a first call.

    Raises `BuildFailed` with the operator that cannot be generated or the compiler's first error,
    or if in bf16 or int8 the outputs are not those of the network with the weights as packed;
    `RuntimeUnavailable` without a compiler.
    """
    compiler = find_compiler()
    with building(NAME, request.label):
        began = time.perf_counter()
        models = {"step" if request.mode == "stream" else "run": request.model()}
        file = c_file(
            models,
            native_target(),
            "network",  # the same for all networks: equal code is compiled once
            states=request.states,
            include_weights=False,
            precision=request.options.precision,
            threads=request.options.threads,
        )
        network = LoadedNetwork(
            file, compiler, request.options.cores or sorted(os.sched_getaffinity(0))
        )
        if file.precision != "fp32":
            # With what evaluates, which other recordings do not load.
            from lstm_onnx.c import export as to_c

            answers = to_c.known_answers(file, models, request.states)
            if not answers or to_c.measured_error(file, answers) is None:
                raise BuildFailed(
                    f"{file.precision} cannot be compared with an evaluation in numpy here:"
                    " use fp32"
                )
        facts = {
            "compiler": compiler.version,
            "flags": " ".join(file.compile_flags),
            "target": file.target.name,
            "vector_length": file.target.vector_length,
            "library_cached": network.cached,
            "denormals": "zero during each call",
        }
        if file.precision == "int8":
            vnni = cpuinfo_flags() & {16: {"avx512_vnni"}, 8: {"avx_vnni"}}.get(
                file.target.vector_length, set()
            )
            facts["int8_products"] = "vpdpwssd" if vnni else "widened, in pairs"
        return _NetworkStep(request, began, network, facts)


class _NetworkStep(HostStep):
    def __init__(self, request: Request, began: float, network: LoadedNetwork, facts: dict) -> None:
        super().__init__(request, began)
        self._network = network
        self._facts = facts
        # Whole numbers are float32 in C.
        self._inputs = {name: array.astype(np.float32) for name, array in self._inputs.items()}
        arrays = (*self._inputs.values(), *self._outputs.values())
        step = network.bound("step" if request.mode == "stream" else "run", *arrays)
        self.first_call(step, network.bound("reset"))
        if request.options.prepare:
            self.prepare_next = network.bound("prepare_next")

    def close(self) -> None:
        super().close()
        self._network = None  # which stops helpers
