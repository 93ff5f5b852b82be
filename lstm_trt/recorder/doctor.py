"""Which runtimes can run on this machine, how the host is set up, and commands that fix what is missing.

`examine` asks each runtime in the registry whether it can run on each of its devices and
checks the host's settings; nothing is timed, installed or changed. `render` formats the
report that `lstm-trt doctor` prints.
"""

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lstm_trt import __version__, registry, runtimes
from lstm_trt.config.errors import RuntimeUnavailable, causes, first_line
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import WHOLE_WORDS, WIDTH, count, table_lines
from lstm_trt.config.libraries import pd
from lstm_trt.machine import facts
from lstm_trt.machine.checks import KERNEL_LINE, VERDICTS, Check, host_checks
from lstm_trt.machine.linux import ROOT
from lstm_trt.runtimes.base import Availability, Preparer, ReportLine, ReportSection

#: Packages that this package uses, in addition to the runtimes' distributions.
PACKAGES = ("numpy", "torch", "onnx", "pyarrow", "pandas", "scipy", "matplotlib", "psutil", "nvidia-ml-py")

BELOW = " " * 13

COLOURS = {"ready": "32", "good": "32", "not ready": "33", "attention": "33", "unknown": "2"}


@dataclass(frozen=True, kw_only=True)
class RuntimeRow(Availability):
    """One runtime on one device; `device` is None if the runtime's module could not be loaded."""

    runtime: str
    device: str | None = None


@dataclass(frozen=True)
class DoctorReport:
    """The findings of `doctor`: JSON values, except for the rows and checks."""

    runtimes: list[RuntimeRow]
    versions: dict[str, str | None]
    machine: dict[str, Any]
    checks: list[Check]
    sections: list[ReportSection] = field(default_factory=list)

    #: For `cli.main.show`: the text has colours of its own.
    coloured: ClassVar[bool] = True

    def as_dict(self) -> dict:
        rows = {name: [asdict(row) for row in getattr(self, name)] for name in ("runtimes", "checks")}
        sections = {section.name: section.rows for section in self.sections}
        return {**rows, "versions": self.versions, "machine": self.machine, **sections}

    frame = property(lambda self: frame_of(self.runtimes))

    def __str__(self) -> str:
        return render(self)


def frame_of(rows: Iterable[Any]) -> Any:
    """A DataFrame with a row per runtime and device."""
    return pd.DataFrame(map(asdict, rows))


def _missing_module(error: BaseException) -> str:
    """The remedy for an import that failed because a package is missing; "" for other errors."""
    missing = (each.name for each in causes(error) if isinstance(each, ModuleNotFoundError) and each.name)
    name = next(missing, "").split(".")[0]
    if name == "lstm_trt":
        return "the installation is incomplete: pip install --force-reinstall --no-deps lstm_trt"
    return f"install the package that provides the module {name!r}" if name else ""


def broken(error: BaseException) -> Availability:
    """What is reported for a runtime that raises an error instead of returning its availability."""
    if isinstance(error, RuntimeUnavailable):
        return Availability(False, reason=error.reason, remedy=error.remedy)
    reason = first_line(error)
    if type(error).__module__ == "builtins":  # "KeyError: 'cpu'" is clearer than "'cpu'"
        reason = f"{type(error).__name__}: {reason}"
    return Availability(False, reason=reason, remedy=_missing_module(error))


def availability_of(runtime: Any, device: str) -> Availability:
    try:
        return runtime.availability(device)
    except (Exception, SystemExit) as error:
        return broken(error)


def rows_of(name: str) -> list[RuntimeRow]:
    """One row per device of a runtime; a runtime that raises an error gets a row too."""
    try:
        runtime = runtimes.load_runtime(name)
    except (Exception, SystemExit) as error:
        return [RuntimeRow(runtime=name, **vars(broken(error)))]
    return [RuntimeRow(runtime=name, device=each, **vars(availability_of(runtime, each))) for each in runtime.DEVICES]


def _preparers() -> Iterator[Preparer]:
    """Those of all workload kinds that can be loaded."""
    for kind in registry.table("PREPARERS"):
        with suppress(Exception, SystemExit):  # of another package
            yield registry.load_entry("PREPARERS", kind)


def _distributions(names: Iterable[str]) -> list[str]:
    found: dict[str, None] = dict.fromkeys(PACKAGES)
    for name in names:
        with suppress(Exception, SystemExit):  # already reported in its row
            found[runtimes.load_runtime(name).DISTRIBUTION] = None
    found.pop("lstm_trt", None)  # its version is known, installed or not
    return list(found)


def examine(names: Iterable[str] | None = None, root: Path = ROOT) -> DoctorReport:
    """Examine the runtimes `names` (default: all in the registry) and the host; changes nothing."""
    names = list(registry.table("RUNTIMES") if names is None else as_list(names))
    return DoctorReport(
        runtimes=[row for name in names for row in rows_of(name)],
        versions={"lstm_trt": __version__, **facts.versions(_distributions(names))},
        machine=facts.describe("cuda", root),
        checks=host_checks(root),
        sections=list(filter(None, (preparer.doctor() for preparer in _preparers()))),
    )


def _indented(text: str, mark: str, width: int) -> list[str]:
    """Text below a row; words are not broken, so that commands can be copied."""
    first = BELOW + mark
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first), **WHOLE_WORDS)


def _table(header: tuple[str, ...], rows: Sequence[ReportLine], width: int, colour: Any) -> list[str]:
    """Aligned columns with the last one wrapped; a remedy is printed once below consecutive rows that share it."""
    first, *aligned = table_lines(header, [row.cells for row in rows], left=header, width=width, wrap=True, indent=2)
    lines = [first]
    for number, row in enumerate(rows):
        state, text = row.cells[0], aligned[number]
        if colour and state in COLOURS:
            text = text.replace(state, f"\033[{COLOURS[state]}m{state}\033[0m", 1)
        lines += [*text.split("\n"), *_indented(row.meaning, "", width)]
        if row.remedy and (number + 1 == len(rows) or rows[number + 1].remedy != row.remedy):
            lines += _indented(row.remedy, "-> ", width)
    return lines


def _heading(report: DoctorReport, width: int) -> list[str]:
    machine, versions = report.machine, report.versions
    gpus = ", ".join(str(gpu["name"]) for gpu in machine.get("gpus") or ()) or "no NVIDIA GPU found"
    cores = f"{count(machine['logical_cores'], 'core')} (may use {machine['allowed_cores']})"
    first = f"lstm_trt {versions['lstm_trt']}, Python {versions['python']}, Linux {versions['kernel']}"
    packages = {name: v for name, v in versions.items() if name not in ("lstm_trt", "python", "kernel", "libc")}
    present = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    absent = ", ".join(name for name, version in packages.items() if not version)
    lines = [first, f"{machine['cpu']}, {cores}, {gpus}"]
    for label, text in (("packages: ", present), ("not installed: ", absent)):
        if text:
            lines += textwrap.wrap(label + text, width, subsequent_indent="  ", **WHOLE_WORDS)
    return lines


def render(report: DoctorReport, width: int | None = None, colour: bool | None = None) -> str:
    """The report as text of `width` columns (default: those of the terminal, else 100).

    `colour` defaults to True on a terminal unless NO_COLOR is set.
    """
    width = width or WIDTH.get() or 100
    colour = (sys.stdout.isatty() and "NO_COLOR" not in os.environ) if colour is None else colour
    rows = []
    for row in sorted(report.runtimes, key=lambda row: not row.ready):
        state, text = ("ready", row.device_name or "") if row.ready else ("not ready", row.reason)
        rows.append(ReportLine((state, row.runtime, row.device or "-", row.version or "-", text), remedy=row.remedy))
    ready = sum(row.ready for row in report.runtimes)
    lines = [*_heading(report, width), "", f"RUNTIMES: {ready} of {len(rows)} ready"]
    lines += _table(("state", "runtime", "device", "version", "device name / reason"), rows, width, colour)

    for section in report.sections:
        lines += ["", section.heading, *_table(section.header, section.lines, width, colour)]
    found = Counter(check.verdict for check in report.checks)
    lines += ["", f"HOST: {found['good']} good, {found['attention']} need attention, {found['unknown']} unknown"]
    rows = [
        ReportLine((check.verdict, check.name, check.value), check.meaning * (check.verdict != "good"), check.remedy)
        for check in sorted(report.checks, key=lambda check: VERDICTS.index(check.verdict))
    ]
    lines += _table(("verdict", "check", "found"), rows, width, colour)
    remedies = [check.remedy for check in report.checks if check.verdict == "attention"]
    arguments = [remedy.removeprefix(KERNEL_LINE) for remedy in remedies if remedy.startswith(KERNEL_LINE)]
    if len(arguments) > 1:
        lines += ["", "  All kernel arguments together (GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot):"]
        lines += _indented(" ".join(arguments), "", width)
    return "\n".join(lines)
