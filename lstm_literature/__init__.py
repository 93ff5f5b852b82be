"""The literature's LSTM benchmarks: their workloads, current implementations of them, and the published figures.

    >>> import lstm_literature as literature
    >>> found = literature.load(["cell"], data="data/xeon/literature")

A client of `lstm_trt`, which records these workloads like any other (`registry.py` offers their kind). A *side* is
a set of times for one workload and mode: the figures that a document prints for one device, or the recordings made
today at one scale. Figures and texts compare sides. Names are imported on first use.
"""

from lstm_trt import registry

#: Name in `lstm_literature` -> where it is defined.
API = {
    "describe_benchmark": "lstm_literature.preparer:describe_benchmark",
    "matches": "lstm_literature.published:matches",
    "points": "lstm_literature.published:points",
    "printed": "lstm_literature.sides:printed",
    "today": "lstm_literature.sides:today",
    "then_and_now": "lstm_literature.sides:then_and_now",
    "successors": "lstm_literature.sides:successors",
    "coverage": "lstm_literature.completeness:coverage",
    "bars": "lstm_literature.pictures:bars",
    "costs": "lstm_literature.pictures:costs",
    "pages": "lstm_literature.pictures:pages",
    "over_size": "lstm_literature.pictures:over_size",
    "load": "lstm_literature.notebook:load",
    "table_of": "lstm_literature.pictures:table_of",
}

__getattr__, __dir__ = registry.offer(__name__, API)
