"""lstm_trt: measure LSTM inference latency per runtime and test it against a deadline.

    >>> import lstm_trt as lab
    >>> recording = lab.record(lab.LstmShape(layers=2, hidden=200, sequence=128), "onnxruntime")

Importing the package loads nothing heavy: names are fetched when they are first used (`registry.API`).
"""

from __future__ import annotations

from lstm_trt import registry

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "__all__":
        return ["__version__", *registry.API]
    if name not in registry.API:
        raise AttributeError(f"module 'lstm_trt' has no attribute {name!r}")
    return registry.load("API", name)


def __dir__() -> list[str]:
    return ["__version__", *sorted(registry.API)]
