"""The workloads of four documents on LSTM benchmarks, by name: network, inputs, loss, optimizer, protocol.

`cell`, `layer` and `stack` are from document 000 (TVM against cuDNN), `ptb-lm` from 001 (a language
model on PTB), `text-classifier` from 002, and the four speech workloads from 004. Where a document
does not specify something, `note` states the choice made here. A workload can be scaled: batch,
sequence, lengths and labels are reduced to a given fraction, the network stays the same, and
`label` shows the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lstm_judge.read.labels import command_line
from lstm_trt.config.errors import UsageError, one_of
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import ADDED, Workload, check_whole

if TYPE_CHECKING:
    from pathlib import Path

    from lstm_trt.config.configuration import Configuration

MODES = ("forward", "training")

HEADS = ("none", "every-step", "last-step")

LOSSES = (None, "cross-entropy", "ctc")

OPTIMIZERS = (None, "sgd", "adam")

#: Document 002's workload, and as its programs that differ from it have it.
TEXT = ("text-classifier", "text-classifier-tensorflow", "text-classifier-mxnet", "text-classifier-torch7")

#: Sizes that `variant` may change, by family.
FAMILIES = {
    "layer": ("batch", "sequence", "hidden", "layers"),
    "stack": ("batch", "sequence", "hidden", "layers"),
    **dict.fromkeys(TEXT, ("hidden",)),
}


@dataclass(frozen=True)
class LiteratureWorkload(Workload):
    """One benchmark of the literature; raises `UsageError` for a size below 1 or an unknown head, loss or mode.

    `features` is the input width of the first LSTM layer; with a `vocabulary` the inputs are
    tokens, and an embedding has this width. `head`: a dense layer to `outputs` at "every-step" or
    the "last-step" (`output[-1]` of the last layer), or "none". `lengths` are the smallest and the
    largest sequence length of a batch with variable lengths; those between are random, or at equal distances if
    `even_lengths`. `labels` is the number of labels per sequence for CTC. `warmup` and `batches` are the document's
    protocol.

    Arrays are time-major. Inputs (sequence, batch, features) float32, or tokens (sequence, batch)
    int64; targets int64: (sequence, batch) for every step, (batch,) for the last, (batch, labels)
    for CTC, from 1 on since 0 is the blank.
    """

    KIND = "literature"
    PROGRAM = "lstm-literature"

    name: str
    document: str
    batch: int
    sequence: int
    features: int
    hidden: int
    layers: int = 1
    directions: int = 1
    vocabulary: int | None = None
    head: str = "none"
    outputs: Any = None  # an int, if the head has any
    head_bias: bool = True
    loss: str | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    modes: tuple[str, ...] = ("forward",)
    warmup: int = 10
    batches: int = 100
    lengths: tuple[int, int] | None = None
    labels: Any = None  # an int, for CTC
    scale: str = "1"
    even_lengths: bool = field(default=False, metadata=ADDED)
    #: Choices made where the document does not specify something; not part of the identity.
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "features", "hidden", "layers", "directions", "batches"):
            check_whole(name, getattr(self, name), 1, 1_000_000)
        for name in ("vocabulary", "outputs", "labels"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, 1_000_000)
        object.__setattr__(self, "modes", tuple(self.modes))
        object.__setattr__(self, "lengths", self.lengths and tuple(self.lengths))
        if self.directions > 2:
            raise UsageError(f"directions must be 1 or 2, not {self.directions}")
        for name, known in (("head", HEADS), ("loss", LOSSES), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in known:
                raise UsageError(f"{self.name}: unknown {name} {getattr(self, name)!r}")
        if not self.modes or set(self.modes) - set(MODES):
            raise UsageError(f"{self.name}: modes must be among {', '.join(MODES)}, not {self.modes}")

    @property
    def label(self) -> str:
        """Unique among the documents' workloads, with the scale: `layer-128x8x32`, `ptb-lm@1/8`."""
        label = self.name
        if self.name == "layer":
            label += f"-{self.batch}x{self.sequence}x{self.hidden}"
            if self.layers > 1:
                label += f"-l{self.layers}"
        elif self.name == "stack":
            label += f"-{self.features}x{self.hidden}x{self.sequence}x{self.layers}"
            if self.batch > 1:
                label += f"-b{self.batch}"
        elif self.name in TEXT:
            label += f"-h{self.hidden}"
        return label if self.scale == "1" else f"{label}@{self.scale}"

    @property
    def sizes(self) -> str:
        """All sizes, in the notation of the published tables."""
        text = f"layers {self.layers}"
        if self.directions == 2:
            text += " bidirectional"
        text += f" hidden {self.hidden} input {self.features} sequence {self.sequence} batch {self.batch}"
        for name in ("vocabulary", "outputs", "labels"):
            if getattr(self, name):
                text += f" {name} {getattr(self, name)}"
        if self.lengths:
            text += f" lengths {self.lengths[0]} to {self.lengths[1]}"
        return f"{text} at equal distances" if self.even_lengths else text

    @property
    def shape(self) -> LstmShape:
        """The sizes of the LSTM without embedding and head."""
        return LstmShape(self.layers, self.hidden, self.sequence, self.batch, self.features, self.directions)

    @property
    def width(self) -> int:
        """Width of the last LSTM layer's output at a step."""
        return self.hidden * self.directions

    def title(self, mode: str) -> str:
        return f"{self.label} {mode}"

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """`inputs`: `input_shape`."""
        return {"inputs": self.input_shape}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """`outputs`: `output_shape`."""
        return {"outputs": self.output_shape}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the inputs (float32) or tokens (int64)."""
        return (self.sequence, self.batch) + (() if self.vocabulary else (self.features,))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the outputs (float32)."""
        if self.head == "last-step":
            return (self.batch, self.outputs)
        return (self.sequence, self.batch, self.outputs or self.width)

    @property
    def cells(self) -> int:
        """Number of cells in a forward pass: one per layer, direction and time step."""
        return self.sequence * self.layers * self.directions

    @property
    def cell_weights(self) -> int:
        """Number of weights in the cells' matrix products, for all layers and directions."""
        widths = self.shape.layer_inputs()
        return self.directions * sum(4 * self.hidden * (width + self.hidden) for width in widths)

    @property
    def parameters(self) -> int:
        """Number of trained parameters, with PyTorch's two bias vectors per layer and direction."""
        biases = self.directions * self.layers * 2 * 4 * self.hidden
        head = (self.outputs or 0) * (self.width + self.head_bias)
        return (self.vocabulary or 0) * self.features + self.cell_weights + biases + head

    @property
    def flops(self) -> int:
        """Operations of one forward pass: matrix products only, 2 per weight; variable lengths count as their mean."""
        steps = self.sequence * self.batch
        if self.lengths:
            steps = sum(self.lengths) * self.batch // 2
        head = 2 * self.width * (self.outputs or 0) * (self.batch if self.head == "last-step" else steps)
        return steps * 2 * self.cell_weights + head

    def scaled(self, fraction: Fraction | str) -> LiteratureWorkload:
        """Batch, sequence, lengths and labels times `fraction`, rounded down, at least 1; the network is unchanged.

        Raises `UsageError` unless 0 < fraction <= 1.
        """
        try:
            exact = Fraction(fraction)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            raise UsageError(f"the scale must be a fraction such as 1/8, not {fraction!r}") from None
        if not 0 < exact <= 1:
            raise UsageError(f"the scale must be greater than 0 and at most 1, not {fraction}")

        def part(size: int) -> int:
            return max(1, int(size * exact))

        return replace(
            self,
            batch=part(self.batch),
            sequence=part(self.sequence),
            lengths=None if self.lengths is None else (part(self.lengths[0]), part(self.lengths[1])),
            labels=None if self.labels is None else part(self.labels),
            scale=str(Fraction(self.scale) * exact),
        )

    def variant(self, **sizes: int) -> LiteratureWorkload:
        """Another variant of the family, with the given sizes (`FAMILIES`).

        In these families the input width equals the hidden size, so `features` follows `hidden`.
        Raises `UsageError` for a size that cannot be varied.
        """
        varied = FAMILIES.get(self.name, ())
        for name in sizes:
            if name not in varied:
                known = f"only {', '.join(varied)}" if varied else "its sizes are fixed"
                raise UsageError(f"cannot change {name} of {self.name}: {known}")
        if "hidden" in sizes:
            sizes["features"] = sizes["hidden"]
        return replace(self, **sizes)

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Flags of `versions`: the name, sizes that differ from the default variant's, and the scale."""
        flags = {"--workload": (self.name,)}
        whole = base_of(self)
        for name in FAMILIES.get(self.name, ()):
            size = getattr(whole or self, name)
            if whole is None and name in ("batch", "sequence"):
                size = math.ceil(size / Fraction(self.scale))  # scaling rounds down
            if size != getattr(WORKLOADS[self.name], name):
                flags[f"--{name}"] = (str(size),)
        if self.scale != "1":
            flags["--scale"] = (self.scale,)
        return flags

    def work(self, mode: str) -> int:
        return (3 if mode == "training" else 1) * super().work(mode)

    def command(self, configuration: Configuration, out: str | Path, rounds: int | str | None = None) -> str:
        options = configuration.options
        protocol = configuration.protocol
        line = [
            self.PROGRAM,
            "record",
            self.name,
            "--implementation",
            configuration.runtime,
            "--mode",
            configuration.mode,
        ]
        line += [text for flag, values in self.flags.items() if flag != "--workload" for text in (flag, *values)]
        line += ["--batches", str(protocol.trials), "--warmup", str(protocol.warmup)]
        if options.threads != 1:
            line += ["--threads", str(options.threads)]
        if protocol.seed:
            line += ["--seed", str(protocol.seed)]
        if options.device != "cpu":
            line += ["--device", options.device]
        return command_line(line, out, rounds)


_NO_RUNS = "runs by its programs: 50 means of ten, of the cell 100; here 10 warm-up and 100 timed runs"

_CELL = LiteratureWorkload("cell", "000", batch=128, sequence=1, features=512, hidden=512, note=_NO_RUNS)

_LAYER = LiteratureWorkload("layer", "000", batch=32, sequence=8, features=32, hidden=32, note=_NO_RUNS)

_STACK = LiteratureWorkload(
    "stack", "000", batch=1, sequence=100, features=64, hidden=64,
    note=f"the document does not state the batch size for depths 1 to 20; here 1; {_NO_RUNS}",
)  # fmt: skip

_PTB = LiteratureWorkload(
    "ptb-lm", "001", batch=128, sequence=50, features=128, hidden=256, layers=3, vocabulary=10001,
    head="every-step", outputs=10001, loss="cross-entropy", optimizer="adam", learning_rate=1e-3,
    modes=("forward", "training"), warmup=10, batches=50,
    note="random tokens; the document does not state the optimizer; here Adam with learning rate 1e-3, as in its last"
    " program for PyTorch; those for TensorFlow have 1.0",
)  # fmt: skip

_TEXT = LiteratureWorkload(
    "text-classifier", "002", batch=128, sequence=64, features=128, hidden=128, vocabulary=10000,
    head="last-step", outputs=5, loss="cross-entropy", optimizer="sgd", learning_rate=1e-2,
    modes=("training",), warmup=2, batches=50,
    note="batch and sequence from the document's code; as its programs for Keras, whose default learning rate is 0.01",
)  # fmt: skip

_AS_PROGRAM = "as the document's program for {}; data/published/README.md lists what differs"

_TENSORFLOW = replace(_TEXT, name=TEXT[1], learning_rate=1e-3, note=_AS_PROGRAM.format("TensorFlow, and for Theano"))

_MXNET = replace(_TENSORFLOW, name=TEXT[2], head="every-step", note=_AS_PROGRAM.format("MXNet"))

_TORCH7 = replace(_TEXT, name=TEXT[3], outputs=10000, learning_rate=0.1, note=_AS_PROGRAM.format("Torch7"))

_SPEECH = LiteratureWorkload(
    "speech-ce-short", "004", batch=64, sequence=100, features=123, hidden=320,
    head="last-step", outputs=10, head_bias=False, loss="cross-entropy", optimizer="adam", learning_rate=1e-3,
    modes=("training",), warmup=100, batches=400, note="500 batches, the first 100 of them warm-up",
)  # fmt: skip

_SPEECH_LONG = replace(_SPEECH, name="speech-ce-long", batch=32, sequence=1000)

_SPEECH_BIDIRECTIONAL = replace(_SPEECH_LONG, name="speech-bidirectional-ce-long", layers=4, directions=2)

_SPEECH_CTC = replace(
    _SPEECH_BIDIRECTIONAL, name="speech-ctc-long", head="every-step", outputs=59, loss="ctc", lengths=(500, 1000),
    labels=100,
)  # fmt: skip

_SPEECH_EVEN = replace(_SPEECH_CTC, name="speech-ctc-linspace", even_lengths=True)


#: name -> default variant, in the order of the documents.
WORKLOADS = {
    workload.name: workload
    for workload in (
        _CELL,
        _LAYER,
        _STACK,
        _PTB,
        _TEXT,
        _TENSORFLOW,
        _MXNET,
        _TORCH7,
        _SPEECH,
        _SPEECH_LONG,
        _SPEECH_BIDIRECTIONAL,
        _SPEECH_CTC,
        _SPEECH_EVEN,
    )
}

#: (name of a workload, published name of an implementation) -> the workload as that program of the document has it,
#: where it differs.
AS_THERE = {
    **{(TEXT[0], name.removeprefix(f"{TEXT[0]}-")): name for name in TEXT[1:]},
    (TEXT[0], "theano"): TEXT[1],
    (_SPEECH_CTC.name, ""): _SPEECH_EVEN.name,
    (_SPEECH_CTC.name, "pytorch-one-call-eager"): _SPEECH_EVEN.name,
}


#: (batch, sequence, input = hidden) of document 000's table, including failed rows.
_LAYER_SIZES = (
    (32, 8, 32), (32, 32, 32), (32, 128, 128), (64, 8, 32), (64, 128, 128), (128, 8, 32), (128, 8, 128),
    (128, 10, 128), (128, 16, 128), (128, 32, 32), (128, 32, 128), (128, 64, 128), (128, 100, 128),
    (128, 128, 32), (128, 128, 64), (128, 128, 128), (128, 128, 256), (128, 128, 512), (128, 128, 1024),
    (128, 256, 128), (128, 256, 256), (128, 512, 128), (256, 128, 128), (256, 128, 256), (512, 128, 128),
    (1024, 128, 128),
)  # fmt: skip

_TWO_LAYERS = replace(
    _LAYER.variant(batch=128, sequence=128, hidden=128, layers=2),
    note=f"the document gives the batch as 128(2), taken as two layers since it takes twice the time; {_NO_RUNS}",
)


#: name -> the variants for which the document has figures (or failures).
VARIANTS = {name: (workload,) for name, workload in WORKLOADS.items()} | {
    "layer": (*(_LAYER.variant(batch=m, sequence=n, hidden=k) for m, n, k in _LAYER_SIZES), _TWO_LAYERS),
    "stack": (
        *(_STACK.variant(layers=layers) for layers in (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)),
        replace(_STACK.variant(layers=1, batch=32, sequence=32, hidden=32), note=_NO_RUNS),
    ),
    **{name: tuple(WORKLOADS[name].variant(hidden=128 * 2**power) for power in range(5)) for name in TEXT},
}


def find(name: str) -> LiteratureWorkload:
    """The default variant of the workload with this name; raises `UsageError` for an unknown name."""
    return WORKLOADS[one_of("workload", name, WORKLOADS)]


def base_of(workload: LiteratureWorkload) -> LiteratureWorkload | None:
    """The document's variant from which a scaled workload was made: the first that matches, else None.

    Returns an unscaled workload itself.
    """
    if workload.scale == "1":
        return workload
    for variant in VARIANTS.get(workload.name, ()):
        if variant.scaled(workload.scale) == workload:
            return variant
    return None
