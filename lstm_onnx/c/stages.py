"""The calls of `kernel.c` that compute a network, and the numbers that they read and write."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_onnx.c.moves import Loop


class Data(np.ndarray):
    """A tensor that varies, as the addresses of its numbers: those of a base are consecutive."""


#: `Data` in annotations: numpy's methods keep the class, but its stubs do not say so.
Addresses = np.ndarray

#: A tensor: `Data`, or another array if it is a constant; None for an input that is left out.
Value = Any


def is_constant(value: Value) -> bool:
    """Whether a tensor is there, and does not vary."""
    return isinstance(value, np.ndarray) and not isinstance(value, Data)


@dataclass
class Layer:
    """A recurrent layer; `kind` as in `kernel.c`, `weights`: W, R and both biases.

    `bounded`: its inputs are outputs of recurrent layers, from -1 to 1. `offset`: that of its
    packed weights, once they are.
    """

    kind: str
    units: int
    features: int
    weights: tuple[np.ndarray, ...] = field(repr=False)
    bounded: bool
    offset: int = 0

    @property
    def gates(self) -> int:
        return {"LSTM": 4, "RNN": 1}.get(self.kind, 3)

    @property
    def gates_of_h(self) -> int:
        """Gates in the first product with h."""
        return {"LSTM": 4, "GRU": 3, "RESET": 2, "RNN": 1}[self.kind]


@dataclass
class Stage:
    """One call: the addresses of the first number read and written, and how many it writes."""

    x: int
    y: int
    size: int

    @property
    def reads(self) -> tuple[int, ...]:
        """All addresses from which it reads on."""
        return (self.x,)

    @property
    def text(self) -> str:
        """What it computes, for the head of the file; nothing for what is around layers."""
        return ""


@dataclass
class Recurrent(Stage):
    rows: int
    layer: int
    width: int
    reverse: bool
    head: str

    @property
    def text(self) -> str:
        return self.head


@dataclass
class Dense(Stage):
    rows: int
    stride: int  # from a row of x to the next
    matrix: np.ndarray  # (k, columns)
    bias: np.ndarray

    @property
    def text(self) -> str:
        return f"dense {' -> '.join(map(str, self.matrix.shape))}"


@dataclass
class Pointwise(Stage):
    function: str
    parameters: tuple[float, ...]

    @property
    def text(self) -> str:
        return self.function


@dataclass
class Binary(Stage):
    other: int
    function: str
    rows: int = 1
    repeated: bool = False  # all rows have the same of `other`

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.x, self.other)


@dataclass
class Copy(Stage):
    """`size` numbers in all, in loops from the outermost to the innermost."""

    loops: tuple[Loop, ...]


@dataclass
class Call(Stage):
    """A function of `kernel.c` with whole numbers, addresses to read, and one to write to."""

    function: str
    numbers: tuple[int, ...]
    others: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.x, *self.others)


@dataclass
class Repeat(Stage):
    """The stages up to `End` for each time step t; writes `y` by rows, none of them read before."""

    rows: int
    head: str

    @property
    def text(self) -> str:
        return self.head


@dataclass
class End(Stage):
    """The end of `Repeat`; what it reads is needed up to here: the next time step reads it too."""

    needed: tuple[int, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        return self.needed
