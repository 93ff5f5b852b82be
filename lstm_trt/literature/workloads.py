"""The workloads of four documents on LSTM benchmarks, by name.

`cell`, `layer` and `stack` are document 000's (TVM against cuDNN), `ptb-lm` is 001's (a language
model on PTB), `text-classifier` 002's, the four of speech 004's. What a document leaves open is
settled here once and told in `note`.
"""

from __future__ import annotations

from dataclasses import replace

from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import Workload

_NO_RUNS = "the document does not say how many runs: 10 warm-ups and 100 timed runs here"

_CELL = Workload("cell", "000", batch=128, sequence=1, features=512, hidden=512, note=_NO_RUNS)

_LAYER = Workload("layer", "000", batch=32, sequence=8, features=32, hidden=32, note=_NO_RUNS)

_STACK = Workload(
    "stack", "000", batch=1, sequence=100, features=64, hidden=64,
    note=f"the document does not say the batch of its depths 1 to 20: 1 here; {_NO_RUNS}",
)  # fmt: skip

_PTB = Workload(
    "ptb-lm", "001", batch=128, sequence=50, features=128, hidden=256, layers=3, vocabulary=10001,
    head="every-step", outputs=10001, loss="cross-entropy", optimizer="adam", learning_rate=1e-3,
    modes=("forward", "training"), warmup=10, batches=50,
    note="random tokens; the document names no optimizer: Adam, 1e-3",
)  # fmt: skip

_TEXT = Workload(
    "text-classifier", "002", batch=128, sequence=64, features=128, hidden=128, vocabulary=10000,
    head="last-step", outputs=5, loss="cross-entropy", optimizer="sgd", learning_rate=1e-2,
    modes=("training",), warmup=2, batches=50,
    note="batch and sequence from the document's code; it names no learning rate: 0.01",
)  # fmt: skip

_SPEECH = Workload(
    "speech-ce-short", "004", batch=64, sequence=100, features=123, hidden=320,
    head="last-step", outputs=10, head_bias=False, loss="cross-entropy", optimizer="adam", learning_rate=1e-3,
    modes=("training",), warmup=100, batches=400, note="500 batches, of which the first 100 are warm-up",
)  # fmt: skip

_SPEECH_LONG = replace(_SPEECH, name="speech-ce-long", batch=32, sequence=1000)

_SPEECH_BIDIRECTIONAL = replace(_SPEECH_LONG, name="speech-bidirectional-ce-long", layers=4, directions=2)

_SPEECH_CTC = replace(
    _SPEECH_BIDIRECTIONAL, name="speech-ctc-long", head="every-step", outputs=59, loss="ctc", lengths=(500, 1000),
    labels=100,
)  # fmt: skip


#: name -> its default variant, in the order of the documents.
WORKLOADS = {
    workload.name: workload
    for workload in (_CELL, _LAYER, _STACK, _PTB, _TEXT, _SPEECH, _SPEECH_LONG, _SPEECH_BIDIRECTIONAL, _SPEECH_CTC)
}


#: (batch, sequence, input = hidden) of document 000's table, failed rows included.
_LAYER_SIZES = (
    (32, 8, 32), (32, 32, 32), (32, 128, 128), (64, 8, 32), (64, 128, 128), (128, 8, 32), (128, 8, 128),
    (128, 10, 128), (128, 16, 128), (128, 32, 32), (128, 32, 128), (128, 64, 128), (128, 100, 128),
    (128, 128, 32), (128, 128, 64), (128, 128, 128), (128, 128, 256), (128, 128, 512), (128, 128, 1024),
    (128, 256, 128), (128, 256, 256), (128, 512, 128), (256, 128, 128), (256, 128, 256), (512, 128, 128),
    (1024, 128, 128),
)  # fmt: skip

_TWO_LAYERS = replace(
    _LAYER.variant(batch=128, sequence=128, hidden=128, layers=2),
    note=f"the document writes its batch as 128(2), read as two layers since it takes twice the time; {_NO_RUNS}",
)


#: name -> the variants that the document has numbers (or failures) for.
VARIANTS = {name: (workload,) for name, workload in WORKLOADS.items()} | {
    "layer": (*(_LAYER.variant(batch=m, sequence=n, hidden=k) for m, n, k in _LAYER_SIZES), _TWO_LAYERS),
    "stack": (
        *(_STACK.variant(depth=depth) for depth in (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)),
        replace(_STACK.variant(depth=1, batch=32, sequence=32, hidden=32), note=_NO_RUNS),
    ),
    "text-classifier": tuple(_TEXT.variant(hidden=hidden) for hidden in (128, 256, 512, 1024, 2048)),
}


def find(name: str) -> Workload:
    """The default variant of a workload by name; raises `UsageError` for an unknown one."""
    if name not in WORKLOADS:
        raise UsageError(f"unknown workload {name!r}: choose from {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
