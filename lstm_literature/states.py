"""The workloads, and which implementations can run them on this machine: what `lstm-literature list` prints."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lstm_literature import implementations
from lstm_literature.preparer import can_run
from lstm_literature.workloads import VARIANTS, WORKLOADS, LiteratureWorkload, find
from lstm_trt import runtimes
from lstm_trt.config.format import WIDTH
from lstm_trt.recorder.doctor import Line, availability_of, broken, table
from lstm_trt.runtimes.base import Availability


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


def by_framework(rows: Iterable[ImplementationRow]) -> str:
    """A table in which implementations of one framework in the same state share a row, with what installs the missing.

    Of a ready implementation it also says which other device it cannot use, and why.
    """
    groups: dict[tuple, list[str]] = {}
    for row in sorted(rows, key=lambda row: not row.ready):
        reasons = [row.reason]
        remedy = row.remedy
        if row.ready:
            lacking = {device: state for device, state in row.devices.items() if not state.ready}
            reasons += [f"not on {device}, {state.reason}" for device, state in lacking.items()]
            remedy = next((state.remedy for state in lacking.values()), "")
        state = "ready" if row.ready else "not ready"
        usable = ", ".join(device for device, found in row.devices.items() if found.ready)
        about = (state, row.framework or row.implementation, row.version or "-", row.extra or "core", usable or "-")
        groups.setdefault((about, "; ".join(filter(None, reasons)), remedy), []).append(row.implementation)
    lines = []
    for (about, reason, remedy), names in groups.items():
        last = ", ".join(names)
        if reason:
            last += f": {reason}"
        lines.append(Line((*about, last), remedy))
    header = ("state", "framework", "version", "extra", "devices", "implementations")
    return "\n".join(table(header, lines, WIDTH.get() or 100))


@dataclass(frozen=True)
class Listing:
    """Workloads, and for each implementation (by name) whether it is ready on this machine."""

    workloads: tuple[LiteratureWorkload, ...]
    implementations: Mapping[str, ImplementationRow]

    def able(self, workload: LiteratureWorkload) -> dict[str, list[str]]:
        """Mode of the workload -> the implementations that support it, ready or not."""
        return {
            mode: [name for name in self.implementations if can_run(name, workload, mode)] for mode in workload.modes
        }

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "workloads": [self._plain(workload) for workload in self.workloads],
            "implementations": {name: asdict(row) for name, row in self.implementations.items()},
        }

    def _plain(self, workload: LiteratureWorkload) -> dict:
        def described(variant: LiteratureWorkload, *more: str) -> dict:
            return {**variant.as_dict(), **{name: getattr(variant, name) for name in ("note", "label", *more)}}

        variants = [described(variant) for variant in VARIANTS[workload.name]]
        found = described(workload, "parameters", "flops")
        return {**found, "implementations": self.able(workload), "variants": variants}

    def __str__(self) -> str:
        rows = self.implementations.values()
        ready = sum(row.ready for row in rows)
        last = (
            f"implementations: {ready} of {len(rows)} ready\n"
            f"{by_framework(rows)}\n"
            "names: framework-style-execution; styles: basic (the cell written out, in a Python loop),\n"
            "  fine-grained (the same, gate by gate), fused and static (PyTorch's and Keras' cell in a Python loop),\n"
            "  while (the cell written out, in a loop of the graph), one-call (the framework's LSTM layer)"
        )
        return "\n\n".join([*map(self._block, self.workloads), last])

    def _block(self, workload: LiteratureWorkload) -> str:
        variants = len(VARIANTS[workload.name])
        batches = f"{workload.warmup} warm-up and {workload.batches} timed batches"
        if workload.loss:
            batches += f"; {workload.loss}, {workload.optimizer} {workload.learning_rate:g}"
        lines = [
            f"{workload.name}  (document {workload.document}; {', '.join(workload.modes)})",
            f"  {workload.sizes}; {workload.parameters} parameters, {workload.flops / 1e9:.3g} GFLOP forward",
            f"  {batches}" + (f"; {variants} sizes with published figures" if variants > 1 else ""),
            *(f"  {mode}: {', '.join(names)}" for mode, names in self.able(workload).items()),
        ]
        return "\n".join([*lines, f"  note: {workload.note}"] if workload.note else lines)


def listing(names: Iterable[str] = (), more: Iterable[str] = ()) -> Listing:
    """The workloads with these names (default: all), and which implementations can run them.

    `more`: further implementations, by module name with a dot. Raises `UsageError` for an unknown workload; an
    implementation that cannot be loaded is listed as not ready.
    """
    return Listing(
        tuple(find(name) for name in names or WORKLOADS), {name: row_of(name) for name in implementations.names(more)}
    )
