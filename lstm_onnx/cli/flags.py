"""The flags of ONNX files; `lstm_trt.cli.workloads` states what such a module has."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lstm_trt.cli.common import pair, warn
from lstm_trt.config.errors import UsageError, refused
from lstm_trt.config.format import decimal

if TYPE_CHECKING:
    from lstm_onnx.own_network import OnnxNetwork

INSTEAD = "--onnx FILE"

T = TypeVar("T")


def add_arguments(group: argparse._ActionsContainer, several: bool = False) -> None:
    """Add ONNX files (one, or a list if `several`), their sizes, inputs and states."""
    group.add_argument(
        "--onnx",
        type=Path,
        nargs="+" if several else 1,
        metavar="FILE",
        help=f"ONNX file{'s' if several else ''} instead of a stacked LSTM",
    )
    input_arguments(group, several)
    group.add_argument(
        "--state",
        nargs="+",
        action="extend",
        default=[],
        metavar="INPUT=OUTPUT",
        help="input and output that a stream carries (default: those that are recognized by their"
        " names)",
    )


def input_arguments(parser: argparse._ActionsContainer, several: bool = False) -> None:
    """Add --size, --value and --inputs."""
    add = parser.add_argument
    values, example = ("value or values", "16,64") if several else ("value", "64")
    add(
        "--size",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=N",
        help=f"{values} of a symbolic size of the ONNX file, for example --size time={example}",
    )
    add(
        "--value",
        nargs="+",
        action="extend",
        default=[],
        metavar="INPUT=N",
        help="number of an input that is made a constant of the network, for example --value"
        " sr=16000",
    )
    add(
        "--inputs",
        type=Path,
        metavar="FILE.npz",
        help="file of inputs by name, as numpy.savez writes it; it also gives their sizes (default:"
        " random numbers)",
    )


def given(arguments: argparse.Namespace) -> str | None:
    """The flag, if files were given."""
    return "--onnx" if arguments.onnx else None


def from_arguments(arguments: argparse.Namespace) -> Sequence[OnnxNetwork]:
    """The networks of the files, one for each combination of the values of `--size`.

    Raises `UsageError` if a flag is invalid, names what no file has, or is given without files.
    """
    if not arguments.onnx:
        for flag in ("size", "value", "state", "inputs"):
            if getattr(arguments, flag, None):
                raise UsageError(f"--{flag} is for ONNX files: give one with --onnx")
        return []
    from lstm_onnx.own_network import OnnxNetwork
    from lstm_onnx.read_onnx import OnnxFile, symbols_in

    sizes = _size_values(arguments.size)
    numbers = _numbers(arguments.value)
    states = dict(pair("--state", "INPUT=OUTPUT", text) for text in getattr(arguments, "state", ()))
    files = [OnnxFile.read(path) for path in dict.fromkeys(arguments.onnx)]
    symbols = [symbols_in(file.shapes) for file in files]
    networks = []
    for file, own in zip(files, symbols, strict=True):
        sizes_of_file = _of_file(own, symbols, sizes)
        constants = _of_file(file.shapes, [each.shapes for each in files], numbers)
        for values in itertools.product(*sizes_of_file.values()):
            networks.append(
                OnnxNetwork(
                    file,
                    sizes=dict(zip(sizes_of_file, values, strict=True)),
                    constants=constants,
                    states=states or None,
                    inputs=arguments.inputs,
                )
            )
    warn(dict.fromkeys(warning for network in networks for warning in network.warnings))
    return networks


def _of_file(
    own: Iterable[str], names: Iterable[Iterable[str]], values: Mapping[str, T]
) -> dict[str, T]:
    """The values that are for a file with its `own` names, by the `names` of each; what no file has
    goes to all, and the first refuses it."""
    others = set().union(*names).difference(own)
    return {name: value for name, value in values.items() if name not in others}


def _size_values(texts: Iterable[str]) -> dict[str, list[int]]:
    """`["time=16,64", "batch=1"]` -> `{"time": [16, 64], "batch": [1]}`."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, values = pair("--size", "NAME=N", text)
        if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", values):
            raise UsageError(f"--size {name} needs whole numbers, not {values!r}")
        found[name] = list(dict.fromkeys([*found.get(name, []), *map(int, values.split(","))]))
    return found


def _numbers(texts: Iterable[str]) -> dict[str, float]:
    """`["sr=16000", "gain=0.5"]` -> `{"sr": 16000, "gain": 0.5}`."""
    found: dict[str, float] = {}
    with refused("--value needs numbers", ValueError):
        for text in texts:
            name, value = pair("--value", "INPUT=N", text)
            number = decimal(value)
            found[name] = int(number) if value.lstrip("+-").isdecimal() else float(number)
    return found
