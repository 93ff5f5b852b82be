"""How LSTM shapes are prepared: seeded weights, exported network, PyTorch's reference outputs,
roofline bound."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lstm_trt.config.configuration import Configuration, Options
from lstm_trt.config.errors import LabError
from lstm_trt.config.libraries import torch
from lstm_trt.config.shape import INPUT, OUTPUT, LstmShape
from lstm_trt.config.workload import Workload
from lstm_trt.export.network import (
    DISTINCT_SEQUENCES,
    build_module,
    make_inputs,
    make_weights,
    reference_outputs,
    to_bfloat16,
)
from lstm_trt.recorder.parity import LEAST_VALUES
from lstm_trt.runtimes.base import Gate, Preparer, Request, Send

#: Number of samples that the parity gate of a stream has at least.
STREAM_SAMPLES = 1000


class ShapePreparer(Preparer):
    """A stacked LSTM with a dense layer; the reference is PyTorch on the CPU in float32."""

    LIBRARIES = ("torch",)

    def reference(
        self, configuration: Configuration, gate_seed: int, reference_path: Path, send: Send
    ) -> dict:
        """Exports to ONNX if the runtime needs it, and sends the roofline bound before anything is
        timed."""
        torch.set_num_threads(1)
        shape, seed, mode = configuration.workload, configuration.protocol.seed, configuration.mode
        network = _network(shape)
        precision = configuration.options.precision
        bound = announced_bound(configuration, send)
        send("stage", stage="export")
        needs_onnx = getattr(self.runtime(configuration.runtime), "NEEDS_ONNX", False)
        exported = _exported(network, seed, mode) if needs_onnx else None
        calls = _calls(shape, mode)
        _, distinct, _ = make_inputs(shape, gate_seed, calls)
        parts = [distinct] if mode == "stream" else np.split(distinct, calls)
        answers = [[reference_outputs(_module(network, seed), part) for part in parts]]
        if precision != Options.precision:
            answers.append(
                [
                    reference_outputs(_module(network, seed, precision), to_bfloat16(part))
                    for part in parts
                ]
            )
        np.save(reference_path, np.stack([np.concatenate(found) for found in answers]))
        return {
            "onnx_path": str(exported.path) if exported else None,
            "provenance": {"network_sha256": exported.sha256 if exported else None, **bound},
        }

    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        shape = configuration.workload
        seed = configuration.protocol.seed
        inputs, _, _ = make_inputs(shape, seed)
        onnx_path = reference["onnx_path"] and Path(reference["onnx_path"])
        weights = {} if onnx_path else _weights(_network(shape), seed)
        return Request(
            shape, configuration.options, {INPUT: inputs}, weights, onnx_path, configuration.mode
        )

    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        """Two sets of inputs, so that a step that ignores its inputs or repeats its last outputs
        fails as well.

        More sets if a call has few outputs (`LEAST_VALUES`). In mode "stream" one long sequence,
        call by call: all outputs must be those of a single pass over it.
        """
        calls = _calls(configuration.workload, configuration.mode)
        inputs, _, which = make_inputs(configuration.workload, reference["gate_seed"], calls)
        expected, *rounded = [
            {OUTPUT: np.stack(np.split(array[:, which], calls)) if calls > 1 else array[:, which]}
            for array in np.load(reference["reference_path"])
        ]
        sets = np.split(inputs, calls) if calls > 1 else [np.zeros_like(inputs), inputs]
        return Gate(
            tuple({INPUT: one_set} for one_set in sets),
            expected,
            reference["gate_seed"],
            every=calls > 1,
            rounded=rounded[0] if rounded else None,
        )


PREPARER = ShapePreparer()


def gate_calls(mode: str, sequence: int, outputs: Iterable[int], least: int) -> int:
    """Number of calls of the parity gate, by the samples of a call and the number of values of each
    output.

    In a stream at least two, since state is carried between them.
    """
    if mode == "stream":
        return max(2, math.ceil(STREAM_SAMPLES / sequence))
    return max(least, *(math.ceil(LEAST_VALUES / max(values, 1)) for values in outputs))


def _calls(shape: LstmShape, mode: str) -> int:
    return gate_calls(
        mode, shape.sequence, [shape.sequence * min(shape.batch, DISTINCT_SEQUENCES)], 1
    )


def _network(shape: LstmShape) -> LstmShape:
    """What all shapes with these weights share."""
    return replace(shape, sequence=1, batch=1)


_weights = lru_cache(maxsize=4)(make_weights)


@lru_cache(maxsize=4)
def _module(network: LstmShape, seed: int, precision: str = Options.precision):
    """The network, with its parameters rounded to bfloat16 for lower precisions, for tf32 only
    those of products."""
    weights = dict(_weights(network, seed))
    for name in weights if precision != Options.precision else ():
        if precision != "tf32" or "weight" in name:
            weights[name] = to_bfloat16(weights[name])
    return build_module(network, weights)


@lru_cache(maxsize=256)
def _exported(network: LstmShape, seed: int, mode: str):
    from lstm_trt.export.to_onnx import export_network

    return export_network(network, seed, _weights(network, seed), mode)


def announced_bound(configuration: Configuration, send: Send) -> dict:
    """The roofline bound of a configuration, or why there is none, as provenance; it is also sent.

    Empty where the measured rates do not apply: they are those of the CPU in float32.
    """
    options = configuration.options
    if (options.device, options.precision) != ("cpu", Options.precision):
        return {}
    bound = roofline_of(configuration.workload, options.threads)
    send("floor", **bound)
    return {
        "floor_ns": bound["floor_ns"],
        "floor_limited_by": bound["limited_by"],
        "floor_missing": bound.get("missing"),
    }


def roofline_of(workload: Workload, threads: int) -> dict:
    """The roofline bound of a workload on this machine's cores; `missing` says why there is none.

    `at_least`: whether a part of the network is not counted.
    """
    from lstm_trt.machine import roofline

    try:
        found = roofline.roofline_bound(workload, roofline.load_rates(threads))
    except (LabError, OSError) as error:
        # If the cache cannot be written, the export reports it with its path, which no recording
        # may have.
        reason = (
            str(error)
            if isinstance(error, roofline.NoBound)
            else "the rates of a core could not be measured"
        )
        return {"floor_ns": None, "limited_by": None, "missing": reason}
    partial = {"at_least": True} if workload.flops is None else {}
    return {"floor_ns": found.total_ns, "limited_by": found.limited_by, **partial}
