"""Writes streaming_gru.onnx with PyTorch: two GRU layers with state as input and output, and a dense layer.

The input `samples` and the output `outputs` are time x 1 x features, with symbolic time; the state `h0` -> `hn` is
layers x 1 x hidden. The weights are random.
"""

from pathlib import Path

import torch
from torch import nn

FEATURES, HIDDEN, LAYERS, OUTPUTS = 8, 32, 2, 2


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, LAYERS)
        self.dense = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, samples: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = self.gru(samples, state)
        return self.dense(hidden), state


def write(folder: Path) -> Path:
    """Write the file into `folder`; returns its path."""
    torch.manual_seed(1)
    path = folder / "streaming_gru.onnx"
    torch.onnx.export(
        Network().eval(),
        (torch.zeros(20, 1, FEATURES), torch.zeros(LAYERS, 1, HIDDEN)),
        path,
        input_names=["samples", "h0"],
        output_names=["outputs", "hn"],
        dynamic_axes={"samples": {0: "time"}, "outputs": {0: "time"}},
        opset_version=18,
        dynamo=False,
    )
    return path


if __name__ == "__main__":
    write(Path(__file__).parent)
