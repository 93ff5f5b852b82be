"""Which implementations are ready on this machine: their section of `lstm-trt doctor`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lstm_literature import implementations
from lstm_trt import runtimes
from lstm_trt.recorder.doctor import availability_of, broken
from lstm_trt.runtimes.base import Availability, ReportLine, ReportSection


@dataclass(frozen=True, kw_only=True)
class ImplementationRow(Availability):
    """One implementation; `extra` is the extra of this distribution that installs it.

    `devices`: whether it can run on each of its devices; the inherited fields are those of the first.
    """

    implementation: str
    framework: str | None = None
    extra: str | None = None
    devices: Mapping[str, Availability] = field(default_factory=dict)


def row_of(name: str) -> ImplementationRow:
    """The row of an implementation, also if it raises an error."""
    found: dict[str, Any] = {}
    try:
        implementation = runtimes.load_from(implementations.entries(), name)
        found = {"framework": implementation.FRAMEWORK, "extra": implementation.EXTRA}
        found["devices"] = {device: availability_of(implementation, device) for device in implementation.DEVICES}
        state = found["devices"][implementation.DEVICES[0]]
    except (Exception, SystemExit) as error:
        state = broken(error)
    return ImplementationRow(**vars(state), implementation=name, **found)


def section(found: Sequence[ImplementationRow]) -> ReportSection:
    """Implementations of one framework in the same state share a line; below it, why a device cannot be used."""
    grouped: dict[tuple, list[str]] = {}
    for row in found:
        key = (not row.ready, row.framework or row.implementation, row.version or "-", row.extra or "core")
        usable = ", ".join(device for device, state in row.devices.items() if state.ready) or "-"
        lacking = [
            (f"{device}: {state.reason}", state.remedy) for device, state in row.devices.items() if not state.ready
        ]
        below = lacking[0] if row.ready and lacking else ("", "" if row.ready else row.remedy)
        grouped.setdefault((*key, usable, row.reason, *below), []).append(row.implementation)
    lines = []
    for (not_ready, *cells, reason, meaning, remedy), names in sorted(grouped.items(), key=lambda item: item[0][0]):
        last = f"{', '.join(names)}: {reason}" if reason else ", ".join(names)
        lines.append(ReportLine(("not ready" if not_ready else "ready", *cells, last), meaning, remedy))
    ready = sum(row.ready for row in found)
    return ReportSection(
        "implementations",
        f"LITERATURE BENCHMARKS (lstm-literature): {ready} of {len(found)} implementations ready",
        ("state", "framework", "version", "extra", "devices", "implementations"),
        tuple(lines),
        [asdict(row) for row in found],
    )
