"""The literature's LSTM benchmarks: their workloads, current implementations of them, and the published figures.

Public names are imported on first use (`registry.LITERATURE`).
"""

from lstm_trt import registry

__getattr__, __dir__ = registry.offer("LITERATURE", __name__)
