"""The command line `lstm-trt`: parse, call, print. Everything it does is one call in the package.

Exit status: 0 done; 1 nothing could be recorded, a notebook failed, or a deadline is missed; 2 a mistake in the
input, told in one line; 3 not enough evidence for a verdict; 70 a bug, with its traceback; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lstm_trt import __version__, commands, commands_record, commands_soak, commands_tails, commands_versions
from lstm_trt.commands_arguments import shape_arguments, shape_of
from lstm_trt.errors import LabError, UsageError
from lstm_trt.literature import command as literature

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_STOPPED = 1, 2, 70, 130
_ENVIRONMENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="lstm-trt",
        description="Which LSTM, on which runtime, answers in time, how sure that is, and what makes the late answers"
        " late.",
    )
    parser.add_argument("--version", action="version", version=f"lstm-trt {__version__}")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, run, summary: str, example: str, formats: tuple[str, ...] = ("text", "json")):
        sub = subcommands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--format", choices=formats, default=formats[0], help="how the answer is printed")
        sub.set_defaults(run=run)
        return sub

    command("doctor", _doctor, "what runs here, what is missing, and how the host stands", "lstm-trt doctor")

    sub = command("cache", _cache, "show or clear the cache of exported networks", "lstm-trt cache --clear")
    sub.add_argument("--clear", action="store_true", help="remove everything in it")

    sub = command(
        "export",
        _export,
        "write the ONNX file of a shape",
        "lstm-trt export --layers 2 --hidden 200 --sequence 128 --batch 1 --out networks",
    )
    shape_arguments(sub, many=False)
    sub.add_argument("--symbolic", action="store_true", help="leave sequence and batch symbolic")
    sub.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the file")

    sub = command(
        "build",
        _build,
        "build a TensorRT engine, for a GPU that need not be here, and say what it launches",
        "lstm-trt build --layers 3 --hidden 72 --sequence 24 --batch 4 --compute-capability sm86 --out engines\n"
        "  lstm-trt build --layers 1 --hidden 128 --sequence 256 --layers-table\n"
        "  lstm-trt build --check engines/3x72-s24-b4-fp32-rtx-sm86.engine",
    )
    shape_arguments(sub, many=False, required=False)
    sub.add_argument("--onnx", type=Path, default=None, metavar="FILE", help="a network of your own, not a shape")
    sub.add_argument("--runtime", default="tensorrt-rtx", help="tensorrt-rtx (default), or tensorrt on its GPU")
    sub.add_argument("--precision", default="fp32", help="fp32 (default, TF32 off), tf32 or fp16")
    sub.add_argument("--compute-capability", default=None, metavar="SM", help="target of tensorrt-rtx (default: all)")
    sub.add_argument("--optimization-level", type=int, default=None, metavar="N", help="0 to 5 (default: builder's)")
    sub.add_argument("--aux-streams", type=int, default=None, metavar="N", help="at most (default: builder's choice)")
    sub.add_argument("--workspace-mb", type=int, default=None, metavar="MB", help="at most, in 10**6 bytes")
    for axis in ("sequence", "batch"):
        sub.add_argument(
            f"--{axis}-range", type=int, nargs=3, default=None, metavar=("MIN", "OPT", "MAX"), help=f"symbolic {axis}"
        )
    sub.add_argument("--layers-table", action="store_true", help="show loops, kernels a time step and launches")
    sub.add_argument("--check", type=Path, default=None, metavar="ENGINE", help="only: can this engine be loaded here?")
    sub.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    sub.add_argument("--out", type=Path, default=None, metavar="DIR", help="folder for the .engine and .json files")

    sub = command("record", commands_record.record, commands_record.RECORD_SUMMARY, commands_record.RECORD_EXAMPLE)
    commands_record.record_arguments(sub)

    sub = command("sweep", commands_record.sweep, commands_record.SWEEP_SUMMARY, commands_record.SWEEP_EXAMPLE)
    commands_record.sweep_arguments(sub)

    sub = command("watch", commands_soak.watch, commands_soak.WATCH_SUMMARY, commands_soak.WATCH_EXAMPLE)
    commands_soak.watch_arguments(sub)

    sub = command(
        "consolidate",
        _consolidate,
        "make trials.parquet and configs.parquet of many recordings",
        "lstm-trt consolidate recordings --out data/campaign",
    )
    sub.add_argument("path", type=Path, help="folder of recordings")
    sub.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="where the two files go (default: the folder)"
    )

    for name in ("summarize", "verdict", "outliers", "compare", "replay"):
        told = [getattr(commands_tails, f"{name.upper()}_{part}") for part in ("SUMMARY", "EXAMPLE")]
        formats = ("table", "csv", "json") if name == "summarize" else ("text", "json")
        sub = command(name, getattr(commands_tails, name), *told, formats)
        getattr(commands_tails, f"{name}_arguments")(sub)

    sub = command("scaling", commands.scaling, commands.SCALING_SUMMARY, commands.SCALING_EXAMPLE)
    commands.scaling_arguments(sub)

    sub = command("literature", literature.literature, literature.SUMMARY, literature.EXAMPLE, ("text", "csv", "json"))
    literature.literature_arguments(sub)

    told = [commands_versions.SUMMARY, commands_versions.EXAMPLE, commands_versions.FORMATS]
    sub = command("versions", commands_versions.versions, *told)
    commands_versions.versions_arguments(sub)

    sub = command("rerun", commands.rerun, commands.RERUN_SUMMARY, commands.RERUN_EXAMPLE)
    commands.rerun_arguments(sub)
    return parser


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _doctor(arguments: argparse.Namespace) -> int:
    from lstm_trt import doctor

    report = doctor.examine()
    if arguments.format == "json":
        _print_json(report.as_dict())
    else:
        print(doctor.render(report))
    return 0


def _cache(arguments: argparse.Namespace) -> int:
    from lstm_trt import cache, versions_environments

    if arguments.clear:
        count, size = cache.clear()
        answer, words = {"removed": count, "bytes": size}, f"removed {count} files, {size / 1e6:.1f} MB"
        environments, size = versions_environments.clear()
        if environments:
            answer["environments"] = {"removed": environments, "bytes": size}
            words += f", and {environments} environments of versions, {size / 1e6:.1f} MB"
    else:
        present = cache.entries()
        total = sum(entry.size_bytes for entry in present)
        kinds: dict[str, list[int]] = {}
        for entry in present:
            kinds.setdefault(entry.kind, []).append(entry.size_bytes)
        answer = {
            "folder": str(cache.folder()),
            "bytes": total,
            "limit_bytes": cache.limit_bytes(),
            "kinds": {kind: {"files": len(sizes), "bytes": sum(sizes)} for kind, sizes in sorted(kinds.items())},
        }
        lines = [f"{cache.folder()}: {total / 1e6:.1f} MB of at most {cache.limit_bytes() / 1e6:.0f} MB"]
        lines += [f"  {kind}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB" for kind, sizes in sorted(kinds.items())]
        if environments := versions_environments.present():
            sizes = [size for _, size in environments]
            answer["environments"] = {"count": len(sizes), "bytes": sum(sizes)}
            lines.append(f"  versions: {len(sizes)} environments, {sum(sizes) / 1e6:.1f} MB, beside that limit")
        words = "\n".join(lines)
    _print_json(answer) if arguments.format == "json" else print(words)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from lstm_trt import export, store
    from lstm_trt.cache import sha256

    shape = shape_of(arguments)
    folder = store.make_folder(arguments.out)
    network = export.export_network(shape, arguments.seed)
    content = network.path.read_bytes() if arguments.symbolic else export.static_model(network.path, shape)
    name = f"{shape.name}.onnx"
    if arguments.symbolic:
        name = f"{shape.layers}x{shape.hidden}-symbolic{'-bi' if shape.directions == 2 else ''}.onnx"
    path = store.put(folder / name, content)
    answer = {
        "path": str(path),
        "sha256": sha256(content),
        "bytes": len(content),
        "shape": shape.as_dict(),
        "symbolic": arguments.symbolic,
        "opset": export.OPSET,
        "parameters": shape.parameters,
        "flops": shape.flops,
    }
    if arguments.format == "json":
        _print_json(answer)
    else:
        print(
            f"{path}: {len(content) / 1e6:.2f} MB, {shape.parameters} parameters, {shape.flops / 1e6:.1f} MFLOP a call"
        )
    return 0


def _build(arguments: argparse.Namespace) -> int:
    from lstm_trt import engine_layers, engines, store
    from lstm_trt.shapes import AXES

    if arguments.check is not None:
        return _check_engine(arguments)
    if arguments.out is None and not arguments.layers_table:
        raise UsageError("--out is missing: give it a folder, or ask for --layers-table alone")
    options = engines.EngineOptions(
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
    folder = None if arguments.out is None else store.make_folder(arguments.out)
    if arguments.onnx is not None:
        engine = engines.build_engine(engines.read_file(arguments.onnx), options, name=arguments.onnx.stem)
    else:
        engine = engines.build_for_shape(shape_of(arguments), options, arguments.seed)
    files = [store.put(folder / name, content) for name, content in engines.files(engine)] if folder else []
    if arguments.format == "json":
        _print_json({"files": [str(path) for path in files], "cached": engine.cached, **engine.information})
        return 0
    print(engines.summary(engine))
    for path in files:
        print(path)
    for warning in engine.information["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.layers_table:
        print("\n".join(engine_layers.render(engine.information["layers"])))
    return 0


def _profile(arguments: argparse.Namespace):
    """The ranges that were given, if any; for a shape, a size without a range stays what it is."""
    from lstm_trt.engines import Profile

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
    from lstm_trt.engines import check_file

    report = check_file(arguments.check)
    if arguments.format == "json":
        _print_json({"path": str(arguments.check), **report.as_dict()})
    if not report.loadable:
        raise UsageError(f"{arguments.check} cannot be loaded here: {report.reason}; {report.remedy}")
    if arguments.format != "json":
        print(f"{arguments.check}: {report.flavour} {report.version}, can be loaded on {report.gpu['name']}")
    return 0


def _consolidate(arguments: argparse.Namespace) -> int:
    from lstm_trt import store

    if not arguments.path.exists():
        raise UsageError(f"there is no folder {arguments.path}")
    folder = store.make_folder(arguments.out or (arguments.path if arguments.path.is_dir() else arguments.path.parent))
    recordings, failures = store.consolidate(store.read_many(arguments.path), folder)
    answer = {"folder": str(folder), "recordings": recordings, "failures": failures}
    if arguments.format == "json":
        _print_json(answer)
    else:
        print(
            f"{folder}: {store.TRIALS_FILE} and {store.CONFIGS_FILE} hold {recordings} recordings, {failures} failures"
        )
    return 0


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if given is None else given)
    signal.signal(signal.SIGTERM, _stop)
    try:
        arguments = build_parser().parse_args(given)
        arguments.given = given
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except LabError as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("lstm-trt: stopped", file=sys.stderr)
        return EXIT_STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 0
    except OSError as error:
        if error.errno in _ENVIRONMENT_ERRORS:
            return _complain(error)
        return _bug()
    except Exception:
        return _bug()


def _stop(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _complain(error: Exception) -> int:
    print(f"lstm-trt: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_USAGE


def _bug() -> int:
    import traceback

    traceback.print_exc()
    print("lstm-trt: this is a bug in lstm_trt; please report the lines above", file=sys.stderr)
    return EXIT_BUG


if __name__ == "__main__":
    sys.exit(main())
