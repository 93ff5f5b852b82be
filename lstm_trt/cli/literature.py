"""The command `literature`: its arguments, calls and printing. Importing this loads nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt import registry
from lstm_trt.cli.common import exit_status, print_json, stopped, tell_files
from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    from lstm_trt.config.configuration import Configuration


LITERATURE_FORMATS = ("text", "csv", "json")

LITERATURE_SUMMARY = (
    "record the benchmarks of the literature with today's implementations, in the documents' own metrics"
)

LITERATURE_EXAMPLE = (
    "lstm-trt literature --list\n"
    "  lstm-trt literature ptb-lm --implementation pytorch-one-call-eager pytorch-fused-eager --mode training"
    " --scale 1/8 --out recordings\n"
    "  lstm-trt literature layer --variants --implementation onnxruntime --out recordings\n"
    "  lstm-trt literature --plan --out recordings"
)

SIZES = ("hidden", "layers", "batch", "sequence")

#: What a plan says for each of its rows.
PLANNED = ("mode", "scale", "variants", *SIZES, "batches", "warmup", "device")


def literature_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `literature`."""
    add = parser.add_argument
    add("workload", nargs="*", metavar="WORKLOAD", help="cell, layer, stack, ptb-lm, text-classifier, speech-...")
    add("--list", action="store_true", help="show the workloads and who can run them; nothing is recorded")
    add("--plan", action="store_true", help="the whole set in sizes for 2 cores and 45 minutes: see its --dry-run")
    add("--dry-run", action="store_true", help="with --plan: only print each row with its scale and estimate")
    add("--table", action="store_true", help="only print what --out holds")
    add("--implementation", nargs="+", default=None, metavar="NAME", help="one or more, or: all (that are ready)")
    add("--mode", choices=("forward", "training"), default=None, help="the document's first if not given")
    add("--scale", default="1", metavar="FRACTION", help="of batch and sequence, such as 1/8; the network stays")
    add("--variants", action="store_true", help="every size that the document has a number for")
    for name in SIZES:
        add(f"--{name}", type=int, default=None, metavar="N", help="another size of the family, before scaling")
    add("--batches", type=int, default=None, metavar="N", help="timed batches (default: the document's)")
    add("--warmup", type=int, default=None, metavar="N", help="warm-up batches (default: in the document's proportion)")
    add("--threads", type=int, default=1, metavar="K", help="threads, each pinned to a core (default 1)")
    add("--device", default=None, help="cpu or cuda; the implementation's own choice if not given")
    add("--rounds", type=int, default=None, metavar="N", help="repeat all in fresh processes (default 1)")
    add("--seed", type=int, default=0, help="of weights, batches and the order (default 0)")
    add("--time-limit", type=float, default=None, metavar="S", help="seconds a recording may take")
    add("--retry-failed", action="store_true", help="try again what failed before")
    add("--quiet", action="store_true", help="no progress line")
    add("--out", type=Path, default=None, metavar="DIR", help="folder for the recordings")
    add("--figures", type=Path, default=None, metavar="DIR", help="draw them beside what the documents print, as PNG")


def literature(arguments: argparse.Namespace) -> int:
    """Run `literature`; returns the exit status."""
    if arguments.list:
        return _list(arguments)
    if arguments.plan:
        return _plan(arguments)
    if arguments.dry_run:
        raise UsageError("--dry-run goes with --plan")
    if arguments.out is None:
        raise UsageError("--out is missing: give a folder for the recordings, or ask for --list")
    if arguments.table:
        return _tell(arguments, _asked(arguments))
    if not arguments.workload:
        raise UsageError("which workload? lstm-trt literature --list shows them")
    if not arguments.implementation:
        raise UsageError("--implementation is missing: lstm-trt literature --list shows them")
    return _record(arguments, configurations(arguments))


def configurations(arguments: argparse.Namespace) -> list:
    """The configurations that were asked for; raises `UsageError` where a name or size means nothing."""
    from lstm_trt.config.configuration import Options
    from lstm_trt.literature.session import describe_benchmark

    options = {name: getattr(arguments, name) for name in ("mode", "scale", "batches", "warmup", "seed")}
    options["options"] = Options(threads=arguments.threads, device=arguments.device)
    return [
        describe_benchmark(workload, name, **options)
        for workload in _workloads(arguments)
        for name in _implementations(arguments, workload)
    ]


def _workloads(arguments: argparse.Namespace) -> list:
    from lstm_trt.literature.workloads import VARIANTS, find

    sizes = {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    if sizes and arguments.variants:
        raise UsageError(f"--variants are the document's sizes, --{next(iter(sizes))} is another: give one of them")
    found = []
    for name in dict.fromkeys(arguments.workload):
        workload = find(name)
        found += VARIANTS[name] if arguments.variants else [workload.variant(**sizes) if sizes else workload]
    return found


def _implementations(arguments: argparse.Namespace, workload: object) -> list[str]:
    from lstm_trt.literature.session import availability, reason

    if arguments.implementation != ["all"]:
        return list(dict.fromkeys(arguments.implementation))
    mode = arguments.mode or workload.modes[0]
    scaled = workload.scaled(arguments.scale)
    ready = [
        name
        for name in registry.table("IMPLEMENTATIONS")
        if availability(name).ready and reason(name, scaled, mode) is None
    ]
    if not ready:
        raise UsageError(f"no implementation that is ready here does {scaled.label} ({mode})")
    return ready


def _record(arguments: argparse.Namespace, wanted: list) -> int:
    from lstm_trt.recorder.sweep import run_sweep

    report = run_sweep(
        wanted,
        arguments.out,
        rounds=arguments.rounds,
        seed=arguments.seed,
        time_limit_s=arguments.time_limit,
        retry_failed=arguments.retry_failed,
        show_progress=not arguments.quiet,
    )
    for line in report.lines():
        print(line, file=sys.stderr)
    if report.stopped:
        return stopped(arguments.given)
    ids = {configuration.id for configuration in wanted}
    _tell(arguments, lambda configuration: configuration.id in ids)
    return exit_status(report)


def _asked(arguments: argparse.Namespace) -> Callable[[Configuration], bool]:
    """Whether --table shows a configuration: of the workloads, implementations and mode, if they were given."""
    from lstm_trt.literature.workloads import find

    workloads = {find(name).name for name in arguments.workload}
    given = arguments.implementation or ["all"]
    names = set() if given == ["all"] else set(given)
    return lambda one: (
        (not workloads or one.workload.name in workloads)
        and (not names or one.runtime in names)
        and arguments.mode in (None, one.mode)
    )


def _tell(arguments: argparse.Namespace, wanted: Callable[[Configuration], bool]) -> int:
    """Print the metrics of what the folder holds of the wanted configurations."""
    from lstm_trt.literature import metrics
    from lstm_trt.literature.plots import draw
    from lstm_trt.literature.workloads import LiteratureWorkload
    from lstm_trt.store import folders

    items = folders.read_many(arguments.out)
    found = metrics.rows(
        item
        for item in items
        if isinstance(item.configuration.workload, LiteratureWorkload) and wanted(item.configuration)
    )
    if not found:
        raise UsageError(f"{arguments.out} holds no such recording of a workload of the literature")
    if arguments.format == "json":
        print_json(metrics.as_dicts(found))
    elif arguments.format == "csv":
        print(metrics.csv_text(found), end="")
    else:
        print(metrics.text_table(found))
    if arguments.figures is not None:
        tell_files(draw(found, arguments.figures))
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from lstm_trt.literature import plan

    if arguments.workload or arguments.implementation:
        raise UsageError("--plan is the whole set: leave workload and --implementation out")
    chosen = [name for name in PLANNED if getattr(arguments, name) not in (None, False, "1")]
    if chosen or arguments.threads != 1:
        raise UsageError(f"--plan chooses for each row: leave --{(chosen or ['threads'])[0]} out")
    entries = plan.entries()
    print(plan.text(entries), file=sys.stderr, flush=True)
    if arguments.dry_run:
        return 0
    if arguments.out is None:
        raise UsageError("--out is missing: give a folder for the recordings, or --dry-run")
    arguments.time_limit = arguments.time_limit or plan.TIME_LIMIT_S
    return _record(arguments, [entry.configuration for entry in entries if entry.configuration])


def _list(arguments: argparse.Namespace) -> int:
    from lstm_trt.literature.session import availability, reason
    from lstm_trt.literature.workloads import VARIANTS, WORKLOADS, find

    told = []
    for workload in map(find, arguments.workload or WORKLOADS):
        can = {
            mode: [name for name in registry.table("IMPLEMENTATIONS") if reason(name, workload, mode) is None]
            for mode in workload.modes
        }
        variants = [one.as_dict() | {"note": one.note, "label": one.label} for one in VARIANTS[workload.name]]
        sizes = {"label": workload.label, "parameters": workload.parameters, "flops": workload.flops}
        told.append(
            {**workload.as_dict(), "note": workload.note, **sizes, "implementations": can, "variants": variants}
        )
    states = {name: availability(name) for name in registry.table("IMPLEMENTATIONS")}
    if arguments.format == "csv":
        raise UsageError("--list is printed as text or json")
    if arguments.format == "json":
        plain = {name: {"ready": one.ready, "reason": one.reason, "remedy": one.remedy} for name, one in states.items()}
        print_json({"workloads": told, "implementations": plain})
        return 0
    for one in told:
        _print_workload(one)
    print("implementations (lstm-trt doctor says how to get the others):")
    for name, state in states.items():
        print(f"  {name:28}{'ready' if state.ready else 'not ready: ' + state.reason}")
    return 0


def _print_workload(one: dict) -> None:
    from lstm_trt.literature.metrics import shape_words
    from lstm_trt.literature.workloads import WORKLOADS

    workload = WORKLOADS[one["name"]]
    print(f"{workload.name}  (document {workload.document}; {', '.join(workload.modes)})")
    print(f"  {shape_words(workload)}; {workload.parameters} parameters, {workload.flops / 1e9:.3g} GFLOP forward")
    words = f"  {workload.warmup} warm-up and {workload.batches} timed batches"
    if workload.loss:
        words += f"; {workload.loss}, {workload.optimizer} {workload.learning_rate:g}"
    print(words + (f"; {len(one['variants'])} sizes with published numbers" if len(one["variants"]) > 1 else ""))
    for mode, names in one["implementations"].items():
        print(f"  {mode}: {', '.join(names)}")
    if workload.note:
        print(f"  note: {workload.note}")
    print()
