"""What is recorded: the sizes of a stacked LSTM, or a workload of another kind, given by the flags
of that kind.

The module of a kind's flags, in the table `FLAGS`, has

    INSTEAD                         the flag as messages write it: "--onnx FILE"
    add_arguments(group, several)   adds the flags, which take lists where they may if `several`
    given(arguments)                the flag that was given: "--onnx", else None
    from_arguments(arguments)       the workloads, none if the flag was not given; raises
                                    `UsageError` if they are invalid
"""

import argparse
from collections.abc import Collection, Sequence
from typing import Any

from lstm_trt import registry
from lstm_trt.cli.common import field_arguments, given
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count
from lstm_trt.config.shape import AXES, LstmShape
from lstm_trt.config.workload import Workload


def flags_of(kinds: Collection[str] | None = None) -> list[Any]:
    """The modules of the flags of these workload kinds, of all if None."""
    return [
        registry.load_entry("FLAGS", kind)
        for kind in registry.table("FLAGS")
        if kinds is None or kind in kinds
    ]


def workload_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add what is recorded: the sizes of a stacked LSTM, or the flags of other kinds; of lists if
    `several`."""
    field_arguments(parser, LstmShape, several=AXES if several else ())
    own = parser.add_argument_group("your own network or step")
    for flags in flags_of():
        flags.add_arguments(own, several)
    parser.add_argument(
        "--mode",
        choices=("forward", "stream"),
        help="forward: each call is a whole sequence; stream: each call is the next samples,"
        " with the state of the last call (default forward)",
    )


def own_workloads(
    arguments: argparse.Namespace, kinds: Collection[str] | None = None
) -> Sequence[Workload]:
    """The workloads of the kind of which a flag was given; none if there was none.

    Raises `UsageError` if they are invalid, or contradict each other or the sizes of a stacked
    LSTM.
    """
    modules = flags_of(kinds)
    flags = list(filter(None, [module.given(arguments) for module in modules]))
    if flags:
        if getattr(arguments, "grid", None):
            flags.append("--grid")
        flags += [f"--{axis}" for axis in given(arguments, LstmShape)]
    if len(flags) > 1:
        raise UsageError(f"{flags[0]} and {flags[1]} exclude each other: give one of them")
    return [workload for module in modules for workload in module.from_arguments(arguments)]


def one_workload(arguments: argparse.Namespace, kinds: Collection[str] | None = None) -> Workload:
    """The workload of a command that takes one; raises `UsageError` for none or several."""
    own = own_workloads(arguments, kinds)
    if len(own) > 1:
        networks = count(len(own), "network")
        raise UsageError(
            f"the flags give {networks}, but one is needed: lstm-trt sweep records several"
        )
    return own[0] if own else shape_of(arguments, instead_of_sizes(kinds))


def instead_of_sizes(kinds: Collection[str] | None = None) -> str:
    """What can be given instead of the sizes of a stacked LSTM: "--onnx FILE, or --step
    MODULE:FUNCTION"."""
    return ", or ".join(flags.INSTEAD for flags in flags_of(kinds))


def shape_of(arguments: argparse.Namespace, instead: str) -> LstmShape:
    """The given shape; raises `UsageError` for invalid sizes, and for missing ones with what can be
    given `instead`."""
    for axis in ("layers", "hidden", "sequence"):
        if getattr(arguments, axis) is None:
            raise UsageError(f"--{axis} is missing: give the sizes of a stacked LSTM, or {instead}")
    return LstmShape(**given(arguments, LstmShape))
