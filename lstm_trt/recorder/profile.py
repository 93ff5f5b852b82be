"""How the time of a call is shared among the operators of a network, by ONNX Runtime's own profiler.

The profiler makes calls slower and counts whole microseconds, so only shares are given, of a run of its own in which
nothing is timed. They are those of the operators after ONNX Runtime's optimizations, some of which it has fused.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lstm_trt.config.errors import BuildFailed, any_error
from lstm_trt.export.own_network import OnnxNetwork
from lstm_trt.export.sizes import static_model
from lstm_trt.recorder.preparers.stacked import roofline_of

#: The longest times of each operator are left out: the first call allocates memory, others were interrupted.
CALLS, KEPT = 200, 0.95


def operator_shares(network: OnnxNetwork) -> list[dict]:
    """`operator`, `name` and `time`, the share of the time of ONNX Runtime on one core, the largest first.

    `bound` is the share of a recurrent layer in the roofline bound; None for other operators, and where there is no
    bound. Raises `BuildFailed` if ONNX Runtime does not run the network.
    """
    import onnxruntime

    settings: Any = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level, settings.enable_profiling = 1, 4, True
    content, inputs, times = static_model(network.path, network), network.make_inputs(0), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, any_error(BuildFailed, f"ONNX Runtime does not run {network.name}"):
        settings.profile_file_prefix = str(Path(folder) / "run")
        session: Any = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
        for _ in range(CALLS):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    for event in events:
        name, operator = event["name"].removesuffix("_kernel_time"), event.get("args", {}).get("op_name")
        if name != event["name"] and operator not in ("If", "Loop", "Scan"):  # their operators have events, too
            times[operator, name].append(event["dur"])
    spent = {key: sum(sorted(each)[: math.ceil(KEPT * len(each))]) for key, each in times.items()}
    whole, bound, bounds = sum(spent.values()) or 1, roofline_of(network, 1)["floor_ns"], {}
    for layer in network.recurrent_layers if bound else ():
        alone: Any = SimpleNamespace(recurrent_layers=[layer], least_flops=0, flops=0)
        bounds[layer.name] = (roofline_of(alone, 1)["floor_ns"] or 0) / bound or None
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return [
        {"operator": operator, "name": name, "time": time / whole, "bound": bounds.get(name)}
        for (operator, name), time in ordered
    ]
