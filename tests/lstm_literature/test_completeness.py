"""Each published time has a row: the recording that takes its place today, or the reason why there is none."""

from __future__ import annotations

import shlex
from collections import Counter

import numpy as np
import pytest

from lstm_literature import metrics, published, sides
from lstm_literature.completeness import MARKS, coverage
from lstm_literature.workloads import VARIANTS, WORKLOADS
from tests.lstm_literature.test_sides import row

PTB = WORKLOADS["ptb-lm"]
SMALL = {"published_batch": PTB.batch, "published_sequence": PTB.sequence}


def only(rows, **wanted):
    """The row of a coverage with these values."""
    (found,) = (row for row in rows if all(getattr(row, name) == value for name, value in wanted.items()))
    return found


def test_every_published_time_has_a_row():
    rows = coverage([])
    found = Counter((item.document, item.printed, item.published) for item in rows)
    for document in ("000", "001", "001-later", "001-newest", "002", "004", "004-times"):
        cells = [cell for cell in published.read_document(document).itertuples() if cell.statistic in published.TYPICAL]
        own = {key: count for key, count in found.items() if key[0] == document}
        assert sum(own.values()) >= len(cells) and {value for _, _, value in own} == {cell.value for cell in cells}
    assert found["003", "means", None] == 1 and not any(key[0] == "further" for key in found)
    assert [item.document for item in rows] == sorted(item.document for item in rows)
    assert all(item.reason for item in rows)  # nothing is recorded


def test_the_best_recording_is_that_of_the_largest_scale_with_the_most_batches():
    name = "pytorch-fine-grained-eager"
    recorded = [
        row(name, 0.01, PTB.scaled("1/8"), **SMALL, n=50),
        row(name, 0.7, n=5),
        row(name, 0.9, n=50),
        row(name, 0.1, n=50, threads=2),
        row(name, 5.0, mode="training"),
        row("pytorch-basic-eager", 0.2),  # not the style of the document
        row("pytorch-fused-eager", 0.02, PTB.scaled("1/8"), **SMALL, n=50),
        row("pytorch-fused-scripted", None),
        row("tensorflow-one-call-graph", 0.3),
        row("tensorflow-one-call-graph", 0.4, device="gpu", n=5),
    ]
    rows = {(item.implementation, item.device): item for item in coverage(recorded)
            if (item.document, item.mode) == ("001", "forward")}  # fmt: skip
    item = rows[name, "cpu"]
    assert (item.today, item.scale, item.n, item.document_n, item.reason) == (0.9, "1", 50, 50, "")
    assert (item.published, item.printed, item.framework_version) == (None, "empty", "9")
    assert rows["pytorch-fused-eager", "cpu"].scale == "1/8"
    failed = rows["pytorch-fused-scripted", "cpu"]
    assert (failed.today, failed.reason) == (None, "failed at scale 1: out of mem")
    cudnn = rows["tensorflow-one-call-graph", "gpu"]  # the only device of the document
    assert (cudnn.today, cudnn.device_today) == (0.4, "gpu")


def test_without_a_recording_the_row_says_why(monkeypatch):
    beside = only(coverage([]), document="000", system="cuDNN", implementation="pytorch-one-call-eager")
    words = shlex.split(beside.reason.partition(": ")[2])
    assert words[:5] == ["lstm-literature", "record", "cell", "--implementation", "pytorch-one-call-eager"]
    monkeypatch.setitem(sides.SUCCESSORS, ("002", "theano"), ("onnxruntime",))
    rows = coverage([])
    refused = [row for row in rows if row.system == "Theano"]
    assert len(refused) == len(VARIANTS["text-classifier"])
    assert {item.reason for item in refused} == {"training is not supported"}


WHILE = "tensorflow-while-graph"


@pytest.mark.parametrize(
    ("recorded", "device", "marks"),
    [
        (row(WHILE, 1.0, threads=12), "cpu", ""),
        (row(WHILE, 1.0), "gpu", ""),  # the document's threads are those of its processor
        (row(WHILE, 1.0), "cpu", "other threads"),
        (row(WHILE, 1.0, PTB.scaled("1/8"), **SMALL, threads=12), "cpu", "scaled"),
        (row(WHILE, 1.0, threads=12, n=3), "cpu", "few batches"),
        (row(WHILE, 1.0, threads=12, n=4, drift=0.09), "cpu", ""),
        (row(WHILE, 1.0, threads=12, drift=0.11), "cpu", "drift"),
        (row(WHILE, 1.0, threads=12, drift=-0.11), "cpu", "drift"),
        (row(WHILE, 1.0, PTB.scaled("1/8"), **SMALL, n=3, drift=1.0), "cpu", ", ".join(MARKS)),
    ],
)
def test_what_differs_from_the_document_is_marked(recorded, device, marks):
    item = only(coverage([recorded]), implementation=WHILE, document="001", mode="forward", device=device)
    assert item.marks == marks


def test_marks_are_counted():
    rows = coverage([row(WHILE, 1.0, n=3), row("tensorflow-static-graph", 1.0), row("onnxruntime", None)])
    number = sum(item.document == "001" for item in rows)
    title = f"document 001: 4 of {number} rows recorded, 3 of them marked (few batches: 2, other threads: 2)"
    assert title in str(rows).splitlines()
    assert f"document 001: 0 of {number} rows recorded\n" in str(coverage([]))


@pytest.mark.parametrize(
    ("latency_ns", "drift"),
    [([5], 0.0), ([4, 9, 5], 0.25), ([10, 1, 30, 30, 9, 8], 8.5 / 5.5 - 1), ([7] * 50, 0.0)],
)
def test_the_drift_is_from_the_first_third_to_the_last(latency_ns, drift):
    assert metrics._drift(np.array(latency_ns)) == pytest.approx(drift)


def test_a_program_that_differs_from_its_document_has_rows_of_its_own_workload():
    name, text = "pytorch-fused-eager", VARIANTS["text-classifier"][1]
    torch7 = VARIANTS["text-classifier-torch7"][1]
    wanted = {"document": "002", "system": "Torch7", "published": 79.6}
    (item,) = (item for item in coverage([row(name, 1.0, text, "training")]) if item.published == 79.6)
    assert item.today is None and "record text-classifier-torch7 " in item.reason  # the old recording is of another one
    item = only(coverage([row(name, 1.0, text, "training"), row(name, 2.0, torch7, "training")]), **wanted)
    assert (item.today, item.workload, item.label) == (2.0, "text-classifier-torch7", "text-classifier-torch7-h256")
    even = WORKLOADS["speech-ctc-linspace"]
    rows = coverage([row("pytorch-one-call-eager", 3.0, even, "training")])
    assert {item.today for item in rows if item.workload == even.name} == {3.0}
    assert not any(item.workload == "speech-ctc-long" for item in rows)


def test_a_doubtful_time_has_a_question_mark_and_the_reason_is_below_the_table():
    rows = coverage([])
    doubtful = [item for item in rows if item.doubt]
    assert {item.document for item in doubtful} == {"001", "001-later", "001-newest", "002"}
    assert all(item.published is not None for item in doubtful)  # nothing is doubted where nothing is printed
    reasons = [line for line in str(rows).splitlines() if line.startswith("? ")]
    assert any(line.startswith("? Torch7, training: the clock is CPU time") for line in reasons)
    assert len(reasons) == len({(item.document, item.system, item.mode, item.doubt) for item in doubtful})
