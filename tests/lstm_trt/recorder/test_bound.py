"""Medians below the roofline bound: rates are measured again, and the recording fails, or is marked in every answer.

Rates, bounds and latencies are planted, so that nothing here depends on the machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import lstm_trt as lab
from lstm_judge.read.runs import as_runs
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.preparer import PREPARER
from lstm_trt.config.errors import LabError, RunFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.tensorrt.onnx_fp16 import to_half
from lstm_trt.machine import roofline
from lstm_trt.machine.roofline import MachineRates, NoBound, roofline_bound
from lstm_trt.recorder.bound import against_bound
from lstm_trt.recorder.describe import describe
from lstm_trt.store import files
from tests.conftest import ROOT
from tests.lstm_judge.report.conftest import recording
from tests.lstm_onnx.test_preparer import SHORT, reference_of
from tests.support import own_networks
from tests.support.own_networks import saved, stream
from tests.support.trials import record_here

#: One operation and one byte take a nanosecond.
UNIT = MachineRates(1.0, ((16, 1.0),), 1, "planted", "2026-01-01T00:00:00Z", "avx2")


def run_of(workload, floor_ns):
    """What `against_bound` reads of a run."""
    configuration = SimpleNamespace(workload=workload, options=lab.Options())
    return SimpleNamespace(configuration=configuration, provenance={"floor_ns": floor_ns})


def bound_of(run, median_ns: float) -> list[str]:
    return against_bound(run.configuration, run.provenance, median_ns)


def fully(share=1.0):
    """A network whose weights other than this share are 0."""
    model = stream(hidden=16)
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor).copy()
        values.flat[int(share * values.size) :] = 0
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return OnnxNetwork(model.SerializeToString(), sizes={"time": 6, "batch": 2})


@pytest.fixture
def renewed(monkeypatch):
    """Plants the rates that are measured again; returns the numbers of threads for which they were asked."""
    asked = []

    def plant(rates):
        def measure(threads):
            asked.append(threads)
            if isinstance(rates, Exception):
                raise rates
            return rates

        monkeypatch.setattr(roofline, "renewed_rates", measure)
        return asked

    return plant


@pytest.mark.parametrize("make", [lambda: LstmShape(1, 16, 6, 2), fully], ids=["shape", "file"])
def test_a_median_below_the_bound_is_held_against_rates_measured_again(make, renewed):
    workload = make()
    bound_ns = roofline_bound(workload, UNIT).total_ns
    asked = renewed(UNIT)
    assert bound_of(run_of(workload, 0.5 * bound_ns), 0.5 * bound_ns) == []  # not below it: nothing is measured
    assert bound_of(run_of(workload, None), 1.0) == [] and not asked
    run = run_of(workload, 3 * bound_ns)  # the core was busy when its rates were measured
    assert bound_of(run, bound_ns) == [] and asked == [1] and run.provenance["floor_ns"] == bound_ns
    for share in (0.99, 0.5):
        run = run_of(workload, 3 * bound_ns)
        (warning,) = bound_of(run, share * bound_ns)
        assert "faster than this network's arithmetic" in warning and f"is {share:.2g} of its roofline bound" in warning
        assert run.provenance["floor_ns"] == bound_ns
    for share in (0.49, 0.01):
        with pytest.raises(RunFailed, match=r"^[^\n]*a median of .* is 0[^\n]*$"):
            bound_of(run_of(workload, bound_ns), share * bound_ns)


def test_rates_that_cannot_be_measured_again_refuse_nothing(renewed):
    workload = LstmShape(1, 16, 6, 2)
    for error in (NoBound("planted"), OSError("planted"), LabError("planted")):
        renewed(error)
        run = run_of(workload, 1e6)
        (warning,) = bound_of(run, 1e4)
        assert "is 0.01 of its roofline bound" in warning and run.provenance["floor_ns"] == 1e6


@pytest.mark.parametrize(("share", "least"), [(1.0, 0.5), (0.5, 0.25), (0.1, 0.05), (0.0, 0.0)])
def test_weights_of_0_explain_a_median_below_half_of_the_bound(share, least, renewed):
    network = fully(share)
    multiplied = PREPARER.multiplied_share(network)
    assert multiplied == pytest.approx(share, abs=0.01)
    renewed(UNIT)
    bound_ns = roofline_bound(network, UNIT).total_ns
    (warning,) = bound_of(run_of(network, bound_ns), (least + 0.01) * bound_ns)
    assert ("of its weights are 0 or repeat one number" in warning) == (share < 1)
    if least > 0.01:
        with pytest.raises(RunFailed):
            bound_of(run_of(network, bound_ns), (least - 0.01) * bound_ns)


def test_a_recording_faster_than_its_arithmetic_is_a_failure_and_stores_nothing(tmp_path, renewed):
    network = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 6, "batch": 1})
    configuration = describe(network, "onnxruntime", SHORT)
    reference = reference_of(configuration, tmp_path)
    out = files.make_folder(tmp_path / "out")
    slow = replace(UNIT, gflops_per_core=1e-9)  # a call would take an hour
    fast = replace(UNIT, gflops_per_core=1e9, read_gb_s=((16, 1e9),))
    hours = roofline_bound(network, slow).total_ns
    reference["provenance"] |= {"floor_ns": hours, "floor_missing": None}
    asked = renewed(slow)
    with pytest.raises(RunFailed):
        record_here(out, configuration, reference)
    assert asked == [1] and not list(out.iterdir())
    reference["provenance"] |= {"floor_ns": hours}
    renewed(fast)
    told = record_here(out, configuration, reference)
    assert files.read(Path(told.path)).provenance["floor_ns"] == roofline_bound(network, fast).total_ns
    assert not any("arithmetic" in warning for warning in told.warnings)


def test_rates_measured_again_are_the_best_of_both_and_stay_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(roofline, "core_probe", lambda: SimpleNamespace(name="avx2"))
    before = replace(UNIT, gflops_per_core=90.0, read_gb_s=((16, 20.0), (32, 40.0)))
    now = replace(UNIT, gflops_per_core=100.0, read_gb_s=((16, 30.0), (32, 35.0)), measured_at="2027-01-01T00:00:00Z")
    best = replace(now, read_gb_s=((16, 30.0), (32, 40.0)))
    monkeypatch.setattr(roofline, "measure_rates", lambda: before)
    assert roofline.load_rates(3) == replace(before, cores=3)
    monkeypatch.setattr(roofline, "measure_rates", lambda: now)
    assert roofline.renewed_rates(3) == replace(best, cores=3)
    assert roofline.load_rates() == best and len(list(tmp_path.rglob("*.json"))) == 1
    monkeypatch.setattr(roofline, "measure_rates", lambda: before)
    assert roofline.renewed_rates() == replace(best, measured_at=before.measured_at)


# What a network computes


def test_a_layer_of_constants_is_in_no_bound():
    """A runtime computes it once."""
    model = stream(states=False)
    make = onnx.helper.make_node
    folded = make("LSTM", ["steps", "W", "R"], ["folded"], hidden_size=4, name="folded")
    model.graph.initializer.append(own_networks.numbers("steps", 9, 1, 3))
    model.graph.node.extend(
        [folded, make("ReduceSum", ["folded"], ["sum"], keepdims=0), make("Add", ["Y", "sum"], ["y"])]
    )
    model.graph.output[0].name = "y"
    network = OnnxNetwork(model.SerializeToString(), sizes={"time": 6, "batch": 1})
    plain = OnnxNetwork(stream(states=False).SerializeToString(), sizes={"time": 6, "batch": 1})
    first, second = network.recurrent_layers
    assert first.counted and second.name == "folded" and not second.counted
    assert roofline_bound(network, UNIT) == roofline_bound(plain, UNIT)


def test_products_of_quantized_numbers_are_in_no_bound():
    """A runtime multiplies whole numbers there, several times as fast."""
    make, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
    scale, zero = constant(np.float32(0.1), "scale"), constant(np.int8(0), "zero")
    weights = constant(np.arange(12, dtype=np.int8).reshape(6, 2), "weights")
    nodes = [
        make("QuantizeLinear", ["x", "scale", "zero"], ["quantized"]),
        make("DequantizeLinear", ["quantized", "scale", "zero"], ["rounded"]),
        make("DequantizeLinear", ["weights", "scale", "zero"], ["A"]),
        make("MatMul", ["rounded", "A"], ["y"]),
    ]
    x, y = own_networks.value("x", ["batch", 6]), own_networks.value("y", ["batch", 2])
    network = OnnxNetwork(
        own_networks.model_of(nodes, [x], [y], [scale, zero, weights]).SerializeToString(), sizes={"batch": 5}
    )
    assert network.flops is None and network.least_flops == 0
    with pytest.raises(NoBound):
        roofline_bound(network, UNIT)


def test_a_network_in_half_precision_has_no_bound():
    network = OnnxNetwork(to_half(stream()).SerializeToString(), sizes={"time": 6, "batch": 1})
    with pytest.raises(NoBound, match="float16"):
        roofline_bound(network, UNIT)


# The mark in the answers


def bounded(share, **how):
    """A recording of 100 us at this share of its roofline bound; None: without a bound."""
    made = recording(LstmShape(1, 8, 4), how.pop("runtime", "planted"), 100.0, **how)
    floor_ns = None if share is None else float(np.median(made.timed_ns)) / share
    return replace(made, provenance={**made.provenance, "floor_ns": floor_ns})


@pytest.mark.parametrize(("share", "below"), [(None, None), (1.2, False), (1.0, False), (0.99, True), (0.6, True)])
def test_every_answer_marks_a_median_below_the_bound(share, below, tmp_path):
    made, marked = bounded(share), "faster than the arithmetic of the network"
    files.write(made, tmp_path)
    for runs in (lab.load(tmp_path), as_runs([made]), as_runs(as_runs([made]).groups)):
        (row,) = summary = lab.summarize(runs)
        found = summary.as_dict()[0]["floor"]
        assert row.flat["below_floor"] is below and (found and found["below"]) is below
        assert ("!" in str(summary)) == ("True" in summary.csv_text()) == bool(below)
        others = [lab.verdict(runs, 150.0), lab.outliers(runs), lab.compare(runs, runs), lab.replay(runs, 1000.0)]
        for answer in (summary, *others):
            texts = {text for text in answer.warnings if marked in text}
            assert len(texts) == bool(below)
            assert all(f"{share:.2g} of the roofline bound" in text and runs[0].name in text for text in texts)
    outs = [tmp_path / name for name in ("report.html", "report.md", "report.xml")]
    lab.report(lab.load(tmp_path), 150.0, out=outs)
    assert [marked in path.read_text() for path in outs] == [bool(below)] * 3


def test_one_round_below_its_own_bound_is_marked():
    rounds = [bounded(2.0), bounded(0.9, round=1, draw=1), bounded(2.0, round=2, draw=2)]
    assert lab.summarize(rounds)[0].floor.below
    assert [row.floor.below for row in lab.summarize(rounds, by_round=True)] == [False, True, False]
    several = as_runs([*rounds, bounded(0.7, runtime="another"), bounded(None, runtime="a third")])
    (text,) = several.remarks
    assert "0.7 of the roofline bound or more" in text and "a third" not in text and text.count(" on ") == 2
    assert several.where(runtime="a third").remarks == () and len(several.where(runtime="another").remarks) == 1
    (text,) = several.where(runtime=["planted", "a third"]).remarks
    assert "0.9 of the roofline bound or more" in text and "another" not in text


def test_recordings_that_ship_are_not_marked():
    """Among these is the one nearest to its bound."""
    runs = lab.load(ROOT / "data/xeon/large-batch")
    shares = [sample.share_of_floor for group in runs for sample in group.rounds]
    assert min(filter(None, shares)) == pytest.approx(1.203, abs=0.001)
    assert not any("arithmetic" in text for text in runs.warnings)


def test_what_was_not_checked_says_why():
    runs = [bounded(2.0, runtime=str(number)) for number in range(3)]
    runs[1].provenance["parity"] = {"error": None, "not_checked": "all outputs are 0"}
    runs[2].provenance["parity"] = {"error": None}  # as in recordings of earlier versions
    summary = lab.summarize(runs)
    expected = [None, "all outputs are 0", None]
    assert [row.facts["not_checked"] for row in summary] == expected
    assert str(summary).count("not checked") == 2 and "not checked: all outputs are 0" in str(summary)
    assert summary.frame["not_checked"].tolist()[1] == expected[1]
