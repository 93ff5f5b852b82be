"""What holds in a PyTorch process: precision switches, threads, and which operators a forward calls.

Nothing here is timed. `set_precision` runs before a network is built, `facts` and
`operators` say for the provenance what was really used.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from lstm_trt.configuration import Options
from lstm_trt.errors import BuildFailed

if TYPE_CHECKING:
    import torch


def set_precision(options: Options) -> None:
    """TF32 on for "tf32" and off for all else, in cuBLAS and in cuDNN's RNNs; raises `BuildFailed`.

    Both of PyTorch's interfaces are set, the old one first since it writes the new
    one's values too: readers of either (Inductor still asks the old one) then agree,
    where setting one alone makes the other raise. PyTorch's own default has TF32 on in
    cuDNN, so an LSTM in "float32" is none until this has run.
    """
    import torch

    if options.device != "cuda":
        return
    allow = options.precision == "tf32"
    if allow and torch.cuda.get_device_capability()[0] < 8:
        raise BuildFailed(f"tf32 needs compute capability 8.0, {torch.cuda.get_device_name()} has less")
    if allow and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise BuildFailed("tf32 is switched off by NVIDIA_TF32_OVERRIDE=0 in the environment: unset it")
    switch_tf32(allow)
    wanted = "tf32" if allow else "ieee"
    wrong = {name: value for name, value in precision_switches("cuda").items() if value != wanted}
    if wrong:
        raise BuildFailed(f"PyTorch {torch.__version__} did not take the precision {wanted}: {wrong}")


def switch_tf32(allow: bool) -> None:
    """Both interfaces to TF32, old and new, in agreement."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old interface is deprecated
        torch.backends.cuda.matmul.allow_tf32 = allow
        torch.backends.cudnn.allow_tf32 = allow
    for operators_of in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        operators_of.fp32_precision = "tf32" if allow else "ieee"


def precision_switches(device: str) -> dict[str, str]:
    """What float32 means to the libraries now."""
    import torch

    if device == "cuda":
        return {
            "cublas_matmul": torch.backends.cuda.matmul.fp32_precision,
            "cudnn_rnn": torch.backends.cudnn.rnn.fp32_precision,
        }
    return {
        "mkldnn_matmul": torch.backends.mkldnn.matmul.fp32_precision,
        "mkldnn_rnn": torch.backends.mkldnn.rnn.fp32_precision,
    }


def operators(forward: Callable, inputs: torch.Tensor) -> dict[str, int]:
    """How often one forward calls which operator: `aten.mkldnn_rnn_layer` or `aten._cudnn_rnn`
    where the libraries' LSTMs are used, a long list of small ones where they are not.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            counted[str(operator).removesuffix(".default")] += 1
            return operator(*args, **(kwargs or {}))

    counted: Counter[str] = Counter()
    with torch.no_grad(), Counting():  # inference mode would hide what `aten.lstm` is made of
        forward(inputs)
    return dict(counted)


def facts(options: Options) -> dict:
    """What holds in this process now: threads, precision, denormals; JSON values."""
    import torch

    found = {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "parallel_backend": torch.__config__.parallel_info().rsplit("backend:", 1)[-1].split()[0],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "gradients": "off: inference mode, or a graph captured under no_grad",
        "precision_switches": precision_switches(options.device),
        "denormals_flushed": float(torch.full((1,), 1e-38) * 1e-2) == 0.0,
    }
    if options.device == "cuda":
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability()),
            "host_memory": "pinned",
            "device_wait": f"cudaStreamSynchronize, {_scheduling()}",
        }
    return found


def _scheduling() -> str:
    """How the driver waits for the device in this context: cuCtxGetFlags' scheduling bits."""
    flags = ctypes.c_uint()
    try:
        if ctypes.CDLL("libcuda.so.1").cuCtxGetFlags(ctypes.byref(flags)) != 0:
            return "scheduling unknown"
    except (OSError, AttributeError):
        return "scheduling unknown"
    names = {0: "automatic: spins, as contexts are fewer than cores", 1: "spins", 2: "yields", 4: "blocks"}
    return names.get(flags.value & 7, "scheduling unknown")
