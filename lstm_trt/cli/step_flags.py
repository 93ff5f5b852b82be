"""The flags of a step of one's own; `workloads` states what such a module has."""

import argparse
from collections.abc import Sequence

from lstm_trt.config.step import Step

INSTEAD = "--step"


def add_arguments(group: argparse._ActionsContainer, several: bool) -> None:
    """Add --step."""
    group.add_argument(
        "--step",
        nargs="+" if several else 1,
        metavar="MODULE:FUNCTION",
        help="function without arguments that returns what is timed:"
        " a callable, or an object with a method step",
    )


def given(arguments: argparse.Namespace) -> str | None:
    """The flag, if it was given."""
    return "--step" if arguments.step else None


def from_arguments(arguments: argparse.Namespace) -> Sequence[Step]:
    """The steps that were given."""
    return [Step(function) for function in arguments.step or ()]
