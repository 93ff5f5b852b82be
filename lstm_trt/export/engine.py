"""A TensorRT engine: what it is built for, the files that it becomes, and whether it can be loaded here.

Engines are built by `build.py`, for `tensorrt` and `tensorrt-rtx` alike, and cached under the hash of everything that
changes them. Beside each stands a JSON file, the engine's `information`: versions, target, options, SHA-256. From it a
check tells a damaged engine, one of another version and one for another GPU, without TensorRT and without a GPU. On a
GPU, TensorRT loads the engine and has the last word. An engine without its JSON file can be judged only by TensorRT;
where there is no GPU either, TensorRT for RTX recognises what is no engine at all, but not one that was cut short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import BuildFailed, ExportFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.trt import FLAVOURS, collected, errors_of, gpu, load_module, logger
from lstm_trt.store import cache
from lstm_trt.store.files import make_folder, put

#: Targets that TensorRT for RTX 1.7 has names for. It has none for Hopper (sm90).
COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")

PRECISIONS = ("fp32", "tf32", "fp16")

#: Part of the cache key: raise it whenever the same input gives another engine or other information.
RECIPE = 2


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
            # The builder of RTX takes 9 for 5 without a word.
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
        folder, stem, plan = make_folder(folder), file_stem(self), self.plan
        information = json.dumps(self.information, indent=1) + "\n"
        return [put(folder / f"{stem}.json", information.encode()), put(folder / f"{stem}.engine", plan)]

    def __str__(self) -> str:
        """One line: what it is, for which GPU, how it computes, how long the build took."""
        facts = self.information
        title, version = FLAVOURS[facts["flavour"]].title, facts["engine"]["version"]
        target, card = facts["target"]["compute_capabilities"], facts["target"]["gpu"]
        targets = " ".join(target) or (card["name"] if card else "the builder's default GPUs")
        size = f"{facts['engine']['bytes'] / 1e6:.2f} MB"
        computes = f"{facts['options']['precision']}, TF32 {'on' if facts['tf32'] else 'off'}"
        built = f"built in {facts['build_seconds']:.2f} s{', from the cache' if self.cached else ''}"
        return f"{facts['name']}: {size}, {title} {version}, for {targets}, {computes}, {built}"


# Names and files


def network_name(shape: LstmShape, profile: Profile | None = None) -> str:
    """`3x72-s24-b4`, or `3x72-s8to64-b1to4` where the sizes are ranges."""
    if profile is None:
        return shape.label
    sizes = [f"{r[0]}to{r[2]}" if r[0] < r[2] else f"{r[0]}" for r in (profile.sequence, profile.batch)]
    return shape.label.replace(f"-s{shape.sequence}-b{shape.batch}", f"-s{sizes[0]}-b{sizes[1]}")


def file_stem(engine: Engine) -> str:
    """Of the files `.engine` and `.json`: network, precision, flavour and target, `3x72-s24-b4-fp32-rtx-sm86`."""
    information = engine.information
    flavour, options = information["flavour"], information["options"]
    target = options["compute_capability"]
    if target is None:
        target = "all" if flavour == "tensorrt-rtx" else information["target"]["gpu"]["name"]
    parts = (information["name"], options["precision"], flavour.removeprefix("tensorrt-"), target)
    return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)


def read_file(path: Path) -> bytes:
    """Raises `UsageError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


# Whether an engine can be loaded here


@dataclass(frozen=True)
class Origin:
    """What an engine's information says of where it comes from; `targets` is empty for the builder's default."""

    flavour: str
    version: str
    targets: tuple[str, ...]
    gpu: dict | None
    sha256: str

    @classmethod
    def of(cls, information: dict) -> Origin:
        """Raises KeyError or TypeError for what is no engine's information."""
        engine, target = information["engine"], information["target"]
        targets = tuple(target["compute_capabilities"])
        return cls(information["flavour"], engine["version"], targets, target["gpu"], engine["sha256"])


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
        return {**asdict(self), "path": str(self.path), "targets": list(self.targets)}

    def __str__(self) -> str:
        if not self.loadable:
            return f"{self.path} cannot be loaded here: {self.reason}; {self.remedy}"
        return f"{self.path}: {self.flavour} {self.version}, can be loaded on {self.gpu['name']}"


def check_file(path: Path) -> EngineReport:
    """`check_engine` of a file and the JSON file beside it; raises `UsageError` where one cannot be read."""
    beside, origin = path.with_suffix(".json"), None
    if beside.is_file() and beside != path:
        try:
            origin = Origin.of(json.loads(read_file(beside)))
        except (ValueError, KeyError, TypeError):
            reason = "is not what lstm-trt build writes beside an engine: move it away"
            raise UsageError(f"{beside} {reason}") from None
    return replace(check_engine(read_file(path), origin), path=path)


def check_engine(plan: bytes, origin: Origin | None = None) -> EngineReport:
    """Whether a plan can be loaded here, by its origin where that is known and, on a GPU, by loading it.

    Without an origin every installed flavour is tried. Never raises for a bad plan: the report says what is wrong.
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
    """(reason, remedy) why a plan cannot be loaded here; ("", "") where it can."""
    if origin and origin.sha256 != cache.sha256(plan):
        return "it is damaged: its SHA-256 is not the one that it was built with", "copy or build it again"
    title = FLAVOURS[flavour].title
    try:
        trt = load_module(flavour)
    except RuntimeUnavailable as error:
        return f"{title}: {error.reason}", error.remedy
    mismatch = _mismatch(origin, trt.__version__, card) if origin else ("", "")
    if mismatch[0]:
        return mismatch
    with collected(flavour) as messages:
        runtime = trt.Runtime(logger(flavour))
        diagnostics = _diagnostics(trt, runtime, plan) if flavour == "tensorrt-rtx" else []
        loaded = card is not None and runtime.deserialize_cuda_engine(plan) is not None
    if loaded:
        return "", ""
    if card is not None or diagnostics:
        said = "; ".join(filter(None, (", ".join(diagnostics), errors_of(messages) if card else "")))
        return f"{title} does not load it: {said or 'no reason given'}", "build it on or for this machine"
    known = "it is as it was built" if origin else "there is no JSON file beside it, so that nothing is known of it"
    return f"no NVIDIA GPU is visible here; {known}", "check it on the machine that is to run it"


def _mismatch(origin: Origin, installed: str, card: dict | None) -> tuple[str, str]:
    """(reason, remedy) where version or GPU are not those that the engine was built for; ("", "") otherwise."""
    title = FLAVOURS[origin.flavour].title
    if origin.version.split(".")[:3] != installed.split(".")[:3]:  # the fourth is the number of the build
        return f"it was built by {title} {origin.version}, installed is {installed}", "build it with this version"
    wanted = card and card["compute_capability"]
    built_on = [origin.gpu["compute_capability"]] if origin.flavour == "tensorrt" and origin.gpu else []
    targets = [target for target in origin.targets or built_on if target]
    # Older files list a target without a name for the default, which is for more GPUs than can be named.
    if wanted and targets and wanted not in targets and set(origin.targets) <= set(COMPUTE_CAPABILITIES):
        reason = f"it was built for {', '.join(targets)}, the GPU here ({card['name']}) is {wanted}"
        return reason, f"build it with --compute-capability {wanted}, if the builder has that"
    return "", ""


def _diagnostics(trt, runtime, plan: bytes) -> list[str]:
    """What TensorRT for RTX objects to; without a GPU it calls every plan invalid, and names malformed ones only."""
    _, found = runtime.get_engine_validity(plan)
    members = trt.EngineInvalidityDiagnostics.__members__.items()
    return [name.lower().replace("_", " ") for name, bit in members if int(found) & int(bit)]
