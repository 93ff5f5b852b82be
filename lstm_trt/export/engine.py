"""A TensorRT engine: its options, its files, and whether it can be loaded on this machine.

Engines are built by `build.py`, for `tensorrt` and `tensorrt-rtx`, and cached under the hash of everything that affects
them. A JSON file beside each engine has its `information`: versions, target, options, SHA-256. With it, a check detects
a damaged engine, another version and another GPU without TensorRT and without a GPU; on a GPU the check also loads the
engine. Without the JSON file only TensorRT can check an engine; without a GPU, TensorRT for RTX recognises files that
are not engines, but not truncated engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import BuildFailed, ExportFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.format import bytes_text
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.trt import FLAVOURS, collected, errors_of, gpu, load_module, logger, starting
from lstm_trt.store import cache
from lstm_trt.store.files import make_folder, put

#: Targets that TensorRT for RTX 1.7 has names for; it has none for Hopper (sm90).
COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")

PRECISIONS = ("fp32", "tf32", "fp16")

#: Part of the cache key: increase it whenever the same input gives a different engine or different information.
RECIPE = 2


@dataclass(frozen=True)
class Profile:
    """(min, opt, max) of the time steps and of the batch; None for a size that is not symbolic."""

    sequence: tuple[int, int, int] | None
    batch: tuple[int, int, int] | None

    def __post_init__(self) -> None:
        for name in ("sequence", "batch"):
            if getattr(self, name) is None:
                continue
            sizes = tuple(getattr(self, name))
            object.__setattr__(self, name, sizes)
            if len(sizes) != 3 or not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
                raise UsageError(f"the {name} range must be 1 <= min <= opt <= max, not {' '.join(map(str, sizes))}")


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine; raises `UsageError` (bf16: `ExportFailed`) for options that no builder supports.

    `flavour` is "tensorrt" or "tensorrt-rtx". `compute_capability` ("sm86") is for TensorRT for RTX. None in
    `compute_capability`, `optimization_level` (0 to 5), `max_aux_streams` and `workspace_bytes` means the builder's
    default. With `capturable` an RTX engine allocates no memory while it runs, which NVIDIA's notes on version 1.2
    require for the capture of a CUDA graph; TensorRT needs no option for that. `detailed` keeps names and shapes of all
    layers in the engine, for the layer table.
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
            raise ExportFailed("bf16: ONNX's LSTM does not support bfloat16; choose fp32, tf32 or fp16")
        if self.precision not in PRECISIONS:
            raise UsageError(f"unknown precision {self.precision!r} for TensorRT: choose from {', '.join(PRECISIONS)}")
        if self.compute_capability is not None:
            if self.compute_capability not in COMPUTE_CAPABILITIES:
                known = ", ".join(COMPUTE_CAPABILITIES)
                raise UsageError(f"unknown compute capability {self.compute_capability!r}: choose from {known}")
            if self.flavour != "tensorrt-rtx":
                raise UsageError(f"{self.flavour} builds for the GPU of this machine: only tensorrt-rtx has a target")
        for name, least, most in (
            ("optimization_level", 0, 5),
            ("max_aux_streams", 0, 64),
            ("workspace_bytes", 1, 2**50),
        ):
            value = getattr(self, name)
            # The builder of TensorRT for RTX silently treats 9 as 5.
            if value is not None and not (isinstance(value, int) and least <= value <= most):
                raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")

    @property
    def tf32(self) -> bool:
        """Whether float32 matrix products may run on TF32 tensor cores."""
        return self.precision == "tf32"

    def as_dict(self) -> dict:
        """JSON values."""
        return json.loads(canonical_json(asdict(self)))


@dataclass(frozen=True)
class Engine:
    """An engine in the cache; `information` is the content of the JSON file beside it."""

    path: Path
    sha256: str
    cached: bool
    information: dict = field(repr=False)

    @property
    def plan(self) -> bytes:
        """The serialized engine; raises `BuildFailed` if it was changed in or removed from the cache."""
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            raise BuildFailed(f"the engine is no longer in the cache: {error.strerror}; build it again") from None
        if cache.sha256(plan) != self.sha256:
            raise BuildFailed(f"the engine {self.path} was changed since it was built; build it again")
        return plan

    def write(self, folder: Path) -> list[Path]:
        """Write the engine and its JSON file into `folder`; raises `UsageError` if that is not possible."""
        folder, stem, plan = make_folder(folder), file_stem(self), self.plan
        information = json.dumps(self.information, indent=1) + "\n"
        return [put(folder / f"{stem}.json", information.encode()), put(folder / f"{stem}.engine", plan)]

    def __str__(self) -> str:
        """One line: name, size, version, target GPU, precision, build time."""
        facts = self.information
        title, version = FLAVOURS[facts["flavour"]].title, facts["engine"]["version"]
        target, card = facts["target"]["compute_capabilities"], facts["target"]["gpu"]
        targets = " ".join(target) or (card["name"] if card else "the builder's default GPUs")
        size = bytes_text(facts["engine"]["bytes"])
        computes = f"{facts['options']['precision']}, TF32 {'on' if facts['tf32'] else 'off'}"
        built = f"built in {facts['build_seconds']:.2f} s{', from the cache' if self.cached else ''}"
        return f"{facts['name']}: {size}, {title} {version}, for {targets}, {computes}, {built}"


# Names and files


def network_name(shape: LstmShape, profile: Profile | None = None) -> str:
    """`3x72-s24-b4`, or `3x72-s8to64-b1to4` if the sizes are ranges."""
    if profile is None:
        return shape.label
    sizes = [f"{r[0]}to{r[2]}" if r[0] < r[2] else f"{r[0]}" for r in (profile.sequence, profile.batch)]
    return shape.label.replace(f"-s{shape.sequence}-b{shape.batch}", f"-s{sizes[0]}-b{sizes[1]}")


def file_stem(engine: Engine) -> str:
    """Name of the files without suffix: network, precision, flavour and target, `3x72-s24-b4-fp32-rtx-sm86`."""
    information = engine.information
    flavour, options = information["flavour"], information["options"]
    target = options["compute_capability"]
    if target is None:
        target = "all" if flavour == "tensorrt-rtx" else information["target"]["gpu"]["name"]
    parts = (information["name"], options["precision"], flavour.removeprefix("tensorrt-"), target)
    return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)


def read_file(path: Path) -> bytes:
    """Content of a file; raises `UsageError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


# Whether an engine can be loaded on this machine


@dataclass(frozen=True)
class Origin:
    """The origin of an engine from its information; `targets` is empty for the builder's default."""

    flavour: str
    version: str
    targets: tuple[str, ...]
    gpu: dict | None
    sha256: str

    @classmethod
    def of(cls, information: dict) -> Origin:
        """Raises KeyError or TypeError if `information` is not that of an engine."""
        engine, target = information["engine"], information["target"]
        targets = tuple(target["compute_capabilities"])
        return cls(information["flavour"], engine["version"], targets, target["gpu"], engine["sha256"])


@dataclass(frozen=True)
class EngineReport:
    """Whether a plan can be loaded on this machine; if not, `reason` and `remedy` say why and what to do.

    `path` is the file of the plan, if any.
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
        return {**asdict(self), "path": str(self.path), "targets": list(self.targets)}

    def __str__(self) -> str:
        if not self.loadable:
            return f"{self.path} cannot be loaded here: {self.reason}; {self.remedy}"
        return f"{self.path}: {self.flavour} {self.version}, can be loaded on {self.gpu['name']}"


def check_file(path: Path) -> EngineReport:
    """Test whether an engine can be loaded on this machine, from its file and the JSON file beside it.

    Raises `UsageError` if one of them cannot be read.
    """
    beside, origin = path.with_suffix(".json"), None
    if beside.is_file() and beside != path:
        try:
            origin = Origin.of(json.loads(read_file(beside)))
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{beside} was not written by lstm-trt build: remove it") from None
    return replace(check_engine(read_file(path), origin), path=path)


def check_engine(plan: bytes, origin: Origin | None = None) -> EngineReport:
    """Whether a plan can be loaded on this machine: checks its origin, if known, and loads it on a GPU.

    Without an origin all installed flavours are tried. Never raises for a bad plan: the report states the reason.
    """
    card = gpu()
    flavours = [origin.flavour] if origin else list(_installed()) or ["tensorrt-rtx"]
    faults = [(flavour, *_fault(plan, flavour, origin, card)) for flavour in flavours]
    flavour, reason, remedy = next((fault for fault in faults if not fault[1]), faults[0])
    version = origin.version if origin else None if reason else load_module(flavour).__version__
    return EngineReport(
        loadable=not reason,
        reason=reason,
        remedy=remedy,
        flavour=None if reason and not origin else flavour,
        version=version,
        targets=origin.targets if origin else (),
        bytes=len(plan),
        sha256=cache.sha256(plan),
        gpu=card,
    )


def _installed() -> Iterator[str]:
    for flavour in FLAVOURS:
        try:
            load_module(flavour)
        except RuntimeUnavailable:
            continue
        yield flavour


def _fault(plan: bytes, flavour: str, origin: Origin | None, card: dict | None) -> tuple[str, str]:
    """(reason, remedy) if a plan cannot be loaded on this machine; ("", "") if it can."""
    if origin and origin.sha256 != cache.sha256(plan):
        return "it is damaged: its SHA-256 differs from that of the build", "copy or build it again"
    title = FLAVOURS[flavour].title
    try:
        trt = load_module(flavour)
    except RuntimeUnavailable as error:
        return f"{title}: {error.reason}", error.remedy
    mismatch = _mismatch(origin, trt.__version__, card) if origin else ("", "")
    if mismatch[0]:
        return mismatch
    with collected(flavour) as messages:
        try:
            with starting(flavour):
                runtime = trt.Runtime(logger(flavour))
        except RuntimeUnavailable as error:
            return error.reason, error.remedy
        diagnostics = _diagnostics(trt, runtime, plan) if flavour == "tensorrt-rtx" else []
        loaded = card is not None and runtime.deserialize_cuda_engine(plan) is not None
    if loaded:
        return "", ""
    if card is not None or diagnostics:
        errors = "; ".join(filter(None, (", ".join(diagnostics), errors_of(messages) if card else "")))
        return f"{title} cannot load it: {errors or 'no reason given'}", "build it on or for this machine"
    known = "the file is intact" if origin else "it has no JSON file beside it, so that its origin is unknown"
    return f"no NVIDIA GPU is visible here; {known}", "check it on the machine that will run it"


def _mismatch(origin: Origin, installed: str, card: dict | None) -> tuple[str, str]:
    """(reason, remedy) if version or GPU differ from those that the engine was built for; ("", "") otherwise."""
    title = FLAVOURS[origin.flavour].title
    if origin.version.split(".")[:3] != installed.split(".")[:3]:  # the fourth part is the build number
        return f"it was built by {title} {origin.version}, but {installed} is installed", "build it again"
    wanted = card and card["compute_capability"]
    built_on = [origin.gpu["compute_capability"]] if origin.flavour == "tensorrt" and origin.gpu else []
    targets = [target for target in origin.targets or built_on if target]
    # Older files list an unnamed target for the default, which includes more GPUs than have names.
    if wanted and targets and wanted not in targets and set(origin.targets) <= set(COMPUTE_CAPABILITIES):
        reason = f"it was built for {', '.join(targets)}, but the GPU here ({card['name']}) is {wanted}"
        return reason, f"build it with --compute-capability {wanted}, if the builder supports it"
    return "", ""


def _diagnostics(trt, runtime, plan: bytes) -> list[str]:
    """The defects that TensorRT for RTX names; without a GPU these are only those of malformed plans."""
    _, found = runtime.get_engine_validity(plan)
    members = trt.EngineInvalidityDiagnostics.__members__.items()
    return [name.lower().replace("_", " ") for name, bit in members if int(found) & int(bit)]
