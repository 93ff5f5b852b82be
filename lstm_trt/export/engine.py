"""What engines are called, what is written of them, and the line that tells of one.

ONNX -> TensorRT engine, for `tensorrt` and `tensorrt-rtx` behind one door; their caches.

Networks are strongly typed, so that versions 10 and 11 behave alike: half precision is written
into the graph (`graphs_half`), TF32 is a flag that is always decided and recorded. The builder
says nothing when it succeeds, and one line when it fails. An engine is cached under the hash of
everything that changes it, with what there is to tell of it in a JSON file beside it.

Whether an engine can be loaded here, and why not, as far as that can be told.

The header of a plan tells its kind, size, version and targets without a GPU and without
TensorRT; on a machine with a GPU, TensorRT itself has the last word. Without one,
`Runtime.get_engine_validity` of TensorRT for RTX 1.7 answers INVALID with no reason for
every plan, cut short or whole, so that its word is asked only where there is a GPU.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import BuildFailed, ExportFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.trt import FLAVOURS, collected, errors_of, gpu, load_module, logger
from lstm_trt.store import cache
from lstm_trt.store.cache import sha256
from lstm_trt.store.files import make_folder, put


def network_name(shape: LstmShape, profile: Profile | None = None) -> str:
    """`3x72-s24-b4`, or `3x72-s8to64-b1to4` where the sizes are ranges."""
    if profile is None:
        return shape.label
    sizes = [f"{r[0]}to{r[2]}" if r[0] < r[2] else f"{r[0]}" for r in (profile.sequence, profile.batch)]
    return shape.label.replace(f"-s{shape.sequence}-b{shape.batch}", f"-s{sizes[0]}-b{sizes[1]}")


def file_stem(engine: Engine) -> str:
    """Of the files `.engine` and `.json`: network, precision, flavour and target, `3x72-s24-b4-fp32-rtx-sm86`."""
    told = engine.information
    target = told["options"]["compute_capability"]
    if target is None:
        target = "all" if told["flavour"] == "tensorrt-rtx" else told["target"]["gpu"]["name"]
    words = (told["name"], told["options"]["precision"], told["flavour"].removeprefix("tensorrt-"), target)
    return "-".join(re.sub(r"[^\w.]+", "-", word).strip("-") for word in words)


def files(engine: Engine) -> list[tuple[str, bytes]]:
    """What is written of an engine: (name, content) of the JSON file that tells of it, and of the engine."""
    stem = file_stem(engine)
    return [
        (f"{stem}.json", (json.dumps(engine.information, indent=1) + "\n").encode()),
        (f"{stem}.engine", engine.plan),
    ]


def read_file(path: Path) -> bytes:
    """Raises `UsageError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


#: Targets that TensorRT for RTX 1.7 has names for. It has none for Hopper (sm90).
COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")

PRECISIONS = ("fp32", "tf32", "fp16")

#: Part of the cache key: raise it whenever what this module or the graphs' makes of the same input changes.
RECIPE = 1


@dataclass(frozen=True)
class Profile:
    """(min, opt, max) of the time steps and of the batch; None for what is no symbolic size of the network."""

    sequence: tuple[int, int, int] | None
    batch: tuple[int, int, int] | None

    def __post_init__(self) -> None:
        for name in ("sequence", "batch"):
            if getattr(self, name) is None:
                continue
            sizes = tuple(getattr(self, name))
            object.__setattr__(self, name, sizes)
            if len(sizes) != 3 or not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
                raise UsageError(f"the {name}'s range must be 1 <= min <= opt <= max, not {' '.join(map(str, sizes))}")


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is built for; raises `UsageError` (bf16: `ExportFailed`) for what no builder has.

    `compute_capability` is for TensorRT for RTX ("sm86"); None is the builder's default. None of
    `optimization_level` (0 to 5), `max_aux_streams` and `workspace_bytes` is the builder's own choice.
    `capturable` has an RTX engine use no memory that it would allocate while running, which NVIDIA's
    notes on version 1.2 call required for the capture of a CUDA graph; others need nothing for that.
    `detailed` keeps names and shapes of all layers in the engine: needed for the layer table.
    """

    flavour: str
    precision: str = "fp32"
    compute_capability: str | None = None
    optimization_level: int | None = None
    max_aux_streams: int | None = None
    workspace_bytes: int | None = None
    profile: Profile | None = None
    detailed: bool = False
    capturable: bool = False

    def __post_init__(self) -> None:
        if self.flavour not in FLAVOURS:
            raise UsageError(f"unknown flavour of TensorRT {self.flavour!r}: choose from {', '.join(FLAVOURS)}")
        if self.precision == "bf16":
            raise ExportFailed("bf16: ONNX's LSTM has no bfloat16 among its types; choose fp32, tf32 or fp16")
        if self.precision not in PRECISIONS:
            raise UsageError(f"TensorRT offers no {self.precision!r} here: choose from {', '.join(PRECISIONS)}")
        if self.compute_capability is not None:
            if self.compute_capability not in COMPUTE_CAPABILITIES:
                known = ", ".join(COMPUTE_CAPABILITIES)
                raise UsageError(f"unknown compute capability {self.compute_capability!r}: choose from {known}")
            if self.flavour != "tensorrt-rtx":
                raise UsageError(f"{self.flavour} builds for the GPU that is here: only tensorrt-rtx takes a target")
        for name, least, most in (
            ("optimization_level", 0, 5),
            ("max_aux_streams", 0, 64),
            ("workspace_bytes", 1, 2**50),
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
            if value is not None and not least <= value <= most:  # the builder of RTX takes 9 for 5 without a word
                raise UsageError(f"{name} must be from {least} to {most}, not {value}")

    @property
    def tf32(self) -> bool:
        """Whether float32 matrix products may run on TF32 tensor cores."""
        return self.precision == "tf32"

    def as_dict(self) -> dict:
        """JSON values."""
        return json.loads(canonical_json(asdict(self)))


@dataclass(frozen=True)
class Engine:
    """An engine in the cache; `information` is what the JSON file beside it tells."""

    path: Path
    sha256: str
    cached: bool
    information: dict = field(repr=False)

    @property
    def plan(self) -> bytes:
        """The serialized engine; raises `BuildFailed` where the cache lost or changed it meanwhile."""
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            raise BuildFailed(f"the engine is gone from the cache: {error.strerror}; build it again") from None
        if cache.sha256(plan) != self.sha256:
            raise BuildFailed(f"the engine {self.path} was changed since it was built; build it again")
        return plan

    def write(self, folder: Path) -> list[Path]:
        """Write the engine and the JSON file about it into `folder`; raises `UsageError` where that cannot be."""
        folder = make_folder(folder)
        return [put(folder / name, content) for name, content in files(self)]

    def __str__(self) -> str:
        """One line: what it is, for which GPU, how it computes, how long the build took."""
        facts = self.information
        title, version = FLAVOURS[facts["flavour"]].title, facts["engine"]["version"]
        targets = " ".join(facts["target"]["compute_capabilities"]) or facts["target"]["gpu"]["name"]
        size = f"{facts['engine']['bytes'] / 1e6:.2f} MB"
        computes = f"{facts['options']['precision']}, TF32 {'on' if facts['tf32'] else 'off'}"
        built = f"built in {facts['build_seconds']:.2f} s{', from the cache' if self.cached else ''}"
        return f"{facts['name']}: {size}, {title} {version}, for {targets}, {computes}, {built}"


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
    """Whether a plan can be loaded on this machine; `reason` says why not, `remedy` what helps.

    `path` is the plan's file, where there is one.
    """

    loadable: bool
    reason: str
    remedy: str
    flavour: str | None
    version: str | None
    targets: tuple[str, ...]
    bytes: int
    sha256: str
    gpu: dict | None
    path: Path | None = None

    def as_dict(self) -> dict:
        """JSON values."""
        return {"path": str(self.path), **asdict(replace(self, path=None)), "targets": list(self.targets)}

    def __str__(self) -> str:
        if not self.loadable:
            return f"{self.path} cannot be loaded here: {self.reason}; {self.remedy}"
        return f"{self.path}: {self.flavour} {self.version}, can be loaded on {self.gpu['name']}"


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
    return replace(check_engine(read_file(path), expected_sha256=expected), path=path)


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
