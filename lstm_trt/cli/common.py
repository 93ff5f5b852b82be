"""Shared by several commands: arguments, the objects built from them, and printing.

Defaults and choices come from the dataclasses and constants of the package.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from lstm_trt.cli.main import EXIT_STOPPED, show
from lstm_trt.config.configuration import TIERS, Options, Protocol
from lstm_trt.config.errors import Incomplete, UsageError, nearest, refused
from lstm_trt.config.fields import about
from lstm_trt.config.format import count, csv_text, decimal, listed, markdown, warning_lines
from lstm_trt.config.labels import FIELDS
from lstm_trt.config.shape import AXES, FIELDS as SIZES, LstmShape
from lstm_trt.config.step import Step

if TYPE_CHECKING:
    from lstm_judge.analysis.answers import Answers
    from lstm_judge.read.runs import Runs
    from lstm_trt.config.workload import Workload

PATH_HELP = (
    "recordings (file or folder), or a table of latencies (CSV, Parquet, JSON, .npy, plain text; also .gz), a folder of"
    " tables, or - for standard input"
)

RUNTIME_HELP = "runtime; lstm-trt doctor lists them"


#: Fields with a flag of their own where recordings are read.
SELECTED = ("runtime", *AXES[:4], "precision", "mode", "machine")

#: Most trials of `--until decided`.
UNDECIDED_TRIALS = 1_000_000


def field_arguments(parser: argparse._ActionsContainer, kind: type, several: Collection[str] = ()) -> None:
    """Add the flags of a dataclass's fields, which are None if not given (`given`); those in `several` take a list.

    A flag that the parser has already stays as it is.
    """
    hints = get_type_hints(kind)
    for name, field in about(kind).items():
        if field.flag is None or field.flag in parser._option_string_actions:
            continue
        hint, default = hints[name], field.default
        help = field.help + ("" if default is None or hint is bool else f" (default {default})")
        if hint is bool:
            parser.add_argument(field.flag, action="store_const", const=not default, dest=name, help=help)
            continue
        number: Any = next((kind for kind in (int, float) if kind in (hint, *get_args(hint))), None)
        metavar = None if field.choices else {None: "NAME", int: "N", float: field.unit.upper()}[number]
        nargs = "+" if name in several else None
        parser.add_argument(field.flag, type=number, nargs=nargs, choices=field.choices, metavar=metavar, help=help)


def workload_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add what is recorded: the sizes of a stacked LSTM, or ONNX files, or a step; of lists if `several`."""
    field_arguments(parser, LstmShape, several=AXES if several else ())
    own = parser.add_argument_group("your own network or step")
    onnx_arguments(own, several=several)
    step = "function without arguments that returns what is timed: a callable, or an object with a method step"
    own.add_argument("--step", nargs="+" if several else 1, metavar="MODULE:FUNCTION", help=step)
    mode = (
        "forward: each call is a whole sequence; stream: each call is the next samples, with the state of the last call"
    )
    parser.add_argument("--mode", choices=("forward", "stream"), help=f"{mode} (default forward)")


def onnx_arguments(parser: argparse._ActionsContainer, *, several: bool = False) -> None:
    """Add ONNX files (one, or a list if `several`), their sizes, inputs and states."""
    file = f"ONNX file{'s' * several} instead of a stacked LSTM"
    parser.add_argument("--onnx", type=Path, nargs="+" if several else 1, metavar="FILE", help=file)
    input_arguments(parser, several=several)
    state = "input and output that a stream carries (default: those that are recognized by their names)"
    parser.add_argument("--state", nargs="+", action="extend", default=[], metavar="INPUT=OUTPUT", help=state)


def input_arguments(parser: argparse._ActionsContainer, *, several: bool = False) -> None:
    """Add --size, --value and --inputs."""
    add = parser.add_argument
    values, example = ("value or values", "16,64") if several else ("value", "64")
    size = f"{values} of a symbolic size of the ONNX file, for example --size time={example}"
    add("--size", nargs="+", action="extend", default=[], metavar="NAME=N", help=size)
    value = "number of an input that is made a constant of the network, for example --value sr=16000"
    add("--value", nargs="+", action="extend", default=[], metavar="INPUT=N", help=value)
    inputs = "file of inputs by name, as numpy.savez writes it; it also gives their sizes (default: random numbers)"
    add("--inputs", type=Path, metavar="FILE.npz", help=inputs)


def own_workloads(arguments: argparse.Namespace) -> Sequence[Workload]:
    """The networks of `--onnx`, one for each combination of the values of `--size`, or the steps of `--step`.

    Raises `UsageError` if they are invalid, or contradict each other or the sizes of a stacked LSTM.
    """
    files = arguments.onnx or []
    grid, steps, state = (getattr(arguments, name, None) for name in ("grid", "step", "state"))
    axes = {f"--{axis}": sizes for axis, sizes in given(arguments, LstmShape).items()}
    chosen = {"--onnx": files, "--step": steps, "--grid": grid, **axes}
    flags = [flag for flag, value in chosen.items() if value]
    if (files or steps) and len(flags) > 1:
        raise UsageError(f"{flags[0]} and {flags[1]} exclude each other: give one of them")
    if not files:
        for flag in ("size", "value", "state", "inputs"):
            if getattr(arguments, flag, None):
                raise UsageError(f"--{flag} is for ONNX files: give one with --onnx")
        return [Step(function) for function in steps or ()]
    from lstm_onnx.own_network import OnnxNetwork
    from lstm_onnx.read_onnx import fixed_text, read_shapes, symbols_in

    sizes = _size_values(arguments.size)
    states = dict(_pair("--state", "INPUT=OUTPUT", text) for text in state or ())
    pairs = dict(_pair("--value", "INPUT=N", text) for text in arguments.value)
    with refused("--value needs numbers", ValueError):
        numbers = {
            name: int(decimal(text)) if text.lstrip("+-").isdecimal() else float(decimal(text))
            for name, text in pairs.items()
        }
    shapes = {path: read_shapes(path) for path in files}
    known = {path: symbols_in(each) for path, each in shapes.items()}
    for what, names, each in (("symbolic size", sizes, known), ("input", numbers, shapes)):
        every = dict.fromkeys(itertools.chain(*each.values()))
        for name in names:
            if name not in every:
                has = f"there are {listed(every)}"
                if not every:
                    has = f"in {files[0].name} {fixed_text(shapes[files[0]], name)}"
                raise UsageError(f"no {what} is called {name!r}{nearest(name, every)}: {has}")
    fixed = {path: {name: number for name, number in numbers.items() if name in shapes[path]} for path in files}
    how: dict[str, Any] = {"states": states or None, "inputs": arguments.inputs}
    networks = [
        OnnxNetwork(path, sizes=dict(zip(used, values, strict=True)), constants=fixed[path], **how)
        for path, symbols in known.items()
        for used in [[name for name in sizes if name in symbols]]
        for values in itertools.product(*(sizes[name] for name in used))
    ]
    warn(dict.fromkeys(warning for network in networks for warning in network.warnings))
    return networks


def one_workload(arguments: argparse.Namespace) -> Workload:
    """The workload of a command that takes one; raises `UsageError` for none or several."""
    own = own_workloads(arguments)
    if len(own) > 1:
        networks = count(len(own), "network")
        raise UsageError(f"--size gives {networks}, but one is needed: lstm-trt sweep records several")
    step = ", or --step" if hasattr(arguments, "step") else ""
    return own[0] if own else shape_of(arguments, f"--onnx FILE{step}")


def _size_values(given: Iterable[str]) -> dict[str, list[int]]:
    """`["time=16,64", "batch=1"]` -> `{"time": [16, 64], "batch": [1]}`."""
    found: dict[str, list[int]] = {}
    for text in given:
        name, values = _pair("--size", "NAME=N", text)
        if not (values.isascii() and all(value.strip().isdecimal() for value in values.split(","))):
            raise UsageError(f"--size {name} needs whole numbers, not {values!r}")
        found[name] = list(dict.fromkeys([*found.get(name, []), *map(int, values.split(","))]))
    return found


def _pair(flag: str, form: str, text: str, empty: bool = False) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name.strip() or not (empty or value.strip()):
        raise UsageError(f"{flag} takes {form}, not {text!r}")
    return name.strip(), value.strip()


def shape_of(arguments: argparse.Namespace, instead: str) -> LstmShape:
    """The given shape; raises `UsageError` for invalid sizes, and for missing ones with what can be given `instead`."""
    for axis in ("layers", "hidden", "sequence"):
        if getattr(arguments, axis) is None:
            raise UsageError(f"--{axis} is missing: give the sizes of a stacked LSTM, or {instead}")
    return LstmShape(**given(arguments, LstmShape))


def runtime_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the fields of `Options` and `Protocol`; with `several` a list of precisions."""
    options = parser.add_argument_group("runtime options")
    field_arguments(options, Options, several=["precision"] if several else ())
    cores = "cores to run on, one per thread, such as 2,3 or 0-3 (default: the last that are allowed)"
    options.add_argument("--cores", type=_cores, metavar="LIST", help=cores)
    protocol = parser.add_argument_group("protocol")
    also = ", or that a sweep ends with which configurations meet it" if several else ""
    deadline_argument(protocol, f"deadline of --until decided{also}")
    field_arguments(protocol, Protocol)
    most = f"the same as --trials, for --until decided (default {UNDECIDED_TRIALS})"
    protocol.add_argument("--at-most", type=int, dest="trials", metavar="N", help=most)
    tiers = ", ".join(f"{name} {trials}" for name, trials in TIERS.items())
    protocol.add_argument("--tier", choices=TIERS, help=f"predefined number of trials: {tiers}")
    parser.add_argument("--time-limit", type=float, metavar="S", help="time limit per configuration in seconds")


def _cores(text: str) -> tuple[int, ...]:
    """The cores of a list such as 2,3 or 0-3, each once."""
    from lstm_trt.machine.linux import cpu_list

    if not (cores := cpu_list(text)):
        raise argparse.ArgumentTypeError(f"needs numbers of cores, such as 2,3 or 0-3, not {text!r}")
    return tuple(sorted(set(cores)))


def wait_argument(parser: argparse.ArgumentParser) -> None:
    """Add --no-wait and --wait-limit; both set `lock_wait`."""
    group = parser.add_mutually_exclusive_group()
    no_wait = "stop if another recording uses the same cores, instead of waiting until it ends"
    group.add_argument("--no-wait", action="store_false", dest="lock_wait", help=no_wait)
    limit = "stop if it uses them for longer than this time in seconds (default no limit)"
    group.add_argument("--wait-limit", type=float, dest="lock_wait", metavar="S", help=limit)


def protocol_of(arguments: argparse.Namespace, **defaults: Any) -> Protocol:
    """The given protocol, else `defaults`; raises `UsageError` if options contradict each other."""
    trials = trials_of(arguments) or (UNDECIDED_TRIALS if arguments.until else None)
    chosen: dict[str, Any] = {} if trials is None else {"trials": trials}
    return Protocol(**defaults | given(arguments, Protocol) | chosen)


def options_of(arguments: argparse.Namespace) -> Options:
    """The given options."""
    return Options(**given(arguments, Options))


def given(arguments: argparse.Namespace, kind: type) -> dict:
    """The given values of a dataclass's fields."""
    values = {field.name: getattr(arguments, field.name, None) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def trials_of(arguments: argparse.Namespace) -> int | None:
    """The given number of trials, None if there is none; raises `UsageError` if it is not that of the given tier."""
    if arguments.tier is None:
        return arguments.trials
    trials = TIERS[arguments.tier]
    if arguments.trials not in (None, trials):
        raise UsageError(f"--tier {arguments.tier} means {trials} trials, but --trials is {arguments.trials}: give one")
    return trials


def path_argument(parser: argparse.ArgumentParser, meaning: str = PATH_HELP) -> None:
    """Add one or several paths of recordings or tables; `load_runs` reads them."""
    parser.add_argument("path", type=Path, nargs="+", metavar="PATH", help=f"{meaning}; several are read together")


def table_arguments(parser: argparse.ArgumentParser, *, grouped: bool = True) -> None:
    """Add the selection of what is read, and options for tables recorded elsewhere.

    `grouped` adds those that assign rows to configurations.
    """
    from lstm_judge.read.tables import UNIT_NS

    selected = parser.add_argument_group("selection of what is read (several values of a field are alternatives)")
    headings = {name: field.heading for name, field in {**SIZES, **FIELDS}.items()}
    for name in SELECTED:
        what = headings.get(name, "beginning of the fingerprint of the machine")
        selected.add_argument(f"--{name}", nargs="+", metavar="N" if name in AXES else "NAME", help=what)
    where = "any field of a configuration, or a size of your own network; all of several must hold"
    selected.add_argument("--where", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=where)
    group = parser.add_argument_group("tables recorded elsewhere")
    add = group.add_argument
    column = "column of the latencies, or its place from 1 (default: latency_ns, _us, _ms or _s, or the only one that"
    add("--column", metavar="NAME", help=f"{column} states a unit)")
    add("--unit", choices=UNIT_NS, help="unit of the latencies, if the column's name does not state it")
    rename = 'rename columns first, for example "Average time (s)=latency_s"; OLD= ignores a column'
    add("--rename", nargs="+", action="extend", default=[], metavar="OLD=NEW", help=rename)
    if not grouped:
        return
    groups = "columns that distinguish configurations (default of several tables: file, the name of the table)"
    add("--group-by", nargs="+", default=[], metavar="COLUMN", help=groups)
    add("--causes", nargs="+", metavar="COLUMN", help="columns with event counts per trial that may explain the tail")
    add("--one-group", action="store_true", help="treat all rows as one configuration, and each table as one round")
    add("--drop-missing", action="store_true", help="drop rows without a time, and state their number")
    add("--counts", metavar="COLUMN", help="column of a histogram with the number of calls in each bin")


def load_runs(arguments: argparse.Namespace, path: Path | Sequence[Path], latencies: bool = False) -> Runs:
    """Load the runs of paths with the options of `table_arguments`; of recordings all columns, or only `latencies`."""
    from lstm_judge.read.runs import COLUMNS, LATENCIES, load

    names = ("column", "unit", "group_by", "causes", "one_group", "drop_missing", "counts")
    given = {name: getattr(arguments, name) for name in names}
    if arguments.counts and getattr(arguments, "figures", None):
        raise UsageError("--figures shows each call, which the histogram of --counts does not have: omit one of them")
    runs = load(path, rename=renames(arguments.rename), columns=LATENCIES if latencies else COLUMNS, **given)
    return runs.where(**selection(arguments))


def selection(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> allowed values of the selection in `table_arguments`, as `Runs.where` takes them."""
    found = {name: values for name in SELECTED if (values := getattr(arguments, name))}
    for text in arguments.where:
        name, value = _pair("--where", "KEY=VALUE", text)
        if name in found:
            raise UsageError(f"--where gives {name!r} once more: one value of a field is possible")
        found[name] = [value]
    return found


def renames(given: Iterable[str]) -> dict[str, str]:
    """`["Num LSTM layers=layers"]` -> `{"Num LSTM layers": "layers"}`; raises `UsageError` without a `=`."""
    names: dict[str, str] = {}
    for text in given:
        old, new = _pair("--rename", 'OLD=NEW, for example "Average time (s)=latency_s"', text, empty=True)
        if names.setdefault(old, new) != new:
            raise UsageError(f"--rename gives {old!r} two names")
    return names


def deadline_argument(parser: argparse._ActionsContainer, meaning: str, *, required: bool = False) -> None:
    """Add --deadline-us and --deadline-ms; both set `deadline_us`."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--deadline-us", type=float, metavar="US", help=meaning)
    in_ms = "the same deadline in milliseconds"
    group.add_argument("--deadline-ms", type=_us_of_ms, dest="deadline_us", metavar="MS", help=in_ms)


def _us_of_ms(text: str) -> float:
    """Milliseconds to microseconds without rounding errors: 1.1 is 1100."""
    try:
        return float(1000 * Decimal(repr(float(decimal(text)))))
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None


def percentiles_argument(parser: argparse.ArgumentParser) -> None:
    """Add --percentiles."""
    meaning = "percentiles to print, such as 50 99.9 99.99, instead of the usual ones"
    parser.add_argument("--percentiles", nargs="+", default=[], metavar="P", help=meaning)


def clusters_argument(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --clusters."""
    meaning += ", which takes most of the time (default yes)"
    parser.add_argument("--clusters", choices=("yes", "no"), default="yes", help=meaning)


def confidence_argument(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --confidence."""
    from lstm_judge.analysis.quantiles import DEFAULT_CONFIDENCE

    meaning = f"{meaning} (default %(default)s)"
    parser.add_argument("--confidence", type=float, default=DEFAULT_CONFIDENCE, metavar="C", help=meaning)


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def print_answer(answer: Any, form: str, warnings: Iterable[str] = ()) -> None:
    """Print warnings to standard error, then the answer: JSON (`as_dict`), CSV, Markdown or text."""
    warn(warnings)
    if form == "json":
        print_json(answer.as_dict())
    elif form == "csv":
        print(answer.csv_text() if hasattr(answer, "csv_text") else csv_text(answer.frame), end="")
    elif form == "md":
        from lstm_judge.analysis.answers import table_cells

        whole = answer.markdown_text() if hasattr(answer, "markdown_text") else markdown(*table_cells(answer))
        print(whole, end="")
    else:
        show(answer)


def print_answers(arguments: argparse.Namespace, answers: Answers, figures: str = "", *shown: Any, **how: Any) -> int:
    """Print answers with their warnings; with --figures also draw `shown` with the function `figures` of `plots`.

    Returns the exit status of the answers; 3 instead of 0 if recordings are missing from them.
    """
    print_answer(answers, arguments.format, answers.warnings)
    if figures and arguments.figures:
        from lstm_judge import plots

        print_files(getattr(plots, figures)(*shown, arguments.figures, formats=arguments.formats, **how))
    return answers.exit_status or incomplete_status(answers.warnings)


def incomplete_status(warnings: Iterable[str]) -> int:
    """3 if recordings are missing from an answer, else 0."""
    return 3 if any(isinstance(warning, Incomplete) for warning in warnings) else 0


def print_progress(line: str) -> None:
    """Print a progress line to standard error, since a program may read standard output."""
    show(line, sys.stderr)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error, a line per kind."""
    for line in warning_lines(warnings):
        show(line, sys.stderr)


def figure_arguments(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --figures and --formats."""
    from lstm_judge.plots import FORMATS

    parser.add_argument("--figures", type=Path, metavar="DIR", help=meaning)
    formats = "file formats of the figures (default png)"
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["png"], help=formats)


def print_files(paths: Iterable[Path]) -> None:
    """Print the paths of figures to standard error, after everything on standard output."""
    sys.stdout.flush()
    for path in paths:
        print(path, file=sys.stderr)


def stopped(given: Sequence[str], before: str = "") -> int:
    """Print the command that resumes to standard error; returns the exit status after Ctrl-C."""
    show(f"stopped; {before}resume with:\n  {shlex.join(given)}", sys.stderr)
    return EXIT_STOPPED


def conclude(runs: Any, deadline_us: float | None, form: str) -> None:
    """Print which configurations meet a deadline, if one is given; to standard error unless `form` is text."""
    from lstm_judge.analysis.deadline import provable
    from lstm_judge.analysis.text.verdict import names_text

    answers = None if deadline_us is None else provable(runs, deadline_us)
    if answers:
        warn([text for text in answers.warnings if text not in runs.remarks])
        show(names_text(answers), sys.stdout if form == "text" else sys.stderr)


def verdict_status(runs: Any, protocol: Protocol) -> int:
    """Print the verdicts on what was recorded until they are decided to standard error; returns their exit status."""
    from lstm_judge.analysis.deadline import verdict

    answers = verdict(runs, protocol.deadline_us or 0, protocol.percentile or 0)
    print_progress(str(answers))
    return answers.exit_status
