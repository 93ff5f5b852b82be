"""A TensorRT engine: its options and its files.

Engines are built by `build.py`, for `tensorrt` and `tensorrt-rtx`, and cached under the hash of
everything that affects them. A JSON file beside each engine has its `information`: versions,
target, options, SHA-256.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from lstm_trt.config.errors import BuildFailed, ExportFailed, UsageError, one_of
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import bytes_text
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import check_whole
from lstm_trt.export.tensorrt.trt import FLAVOURS
from lstm_trt.store import cache
from lstm_trt.store.files import make_folder, put

#: Targets that TensorRT for RTX 1.7 has names for; it has none for Hopper (sm90).
COMPUTE_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")

PRECISIONS = ("fp32", "tf32", "fp16")

#: Least and largest value of an option; the builder of TensorRT for RTX silently treats a level of
#: 9 as 5.
LIMITS = {"optimization_level": (0, 5), "max_aux_streams": (0, 64), "workspace_bytes": (1, 2**50)}

#: Part of the cache key: increase it whenever the same input gives a different engine or different
#: information.
RECIPE = 2


@dataclass(frozen=True)
class Profile(JsonFields):
    """(min, opt, max) of the time steps and of the batch; None for a size that is not symbolic."""

    sequence: tuple[int, int, int] | None
    batch: tuple[int, int, int] | None

    def __post_init__(self) -> None:
        for name, sizes in {**vars(self)}.items():
            if sizes is not None:
                object.__setattr__(self, name, tuple(sizes))
                if len(sizes) != 3 or not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
                    given = " ".join(map(str, sizes))
                    raise UsageError(
                        f"the {name} range must be 1 <= min <= opt <= max, not {given}"
                    )


@dataclass(frozen=True)
class EngineOptions(JsonFields):
    """Options of an engine; raises `UsageError` (bf16: `ExportFailed`) for options that no builder
    supports.

    `flavour` is "tensorrt" or "tensorrt-rtx". `compute_capability` ("sm86") is for TensorRT for
    RTX. None in `compute_capability`, `optimization_level` (0 to 5), `max_aux_streams` and
    `workspace_bytes` means the builder's default. With `capturable` an RTX engine allocates no
    memory while it runs, which NVIDIA's notes on version 1.2 require for the capture of a CUDA
    graph; TensorRT needs no option for that. `detailed` keeps names and shapes of all layers in the
    engine, for the layer table.
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
        one_of("flavour of TensorRT", self.flavour, FLAVOURS)
        if self.precision == "bf16":
            raise ExportFailed(
                "bf16: ONNX's LSTM does not support bfloat16; choose fp32, tf32 or fp16"
            )
        one_of("precision of TensorRT", self.precision, PRECISIONS)
        if self.compute_capability is not None:
            one_of("compute capability", self.compute_capability, COMPUTE_CAPABILITIES)
            if self.flavour != "tensorrt-rtx":
                raise UsageError(
                    f"{self.flavour} builds for the GPU of this machine:"
                    " only tensorrt-rtx has a target"
                )
        for name, limits in LIMITS.items():
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), *limits)


@dataclass(frozen=True)
class Engine:
    """An engine in the cache; `information` is the content of the JSON file beside it."""

    path: Path
    sha256: str
    cached: bool
    information: dict = field(repr=False)

    @property
    def plan(self) -> bytes:
        """The serialized engine; raises `BuildFailed` if it was changed in or removed from the
        cache."""
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            raise BuildFailed(
                f"the engine is no longer in the cache: {error.strerror}; build it again"
            ) from None
        if cache.sha256(plan) != self.sha256:
            raise BuildFailed(
                f"the engine {self.path} was changed since it was built; build it again"
            )
        return plan

    def write(self, folder: Path) -> list[Path]:
        """Write the engine and its JSON file into `folder`; raises `UsageError` if that is not
        possible."""
        folder = make_folder(folder)
        stem = file_stem(self)
        plan = self.plan
        information = json.dumps(self.information, indent=1) + "\n"
        return [
            put(folder / f"{stem}.json", information.encode()),
            put(folder / f"{stem}.engine", plan),
        ]

    def __str__(self) -> str:
        """One line: name, size, version, target GPU, precision, build time."""
        facts = self.information
        targets = facts["target"]["compute_capabilities"]
        if facts["target"]["gpu"]:
            targets = [facts["target"]["gpu"]["name"]]
        parts = [
            bytes_text(facts["engine"]["bytes"]),
            f"{FLAVOURS[facts['flavour']].title} {facts['engine']['version']}",
            "for " + (" ".join(targets) or "the builder's default GPUs"),
            facts["options"]["precision"],
            f"TF32 {'on' if facts['tf32'] else 'off'}",
            f"built in {facts['build_seconds']:.2f} s",
        ]
        if self.cached:
            parts.append("from the cache")
        return f"{facts['name']}: {', '.join(parts)}"


# Names and files


def network_name(shape: LstmShape, profile: Profile | None = None) -> str:
    """`3x72-s24-b4`, or `3x72-s8to64-b1to4` if the sizes are ranges."""
    if profile is None:
        return shape.label
    sizes = []
    for given in (profile.sequence, profile.batch):
        if given:
            least, _, most = given
            sizes.append(f"{least}to{most}" if least < most else str(least))
    return shape.label.replace(f"-s{shape.sequence}-b{shape.batch}", f"-s{sizes[0]}-b{sizes[1]}")


def file_stem(engine: Engine) -> str:
    """Name of the files without suffix: network, precision, flavour and target,
    `3x72-s24-b4-fp32-rtx-sm86`."""
    information = engine.information
    flavour = information["flavour"]
    options = information["options"]
    target = options["compute_capability"]
    if target is None:
        target = "all" if flavour == "tensorrt-rtx" else information["target"]["gpu"]["name"]
    parts = (information["name"], options["precision"], flavour.removeprefix("tensorrt-"), target)
    return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
