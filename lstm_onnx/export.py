"""Networks as ONNX files: of shapes, and of users, with all sizes written into the graph or symbolic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lstm_trt.config.format import bytes_text, number
from lstm_trt.config.libraries import require
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import Workload, carried_text
from lstm_trt.export.sizes import static_model
from lstm_trt.export.to_onnx import OPSET, export_network
from lstm_trt.store import cache, files


@dataclass(frozen=True)
class OnnxFile:
    """The ONNX file that `export_onnx` wrote; `symbolic` states whether sequence and batch are
    symbolic."""

    path: Path
    shape: Workload
    symbolic: bool
    sha256: str
    size_bytes: int
    mode: str = "forward"

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "path": str(self.path),
            "sha256": self.sha256,
            "bytes": self.size_bytes,
            "shape": self.shape.axes,
            "symbolic": self.symbolic,
            "mode": self.mode,
            "opset": OPSET,
            "parameters": self.shape.parameters,
            "flops": self.shape.flops,
        }

    def __str__(self) -> str:
        flops = self.shape.flops
        parts = [bytes_text(self.size_bytes), f"{self.shape.parameters} parameters"]
        if flops:
            parts.append(f"{number(flops / 1e6)} MFLOP per call")
        if self.mode == "stream":
            parts.append(carried_text(self.shape.states))
        return f"{self.path}: {', '.join(parts)}"


def export_onnx(
    shape: Workload,
    folder: str | Path = ".",
    *,
    symbolic: bool = False,
    seed: int = 0,
    mode: str = "forward",
) -> OnnxFile:
    """Write the network of a shape, or an `OnnxNetwork`, into `folder`, with static sizes unless
    `symbolic`.

    In mode "stream" the states h and c are the inputs `h0`, `c0` and the outputs `hn`, `cn`,
    (layers, batch, hidden). Raises `UsageError` if the folder cannot be written or the shape does
    not have the mode, and the errors of `export_network`.
    """
    network: Any = shape.in_mode(mode)
    stacked = isinstance(network, LstmShape)
    if stacked:
        require("torch", "onnx")
    folder = files.make_folder(Path(folder))
    source = export_network(network, seed, mode=mode).path if stacked else network.path
    if not symbolic:
        name = network.label
    elif not stacked:
        name = network.name
    else:
        name = f"{network.layers}x{network.hidden}-symbolic"
        if network.directions == 2:
            name += "-bi"
    if mode != "forward":
        name += f"-{mode}"
    content = source.read_bytes() if symbolic else static_model(source, network)
    path = files.put(folder / f"{name}.onnx", content)
    return OnnxFile(path, network, symbolic, cache.sha256(content), len(content), mode)
