"""Which runtimes can run on this machine, how the host is set up, and commands that fix what is
missing.

`examine` asks each runtime in the registry whether it can run on each of its devices and
checks the host's settings; nothing is timed, installed or changed. `render` formats the
report that `lstm-trt doctor` prints.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lstm_trt import registry, runtimes
from lstm_trt.config.errors import LabError, NotInstalled, RuntimeUnavailable, causes, first_line
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import WHOLE_WORDS, WIDTH, count, table_lines
from lstm_trt.config.libraries import pd, require
from lstm_trt.machine import facts
from lstm_trt.machine.checks import KERNEL_LINE, VERDICTS, Check, host_checks
from lstm_trt.machine.gpu import NO_GPU_REMEDY
from lstm_trt.machine.linux import ROOT
from lstm_trt.runtimes.base import Availability

#: Packages that this package uses, in addition to the runtimes' distributions.
PACKAGES = (
    "numpy",
    "torch",
    "onnx",
    "pyarrow",
    "pandas",
    "scipy",
    "matplotlib",
    "psutil",
    "nvidia-ml-py",
)

#: Indentation of a remedy.
BELOW = " " * 13


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

    def as_dict(self) -> dict:
        return asdict(self)

    @property
    def frame(self) -> Any:
        return frame_of(self.runtimes)

    def __str__(self) -> str:
        return render(self)


def frame_of(rows: Iterable[Any]) -> Any:
    """A DataFrame with a row per runtime and device."""
    return pd.DataFrame([asdict(row) for row in rows])


def _missing_module(error: BaseException) -> str:
    """The remedy for an import that failed because a package is missing; "" for other errors."""
    for each in causes(error):
        if isinstance(each, ModuleNotFoundError) and each.name:
            name = each.name.partition(".")[0]
            return f"install the package that provides the module {name!r}"
    return ""


def broken(error: BaseException) -> Availability:
    """What is reported for a runtime that raises an error instead of returning its availability."""
    if isinstance(error, RuntimeUnavailable | NotInstalled):
        return Availability(False, reason=error.reason, remedy=error.remedy)
    reason = first_line(error)
    if type(error).__module__ == "builtins":  # "KeyError: 'cpu'" is clearer than "'cpu'"
        reason = f"{type(error).__name__}: {reason}"
    if not isinstance(error, LabError):
        reason = f"asking it failed with {reason}"
    return Availability(False, reason=reason, remedy=_missing_module(error))


def availability_of(runtime: Any, device: str) -> Availability:
    """Whether a runtime can run, and LSTMs can be recorded on it, for which its outputs are
    compared with PyTorch's."""
    try:
        found = runtime.availability(device)
        if found.ready:
            require("torch")
        return found
    except (Exception, SystemExit) as error:
        return broken(error)


def rows_of(name: str) -> list[RuntimeRow]:
    """One row per device of a runtime; a runtime that raises an error gets a row too."""
    try:
        runtime = runtimes.load_runtime(name)
    except (Exception, SystemExit) as error:
        return [RuntimeRow(runtime=name, **vars(broken(error)))]
    return [
        RuntimeRow(runtime=name, device=each, **vars(availability_of(runtime, each)))
        for each in runtime.DEVICES
    ]


def _distributions(names: Iterable[str]) -> list[str]:
    found: list[str] = [*PACKAGES]
    for name in names:
        with suppress(Exception, SystemExit):  # already reported in its row
            found.append(runtimes.load_runtime(name).DISTRIBUTION)
    return found


def examine(names: Iterable[str] | None = None, root: Path = ROOT) -> DoctorReport:
    """Examine the runtimes `names` (default: all in the registry) and the host; changes nothing."""
    names = list(registry.table("RUNTIMES") if names is None else as_list(names))
    return DoctorReport(
        runtimes=[row for name in names for row in rows_of(name)],
        versions=facts.versions(["lstm_trt", *_distributions(names)]),
        machine=facts.describe("cuda", root),
        checks=host_checks(root),
    )


class Line(NamedTuple):
    """A row of a table, of which the first cell is a state, and the command that mends it, if there
    is one."""

    cells: tuple[str, ...]
    remedy: str = ""


def render(report: DoctorReport, width: int | None = None) -> str:
    """The report as text of `width` columns (default: those of the terminal, else 100)."""
    width = width or WIDTH.get() or 100
    ready = sum(row.ready for row in report.runtimes)
    found = Counter(check.verdict for check in report.checks)
    verdicts = f"{found['good']} good, {found['attention']} need attention"
    lines = [
        *_heading(report, width),
        "",
        f"RUNTIMES: {ready} of {len(report.runtimes)} ready",
        *table(None, _runtime_lines(report), width),
        "",
        f"HOST: {verdicts}, {found['unknown']} unknown",
        *table(None, _check_lines(report.checks), width),
    ]
    return "\n".join(lines)


def table(header: Sequence[str] | None, rows: Sequence[Line], width: int) -> list[str]:
    """Aligned columns with the last one wrapped; a remedy is printed once below consecutive rows
    that share it."""
    cells = [row.cells for row in rows]
    aligned = table_lines(header, cells, left=header or (), width=width, wrap=True, indent=2)
    lines = aligned[: len(aligned) - len(rows)]
    for number, (row, text) in enumerate(zip(rows, aligned[len(lines) :], strict=True)):
        lines += text.split("\n")
        shared = number + 1 < len(rows) and rows[number + 1].remedy == row.remedy
        if row.remedy and not shared:
            # Words are not broken, so that commands can be copied.
            lines += textwrap.wrap(
                row.remedy,
                width,
                initial_indent=f"{BELOW}-> ",
                subsequent_indent=f"{BELOW}   ",
                **WHOLE_WORDS,
            )
    return lines


def _heading(report: DoctorReport, width: int) -> list[str]:
    machine = report.machine
    versions = dict(report.versions)
    versions.pop("libc", None)
    own, python, kernel = (versions.pop(name) for name in ("lstm_trt", "python", "kernel"))
    gpus = [str(gpu["name"]) for gpu in machine.get("gpus") or ()] or ["no NVIDIA GPU found"]
    cores = f"{count(machine['logical_cores'], 'core')} (may use {machine['allowed_cores']})"
    present = [f"{name} {version}" for name, version in versions.items() if version]
    absent = [name for name, version in versions.items() if not version]
    lines = [
        f"lstm_trt {own}, Python {python}, Linux {kernel}",
        f"{machine['cpu']}, {cores}, {', '.join(gpus)}",
    ]
    for label, names in (("packages", present), ("not installed", absent)):
        if names:
            text = f"{label}: {', '.join(names)}"
            lines += textwrap.wrap(text, width, subsequent_indent="  ", **WHOLE_WORDS)
    return lines


def _runtime_lines(report: DoctorReport) -> list[Line]:
    """What is ready by device, then what is not, by reason.

    Without a GPU that is the reason of all that need one: what else they lack matters on a machine
    that has one.
    """
    gpu_ready = any(row.ready and row.device == "cuda" for row in report.runtimes)
    no_gpu = not report.machine.get("gpus") and not gpu_ready
    names: dict[Line, list[str]] = {}
    for row in sorted(report.runtimes, key=lambda row: not row.ready):
        name, reason, remedy = row.runtime, row.reason, row.remedy
        if no_gpu and row.device == "cuda":
            reason = "no NVIDIA GPU"
            remedy = f"{NO_GPU_REMEDY}, then this command says what else is missing"
        elif row.version and row.version not in report.versions.values():
            name += f" ({row.version})"  # not in the heading
        line = Line(("not ready", row.device or "-", reason), remedy)
        if row.ready:
            line = Line(("ready", row.device or "-", ""))
        names.setdefault(line, []).append(name)
    lines = []
    for line, together in names.items():
        state, device, reason = line.cells
        text = ", ".join(together)
        if reason:
            text += f": {reason}"
        lines.append(Line((state, device, text), line.remedy))
    return lines


def _check_lines(checks: Sequence[Check]) -> list[Line]:
    """A row for each check that needs attention, those with kernel arguments first; for each
    unknown; one for the good.

    All kernel arguments are one remedy, since they stand on one line of the boot loader's settings.
    """

    def of_kernel(check: Check) -> bool:
        return check.verdict == "attention" and check.remedy.startswith(KERNEL_LINE)

    arguments = [check.remedy.removeprefix(KERNEL_LINE) for check in checks if of_kernel(check)]
    where = "GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot"
    together = f"{KERNEL_LINE}{' '.join(arguments)} ({where})"
    lines = []
    good = []
    for check in sorted(
        checks, key=lambda each: (VERDICTS.index(each.verdict), not of_kernel(each))
    ):
        if check.verdict == "good":
            good.append(f"{check.name}: {check.value}")
        else:
            text = f"{check.name}: {check.value}; {check.meaning}"
            remedy = together if of_kernel(check) else check.remedy
            lines.append(Line((check.verdict, text), remedy))
    return [*lines, Line(("good", "; ".join(good) or "none"))]
