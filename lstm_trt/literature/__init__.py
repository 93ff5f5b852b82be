"""The literature's LSTM benchmarks: their workloads, current implementations of them, and the published figures.

A *side* is a set of times for one workload and mode: the figures that a document prints for one device, or the
recordings made today at one scale. Figures and texts compare sides.

Public names are imported on first use (`registry.LITERATURE`).
"""

from lstm_trt import registry

__getattr__, __dir__ = registry.offer("LITERATURE", __name__)
