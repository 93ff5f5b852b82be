"""Each published time has a row: the recording that takes its place today, or the reason why there is none."""

from __future__ import annotations

import shlex
from collections import Counter

from lstm_literature import published, sides
from lstm_literature.completeness import coverage
from lstm_literature.workloads import VARIANTS, WORKLOADS
from tests.literature.test_sides import row

PTB = WORKLOADS["ptb-lm"]


def only(rows, **wanted):
    """The row of a coverage with these values."""
    (found,) = (row for row in rows if all(getattr(row, name) == value for name, value in wanted.items()))
    return found


def test_every_published_time_has_a_row():
    rows = coverage([])
    found = Counter((item.document, item.printed, item.published) for item in rows)
    for document in ("000", "001", "001-later", "002", "004", "004-times"):
        cells = [cell for cell in published.read_document(document).itertuples() if cell.statistic in published.TYPICAL]
        own = {key: count for key, count in found.items() if key[0] == document}
        assert sum(own.values()) >= len(cells) and {value for _, _, value in own} == {cell.value for cell in cells}
    assert found["003", "means", None] == 1 and not any(key[0] == "further" for key in found)
    assert [item.document for item in rows] == sorted(item.document for item in rows)
    assert all(item.reason for item in rows)  # nothing is recorded


def test_the_best_recording_is_that_of_the_largest_scale_with_the_most_batches():
    small = {"published_batch": PTB.batch, "published_sequence": PTB.sequence}
    recorded = [
        row("pytorch-basic-eager", 0.01, PTB.scaled("1/8"), **small, n=50),
        row("pytorch-basic-eager", 0.7, n=5),
        row("pytorch-basic-eager", 0.9, n=50),
        row("pytorch-basic-eager", 0.1, n=50, threads=2),
        row("pytorch-basic-eager", 5.0, mode="training"),
        row("pytorch-fused-eager", 0.02, PTB.scaled("1/8"), **small, n=50),
        row("pytorch-fused-scripted", None),
        row("tensorflow-one-call-graph", 0.3),
        row("tensorflow-one-call-graph", 0.4, device="gpu", n=5),
    ]
    rows, wanted = coverage(recorded), {"document": "001", "mode": "forward"}
    item = only(rows, implementation="pytorch-basic-eager", device="cpu", **wanted)
    assert (item.today, item.scale, item.n, item.document_n, item.reason) == (0.9, "1", 50, 50, "")
    assert (item.published, item.printed) == (None, "empty") and item.framework_version == "9"
    assert only(rows, implementation="pytorch-fused-eager", device="cpu", **wanted).scale == "1/8"
    failed = only(rows, implementation="pytorch-fused-scripted", device="cpu", **wanted)
    assert failed.today is None and failed.reason == "failed at scale 1: out of mem"
    cudnn = only(rows, implementation="tensorflow-one-call-graph", **wanted)
    assert (cudnn.today, cudnn.device, cudnn.device_today) == (0.4, "gpu", "gpu")  # on the published device


def test_without_a_recording_the_row_says_why(monkeypatch):
    rows = coverage([])
    cuda = only(rows, document="000", implementation="tensorrt")
    assert cuda.reason == "needs an NVIDIA GPU" and cuda.system == "cuDNN"
    beside = only(rows, document="000", system="cuDNN", implementation="pytorch-one-call-eager")
    words = shlex.split(beside.reason.partition(": ")[2])
    assert words[:5] == ["lstm-literature", "record", "cell", "--implementation", "pytorch-one-call-eager"]
    monkeypatch.setitem(sides.SUCCESSORS, ("000", "cudnn"), "no library takes its place")
    monkeypatch.setitem(sides.SUCCESSORS, ("002", "theano"), ("onnxruntime",))
    rows = coverage([])
    assert only(rows, document="000", system="cuDNN").reason == "no library takes its place"
    refused = [row for row in rows if row.system == "Theano"]
    assert len(refused) == len(VARIANTS["text-classifier"])
    assert {item.reason for item in refused} == {"training is not supported"}


def test_a_corrected_figure_is_shown_with_the_printed_one():
    item = only(coverage([]), document="002", system="MXNet", published=490.2)
    assert item.printed == "490.2 (printed 90.2)" and item.unit == "ms"
