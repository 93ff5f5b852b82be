"""Whether an engine can be loaded here, and why not, as far as that can be told.

The header of a plan tells its kind, size, version and targets without a GPU and without
TensorRT; on a machine with a GPU, TensorRT itself has the last word. Without one,
`Runtime.get_engine_validity` of TensorRT for RTX 1.7 answers INVALID with no reason for
every plan, cut short or whole, so that its word is asked only where there is a GPU.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from lstm_trt.cache import sha256
from lstm_trt.engine_files import read_file
from lstm_trt.errors import RuntimeUnavailable, UsageError
from lstm_trt.tensorrt_module import FLAVOURS, collected, errors_of, gpu, load_module, logger

#: First four bytes of a plan. Those of `tensorrt` could not be confirmed: no such engine was at hand.
MAGICS = {b"vtrt": "tensorrt-rtx", b"ftrt": "tensorrt"}
HEADER_BYTES = 64
#: Where the header has the plan's size (8 bytes, little endian), and major, minor, patch, build: for `tensorrt`
#: the latter as NVIDIA's developers told (github.com/NVIDIA/TensorRT/issues/3073), for RTX as seen in 1.7.1.
SIZE_AT, VERSION_AT, TARGETS_AT = 16, 24, 32
#: Bits of the targets in the header of a plan of TensorRT for RTX, as seen in 1.7.1. A plan for all
#: targets has one more, for which the bindings have no name.
TARGET_BITS = {0x01: "sm75", 0x02: "sm80", 0x04: "sm86", 0x08: "sm89", 0x10: "sm120", 0x20: "sm121"}
UNNAMED = "(one-unnamed)"


@dataclass(frozen=True)
class Header:
    """What the first bytes tell; `version` is "1.7.1.116", `targets` are compute capabilities (RTX only)."""

    flavour: str | None
    size: int | None = None
    version: str | None = None
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineReport:
    """Whether a plan can be loaded on this machine; `reason` says why not, `remedy` what helps."""

    loadable: bool
    reason: str
    remedy: str
    flavour: str | None
    version: str | None
    targets: tuple[str, ...]
    bytes: int
    sha256: str
    gpu: dict | None

    def as_dict(self) -> dict:
        return {**asdict(self), "targets": list(self.targets)}


def read_header(plan: bytes) -> Header:
    """The header of a plan; `flavour` is None where the first bytes are those of no plan."""
    flavour = MAGICS.get(bytes(plan[:4]))
    if flavour is None or len(plan) < HEADER_BYTES:
        return Header(None)
    version = ".".join(map(str, plan[VERSION_AT : VERSION_AT + 4]))
    if flavour != "tensorrt-rtx":
        return Header(flavour, version=version)
    (size,) = struct.unpack_from("<Q", plan, SIZE_AT)
    (mask,) = struct.unpack_from("<Q", plan, TARGETS_AT)
    targets = tuple(name for bit, name in TARGET_BITS.items() if mask & bit)
    return Header(flavour, size, version, targets + ((UNNAMED,) if mask & ~sum(TARGET_BITS) else ()))


def judge(plan: bytes, flavour: str, installed: str | None, card: dict | None) -> tuple[str, str]:
    """(reason, remedy) why a plan cannot be loaded, by its header alone; ("", "") where nothing speaks against it.

    `installed` is the version of the flavour's module, `card` as `tensorrt_module.gpu` gives it.
    """
    title = FLAVOURS[flavour].title
    header = read_header(plan)
    if header.flavour is None:
        return f"it is no engine of {title}, or damaged in its first bytes", "build it again"
    if header.flavour != flavour:
        return f"it is an engine of {FLAVOURS[header.flavour].title}, not of {title}", "name its own runtime"
    if header.size is not None and header.size != len(plan):
        reason = f"it is damaged: {len(plan)} bytes where its header promises {header.size}"
        return reason, "copy or build it again"
    # The build number, the fourth, does not count: it need not fit the header's byte.
    if installed is not None and header.version.split(".")[:3] != installed.split(".")[:3]:
        return f"it was built by {title} {header.version}, installed is {installed}", "build it with this version"
    wanted = card and card["compute_capability"]
    if wanted and header.targets and UNNAMED not in header.targets and wanted not in header.targets:
        reason = f"it was built for {', '.join(header.targets)}, the GPU here ({card['name']}) is {wanted}"
        return reason, f"build it with --compute-capability {wanted}, if the builder has that"
    return "", ""


def check_engine(plan: bytes, flavour: str | None = None, expected_sha256: str | None = None) -> EngineReport:
    """Whether a plan can be loaded here, by its header and, on a GPU, by loading it.

    `flavour` is taken from the header where it is None; `expected_sha256` is what the file was
    when it was built. Never raises for a bad plan: the report says what is wrong.
    """
    header, card = read_header(plan), gpu()
    flavour = flavour or header.flavour or "tensorrt-rtx"
    digest = sha256(plan)

    def report(reason: str = "", remedy: str = "") -> EngineReport:
        told = (header.flavour, header.version, header.targets, len(plan), digest, card)
        return EngineReport(not reason, reason, remedy, *told)

    try:
        installed, missing = load_module(flavour).__version__, None
    except RuntimeUnavailable as error:
        installed, missing = None, error
    reason, remedy = judge(plan, flavour, installed, card)
    if reason:
        return report(reason, remedy)
    if expected_sha256 is not None and expected_sha256 != digest:
        return report("it is damaged: its SHA-256 is not the one that it was built with", "copy or build it again")
    if missing is not None:
        return report(f"{FLAVOURS[flavour].title}: {missing.reason}", missing.remedy)
    if card is None:
        return report("no NVIDIA GPU is visible here; its header is whole", "check it on the machine that is to run it")
    return report(*_load(plan, flavour))


def check_file(path: Path) -> EngineReport:
    """`check_engine` of a file, whose SHA-256 is taken from the JSON file beside it where there is one.

    Raises `UsageError` for a file that cannot be read.
    """
    beside, expected = path.with_suffix(".json"), None
    if beside.is_file() and beside != path:
        try:
            expected = str(json.loads(read_file(beside))["engine"]["sha256"])
        except (ValueError, KeyError, TypeError):
            reason = "is not what lstm-trt build writes beside an engine: move it away"
            raise UsageError(f"{beside} {reason}") from None
    return check_engine(read_file(path), expected_sha256=expected)


def _load(plan: bytes, flavour: str) -> tuple[str, str]:
    """(reason, remedy) why TensorRT refuses to load a plan on this GPU; ("", "") where it loads."""
    trt = load_module(flavour)
    told = ""
    with collected(flavour) as lines:
        runtime = trt.Runtime(logger(flavour))
        if flavour == "tensorrt-rtx":
            _, found = runtime.get_engine_validity(plan)
            names = [name for name, bit in trt.EngineInvalidityDiagnostics.__members__.items() if int(found) & int(bit)]
            told = ", ".join(name.lower().replace("_", " ") for name in names)
        engine = runtime.deserialize_cuda_engine(plan)
    if engine is not None:
        return "", ""
    told = "; ".join(filter(None, (told, errors_of(lines)))) or "no reason given"
    return f"{FLAVOURS[flavour].title} does not load it: {told}", "build it on or for this machine"
