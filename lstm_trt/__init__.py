"""lstm_trt: measure LSTM inference latency per runtime and test it against a deadline.

    >>> import lstm_trt as lab
    >>> recording = lab.record(lab.LstmShape(layers=2, hidden=200, sequence=128), "onnxruntime")

Importing the package is fast: each name is loaded when it is first used (`registry.API`, and the
tables of the same name of other packages).
"""

from lstm_trt import registry

__version__ = "0.2.0"

__getattr__, __dir__ = registry.offer(__name__, registry.API, "API")
