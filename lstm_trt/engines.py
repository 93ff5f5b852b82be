"""ONNX -> TensorRT engine, for `tensorrt` and `tensorrt-rtx` behind one door; their caches.

Networks are strongly typed, so that versions 10 and 11 behave alike: half precision is written
into the graph (`graphs_half`), TF32 is a flag that is always decided and recorded. The builder
says nothing when it succeeds, and one line when it fails. An engine is cached under the hash of
everything that changes it, with what there is to tell of it in a JSON file beside it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lstm_trt import __version__, cache, graphs
from lstm_trt.configuration import canonical_json
from lstm_trt.engine_build import build_plan
from lstm_trt.engine_check import EngineReport, check_engine, check_file, read_header
from lstm_trt.engine_files import files, network_name, read_file, summary
from lstm_trt.engine_layers import layer_table
from lstm_trt.errors import BuildFailed, ExportFailed, UsageError
from lstm_trt.export import export_network, static_model
from lstm_trt.graphs_half import to_half
from lstm_trt.runtimes.contract import installed_version
from lstm_trt.shapes import LstmShape
from lstm_trt.tensorrt_module import FLAVOURS, collected, gpu, load_module, logger

__all__ = [
    "COMPUTE_CAPABILITIES",
    "FLAVOURS",
    "PRECISIONS",
    "Engine",
    "EngineOptions",
    "EngineReport",
    "Profile",
    "build_engine",
    "build_for_shape",
    "check_engine",
    "check_file",
    "collected",
    "files",
    "layer_table",
    "load_module",
    "logger",
    "read_file",
    "summary",
]

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


def build_for_shape(shape: LstmShape, options: EngineOptions, seed: int = 0) -> Engine:
    """The engine of a shape's network with the weights of `seed`, from the cache or built now.

    With a profile the sizes stay symbolic and the shape's own sequence and batch do not matter.
    Raises `ExportFailed`, `BuildFailed`, `RuntimeUnavailable`, `UsageError`.
    """
    network = export_network(shape, seed)
    content = network.path.read_bytes() if options.profile else static_model(network.path, shape)
    return build_engine(content, options, name=network_name(shape, options.profile))


def build_engine(onnx: bytes, options: EngineOptions, *, name: str = "network") -> Engine:
    """The engine of an ONNX file, from the cache or built now; `name` is for messages and `information`.

    With precision "fp16" float32 graphs are written in float16 first. Raises `ExportFailed` for what
    is no valid ONNX, `BuildFailed` for what TensorRT cannot build or would read wrongly,
    `RuntimeUnavailable` where the flavour is not installed, `UsageError` for an unwritable cache.
    """
    trt = load_module(options.flavour)
    card = gpu() if options.compute_capability is None else None
    if options.flavour == "tensorrt" and card is None:
        raise BuildFailed("tensorrt builds on the GPU that the engine is for, none is visible: use tensorrt-rtx")
    if options.compute_capability == "sm75" and options.precision != "fp16":
        raise BuildFailed(
            f"TensorRT for RTX has no float32 matrix products for sm75, {options.precision} cannot be built: give"
            " --precision fp16 or another --compute-capability"
        )
    identity = {
        "recipe": RECIPE,
        "onnx": cache.sha256(onnx),
        "version": trt.__version__,
        "onnx_package": installed_version("onnx"),
        "gpu": card,
        "options": options.as_dict(),
    }
    key = cache.sha256(canonical_json(identity).encode())
    for _ in range(2):  # a second time only where the cache's two files turn out to be of two builds
        engine = _fetch(key, name, functools.cache(lambda: _build(onnx, options, name, card)))
        if engine is not None:
            return engine
    raise BuildFailed(f"the cache holds two builds of {name}, another process may be building it too; try again")


def _fetch(key: str, name: str, make) -> Engine | None:
    """The pair of files for `key`; None, and nothing of it left in the cache, where they do not belong together."""
    beside, _, _ = cache.fetch("engine", key, ".json", lambda: make()[1])
    information = json.loads(beside.read_bytes())
    path, digest, _ = cache.fetch("engine", key, ".engine", lambda: make()[0])
    if information["engine"]["sha256"] == digest:
        return Engine(path, digest, make.cache_info().currsize == 0, {"name": name, **information})
    for entry in cache.entries():
        if entry.path in (path, beside):
            cache.remove(entry)
    return None


def _build(onnx: bytes, options: EngineOptions, name: str, card: dict | None) -> tuple[bytes, bytes]:
    """(plan, information as JSON) of a build done now."""
    given = graphs.read(onnx, name)
    graphs.check(given, options.precision, name)
    model = to_half(given, name) if options.precision == "fp16" else given
    plan, facts = build_plan(model, options, name, card)
    header = read_header(plan)
    information = {
        "flavour": options.flavour,
        "versions": {
            "lstm_trt": __version__,
            options.flavour: load_module(options.flavour).__version__,
            "onnx": installed_version("onnx"),
        },
        "onnx": {
            "sha256": cache.sha256(onnx),
            "bytes": len(onnx),
            "ir_version": given.ir_version,
            "opset": next((o.version for o in given.opset_import if o.domain in ("", "ai.onnx")), None),
            "lstms": [graphs.label(node) for node in graphs.lstms(given)],
        },
        "engine": {"sha256": cache.sha256(plan), "bytes": len(plan), "version": header.version},
        "options": options.as_dict(),
        "tf32": options.tf32,
        "target": {"compute_capabilities": list(header.targets), "gpu": card},
        **facts,
    }
    return plan, json.dumps(information, indent=1, allow_nan=False).encode()
