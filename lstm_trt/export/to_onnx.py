"""PyTorch -> ONNX: a network is exported once with symbolic sizes; each configuration writes its
own (`sizes`).

The TorchScript exporter (`dynamo=False`) is used on purpose. With PyTorch 2.13 the dynamo exporter
fixes the sequence length of the example in a Reshape inside the graph, with `Dim` and `Dim.AUTO`,
although `graph.input` is symbolic; it also takes 2 to 10 s per network instead of 0.1 s, and needs
onnxscript.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt.config.errors import ExportFailed, UsageError, any_error, first_line
from lstm_trt.config.format import bytes_text, number
from lstm_trt.config.libraries import installed_version, onnx, require, torch
from lstm_trt.config.shape import INPUT, OUTPUT, LstmShape
from lstm_trt.config.workload import Workload, carried_text
from lstm_trt.export.network import build_module, make_weights
from lstm_trt.export.sizes import static_model
from lstm_trt.store import cache, files

OPSET = 18

#: Part of the cache key: increase it whenever the output of this module changes.
RECIPE = 1


def export_network(
    shape: LstmShape,
    seed: int = 0,
    weights: dict[str, np.ndarray] | None = None,
    mode: str = "forward",
) -> cache.Entry:
    """The ONNX file of a shape with symbolic sequence and batch, from the cache or exported now.

    In mode "stream" its states are inputs and outputs. `weights` are those of `make_weights(shape,
    seed)`, if they already exist. Raises `ExportFailed` if the exporter or the ONNX checker fails,
    `UsageError` for a negative seed.
    """
    if seed < 0:
        raise UsageError(f"seed must be at least 0, not {seed}")
    identity = {
        "network": shape.network,
        "seed": seed,
        "opset": OPSET,
        "recipe": RECIPE,
        "torch": installed_version("torch"),
        "onnx": installed_version("onnx"),
    }
    if mode != "forward":
        identity["mode"] = mode

    def make() -> bytes:
        return _export(shape, weights or make_weights(shape, seed), mode)

    return cache.fetch("onnx", identity, ".onnx", make)


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


def _export(shape: LstmShape, weights: dict[str, np.ndarray], mode: str) -> bytes:
    example = replace(shape, sequence=3, batch=2)
    inputs = {INPUT: torch.zeros(example.input_shapes[INPUT])}
    sequence_and_batch = {0: "sequence", 1: "batch"}
    axes = {INPUT: sequence_and_batch, OUTPUT: sequence_and_batch}
    if mode == "stream":
        for state in example.states:
            inputs[state.input] = torch.zeros(state.shape)
            axes[state.input] = axes[state.output] = {1: "batch"}
    content = export_module(
        build_module(shape, weights, mode),
        tuple(inputs.values()),
        shape.label,
        shape.layers,
        dynamic_axes=axes,
        input_names=list(inputs),
        output_names=[name for name in axes if name not in inputs],
    )
    graph = onnx.load_from_string(content).graph
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if not all(dims[axis].dim_param for axis in axes[value.name]):
            raise ExportFailed(
                f"the exporter fixed a symbolic size of {value.name} of {shape.label}"
            )
    return content


def export_module(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    label: str,
    lstm_operators: int | None = None,
    reason: Callable[[Exception], str] = first_line,
    **options: Any,
) -> bytes:
    """A module as ONNX, checked; if given, to have `lstm_operators` LSTM operators.

    `options` are those of `torch.onnx.export`: `input_names` and `output_names`, by default one of
    each, and `dynamic_axes` (input or output -> axis -> symbol); other sizes are those of the
    `example` inputs. `label` names the network in messages. Raises `ExportFailed` with the `reason`
    if the exporter or the ONNX checker fails.
    """
    buffer: Any = io.BytesIO()  # the stub of torch.onnx.export has paths only
    options = {"input_names": [INPUT], "output_names": [OUTPUT], **options}
    failed = f"PyTorch {torch.__version__} cannot export {label}"
    with any_error(ExportFailed, failed, reason), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its deprecation and about fixed batch sizes
        torch.onnx.export(module, example, buffer, opset_version=OPSET, dynamo=False, **options)
        model = onnx.load_from_string(buffer.getvalue())
        onnx.checker.check_model(model, full_check=True)
    found = [node.op_type for node in model.graph.node].count("LSTM")
    if lstm_operators not in (None, found):
        raise ExportFailed(
            f"the export of {label} has {found} LSTM operators, not {lstm_operators}"
        )
    return buffer.getvalue()
