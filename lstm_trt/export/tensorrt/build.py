"""Building an engine: parse the ONNX file, configure, build, read the log; and the builder's timing
cache.

The graph is checked first (`onnx_checks.check`). Networks are strongly typed, so that TensorRT 10
and 11 behave the same: half precision is part of the graph (`onnx_fp16`), and the TF32 flag is
always set explicitly and recorded. The most verbose log of the builder is collected: it contains
the layer table, and the reason if the build fails.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lstm_trt import __version__
from lstm_trt.config.errors import BuildFailed, UsageError, file_errors, one_line
from lstm_trt.config.libraries import installed_version, onnx
from lstm_trt.config.shape import LstmShape
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import static_model
from lstm_trt.export.tensorrt import layers
from lstm_trt.export.tensorrt.engine import RECIPE, Engine, EngineOptions, Profile, network_name
from lstm_trt.export.tensorrt.onnx_fp16 import to_half
from lstm_trt.export.tensorrt.trt import (
    FLAVOURS,
    collected,
    errors_of,
    load_module,
    logger,
    starting,
)
from lstm_trt.export.to_onnx import export_network
from lstm_trt.machine.gpu import device_here
from lstm_trt.store import cache
from lstm_trt.store.files import refuse_named_pipe


def build_engine(
    network: LstmShape | str | Path | bytes,
    options: EngineOptions | None = None,
    *,
    target: str | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Engine:
    """The engine of a shape's network (with the weights of `seed`) or of an ONNX file, from the
    cache or built now.

    Without `options` it is built by TensorRT for RTX in float32, for `target`, a compute capability
    such as "sm89" (default: all). With a profile the sizes stay symbolic, and sequence and batch of
    a shape are ignored. `name` is used in messages and `information`. With precision "fp16" float32
    graphs are converted to float16 first. Raises `ExportFailed` for invalid ONNX, `BuildFailed` for
    graphs that TensorRT cannot build or would misread, `RuntimeUnavailable` if the flavour is not
    installed, `UsageError` for a file that cannot be read, a cache that cannot be written, or both
    options and a target.
    """
    if options is not None and target is not None:
        raise UsageError("options and target exclude each other: set options.compute_capability")
    if options is None:
        options = EngineOptions("tensorrt-rtx", compute_capability=target, detailed=True)
    onnx, network_title = _onnx_of(network, options.profile, seed)
    name = name or network_title
    version = load_module(options.flavour).__version__
    card = _card_of(options)
    identity = {
        "recipe": RECIPE,
        "onnx": cache.sha256(onnx),
        "version": version,
        "onnx_package": installed_version("onnx"),
        "gpu": card,
        "options": options.as_dict(),
    }
    plan = cache.stored("engine", identity, ".engine")
    beside = cache.stored("engine", identity, ".json")
    if plan and beside:
        information = json.loads(beside.path.read_bytes())
        if information["engine"]["sha256"] == plan.sha256:  # else these are files of two builds
            return Engine(*plan, {"name": name, **information})
    content, facts = _build(onnx, options, name, card)
    cache.keep("engine", identity, ".json", facts)
    plan = cache.keep("engine", identity, ".engine", content)
    return Engine(*plan, {"name": name, **json.loads(facts)})


def _onnx_of(
    network: LstmShape | str | Path | bytes, profile: Profile | None, seed: int
) -> tuple[bytes, str]:
    """The ONNX file to build, and the name of its network."""
    if isinstance(network, bytes):
        return network, "network"
    if isinstance(network, LstmShape):
        path = export_network(network, seed).path
        content = path.read_bytes() if profile else static_model(path, network)
        return content, network_name(network, profile)
    path = Path(network)
    refuse_named_pipe(path)
    with file_errors(f"read {network}"):
        return path.read_bytes(), path.stem


def _card_of(options: EngineOptions) -> dict | None:
    """The GPU of this machine, if the engine depends on it; raises `BuildFailed` for options that
    cannot be built."""
    if options.compute_capability == "sm75" and options.precision != "fp16":
        raise BuildFailed(
            "TensorRT for RTX has no float32 matrix products for sm75, so"
            f" {options.precision} cannot be built: use --precision fp16 or another"
            " --compute-capability"
        )
    if options.compute_capability is not None:
        return None
    card = device_here()
    if card is not None:
        return card.as_dict()
    if options.flavour == "tensorrt":
        raise BuildFailed(
            "tensorrt builds for the GPU of this machine, but none is visible: use tensorrt-rtx"
        )
    return None


def _build(
    onnx: bytes, options: EngineOptions, name: str, card: dict | None
) -> tuple[bytes, bytes]:
    """Build now; returns (plan, information as JSON)."""
    model = onnx_checks.read(onnx, name)
    onnx_checks.check(model, options.precision, name)
    computed = to_half(model, name) if options.precision == "fp16" else model
    plan, facts = build_plan(computed, options, name, card)
    version = load_module(options.flavour).__version__
    opsets = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    recurrent = onnx_checks.recurrent_nodes(model)
    information = {
        "flavour": options.flavour,
        "versions": {
            "lstm_trt": __version__,
            options.flavour: version,
            "onnx": installed_version("onnx"),
        },
        "onnx": {
            "sha256": cache.sha256(onnx),
            "bytes": len(onnx),
            "ir_version": model.ir_version,
            "opset": opsets[0] if opsets else None,
            "lstms": [onnx_checks.label(node) for node in recurrent if node.op_type == "LSTM"],
        },
        "engine": {"sha256": cache.sha256(plan), "bytes": len(plan), "version": version},
        "options": options.as_dict(),
        "tf32": options.precision == "tf32",
        "target": {
            "compute_capabilities": [options.compute_capability]
            if options.compute_capability
            else [],
            "gpu": card,
        },
        **facts,
    }
    return plan, json.dumps(information, indent=1, allow_nan=False).encode()


def build_plan(
    model: onnx.ModelProto, options: EngineOptions, name: str, card: dict | None
) -> tuple[bytes, dict]:
    """Build now: (plan, facts); facts are `build_seconds`, `layers`, `warnings`.

    `card` is the GPU of this machine if the engine depends on it. Raises `BuildFailed` with the
    first error of the parser or builder, `UsageError` if ranges do not match the symbolic sizes.
    """
    trt = load_module(options.flavour)
    started = time.perf_counter_ns()
    lines = collected(options.flavour)
    builder, network, _parser = _parsed(model, options.flavour, name, lines)
    config = builder.create_builder_config()
    _configure(trt, config, options)
    _add_profile(builder, config, network, model, options.profile, name)
    structure = layers.structure(network)
    with _timing_cache(trt, config, options, card):
        serialized = builder.build_serialized_network(network, config)
        if serialized is None:
            title = FLAVOURS[options.flavour].title
            raise BuildFailed(f"{title} cannot build {name}: {errors_of(lines)}")
        plan = bytes(serialized)
        seconds = (time.perf_counter_ns() - started) / 1e9
    warnings = {one_line(text) for severity, text in lines if severity == "WARNING"}
    table = None
    try:
        table = _layer_table(trt, plan, options, lines, structure, card)
    except Exception as error:  # a form of it that is not known: the engine is good all the same
        warnings.add(f"the layer table cannot be read: {type(error).__name__}: {one_line(error)}")
    return plan, {"build_seconds": seconds, "layers": table, "warnings": sorted(warnings)}


def check_parses(content: bytes, flavour: str, name: str) -> None:
    """Raises `BuildFailed` for a model that is refused or that the parser rejects; nothing is
    built.

    Also `RuntimeUnavailable` if the flavour is not installed, or needs a GPU to start.
    """
    model = onnx_checks.read(content, name)
    onnx_checks.check(model, name=name)
    _parsed(model, flavour, name, collected(flavour))


def _parsed(
    model: onnx.ModelProto, flavour: str, name: str, lines: Iterable[tuple[str, str]]
) -> tuple:
    """(builder, network, parser); the network is valid only as long as the other two."""
    trt = load_module(flavour)
    with starting(flavour):
        builder = trt.Builder(logger(flavour))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger(flavour))
    if not parser.parse(model.SerializeToString()):
        raise BuildFailed(f"TensorRT's parser rejects {name}: {_parser_error(parser, lines)}")
    return builder, network, parser


def _layer_table(
    trt,
    plan: bytes,
    options: EngineOptions,
    lines: Iterable[tuple[str, str]],
    structure: dict,
    card: dict | None,
) -> dict | None:
    """The table of kernels, from the builder's log, else from the engine inspector on a GPU; None
    without both."""
    rows = layers.rows_from_log(lines)
    source = "the builder's log"
    if not rows and options.detailed and card is not None:
        rows = layers.rows_of(_inspected(trt, plan, options))
        source = "the engine inspector"
    if not rows:
        return None
    steps = options.profile.sequence if options.profile else None
    return layers.layer_table(rows, structure, source, steps[1] if steps else None)


def _parser_error(parser, lines) -> str:
    """The first error of the parser, with its operator."""
    if not parser.num_errors:
        return errors_of(lines) or "no reason given"
    error = parser.get_error(0)
    reason = one_line(error.desc())
    if error.node_operator():
        return f"{error.node_operator()} operator {error.node_name()!r}: {reason}"
    return reason


def _configure(trt, config, options: EngineOptions) -> None:
    if options.precision == "tf32":
        config.set_flag(trt.BuilderFlag.TF32)
    else:  # it is on by default
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.compute_capability is not None:
        config.num_compute_capabilities = 1
        target = trt.ComputeCapability.__members__[options.compute_capability.upper()]
        if not config.set_compute_capability(target, 0):
            raise BuildFailed(
                f"this version of TensorRT for RTX cannot build for {options.compute_capability}"
            )
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.max_aux_streams is not None:
        config.max_aux_streams = options.max_aux_streams
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    if options.capturable and options.flavour == "tensorrt-rtx":
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    if options.detailed:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED


def _add_profile(
    builder, config, network, model: onnx.ModelProto, profile: Profile | None, name: str
) -> None:
    """Set the ranges of the symbolic input sizes, which are identified by their names in the
    file."""
    symbols = {}
    for value in model.graph.input:
        symbols[value.name] = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    dynamic = [tensor for tensor in inputs if min(tensor.shape, default=0) < 0]
    if not dynamic:
        if profile is not None:
            raise UsageError(f"{name} has no symbolic size: remove the ranges")
        return
    if profile is None:
        listed = ", ".join(f"{tensor.name} {symbols[tensor.name]}" for tensor in dynamic)
        raise UsageError(
            f"{name} has symbolic sizes ({listed}): give --sequence-range and --batch-range"
        )
    ranges = builder.create_optimization_profile()
    for tensor in dynamic:
        sizes = []
        for size, symbol in zip(tensor.shape, symbols[tensor.name], strict=True):
            fixed = (size, size, size)
            sizes.append(fixed if size >= 0 else _range(symbol, tensor.name, profile))
        ranges.set_shape(tensor.name, *zip(*sizes, strict=True))
    if config.add_optimization_profile(ranges) < 0:
        raise BuildFailed(f"TensorRT rejects the ranges for {name}: check them")


def _range(symbol: str, tensor: str, profile: Profile) -> tuple[int, int, int]:
    """The range of a symbolic size, by its name."""
    unknown = f"the input {tensor!r} has a symbolic size {symbol!r}"
    for axis, pattern in (("sequence", r"seq|time|step|len"), ("batch", r"batch")):
        if re.search(pattern, symbol, re.IGNORECASE):
            sizes = getattr(profile, axis)
            if sizes is None:
                raise UsageError(f"{unknown}: give --{axis}-range as well")
            return sizes
    raise UsageError(f"{unknown}: name it sequence or batch, or make it static")


@contextmanager
def _timing_cache(trt, config, options: EngineOptions, card: dict | None) -> Iterator[bytes | None]:
    """Build with the timing cache of earlier builds on this GPU, and keep what is new.

    Gives the content that it had; TensorRT for RTX does not use one.
    """
    if options.flavour != "tensorrt":
        yield None
        return
    identity = {"flavour": options.flavour, "version": trt.__version__, "gpu": card}
    before = cache.fetch("timing", identity, ".timing", lambda: b"").path.read_bytes()
    config.set_timing_cache(config.create_timing_cache(before), ignore_mismatch=False)
    yield before
    after = bytes(config.get_timing_cache().serialize())
    if after != before:
        cache.keep("timing", identity, ".timing", after)


def _inspected(trt, plan: bytes, options: EngineOptions) -> str:
    """What the engine inspector says of an engine, which needs the GPU that the engine is for."""
    with starting(options.flavour):
        runtime = trt.Runtime(logger(options.flavour))
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return ""
    inspector = engine.create_engine_inspector()
    return inspector.get_engine_information(trt.LayerInformationFormat.ONELINE)
