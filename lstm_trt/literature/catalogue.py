"""What the literature's benchmarks offer here: the workloads, and which implementations can run them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lstm_trt import registry
from lstm_trt.config.errors import UsageError
from lstm_trt.literature.metrics import shape_words
from lstm_trt.literature.session import availability, reason
from lstm_trt.literature.workloads import VARIANTS, WORKLOADS, LiteratureWorkload, find
from lstm_trt.runtimes.base import Availability


def implementations_of(workload: LiteratureWorkload, mode: str) -> list[str]:
    """The implementations that do a workload in a mode, ready here or not."""
    return [name for name in registry.table("IMPLEMENTATIONS") if reason(name, workload, mode) is None]


def ready_implementations(workload: LiteratureWorkload, mode: str) -> list[str]:
    """The implementations that do a workload in a mode here; raises `UsageError` where there is none."""
    ready = [name for name in implementations_of(workload, mode) if availability(name).ready]
    if not ready:
        raise UsageError(f"no implementation that is ready here does {workload.label} ({mode})")
    return ready


@dataclass(frozen=True)
class Catalogue:
    """Workloads, and whether each implementation is ready here."""

    workloads: tuple[LiteratureWorkload, ...]
    implementations: dict[str, Availability]

    def as_dict(self) -> dict:
        """JSON values."""
        states = {
            name: {"ready": state.ready, "reason": state.reason, "remedy": state.remedy}
            for name, state in self.implementations.items()
        }
        return {"workloads": [_plain(workload) for workload in self.workloads], "implementations": states}

    def __str__(self) -> str:
        blocks = [_block(workload) for workload in self.workloads]
        lines = ["implementations (lstm-trt doctor shows how to install the others):"]
        for name, state in self.implementations.items():
            lines.append(f"  {name:28}{'ready' if state.ready else 'not ready: ' + state.reason}")
        return "\n\n".join([*blocks, "\n".join(lines)])


def catalogue(names: Iterable[str] = ()) -> Catalogue:
    """The workloads of these names (default: all); raises `UsageError` for an unknown name."""
    workloads = tuple(find(name) for name in names or WORKLOADS)
    return Catalogue(workloads, {name: availability(name) for name in registry.table("IMPLEMENTATIONS")})


def _plain(workload: LiteratureWorkload) -> dict:
    return {
        **workload.as_dict(),
        "note": workload.note,
        "label": workload.label,
        "parameters": workload.parameters,
        "flops": workload.flops,
        "implementations": {mode: implementations_of(workload, mode) for mode in workload.modes},
        "variants": [
            {**variant.as_dict(), "note": variant.note, "label": variant.label} for variant in VARIANTS[workload.name]
        ],
    }


def _block(workload: LiteratureWorkload) -> str:
    variants = len(VARIANTS[workload.name])
    steps = f"{workload.warmup} warm-up and {workload.batches} timed batches"
    if workload.loss:
        steps += f"; {workload.loss}, {workload.optimizer} {workload.learning_rate:g}"
    lines = [
        f"{workload.name}  (document {workload.document}; {', '.join(workload.modes)})",
        f"  {shape_words(workload)}; {workload.parameters} parameters, {workload.flops / 1e9:.3g} GFLOP forward",
        f"  {steps}" + (f"; {variants} sizes with published figures" if variants > 1 else ""),
        *(f"  {mode}: {', '.join(implementations_of(workload, mode))}" for mode in workload.modes),
    ]
    return "\n".join([*lines, f"  note: {workload.note}"] if workload.note else lines)
