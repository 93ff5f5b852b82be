"""PyTorch modules of users as workloads: exported to ONNX, with PyTorch's outputs to check against.

Of what the exporter says, which can be pages, a message has only the reason.
"""

from __future__ import annotations

import ctypes
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from lstm_onnx.own_network import OnnxNetwork, read_arrays
from lstm_trt.config.errors import (
    ExportFailed,
    UsageError,
    any_error,
    first_line,
    nearest,
    one_line,
)
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import require, torch
from lstm_trt.export.to_onnx import export_module
from lstm_trt.store import cache

#: Ending of the file in the cache that has PyTorch's inputs and outputs of an exported module.
ANSWERS = ".torch.npz"


def TorchNetwork(
    module: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, Any]] | None = None,
    sizes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    inputs: str | Path | None = None,
) -> OnnxNetwork:
    """A PyTorch module in evaluation mode as an `OnnxNetwork`: exported, with PyTorch's outputs to
    check against.

    Dropout is left out, also of a module in training mode, which stays in that mode. Packed
    sequences inside `forward` become sequence lengths. Names of inputs are by default those of the
    parameters of `forward` (of a traced module `input0` and so on), those of outputs `output`, or
    `output0`, `output1` and so on (tuples and dictionaries in the order of their tensors).
    `dynamic_axes` makes sizes symbolic (input or output -> axis -> symbol, a name or a
    `torch.export.Dim`), and `sizes` gives their values (default: those of the example). Raises
    `ExportFailed` if PyTorch cannot export the module, or if its outputs are random, `UsageError`
    as `OnnxNetwork` does, and `NotInstalled` without PyTorch.
    """
    require("torch")
    example = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else (*example_inputs,)
    if not all(isinstance(tensor, torch.Tensor) for tensor in example):
        raise UsageError(
            "example_inputs must be a tensor or a sequence of tensors, in the order of the module's"
            " parameters"
        )
    name = name or type(module).__name__
    with _evaluating(module, name):
        if any(getattr(part, "proj_size", 0) for part in module.modules()):
            raise ExportFailed(
                f"{name} has an LSTM with proj_size, which ONNX does not have: record it with"
                " --step"
            )
        probe, results = _answered(module, example, name)
        parameters = as_list(input_names or _parameters(module, len(example)))
        numbered = [f"output{index}" for index in range(len(results))]
        answers = as_list(output_names or (numbered if len(results) > 1 else ["output"]))
        arguments = _by_name(name, "input", parameters, probe)
        outputs = _by_name(name, "output", answers, results)
        axes, own_sizes = _axes(dynamic_axes or {}, arguments, outputs)
        content = exported(
            module, example, name, input_names=parameters, output_names=answers, dynamic_axes=axes
        )
    network = OnnxNetwork(
        content, name=name, sizes={**own_sizes, **(sizes or {})}, states=states, inputs=inputs
    )
    _keep_answers(network, arguments, outputs)
    return network


def _keep_answers(network: OnnxNetwork, inputs: Mapping, outputs: Mapping) -> None:
    arrays: dict[str, Any] = {f"input/{name}": tensor for name, tensor in inputs.items()}
    arrays |= {f"output/{name}": tensor.float() for name, tensor in outputs.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    cache.keep("onnx", network.sha256, ANSWERS, buffer.getvalue())


def torch_answers(
    network: OnnxNetwork,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """Inputs and PyTorch's outputs of a `TorchNetwork` at the sizes of its example; None for other
    networks."""
    stored = cache.stored("onnx", network.sha256, ANSWERS)
    if stored is None:
        return None
    arrays = read_arrays(stored.path)
    inputs = {name: arrays[f"input/{name}"] for name in network.input_shapes}
    outputs = {name: arrays[f"output/{name}"] for name in network.output_shapes}
    return inputs, outputs


@contextmanager
def _evaluating(module: torch.nn.Module, name: str) -> Iterator[None]:
    """The module in evaluation mode, and then in its own mode again."""
    with any_error(
        UsageError,
        f"{name} has no evaluation mode: give the module itself, not what was exported from it",
    ):
        training = module.training
        module.train(training)
    module.eval()
    try:
        yield
    finally:
        module.train(training)


#: A text, since looking at `torch` needs PyTorch.
Tensors: TypeAlias = "tuple[torch.Tensor, ...]"


def _answered(module: torch.nn.Module, example: Tensors, name: str) -> tuple[Tensors, Tensors]:
    """Random inputs like the example, and the module's outputs; raises `ExportFailed` if these are
    random."""
    from torch.utils import _pytree

    with any_error(ExportFailed, f"{name} cannot be run with the example inputs"), torch.no_grad():
        probe = tuple(torch.randn_like(x) if x.is_floating_point() else x for x in example)
        runs = []
        for _ in range(2):
            leaves = _pytree.tree_leaves(module(*probe))
            runs.append(tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
        for one, other in zip(*runs, strict=True):
            if not one.float().allclose(other.float(), equal_nan=True):
                raise ExportFailed(
                    f"the outputs of {name} are random, by a dropout with training=True for example"
                )
    return probe, runs[0]


def _parameters(module: torch.nn.Module, count: int) -> list[str]:
    """Names of the first parameters of `forward`."""
    try:
        return list(inspect.signature(module.forward).parameters)[:count]
    except ValueError:  # a traced module has no signature
        return [f"input{index}" for index in range(count)]


def _by_name(name: str, what: str, names: Sequence[str], tensors: Tensors) -> dict[str, Any]:
    if len(names) != len(tensors):
        raise UsageError(f"{name} has {len(tensors)} {what}s, but {len(names)} names were given")
    return dict(zip(names, tensors, strict=True))


def _axes(
    given: Mapping[str, Mapping[int, Any]], inputs: Mapping, outputs: Mapping
) -> tuple[dict[str, dict[int, str]], dict[str, int]]:
    """`dynamic_axes` with the name of each `torch.export.Dim`, which is that of a class, and the
    size of each symbol of an input in the example.

    Raises `UsageError` for an unknown input or output, or an axis that it lacks; PyTorch would
    ignore them.
    """
    tensors = {**inputs, **outputs}
    named: dict[str, dict[int, str]] = {}
    sizes = {}
    for name, axes in given.items():
        if name not in tensors:
            raise UsageError(
                f"dynamic_axes: no input or output is called {name!r}{nearest(name, tensors)}:"
                f" there are {listed(tensors)}"
            )
        named[name] = {}
        shape = tensors[name].shape
        for axis, size in axes.items():
            symbol = named[name][axis] = getattr(size, "__name__", size)
            if not isinstance(symbol, str):
                raise UsageError(
                    f"dynamic_axes: the axis {axis} of {name!r} needs a name, not {symbol!r}"
                )
            if axis not in range(len(shape)):
                raise UsageError(
                    f"dynamic_axes: {name!r} has the axes 0 to {len(shape) - 1}, not {axis!r}"
                )
            if name in inputs:
                sizes[symbol] = shape[axis]
    return named, sizes


def exported(
    module: torch.nn.Module, example: tuple[torch.Tensor, ...], name: str, **options: Any
) -> bytes:
    """`export_module`; raises `ExportFailed` with the path of a file that has all that the exporter
    said, which can be pages."""
    with tempfile.TemporaryFile() as said:
        try:
            with _printed_into(said):
                return export_module(module, example, name, reason=_reason, **options)
        except ExportFailed as error:
            said.seek(0)
            text = said.read() + f"\n{error.__cause__}".encode()
            log = cache.keep("exporter", cache.sha256(text), ".txt", text).path
            raise ExportFailed(f"{error}; the exporter's own text: {log}") from None


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


def _reason(error: BaseException) -> str:
    """What failed in an export, without PyTorch's graphs and stacks.

    Of a part that PyTorch interprets, the last line says why it failed.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines and "TorchScript interpreter" in lines[0] else first_line(error)
    return one_line(reason.partition("  [Caused by")[0])
