"""Arguments that several commands share: shapes, runtimes, trials, arrivals. Importing this loads nothing."""

from __future__ import annotations

import argparse

from lstm_trt.errors import UsageError

#: As `configuration.TIERS`, `.ARRIVALS` and `.WAITS`, which the parser need not load.
TIERS, ARRIVALS, WAITS = ("look", "compare", "certify"), ("closed", "periodic", "paused"), ("spin", "sleep", "os")


def shape_arguments(parser: argparse.ArgumentParser, many: bool, required: bool = True) -> None:
    """The sizes of one shape, or of `many`."""
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


def shape_of(arguments: argparse.Namespace):
    """The one shape that was given; raises `UsageError` where a size is missing or impossible."""
    from lstm_trt.shapes import AXES, LstmShape

    for axis in ("layers", "hidden", "sequence"):
        if not hasattr(arguments, axis):
            raise UsageError(f"--{axis} is missing: give the shape's sizes, or --onnx FILE")
    return LstmShape(**{axis: getattr(arguments, axis) for axis in AXES if hasattr(arguments, axis)})


def runtime_arguments(parser: argparse.ArgumentParser) -> None:
    """How a runtime is asked to run, and how many trials there are, and when."""
    add = parser.add_argument
    add("--precision", default="fp32", help="fp32, tf32, fp16, bf16 or int8, as the runtime offers")
    add("--threads", type=int, default=1, metavar="K", help="threads, each pinned to a core (default 1)")
    add("--device", default=None, help="cpu or cuda; the runtime's own choice if not given")
    add("--graph", action="store_true", help="launch a CUDA graph, where the runtime offers the choice")
    add("--device-clocks", default="off", choices=("off", "compute", "all"), help="clocks on the GPU")
    add("--trials", type=int, default=None, metavar="N", help="timed trials (default 1000)")
    add("--tier", choices=TIERS, default=None, help="trials by name: look 1000, compare 10000, certify 30000")
    add("--warmup", type=int, default=10, metavar="N", help="warm-up trials, kept and marked (default 10)")
    add("--arrival", choices=ARRIVALS, default="closed", help="when the next call begins: when the last returns")
    add("--period-us", type=float, default=None, metavar="US", help="periodic: a call is due each so many us")
    add("--wait", choices=WAITS, default=None, help="periodic: how it waits (default spin; sleep spins at the end)")
    add("--pause-ms", type=float, default=None, metavar="MS", help="paused: idle for so long before each call")
    add("--seed", type=int, default=0, help="of weights, inputs and the sweep's order (default 0)")
    add("--time-limit", type=float, default=None, metavar="S", help="seconds a configuration may take")


def trials_of(arguments: argparse.Namespace) -> int:
    """The number that was given, or that the tier means; raises `UsageError` where both are, and differ."""
    from lstm_trt.configuration import TIERS

    if arguments.tier is None:
        return 1000 if arguments.trials is None else arguments.trials
    trials = TIERS[arguments.tier]
    if arguments.trials not in (None, trials):
        raise UsageError(f"--tier {arguments.tier} means {trials} trials, --trials says {arguments.trials}: give one")
    return trials


def arrival_of(arguments: argparse.Namespace) -> dict:
    """What `Protocol` has beside the number of trials."""
    names = ("warmup", "seed", "arrival", "wait", "period_us", "pause_ms")
    return {name: getattr(arguments, name) for name in names}


def options_of(arguments: argparse.Namespace) -> dict:
    """What `describe_configuration` has beside shape, runtime and protocol."""
    names = ("precision", "threads", "device", "graph", "device_clocks")
    return {name: getattr(arguments, name) for name in names}
