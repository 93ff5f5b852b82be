"""The command `build`."""

import argparse
from pathlib import Path
from typing import Any

from lstm_trt.cli import common
from lstm_trt.cli.main import show
from lstm_trt.cli.workloads import shape_of
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import FIELDS, LstmShape
from lstm_trt.export.tensorrt import layers
from lstm_trt.export.tensorrt.build import build_engine
from lstm_trt.export.tensorrt.engine import COMPUTE_CAPABILITIES, PRECISIONS, EngineOptions, Profile
from lstm_trt.export.tensorrt.trt import FLAVOURS

EXAMPLE = (
    "lstm-trt build --layers 3 --hidden 72 --sequence 24 --batch 4 --compute-capability sm86"
    " --out engines\n"
    "  lstm-trt build --layers 1 --hidden 128 --sequence 256 --layers-table"
)

#: Sizes that may be symbolic.
_RANGES = ("sequence", "batch")

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `build`."""
    common.field_arguments(parser, LstmShape)
    add = parser.add_argument
    add(
        "--onnx",
        type=Path,
        metavar="FILE",
        help="build this ONNX file instead of a network of given sizes",
    )
    add(
        "--runtime",
        choices=FLAVOURS,
        default="tensorrt-rtx",
        dest="flavour",
        help="TensorRT for RTX, or TensorRT for the GPU of this machine (default %(default)s)",
    )
    add(
        "--precision",
        default=EngineOptions.precision,
        metavar="NAME",
        help=f"precision: {', '.join(PRECISIONS)} (default %(default)s; only tf32 enables TF32)",
    )
    capabilities = ", ".join(COMPUTE_CAPABILITIES)
    add(
        "--compute-capability",
        type=str.lower,
        metavar="SM",
        help=f"target compute capability of tensorrt-rtx: {capabilities} (default: all)",
    )
    add(
        "--optimization-level",
        type=int,
        metavar="N",
        help="level 0 to 5 (default: the builder's choice)",
    )
    add(
        "--aux-streams",
        type=int,
        dest="max_aux_streams",
        metavar="N",
        help="maximum number of auxiliary streams (default: the builder's choice)",
    )
    add(
        "--workspace-mb",
        type=int,
        metavar="MB",
        help="limit of the workspace memory in MB (10**6 bytes)",
    )
    for axis in _RANGES:
        symbolic = f"keep the {FIELDS[axis].heading} symbolic, within this range"
        add(f"--{axis}-range", type=int, nargs=3, metavar=("MIN", "OPT", "MAX"), help=symbolic)
    add(
        "--layers-table",
        action="store_true",
        help="print loops, kernels per time step and kernel launches",
    )
    add(
        "--seed", type=int, default=0, metavar="N", help="seed of the weights (default %(default)s)"
    )
    add("--out", type=Path, metavar="DIR", help="folder for the .engine and .json files")


def run(arguments: argparse.Namespace) -> None:
    """Run `build`."""
    if arguments.out is None and not arguments.layers_table:
        raise UsageError(
            "--out is missing: give a folder, or --layers-table to only print the table"
        )
    sizes = common.given(arguments, LstmShape)
    if arguments.onnx is not None and sizes:
        raise UsageError(
            f"--onnx and --{next(iter(sizes))} exclude each other: give an ONNX file or sizes"
        )
    workspace_bytes = None
    if arguments.workspace_mb is not None:
        workspace_bytes = arguments.workspace_mb * 10**6
    options = EngineOptions(
        **common.given(arguments, EngineOptions),
        workspace_bytes=workspace_bytes,
        profile=_profile(arguments),
        detailed=True,
    )
    network = arguments.onnx or shape_of(arguments, "--onnx FILE")
    engine = build_engine(network, options, seed=arguments.seed)
    files = [] if arguments.out is None else engine.write(arguments.out)
    if arguments.format == "json":
        common.print_json(
            {"files": [str(path) for path in files], "cached": engine.cached, **engine.information}
        )
        return
    show(engine)
    for path in files:
        print(path)
    common.warn(engine.information["warnings"])
    if arguments.layers_table:
        show("\n".join(layers.render(engine.information["layers"])))


def _profile(arguments: argparse.Namespace) -> Profile | None:
    """The given ranges, None without any; for a shape, a size without a range stays fixed."""
    ranges: dict[str, Any] = {axis: getattr(arguments, f"{axis}_range") for axis in _RANGES}
    if not any(ranges.values()):
        return None
    if arguments.onnx is None:
        vars(arguments).update({axis: given[1] for axis, given in ranges.items() if given})
        shape = shape_of(arguments, "--onnx FILE")
        ranges = {axis: given or [getattr(shape, axis)] * 3 for axis, given in ranges.items()}
    return Profile(**ranges)
