"""Writes conv_lstm_dense.onnx with PyTorch: a convolution over time, an LSTM and a dense layer, with random weights.

The input `samples` and the output `outputs` are batch x time x features, with symbolic batch and time.
"""

from pathlib import Path

import torch
from torch import nn

FEATURES, FILTERS, HIDDEN, OUTPUTS = 8, 16, 32, 2


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(FEATURES, FILTERS, kernel_size=5, padding=2)
        self.lstm = nn.LSTM(FILTERS, HIDDEN)
        self.dense = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        filtered = torch.relu(self.convolution(samples.transpose(1, 2)))
        hidden, _ = self.lstm(filtered.permute(2, 0, 1))
        return self.dense(hidden.transpose(0, 1))


def write(folder: Path) -> Path:
    """Write the file into `folder`; returns its path."""
    torch.manual_seed(1)
    path, symbols = folder / "conv_lstm_dense.onnx", {0: "batch", 1: "time"}
    torch.onnx.export(
        Network().eval(),
        (torch.zeros(2, 20, FEATURES),),
        path,
        input_names=["samples"],
        output_names=["outputs"],
        dynamic_axes={"samples": symbols, "outputs": symbols},
        opset_version=18,
        dynamo=False,
    )
    return path


if __name__ == "__main__":
    write(Path(__file__).parent)
