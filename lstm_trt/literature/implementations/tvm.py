"""Apache TVM on the CPU: `cell` and the smallest `layer` of document 000, untuned and tuned, forward.

Relax has no LSTM, so the cells are unrolled into primitive operators, as the document's TVM did.
`untuned` compiles TVM's own loops as they are; `tuned` searches schedules with MetaSchedule first,
by a stated number of measured trials. Costs, as the document has them: `schedule_s` (operators to
a scheduled module), `tuning_s` (of the search when it ran, also where its result came from the
cache, which the facts tell), `build_s` and `first_call_s`.

The threads of TVM belong to the process: the first step decides, another number is refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from lstm_trt.config.errors import building
from lstm_trt.literature.implementations import PRECISIONS, checked_batch, is_installed, mode_reason
from lstm_trt.literature.workloads import WORKLOADS, LiteratureWorkload
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

#: The document's `num_measure_trials`.
TRIALS = 200

_LARGEST = {name: WORKLOADS[name] for name in ("cell", "layer")}

_SIZES = ("batch", "sequence", "features", "hidden", "layers", "directions")

#: Saving a function of TVM 0.27 with this FFI or a later one is a segmentation fault, and tuning saves functions.
_BROKEN_FFI = (0, 1, 15)

_FFI = "apache-tvm-ffi"

_REMEDY = "pip install -e '.[frameworks]'"


@dataclass(frozen=True)
class Tvm:
    """Untuned (`trials` 0) or tuned with that many trials, as an implementation."""

    trials: int
    FRAMEWORK: str = "Apache TVM"
    STYLE: str = "basic"
    EXTRA: str = "frameworks"
    DISTRIBUTION: str = "apache-tvm"
    DEVICES: tuple[str, ...] = ("cpu",)
    PRECISIONS: dict = field(default_factory=lambda: PRECISIONS)

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
            return Availability(False, version, reason="tvm is not installed", remedy=_REMEDY)
        ffi = installed_version(_FFI)
        if self.trials and (version or "").startswith("0.27.") and _numbers(ffi) >= _BROKEN_FFI:
            reason = f"TVM {version} cannot tune with {_FFI} {ffi}, it crashes"
            return Availability(False, version, reason=reason, remedy=f"pip install '{_FFI}<0.1.15'")
        return Availability(True, version)

    def prepare(self, request: Request) -> PreparedStep:
        """Raises `RuntimeUnavailable`, `MemoryExhausted`, and `BuildFailed` for what it does not support or build."""
        batch = checked_batch(self, request)
        # Before TVM starts its threads; it would pin them to cores of its own choice, and we pin the process.
        os.environ |= {"TVM_NUM_THREADS": str(request.options.threads), "TVM_BIND_THREADS": "0"}
        with building(self.NAME, request.label):
            from lstm_trt.literature.implementations.tvm_task import ForwardStep

            return ForwardStep(self, request, batch)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version or "0")[:3])


UNTUNED = Tvm(trials=0)

TUNED = Tvm(trials=TRIALS)
