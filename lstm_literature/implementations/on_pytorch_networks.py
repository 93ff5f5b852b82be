"""The literature's networks as PyTorch modules, in four styles; all of them can be scripted.

`basic`: a cell written out with matrix products and pointwise operators, in a Python loop over
time. `fine-grained`: the same with products for each gate, as in document 001.
`fused`: the same loop over `nn.LSTMCell`, which is one fused kernel per step on a GPU and
separate operators on a CPU. `one-call`: `nn.LSTM`. With variable lengths, a loop works like a
packed sequence: the batch shrinks to the sequences that have not ended (and grows again in the
reverse direction), so no step computes padding.

Arguments of a network: inputs; and for variable lengths (else None) `lengths` (batch,) on the
host, `sizes`, the number of running sequences at each step, and `positions`, the indices of the
packed steps in (sequence * batch).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lstm_literature.data import Batch
from lstm_literature.workloads import LiteratureWorkload

#: Name of a weight -> the parameters that hold it: one, or for each gate one, which is transposed.
Parameters = dict[str, list[nn.Parameter]]


class Packing(NamedTuple):
    """Further arguments of a network for variable lengths; all None for fixed lengths."""

    lengths: Tensor | None = None
    sizes: list[int] | None = None
    positions: Tensor | None = None


def packing(workload: LiteratureWorkload, batch: Batch) -> Packing:
    """The packing of a batch with lengths in descending order."""
    if batch.lengths is None:
        return Packing()
    lengths = torch.from_numpy(np.array(batch.lengths, dtype=np.int64))
    if workload.lengths is None:
        return Packing(lengths)
    running = np.arange(workload.sequence)[:, None] < batch.lengths
    return Packing(lengths, running.sum(1).tolist(), torch.from_numpy(np.flatnonzero(running.ravel())))


class BasicCell(nn.Module):
    """The cell written out: two matrix products and pointwise operators; gate order i, f, g, o."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden))

    def forward(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, memory = state
        gates = (
            torch.mm(inputs, self.weight_ih.t()) + self.bias_ih + torch.mm(hidden, self.weight_hh.t()) + self.bias_hh
        )
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
        memory = torch.sigmoid(forget_gate) * memory + torch.sigmoid(input_gate) * torch.tanh(candidate)
        return torch.sigmoid(output_gate) * torch.tanh(memory), memory


def _of_gates(*shape: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.empty(shape)) for _ in range(4)]


class FineGrainedCell(nn.Module):
    """The cell of document 001: each gate has weights and biases of its own, so there are eight matrix products.

    (lcy-seso/Carrot 5223162, benchmarks/rnnlm/pt_model/model/loop_visible_lstm.py.) The matrices are (inputs, hidden).
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih_i, self.weight_ih_f, self.weight_ih_g, self.weight_ih_o = _of_gates(inputs, hidden)
        self.weight_hh_i, self.weight_hh_f, self.weight_hh_g, self.weight_hh_o = _of_gates(hidden, hidden)
        self.bias_ih_i, self.bias_ih_f, self.bias_ih_g, self.bias_ih_o = _of_gates(hidden)
        self.bias_hh_i, self.bias_hh_f, self.bias_hh_g, self.bias_hh_o = _of_gates(hidden)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, memory = state
        i = x.mm(self.weight_ih_i) + self.bias_ih_i + h.mm(self.weight_hh_i) + self.bias_hh_i
        f = x.mm(self.weight_ih_f) + self.bias_ih_f + h.mm(self.weight_hh_f) + self.bias_hh_f
        g = x.mm(self.weight_ih_g) + self.bias_ih_g + h.mm(self.weight_hh_g) + self.bias_hh_g
        o = x.mm(self.weight_ih_o) + self.bias_ih_o + h.mm(self.weight_hh_o) + self.bias_hh_o
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(memory), memory


class Direction(nn.Module):
    """One direction of one layer, a Python loop over the steps; each step is (running, width).

    Sequences are removed from the batch at their end; in the reverse direction they are added there.
    """

    def __init__(self, cell: nn.Module, hidden: int, reverse: bool = False) -> None:
        super().__init__()
        self.cell, self.hidden, self.reverse = cell, hidden, reverse

    def forward(self, steps: list[Tensor]) -> list[Tensor]:
        if self.reverse:
            steps = steps[::-1]
        hidden = steps[0].new_zeros(steps[0].size(0), self.hidden)
        memory = torch.zeros_like(hidden)
        outputs: list[Tensor] = []
        for step in steps:
            joining = step.size(0) - hidden.size(0)
            if joining < 0:
                hidden = hidden[:joining]
                memory = memory[:joining]
            elif joining > 0:
                fresh = step.new_zeros(joining, self.hidden)
                hidden = torch.cat([hidden, fresh])
                memory = torch.cat([memory, fresh])
            hidden, memory = self.cell(step, (hidden, memory))
            outputs.append(hidden)
        if self.reverse:
            outputs.reverse()
        return outputs


class BothWays(nn.Module):
    """A bidirectional layer: concatenates both directions' outputs of each step."""

    def __init__(self, ahead: Direction, behind: Direction) -> None:
        super().__init__()
        self.ahead = ahead
        self.behind = behind

    def forward(self, steps: list[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = []
        for ahead, behind in zip(self.ahead(steps), self.behind(steps)):  # noqa: B905 - TorchScript has no strict
            outputs.append(torch.cat([ahead, behind], 1))
        return outputs


class Network(nn.Module):
    """Embedding and head; subclasses add the LSTM."""

    def __init__(self, workload: LiteratureWorkload) -> None:
        super().__init__()
        self.embedding = nn.Embedding(workload.vocabulary, workload.features) if workload.vocabulary else nn.Identity()
        self.dense: nn.Module = nn.Identity()
        if workload.head != "none":
            self.dense = nn.Linear(workload.width, workload.outputs, bias=workload.head_bias)
        self.last_step = workload.head == "last-step"

    def canonical(self) -> Parameters:
        """The parameters by the names of `data.weight_shapes`, here those of embedding and head."""
        return {name: [weight] for name, weight in self.named_parameters() if name.startswith(("embedding.", "dense."))}


class LoopedNetwork(Network):
    """`basic` and `fused`: embedding, layers of loops over time, head."""

    def __init__(self, workload: LiteratureWorkload, cell: type[nn.Module]) -> None:
        super().__init__(workload)
        self.outputs = workload.outputs or workload.width
        layers: list[nn.Module] = []
        for width in workload.shape.layer_inputs():
            layer: nn.Module = Direction(cell(width, workload.hidden), workload.hidden)
            if workload.directions == 2:
                layer = BothWays(layer, Direction(cell(width, workload.hidden), workload.hidden, reverse=True))
            layers.append(layer)
        self.layers = nn.ModuleList(layers)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None, sizes: list[int] | None, positions: Tensor | None
    ) -> Tensor:
        read = self.embedding(inputs)
        steps: list[Tensor] = []
        if sizes is None:
            steps = list(read.unbind(0))
        else:
            for step, running in enumerate(sizes):
                steps.append(read[step, :running])
        for layer in self.layers:
            steps = layer(steps)
        if self.last_step:
            return self.dense(steps[-1])
        if positions is None:
            return self.dense(torch.stack(steps))
        outputs = self.dense(torch.cat(steps))
        padded = outputs.new_zeros(read.size(0) * read.size(1), self.outputs)
        return padded.index_copy(0, positions, outputs).view(read.size(0), read.size(1), self.outputs)

    def canonical(self) -> Parameters:
        named = super().canonical()
        for path, weight in self.layers.named_parameters():  # such as 0.behind.cell.weight_ih, 0.cell.bias_hh_f
            layer, *way, _, name = path.split(".")
            kind, of, *_ = name.split("_")
            reverse = "_reverse" if way == ["behind"] else ""
            named.setdefault(f"lstm.{kind}_{of}_l{layer}{reverse}", []).append(weight)
        return named


class OneCallNetwork(Network):
    """`one-call`: embedding, `nn.LSTM`, head; sequences of variable length are packed and padded in each call."""

    def __init__(self, workload: LiteratureWorkload) -> None:
        super().__init__(workload)
        self.lstm = nn.LSTM(workload.features, workload.hidden, workload.layers, bidirectional=workload.directions == 2)
        self.packed = workload.lengths is not None

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        sizes: list[int] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        read = self.embedding(inputs)
        if self.packed:
            assert lengths is not None
            every, _ = self.lstm(pack_padded_sequence(read, lengths))
            outputs = PackedSequence(self.dense(every.data), every.batch_sizes, None, None)
            return pad_packed_sequence(outputs, total_length=read.size(0))[0]
        every_step, _ = self.lstm(read)
        return self.dense(every_step[-1] if self.last_step else every_step)

    def canonical(self) -> Parameters:
        return {name: [weight] for name, weight in self.named_parameters()}


class Objective(nn.Module):
    """A network and its loss: the mean cross-entropy over all outputs, or CTC with the defaults of `nn.CTCLoss`."""

    def __init__(self, network: nn.Module, workload: LiteratureWorkload) -> None:
        super().__init__()
        self.network = network
        self.ctc = workload.loss == "ctc"

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        lengths: Tensor | None,
        sizes: list[int] | None,
        positions: Tensor | None,
    ) -> Tensor:
        outputs = self.network(inputs, lengths, sizes, positions)
        if self.ctc:
            assert lengths is not None
            labels = torch.full([targets.size(0)], targets.size(1), dtype=torch.int64)
            return functional.ctc_loss(functional.log_softmax(outputs, 2), targets, lengths, labels)
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def build_network(workload: LiteratureWorkload, style: str) -> Network:
    """The network on the CPU; its weights still have to be loaded."""
    if style == "one-call":
        return OneCallNetwork(workload)
    return LoopedNetwork(workload, {"basic": BasicCell, "fine-grained": FineGrainedCell, "fused": nn.LSTMCell}[style])


def load_weights(parameters: Parameters, weights: dict[str, np.ndarray]) -> None:
    """Copy weights in place, by the names of `data.weight_shapes`."""
    with torch.no_grad():
        for name, held in parameters.items():
            for parameter, part in zip(held, np.split(weights[name], len(held)), strict=True):
                parameter.copy_(torch.from_numpy(part.T if len(held) > 1 else part))
