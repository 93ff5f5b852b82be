"""PyTorch -> ONNX: a network is exported once with symbolic sizes; each configuration writes its
own (`sizes`).

The TorchScript exporter (`dynamo=False`) is used on purpose. With PyTorch 2.13 the dynamo exporter
fixes the sequence length of the example in a Reshape inside the graph, with `Dim` and `Dim.AUTO`,
although `graph.input` is symbolic; it also takes 2 to 10 s per network instead of 0.1 s, and needs
onnxscript.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from lstm_trt.config.errors import ExportFailed, UsageError, first_line, one_line
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
        **({} if mode == "forward" else {"mode": mode}),
    }
    return cache.fetch(
        "onnx",
        identity,
        ".onnx",
        lambda: _export(shape, weights or make_weights(shape, seed), mode),
    )


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
        size, flops = bytes_text(self.size_bytes), self.shape.flops
        work = f", {number(flops / 1e6)} MFLOP per call" if flops else ""
        states = f", {carried_text(self.shape.states)}" if self.mode == "stream" else ""
        return f"{self.path}: {size}, {self.shape.parameters} parameters{work}{states}"


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
    if isinstance(network, LstmShape):
        require("torch", "onnx")
    folder = files.make_folder(Path(folder))
    if isinstance(network, LstmShape):
        source, name = (
            export_network(network, seed, mode=mode).path,
            f"{network.layers}x{network.hidden}-symbolic",
        )
        name += "-bi" * (network.directions == 2)
    else:
        source, name = network.path, network.name
    content, name = (
        (source.read_bytes(), name) if symbolic else (static_model(source, network), network.label)
    )
    path = files.put(folder / f"{name}{'' if mode == 'forward' else f'-{mode}'}.onnx", content)
    return OnnxFile(path, network, symbolic, cache.sha256(content), len(content), mode)


def _export(shape: LstmShape, weights: dict[str, np.ndarray], mode: str) -> bytes:
    example, both = replace(shape, sequence=3, batch=2), {0: "sequence", 1: "batch"}
    inputs, axes = {INPUT: torch.zeros(example.input_shapes[INPUT])}, {INPUT: both, OUTPUT: both}
    for state in example.states if mode == "stream" else ():
        inputs[state.input] = torch.zeros(state.shape)
        axes |= {name: {1: "batch"} for name in (state.input, state.output)}
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
    **more: Any,
) -> bytes:
    """A module as ONNX, checked; if given, to have `lstm_operators` LSTM operators.

    `more` are further options of `torch.onnx.export`: `input_names` and `output_names`, by default
    one of each, and `dynamic_axes` (input or output -> axis -> symbol); other sizes are those of
    the `example` inputs. `label` names the network in messages. Raises `ExportFailed` if the
    exporter or the ONNX checker fails, with all that they said as its `detail`, which can be pages.
    """
    buffer: Any = io.BytesIO()  # the stub of torch.onnx.export has paths only
    options = {
        "input_names": [INPUT],
        "output_names": [OUTPUT],
        "opset_version": OPSET,
        "dynamo": False,
        **more,
    }
    with tempfile.TemporaryFile() as said:
        try:
            with _printed_into(said), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about its deprecation and about fixed batch sizes
                torch.onnx.export(module, example, buffer, **options)
                model = onnx.load_from_string(buffer.getvalue())
                onnx.checker.check_model(model, full_check=True)
        except Exception as error:  # of any class
            failed = ExportFailed(
                f"PyTorch {torch.__version__} cannot export {label}: {_reason(error)}"
            )
            said.seek(0)
            failed.detail = f"{said.read().decode(errors='replace')}\n{error}"
            raise failed from error
    found = [node.op_type for node in model.graph.node].count("LSTM")
    if lstm_operators not in (None, found):
        raise ExportFailed(
            f"the export of {label} has {found} LSTM operators, not {lstm_operators}"
        )
    return buffer.getvalue()


@contextmanager
def _printed_into(file: IO[bytes]) -> Iterator[None]:
    """Standard output goes into this file, also that of PyTorch's C++ code, which prints a graph
    when it fails."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _reason(error: Exception) -> str:
    """What failed in an export, without PyTorch's graphs and stacks.

    Of a part that PyTorch interprets, the last line says why it failed.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines and "TorchScript interpreter" in lines[0] else first_line(error)
    return one_line(reason.partition("  [Caused by")[0])
