"""TensorRT: the exported network as an engine built for this machine's GPU.

A trial is copy in, enqueue or graph launch, copy out, wait (`_tensorrt.py`). Each LSTM
layer is a loop of one or two kernels per time step, so without a graph a trial is limited
by kernel launches: measure `--graph` first.
"""

from types import ModuleType
from typing import Any

from lstm_trt.runtimes.cuda import _tensorrt


def _open(trt: ModuleType, engine: Any, plan_sha256: str) -> _tensorrt.Opened:
    return _tensorrt.Opened(engine.create_execution_context())


RUNTIME = _tensorrt.TensorRtRuntime("tensorrt", _open)
