"""The literature's LSTM benchmarks: their workloads, today's implementations of them, and the documents' numbers.

Names are fetched when they are first used (`registry.LITERATURE`).
"""

from lstm_trt import registry

__getattr__, __dir__ = registry.offer("LITERATURE", __name__)
