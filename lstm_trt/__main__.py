"""The command line `lstm-trt`: parse, call, print. Everything it does is one call in the package.

Exit status: 0 done; 1 nothing could be recorded, or a notebook failed; 2 a mistake in the input, told in one
line; 70 a bug, with its traceback; 130 stopped by Ctrl-C.
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

from lstm_trt import __version__, commands
from lstm_trt.errors import LabError, UsageError

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_STOPPED = 1, 2, 70, 130
_ENVIRONMENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _shape_arguments(parser: argparse.ArgumentParser, many: bool, required: bool = True) -> None:
    more = {"nargs": "+"} if many else {}
    unset = None if many else argparse.SUPPRESS
    for axis, meaning, needed in (
        ("layers", "stacked LSTM layers", True),
        ("hidden", "units a layer", True),
        ("sequence", "time steps", True),
        ("batch", "sequences at once (default 1)", False),
        ("features", "inputs a step (default 12)", False),
        ("directions", "1, or 2 for bidirectional (default 1)", False),
    ):
        parser.add_argument(
            f"--{axis}",
            type=int,
            help=meaning,
            metavar="N",
            required=needed and required and not many,
            default=unset,
            **more,
        )


def _runtime_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", default="fp32", help="fp32, tf32, fp16, bf16 or int8, as the runtime offers")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="K", help="threads, each pinned to a core (default 1)"
    )
    parser.add_argument("--device", default=None, help="cpu or cuda; the runtime's own choice if not given")
    parser.add_argument("--graph", action="store_true", help="launch a CUDA graph, where the runtime offers the choice")
    parser.add_argument("--device-clocks", default="off", choices=("off", "compute", "all"), help="clocks on the GPU")
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="timed trials (default 1000)")
    parser.add_argument(
        "--warmup", type=int, default=10, metavar="N", help="warm-up trials, kept and marked (default 10)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs and the sweep's order (default 0)")
    parser.add_argument("--time-limit", type=float, default=None, metavar="S", help="seconds a configuration may take")


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
    _shape_arguments(sub, many=False)
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
    _shape_arguments(sub, many=False, required=False)
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

    sub = command(
        "record",
        _record,
        "record the latencies of one shape on one runtime",
        "lstm-trt record --layers 2 --hidden 200 --sequence 128 --runtime onnxruntime --trials 1000 --out recordings",
    )
    _shape_arguments(sub, many=False)
    sub.add_argument("--runtime", default="onnxruntime", help="see lstm-trt doctor (default onnxruntime)")
    _runtime_arguments(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the recording")

    sub = command(
        "sweep",
        _sweep,
        "record a grid of shapes on one or more runtimes; goes on where it was stopped",
        "lstm-trt sweep --layers 1 2 --hidden 32 64 128 --sequence 32 64 --batch 1 2 4"
        " --runtime onnxruntime pytorch --out recordings",
    )
    sub.add_argument(
        "--grid", default=None, metavar="NAME", help="founding: 2000 shapes; axes given beside it narrow it"
    )
    _shape_arguments(sub, many=True)
    sub.add_argument("--runtime", nargs="+", default=["onnxruntime"], metavar="NAME", help="see lstm-trt doctor")
    _runtime_arguments(sub)
    sub.add_argument("--rounds", type=int, default=1, metavar="N", help="repeat all in fresh processes (default 1)")
    sub.add_argument("--retry-failed", action="store_true", help="try configurations again that failed before")
    sub.add_argument("--memory-limit-gb", type=float, default=None, metavar="GB", help="memory a worker may hold")
    sub.add_argument("--figures", type=Path, default=None, metavar="DIR", help="draw the sweep's figures there")
    sub.add_argument("--deadline-us", type=float, default=None, metavar="US", help="drawn into the figures")
    sub.add_argument("--quiet", action="store_true", help="no progress line")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")

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

    sub = command(
        "summarize",
        _summarize,
        "one row a configuration: n, max, percentiles, outliers",
        "lstm-trt summarize recordings --format csv > summary.csv",
        ("table", "csv", "json"),
    )
    sub.add_argument("path", type=Path, help="a recording, a folder of them, or a consolidated pair")
    sub.add_argument("--by-round", action="store_true", help="a row for each round")
    sub.add_argument("--figures", type=Path, default=None, metavar="DIR", help="draw the figures there as well")
    sub.add_argument("--deadline-us", type=float, default=None, metavar="US", help="drawn into the figures")

    sub = command("scaling", commands.scaling, commands.SCALING_SUMMARY, commands.SCALING_EXAMPLE)
    commands.scaling_arguments(sub)

    sub = command("rerun", commands.rerun, commands.RERUN_SUMMARY, commands.RERUN_EXAMPLE)
    commands.rerun_arguments(sub)
    return parser


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _shape(arguments: argparse.Namespace):
    from lstm_trt.shapes import AXES, LstmShape

    for axis in ("layers", "hidden", "sequence"):
        if not hasattr(arguments, axis):
            raise UsageError(f"--{axis} is missing: give the shape's sizes, or --onnx FILE")
    return LstmShape(**{axis: getattr(arguments, axis) for axis in AXES if hasattr(arguments, axis)})


def _doctor(arguments: argparse.Namespace) -> int:
    from lstm_trt import doctor

    report = doctor.examine()
    if arguments.format == "json":
        _print_json(report.as_dict())
    else:
        print(doctor.render(report))
    return 0


def _cache(arguments: argparse.Namespace) -> int:
    from lstm_trt import cache

    if arguments.clear:
        count, size = cache.clear()
        answer, words = {"removed": count, "bytes": size}, f"removed {count} files, {size / 1e6:.1f} MB"
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
        words = "\n".join(lines)
    _print_json(answer) if arguments.format == "json" else print(words)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from lstm_trt import export, store
    from lstm_trt.cache import sha256

    shape = _shape(arguments)
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
        engine = engines.build_for_shape(_shape(arguments), options, arguments.seed)
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
        shape = _shape(arguments)
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


def _record(arguments: argparse.Namespace) -> int:
    from lstm_trt import processes, store
    from lstm_trt.analysis.summary import summarize

    shape = _shape(arguments)
    quiet = arguments.format == "json"

    def listen(answer: dict) -> None:
        if quiet:
            return
        if answer["event"] == "floor":
            print(
                f"{shape.name} on {arguments.runtime}: speed of light {answer['floor_ns'] / 1e3:.1f} us",
                file=sys.stderr,
            )
        elif answer["event"] == "progress" and sys.stderr.isatty():
            end = "\r" if answer["done"] < answer["total"] else "\n"
            print(f"{answer['done']}/{answer['total']} trials", end=end, file=sys.stderr, flush=True)

    recording = processes.record(
        shape,
        runtime=arguments.runtime,
        trials=arguments.trials,
        warmup=arguments.warmup,
        seed=arguments.seed,
        precision=arguments.precision,
        threads=arguments.threads,
        device=arguments.device,
        graph=arguments.graph,
        device_clocks=arguments.device_clocks,
        out=arguments.out,
        time_limit_s=arguments.time_limit,
        listener=listen,
    )
    for warning in recording.provenance["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    path = store.make_folder(arguments.out) / recording.file_name
    row = summarize([recording])[0]
    if quiet:
        _print_json({"path": str(path), "summary": row.as_dict()})
    else:
        print(_table([row]))
        print(f"{path}")
    return 0


def _configurations(arguments: argparse.Namespace) -> list:
    from lstm_trt.configuration import Protocol
    from lstm_trt.recording import describe_configuration
    from lstm_trt.shapes import AXES, GRIDS, Grid

    given = {axis: tuple(getattr(arguments, axis)) for axis in AXES if getattr(arguments, axis) is not None}
    if arguments.grid is not None:
        if arguments.grid not in GRIDS:
            raise UsageError(f"unknown grid {arguments.grid!r}: choose from {', '.join(GRIDS)}")
        base = GRIDS[arguments.grid]
        given = {axis: given.get(axis, getattr(base, axis)) for axis in AXES}
    for axis in ("layers", "hidden", "sequence"):
        if axis not in given:
            raise UsageError(f"--{axis} is missing: give its values, or --grid founding")
    protocol = Protocol(trials=arguments.trials, warmup=arguments.warmup, seed=arguments.seed)
    return [
        describe_configuration(
            shape,
            runtime,
            protocol=protocol,
            precision=arguments.precision,
            threads=arguments.threads,
            device=arguments.device,
            graph=arguments.graph,
            device_clocks=arguments.device_clocks,
        )
        for shape in Grid(**given)
        for runtime in dict.fromkeys(arguments.runtime)
    ]


def _sweep(arguments: argparse.Namespace) -> int:
    from lstm_trt.sweep import go_on_with, run_sweep

    limit = arguments.memory_limit_gb
    if limit is not None and not limit > 0:
        raise UsageError(f"--memory-limit-gb must be above 0, not {limit:g}")
    report = run_sweep(
        _configurations(arguments),
        arguments.out,
        rounds=arguments.rounds,
        seed=arguments.seed,
        time_limit_s=arguments.time_limit,
        memory_limit=int(limit * 1e9) if limit is not None else None,
        retry_failed=arguments.retry_failed,
        show_progress=not arguments.quiet,
    )
    if arguments.format == "json":
        _print_json(report.as_dict())
    else:
        print("\n".join(report.lines()))
    if report.stopped:
        print(f"stopped; go on with: {go_on_with(arguments.given)}", file=sys.stderr)
        return EXIT_STOPPED
    if arguments.figures:
        _draw(arguments.out, arguments.figures, arguments.deadline_us)
    return 0 if report.recorded + report.done_before else EXIT_FAILED


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


def _summarize(arguments: argparse.Namespace) -> int:
    from lstm_trt import store
    from lstm_trt.analysis.summary import FIELDS, summarize

    rows = summarize(store.read_many(arguments.path), arguments.by_round)
    if arguments.format == "json":
        _print_json([row.as_dict() for row in rows])
    elif arguments.format == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            plain = row.as_dict()
            plain.update({name: " ".join(map(str, plain[name])) for name in ("median_us_rounds", "max_us_rounds")})
            writer.writerow(plain)
    else:
        print(_table(rows))
    if arguments.figures:
        _draw(arguments.path, arguments.figures, arguments.deadline_us)
    return 0


def _draw(path: Path, folder: Path, deadline_us: float | None) -> None:
    from lstm_trt import store
    from lstm_trt.plots import draw_sweep
    from lstm_trt.tables import frames

    store.make_folder(folder)
    summary, trials = frames(store.read_many(path))
    for figure in draw_sweep(summary, trials, folder, deadline_us=deadline_us):
        print(figure, file=sys.stderr)  # standard output may be a table for a program


def _table(rows: Sequence) -> str:
    from lstm_trt.tables import text_table

    return text_table(rows)


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
