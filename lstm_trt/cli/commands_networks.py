"""The commands `export` and `build`: arguments, calls and printing."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.cli.common import print_json, shape_arguments, shape_of, warn
from lstm_trt.config.errors import UsageError

EXPORT_SUMMARY = "write the ONNX file of a shape"

EXPORT_EXAMPLE = "lstm-trt export --layers 2 --hidden 200 --sequence 128 --batch 1 --out networks"

BUILD_SUMMARY = "build a TensorRT engine, for a GPU that need not be here, and say what it launches"

BUILD_EXAMPLE = (
    "lstm-trt build --layers 3 --hidden 72 --sequence 24 --batch 4 --compute-capability sm86 --out engines\n"
    "  lstm-trt build --layers 1 --hidden 128 --sequence 256 --layers-table\n"
    "  lstm-trt build --check engines/3x72-s24-b4-fp32-rtx-sm86.engine"
)


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `export`."""
    shape_arguments(parser, many=False)
    parser.add_argument("--symbolic", action="store_true", help="leave sequence and batch symbolic")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the file")


def export(arguments: argparse.Namespace) -> int:
    """Run `export`; returns the exit status."""
    from lstm_trt.export import to_onnx
    from lstm_trt.store import files as store_files
    from lstm_trt.store.cache import sha256

    shape = shape_of(arguments)
    folder = store_files.make_folder(arguments.out)
    network = to_onnx.export_network(shape, arguments.seed)
    content = network.path.read_bytes() if arguments.symbolic else to_onnx.static_model(network.path, shape)
    name = f"{shape.label}.onnx"
    if arguments.symbolic:
        name = f"{shape.layers}x{shape.hidden}-symbolic{'-bi' if shape.directions == 2 else ''}.onnx"
    path = store_files.put(folder / name, content)
    answer = {
        "path": str(path),
        "sha256": sha256(content),
        "bytes": len(content),
        "shape": shape.as_dict(),
        "symbolic": arguments.symbolic,
        "opset": to_onnx.OPSET,
        "parameters": shape.parameters,
        "flops": shape.flops,
    }
    if arguments.format == "json":
        print_json(answer)
    else:
        print(
            f"{path}: {len(content) / 1e6:.2f} MB, {shape.parameters} parameters, {shape.flops / 1e6:.1f} MFLOP a call"
        )
    return 0


def build_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `build`."""
    shape_arguments(parser, many=False, required=False)
    parser.add_argument("--onnx", type=Path, default=None, metavar="FILE", help="a network of your own, not a shape")
    parser.add_argument("--runtime", default="tensorrt-rtx", help="tensorrt-rtx (default), or tensorrt on its GPU")
    parser.add_argument("--precision", default="fp32", help="fp32 (default, TF32 off), tf32 or fp16")
    parser.add_argument(
        "--compute-capability", default=None, metavar="SM", help="target of tensorrt-rtx (default: all)"
    )
    parser.add_argument("--optimization-level", type=int, default=None, metavar="N", help="0 to 5 (default: builder's)")
    parser.add_argument(
        "--aux-streams", type=int, default=None, metavar="N", help="at most (default: builder's choice)"
    )
    parser.add_argument("--workspace-mb", type=int, default=None, metavar="MB", help="at most, in 10**6 bytes")
    for axis in ("sequence", "batch"):
        parser.add_argument(
            f"--{axis}-range", type=int, nargs=3, default=None, metavar=("MIN", "OPT", "MAX"), help=f"symbolic {axis}"
        )
    parser.add_argument("--layers-table", action="store_true", help="show loops, kernels a time step and launches")
    parser.add_argument(
        "--check", type=Path, default=None, metavar="ENGINE", help="only: can this engine be loaded here?"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="folder for the .engine and .json files")


def build(arguments: argparse.Namespace) -> int:
    """Run `build`; returns the exit status."""
    from lstm_trt.config.shape import AXES
    from lstm_trt.export import build as export_build
    from lstm_trt.export import engine as export_engine
    from lstm_trt.export import layers
    from lstm_trt.store import files as store_files

    if arguments.check is not None:
        return _check_engine(arguments)
    if arguments.out is None and not arguments.layers_table:
        raise UsageError("--out is missing: give it a folder, or ask for --layers-table alone")
    options = export_engine.EngineOptions(
        arguments.runtime,
        precision=arguments.precision,
        compute_capability=arguments.compute_capability and arguments.compute_capability.lower(),
        optimization_level=arguments.optimization_level,
        max_aux_streams=arguments.aux_streams,
        workspace_bytes=None if arguments.workspace_mb is None else arguments.workspace_mb * 10**6,
        profile=_profile(arguments),
        detailed=True,
    )
    if arguments.onnx is not None and (sizes := [axis for axis in AXES if hasattr(arguments, axis)]):
        raise UsageError(f"--onnx names a network, --{sizes[0]} another: give one of them")
    folder = None if arguments.out is None else store_files.make_folder(arguments.out)
    if arguments.onnx is not None:
        engine = export_build.build_engine(export_engine.read_file(arguments.onnx), options, name=arguments.onnx.stem)
    else:
        engine = export_build.build_for_shape(shape_of(arguments), options, arguments.seed)
    files = [store_files.put(folder / name, content) for name, content in export_engine.files(engine)] if folder else []
    if arguments.format == "json":
        print_json({"files": [str(path) for path in files], "cached": engine.cached, **engine.information})
        return 0
    print(export_engine.summary(engine))
    for path in files:
        print(path)
    warn(engine.information["warnings"])
    if arguments.layers_table:
        print("\n".join(layers.render(engine.information["layers"])))
    return 0


def _profile(arguments: argparse.Namespace):
    """The ranges that were given, if any; for a shape, a size without a range stays what it is."""
    from lstm_trt.export.engine import Profile

    ranges = {axis: getattr(arguments, f"{axis}_range") for axis in ("sequence", "batch")}
    if not any(ranges.values()):
        return None
    if arguments.onnx is None:
        for axis, given in ranges.items():
            if given:
                setattr(arguments, axis, given[1])
        shape = shape_of(arguments)
        ranges = {axis: given or [getattr(shape, axis)] * 3 for axis, given in ranges.items()}
    return Profile(**ranges)


def _check_engine(arguments: argparse.Namespace) -> int:
    from lstm_trt.export.engine import check_file

    report = check_file(arguments.check)
    if arguments.format == "json":
        print_json({"path": str(arguments.check), **report.as_dict()})
    if not report.loadable:
        raise UsageError(f"{arguments.check} cannot be loaded here: {report.reason}; {report.remedy}")
    if arguments.format != "json":
        print(f"{arguments.check}: {report.flavour} {report.version}, can be loaded on {report.gpu['name']}")
    return 0
