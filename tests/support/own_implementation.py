"""An implementation of the literature's workloads, as in another package; without rates."""

from __future__ import annotations

from types import SimpleNamespace

from lstm_literature.implementations import mode_reason
from lstm_trt.runtimes.base import Availability

OWN = SimpleNamespace(
    NAME="own",
    TITLE="Own framework, scan",
    FRAMEWORK="Own framework",
    STYLE="one-call",
    EXECUTION="graph",
    EXTRA=None,
    DISTRIBUTION="numpy",
    DEVICES=("cpu",),
    PRECISIONS={"cpu": ("fp32",)},
    supports=lambda workload, mode, device="cpu": mode_reason(workload, mode),
    availability=lambda device="cpu": Availability(True, "1.0"),
    prepare=None,
)
