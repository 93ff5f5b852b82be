"""lstm_trt: which LSTM, on which runtime, answers in time, how sure that is, and what makes the late answers late.

    >>> import lstm_trt
    >>> recording = lstm_trt.record(lstm_trt.LstmShape(layers=2, hidden=200, sequence=128), runtime="onnxruntime")

Importing the package loads nothing heavy: names are fetched when they are first used.
"""

from __future__ import annotations

__version__ = "0.1.0"


_HOMES = {
    "LstmShape": "config.shape",
    "Grid": "config.shape",
    "Configuration": "config.configuration",
    "Options": "config.configuration",
    "Protocol": "config.configuration",
    "LabError": "config.errors",
    "UsageError": "config.errors",
    "Recording": "store.schema",
    "Failure": "store.schema",
    "read": "store.files",
    "read_many": "store.folders",
    "record": "recorder.pool",
    "run_sweep": "recorder.sweep",
    "describe_configuration": "recorder.session",
    "summarize": "analysis.summary",
    "export_network": "export.to_onnx",
}


__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str):
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'lstm_trt' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lstm_trt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
