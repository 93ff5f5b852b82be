"""The shape of a stacked LSTM, and grids of shapes.

The network has `features` inputs, `layers` LSTM layers of `hidden` units that return the output of
every step, and a dense layer to one output at each step. In the mode "stream", `sequence` is the
number of samples of one call, and the states h and c are carried from call to call. Arrays are
time-major: inputs (sequence, batch, features), outputs (sequence, batch, 1), float32.
"""

# A kind is frozen, so it may compute as a property what `Workload` has as a constant.
# pyright: reportIncompatibleVariableOverride=false

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import about, as_list, described
from lstm_trt.config.workload import AXES, RecurrentLayer, State, Workload, check_whole

FLOAT32_BYTES = 4

#: Names of the input and of the output.
INPUT, OUTPUT = "inputs", "outputs"


@dataclass(frozen=True, order=True)
class LstmShape(Workload):
    """Sizes of one stacked LSTM with a dense layer to one output; raises `UsageError` for a size
    below 1."""

    KIND = "stacked-lstm"
    modes = ("forward", "stream")

    layers: int = described(help="stacked LSTM layers", unit="layer", kept=True)
    hidden: int = described(
        help="hidden units per layer", heading="hidden size", unit="unit", kept=True
    )
    sequence: int = described(help="time steps", heading="sequence length", unit="step", kept=True)
    batch: int = described(1, help="batch size", heading="batch size", unit="sample", kept=True)
    features: int = described(12, help="inputs per time step", heading="input features")
    directions: int = described(1, help="1, or 2 for bidirectional")

    def __post_init__(self) -> None:
        for axis in AXES:
            check_whole(axis, getattr(self, axis), 1, 1_000_000)
        if self.directions > 2:
            raise UsageError(f"directions must be 1 or 2, not {self.directions}")

    @property
    def label(self) -> str:
        """Short and unique, usable in a file name: `2x200-s128-b1`."""
        tail = f"-f{self.features}" if self.features != 12 else ""
        tail += "-bi" if self.directions == 2 else ""
        return f"{self.layers}x{self.hidden}-s{self.sequence}-b{self.batch}{tail}"

    @property
    def network(self) -> tuple[int, int, int, int]:
        """The sizes that determine the weights: (layers, hidden, features, directions)."""
        return (self.layers, self.hidden, self.features, self.directions)

    def layer_inputs(self) -> list[int]:
        """Input width of each layer."""
        return [self.features] + [self.hidden * self.directions] * (self.layers - 1)

    @property
    def parameters(self) -> int:
        """Number of parameters, with PyTorch's two bias vectors per layer and direction."""
        dense = self.hidden * self.directions + 1
        shapes = (layer.weight_shapes.values() for layer in self.recurrent_layers)
        return sum(map(math.prod, itertools.chain(*shapes))) + dense

    @property
    def recurrent_layers(self) -> tuple[RecurrentLayer, ...]:
        direction = "bidirectional" if self.directions == 2 else "forward"
        sizes = (self.sequence, self.batch, direction)
        return tuple(
            RecurrentLayer("LSTM", self.hidden, width, *sizes) for width in self.layer_inputs()
        )

    @property
    def flops(self) -> int:
        """Of a forward pass, matrix products only: multiplications and additions, 2 per weight."""
        dense = 2 * self.hidden * self.directions * self.sequence * self.batch
        return sum(layer.flops for layer in self.recurrent_layers) + dense

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """`inputs`: (sequence, batch, features), float32."""
        return {INPUT: (self.sequence, self.batch, self.features)}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """`outputs`: (sequence, batch, 1), float32."""
        return {OUTPUT: (self.sequence, self.batch, 1)}

    @property
    def states(self) -> tuple[State, ...]:
        """`h0` -> `hn` and `c0` -> `cn`: (layers, batch, hidden), float32."""
        sizes = (self.layers, self.batch, self.hidden)
        return (State("h0", "hn", sizes), State("c0", "cn", sizes))

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        flags: dict[str, tuple[str, ...]] = {}
        for axis, field in FIELDS.items():
            size = getattr(self, axis)
            if field.kept or field.default != size:
                flags[f"--{axis}"] = (str(size),)
        return flags

    def check_mode(self, mode: str) -> None:
        super().check_mode(mode)
        if mode == "stream" and self.directions == 2:
            reason = "a bidirectional network reads the whole sequence before its first output"
            raise UsageError(f"{self.label} cannot be used in the mode stream: {reason}")

    def group_fields(self, mode: str) -> dict[str, object]:
        return {} if mode == "forward" else {"mode": mode}


#: What is known of the sizes: axis -> heading, flag and so on.
FIELDS = about(LstmShape)


@dataclass(frozen=True)
class Grid:
    """All combinations of the given sizes, as shapes; duplicates are dropped, the order is kept."""

    layers: tuple[int, ...]
    hidden: tuple[int, ...]
    sequence: tuple[int, ...]
    batch: tuple[int, ...] = (1,)
    features: tuple[int, ...] = (12,)
    directions: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for field in fields(self):
            values = tuple(dict.fromkeys(as_list(getattr(self, field.name))))
            if not values:
                raise UsageError(f"{field.name} needs at least one value")
            object.__setattr__(self, field.name, values)
        list(self)  # check every shape now, not in the middle of a sweep

    def __iter__(self) -> Iterator[LstmShape]:
        return itertools.starmap(
            LstmShape, itertools.product(*(getattr(self, axis) for axis in AXES))
        )

    def __len__(self) -> int:
        return math.prod(len(getattr(self, axis)) for axis in AXES)


#: The grid of document 003: 5 x 8 x 5 x 10 = 2000 shapes.
PUBLISHED_003 = Grid(
    layers=(1, 2, 3, 4, 6),
    hidden=(32, 64, 100, 128, 200, 256, 300, 400),
    sequence=(32, 64, 128, 200, 256),
    batch=tuple(2**power for power in range(10)),
)


GRIDS = {"published-003": PUBLISHED_003}
