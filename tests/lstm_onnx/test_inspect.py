"""What `inspect` says of ONNX files and runtimes, compared with the files and with recordings."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest

from lstm_onnx import inspect as inspection
from lstm_onnx.cli import flags
from lstm_onnx.inspect import NO_ONNX, NOT_READY, REFUSED, RUNS
from lstm_trt import registry, runtimes
from lstm_trt.config.errors import BuildFailed, ConfigurationFailed, UsageError
from lstm_trt.config.format import number
from lstm_trt.config.shape import LstmShape
from lstm_trt.export import onnx_checks
from lstm_trt.export.to_onnx import export_onnx
from lstm_trt.machine import roofline
from lstm_trt.recorder.doctor import RuntimeRow
from lstm_trt.recorder.pool import record
from tests.support.own_networks import GRU_FLOPS, PRODUCT, one_line, rates, stream, words
from tests.support.planted_graphs import lstm, recurrent, relu

RUNTIMES = registry.table("RUNTIMES")
READERS = {name for name in RUNTIMES if getattr(runtimes.load_runtime(name), "NEEDS_ONNX", False)}


@pytest.fixture
def ready(monkeypatch):
    """Every runtime is ready on its first device, and none is tried."""

    def rows(name):
        device = runtimes.load_runtime(name).DEVICES[0]
        return [RuntimeRow(True, "1.0", "planted", runtime=name, device=device)]

    def attempt(pool, network, row, folder, listener):
        compared = {"error": 0.0, "reference": "planted", "nan_reaches_output": row.runtime == "openvino"}
        return inspection.RuntimeAnswer(row.runtime, row.device, row.version, RUNS, **compared)

    monkeypatch.setattr(inspection, "rows_of", rows)
    monkeypatch.setattr(inspection, "_attempt", attempt)


def saved(model, tmp_path, name="one.onnx"):
    path = tmp_path / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def test_a_network_of_the_grid_is_counted_as_the_grid_does(tmp_path, ready):
    shape = LstmShape(2, 24, 9, 2, directions=2)
    path = export_onnx(shape, tmp_path, symbolic=True).path
    found = inspection.inspect(path, {"sequence": 9, "batch": 2})
    plain = json.loads(json.dumps(found.as_dict()))
    assert {"inputs", "outputs", "recurrent_layers", "parameters", "flops", "runtimes"} <= plain.keys()
    assert (plain["parameters"], plain["flops"]) == (shape.parameters, shape.flops)
    assert plain["inputs"] == [{"name": "inputs", "type": "float32", "shape": [9, 2, 12]}]
    assert plain["outputs"] == [{"name": "outputs", "type": "float32", "shape": [9, 2, 1]}]
    first, second = plain["recurrent_layers"]
    assert (first["operator"], first["direction"], first["hidden"]) == ("LSTM", "bidirectional", 24)
    assert first["weights"] == {"W": [2, 96, 12], "R": [2, 96, 24], "B": [2, 192]}
    assert second["weights"]["W"] == [2, 96, 48]
    try:
        bound = roofline.roofline_bound(shape, roofline.load_rates(1))
        assert plain["roofline"] == {"floor_ns": pytest.approx(bound.total_ns), "limited_by": bound.limited_by}
    except roofline.NoBound as reason:
        assert plain["roofline"] == {"floor_ns": None, "limited_by": None, "missing": str(reason)}
    missing = {"floor_ns": None, "limited_by": None, "missing": "planted reason"}
    assert "\nno roofline bound: planted reason\n" in str(replace(found, roofline=missing))
    states = {answer["runtime"]: answer["state"] for answer in plain["runtimes"]}
    assert states == {name: RUNS if name in READERS else NO_ONNX for name in RUNTIMES}
    nan = {answer["runtime"]: answer["nan_reaches_output"] for answer in plain["runtimes"]}
    assert {name: nan[name] for name in READERS} == {name: name == "openvino" for name in READERS}
    text = str(found)
    assert (text.count("NaN in the input reaches"), text.count("NaN in the input does not")) == (1, len(READERS) - 1)
    for part in ("2 x 96 x 48", f"{shape.parameters} parameters", "roofline bound", "read no ONNX files: pytorch"):
        assert part in text


@pytest.mark.parametrize(
    ("model", "refusing"),
    [
        (lstm(peepholes=True), {"openvino"}),
        (lstm(input_forget=1), {"openvino", "tensorrt", "tensorrt-rtx"}),
        (recurrent("GRU", layout=1, states=False), READERS - {"c"}),  # c has no rules: its generator refuses
        (recurrent("RNN", activations=["Softplus"]), {"openvino", "tensorrt", "tensorrt-rtx"}),
        (recurrent("GRU", linear_before_reset=1, clip=0.5), set()),
    ],
    ids=["peepholes", "input_forget", "layout", "softplus", "linear_before_reset"],
)
def test_the_reason_names_the_operator_and_is_that_of_the_rules(model, refusing, tmp_path, ready):
    answers = {answer.runtime: answer for answer in inspection.inspect(saved(model, tmp_path)).runtimes}
    assert {name for name, answer in answers.items() if answer.state == REFUSED} == refusing
    for name in refusing:
        assert answers[name].reason == onnx_checks.refusal(model, runtimes.load_runtime(name).ONNX_RULES)
        assert "operator 'my_" in answers[name].reason


def test_a_network_without_a_recurrent_layer_is_said(tmp_path, ready):
    found = inspection.inspect(saved(relu(), tmp_path))
    assert found.as_dict()["recurrent_layers"] == [] and "no recurrent layer" in str(found)
    assert {answer.state for answer in found.runtimes} == {RUNS, NO_ONNX}


def test_branches_that_are_not_decided_are_shown_with_at_least(tmp_path, ready):
    found = inspection.inspect(saved(rates(), tmp_path), {"time": 5})
    text, plain = str(found), json.loads(json.dumps(found.as_dict()))
    assert "no recurrent layer" not in text and "within" in text
    for name, branch in (("lstm_16k", "then_branch"), ("gru_8k", "else_branch")):
        assert any(name in line and branch in line and "If operator" in line for line in text.splitlines())
    assert f"at least {number((PRODUCT + GRU_FLOPS) / 1e6)} MFLOP per call" in text
    assert "roofline bound: at least " in text or "\nno roofline bound: " in text
    assert plain["flops"] is None and plain["constants"] == {}
    assert "missing" in plain["roofline"] or (plain["roofline"]["at_least"] and plain["roofline"]["floor_ns"] > 0)
    decided = inspection.inspect(
        inspection.OnnxNetwork(tmp_path / "one.onnx", sizes={"time": 5}, constants={"sr": 8000})
    )
    assert (
        "at least" not in str(decided)
        and "lstm_16k" not in str(decided)
        and decided.as_dict()["constants"] == {"sr": 8000}
    )


def test_a_bound_is_never_zero(tmp_path, ready):
    found = inspection.inspect(saved(relu(), tmp_path))
    assert found.roofline["floor_ns"] is None and found.roofline["missing"]
    text = str(found)
    assert "\nno roofline bound: " in text and "bound: 0" not in text and "\n1 parameter" not in text


def test_a_size_that_is_not_known_is_shown_as_such(tmp_path, ready):
    chosen = onnx.parser.parse_graph(
        """g (bool[6] mask) => () {
            places = NonZero (mask)
            rows = Transpose <perm = [1, 0]> (places)
            kept = GatherND (X, rows)
        }"""
    )
    model = stream("GRU")
    model.graph.node[0].input[0] = "kept"
    model.graph.input.extend(chosen.input)
    for place, node in enumerate(chosen.node):
        model.graph.node.insert(place, node)
    text = str(inspection.inspect(saved(model, tmp_path), {"time": 6, "batch": 1}))
    (row,) = [line for line in text.splitlines() if line.startswith("GRU ")]
    assert row.split()[:6] == ["GRU", "my_gru", "forward", "4", "?", "1"]
    assert "\n0 MFLOP" not in text and "unknown per call" in text and "no roofline bound" in text


def test_values_and_inputs_of_the_command(tmp_path, lab, refused, ready):
    path = saved(rates(), tmp_path)
    np.savez(tmp_path / "in.npz", X=np.ones((5, 1, 3), np.float32), sr=np.array(8000))
    by_value = json.loads(lab("inspect", path, "--size", "time=5", "--value", "sr=8000", "--format", "json").stdout)
    by_file = json.loads(lab("inspect", path, "--inputs", tmp_path / "in.npz", "--format", "json").stdout)
    for found in (by_value, by_file):
        assert found["constants"] == {"sr": 8000} and found["sizes"] == {"time": 5}
        assert [layer["name"] for layer in found["recurrent_layers"]] == ["gru_8k"]
    for arguments, message in (
        (("--value", "sr"), "--value takes INPUT=N"),
        (("--value", "sr=high"), "--value needs numbers: 'high' is not a decimal number"),
        (("--value", "sr=\u0661"), "--value needs numbers"),
        (("--size", "time=1_0"), "--size time needs whole numbers, not '1_0'"),
        (("--value", "rate=1"), "no input 'rate': its inputs are X, sr"),
        ((), "for example --size time=1 --value sr=16000"),
    ):
        assert message in refused("inspect", path, *arguments)
    warned = stream()
    warned.graph.output[0].type.tensor_type.shape.dim.pop()
    result = lab("inspect", saved(warned, tmp_path, "two.onnx"), "--size", "time=2", "--size", "batch=1")
    assert result.returncode == 0 and result.stderr.startswith("warning: two.onnx states another number of axes")


def test_each_of_several_files_gets_its_own_sizes_and_numbers(tmp_path):
    paths = [saved(stream(), tmp_path, "a.onnx"), saved(rates(), tmp_path, "b.onnx")]
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser, several=True)

    def networks(*words):
        return flags.from_arguments(parser.parse_args(["--onnx", *map(str, paths), *words]))

    with pytest.raises(UsageError, match=r"^a has no symbolic size 'hours': its symbolic sizes are time, batch$"):
        networks("--size", "hours=4")
    several = networks("--size", "time=4,6", "batch=1", "--value", "sr=8000")
    found = [(each.name, dict(each.sizes), each.constants) for each in several]
    assert found[0] == ("a", {"time": 4, "batch": 1}, {}) and found[3] == ("b", {"time": 6}, {"sr": 8000})


def test_tokens_are_drawn_from_their_table_and_run(tmp_path, monkeypatch):
    rows = inspection.rows_of
    monkeypatch.setattr(inspection, "rows_of", lambda name: rows(name)[:1] if name == "onnxruntime" else [])
    found = inspection.inspect(saved(words(), tmp_path), {"time": 5, "batch": 2})
    (answer,) = found.runtimes
    assert (answer.state, answer.not_checked) == (RUNS, None)
    assert found.as_dict()["inputs"][0] == {"name": "tokens", "type": "int64", "shape": [5, 2], "range": [0, 4]}


def test_a_likely_state_is_named_with_the_flag(tmp_path, lab, ready):
    model = stream("GRU")
    model.graph.output[1].name = model.graph.node[0].output[1] = "output1"
    sizes = ("--size", "time=4", "--size", "batch=1")
    found = lab("inspect", saved(model, tmp_path), *sizes, "--format", "json")
    assert json.loads(found.stdout)["likely_states"] == {"h0": "output1"} and "--state h0=output1" in found.stderr
    (row,) = [line for line in lab("inspect", tmp_path / "one.onnx", *sizes).stdout.splitlines() if " h0 " in line]
    assert row.endswith("--state h0=output1")
    for command in (("export", "--c", "--out", tmp_path / "c"), ("record", "--out", tmp_path, "--trials", "5")):
        done = lab(command[0], "--onnx", tmp_path / "one.onnx", *sizes, *command[1:])
        assert done.returncode == 0 and "--state h0=output1" in done.stderr


def test_lengths_are_shown_with_the_steps_that_are_computed(tmp_path, ready):
    path = saved(recurrent("GRU", lengths=[5, 5, 5]), tmp_path)
    model = onnx.load(path)
    model.graph.initializer.remove(next(each for each in model.graph.initializer if each.name == "lengths"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, [3]))
    onnx.save(model, path)
    np.savez(tmp_path / "in.npz", lengths=np.array([1, 2, 3], np.int32))
    for inputs, lengths, steps in ((None, "lengths 5", "5"), (tmp_path / "in.npz", "lengths 1to3", "2 of 5")):
        text = str(inspection.inspect(inspection.OnnxNetwork(path, inputs=inputs)))
        (row,) = [line for line in text.splitlines() if line.startswith("input   lengths")]
        (layer,) = [line for line in text.splitlines() if line.startswith("GRU ")]
        assert row.endswith(lengths) and f"forward 4 {steps} 3 " in " ".join(layer.split())


def test_an_input_that_must_be_given_is_the_reason_of_every_runtime(tmp_path, monkeypatch):
    monkeypatch.setattr(
        inspection, "rows_of", lambda name: [RuntimeRow(True, "1.0", "planted", runtime=name, device="cpu")]
    )
    answers = inspection.inspect(saved(rates(), tmp_path), {"time": 5}).runtimes
    reasons = {answer.reason for answer in answers if answer.runtime in ("c", "onnxruntime", "openvino")}
    (reason,) = reasons
    assert "--value sr=16000" in reason and {answer.state for answer in answers} == {REFUSED, NO_ONNX}


def test_a_runtime_that_is_not_ready_is_asked_for_what_its_parser_says(tmp_path, monkeypatch):
    """The parser of TensorRT for RTX needs no GPU, and names operators that it lacks."""
    pytest.importorskip("tensorrt_rtx")
    monkeypatch.setattr(
        inspection,
        "rows_of",
        lambda name: [RuntimeRow(False, "1.0", None, "no GPU driver", runtime=name, device="cuda")],
    )
    monkeypatch.setattr(registry, "packages", list)
    monkeypatch.setattr(registry, "RUNTIMES", {"tensorrt-rtx": registry.RUNTIMES["tensorrt-rtx"]})
    (answer,) = inspection.inspect(saved(lstm(), tmp_path)).runtimes
    assert (answer.state, answer.reason) == (NOT_READY, "no GPU driver")
    model = onnx.load_from_string(relu())
    model.graph.node[0].op_type = "BitwiseNot"
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    (answer,) = inspection.inspect(saved(model, tmp_path)).runtimes
    assert answer.state == REFUSED and "BitwiseNot" in answer.reason


@pytest.mark.parametrize("reason", ["all outputs are 0", "it is its own reference"])
def test_a_comparison_that_was_not_made_says_why(tmp_path, ready, monkeypatch, reason):
    def attempt(pool, network, row, folder, listener):
        return inspection.RuntimeAnswer(row.runtime, row.device, row.version, RUNS, not_checked=reason)

    monkeypatch.setattr(inspection, "_attempt", attempt)
    found = inspection.inspect(saved(lstm(), tmp_path))
    tried = [row for row in found.as_dict()["runtimes"] if row["state"] == RUNS]
    assert tried and {row["not_checked"] for row in tried} == {reason}
    assert " ".join(str(found).split()).count(f"not checked: {reason}") == len(tried)


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"no protobuf at all", (), "not an ONNX file"),
        (b"", (), "no operators"),
        (lstm().SerializeToString()[:-9], (), "truncated"),
        (lstm(states=False, nonsense=1).SerializeToString(), (), "nonsense"),
        (None, (), "cannot read"),
        (lstm().SerializeToString(), ("--size", "time=4"), "no symbolic size 'time'"),
        (lstm().SerializeToString(), ("--size", "time"), "NAME=N"),
        (
            stream().SerializeToString(),
            ("--size", "time=4,8", "batch=1"),
            "the flags give 2 networks, but one is needed",
        ),
    ],
    ids=["foreign", "empty", "truncated", "attribute", "missing", "size", "form", "values"],
)
def test_bad_input_is_one_line(refused, tmp_path, content, arguments, message):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    assert message in refused("inspect", path, *arguments)


def test_external_data_outside_the_folder_is_refused(refused, tmp_path):
    (tmp_path / "elsewhere.bin").write_bytes(bytes(4 * 96))
    (tmp_path / "models").mkdir()
    model = lstm()
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "../elsewhere.bin")
    model.graph.initializer[0].ClearField("raw_data")
    assert "outside its folder" in refused("inspect", saved(model, tmp_path / "models"))


@pytest.mark.heavy
def test_ready_runtimes_are_tried_and_recordings_fail_for_the_same_reason(tmp_path, lab):
    result = lab("inspect", saved(lstm(peepholes=True), tmp_path), "--format", "json")
    answers = {(row["runtime"], row["device"]): row for row in json.loads(result.stdout)["runtimes"]}
    assert answers["onnxruntime", "cpu"]["state"] == RUNS and answers["onnxruntime", "cpu"]["error"] < 1e-5
    assert answers["onnxruntime", "cpu"]["reference_checked_by"]
    network = inspection.OnnxNetwork(tmp_path / "one.onnx")
    with pytest.raises(ConfigurationFailed) as failure:
        record(network, "openvino", inspection._ONCE)
    assert answers["openvino", "cpu"]["state"] == REFUSED
    assert answers["openvino", "cpu"]["reason"] in str(failure.value)
    plain = json.loads(lab("inspect", saved(lstm(), tmp_path), "--format", "json").stdout)
    states = {row["runtime"]: row["state"] for row in plain["runtimes"] if row["device"] == "cpu"}
    assert (states["onnxruntime"], states["openvino"]) == (RUNS, RUNS)
    nan = {row["runtime"]: row["nan_reaches_output"] for row in plain["runtimes"] if row["device"] == "cpu"}
    assert (nan["onnxruntime"], nan["openvino"]) == (False, True)


def test_the_profile_says_which_operator_takes_the_time(tmp_path, ready):
    """Planted: two LSTM layers, of which one has a hundred times the weights of the other, and small products."""
    shape = LstmShape(1, 16, 32)
    small, large = (export_onnx(replace(shape, hidden=hidden), tmp_path).path for hidden in (16, 256))
    model = onnx.compose.merge_models(
        *(onnx.compose.add_prefix(onnx.load(path), f"{path.stem}/") for path in (small, large)), io_map=[]
    )
    path = saved(model, tmp_path)
    found = inspection.inspect(path, profile=True)
    shares = {share["name"]: share for share in found.profile}
    assert sum(share["time"] for share in found.profile) == pytest.approx(1)
    assert all(0 <= share["time"] <= 1 for share in found.profile) and "profile" in found.as_dict()
    first, second = (
        next(
            share
            for share in found.profile
            if share["name"].startswith(f"{each.stem}/") and share["operator"] == "LSTM"
        )
        for each in (small, large)
    )
    assert found.profile[0] == second and second["time"] > first["time"]
    if found.roofline["floor_ns"]:
        assert second["bound"] > 0.9 > 0.1 > first["bound"] > 0 and first["bound"] + second["bound"] < 1
    else:
        assert first["bound"] is second["bound"] is None
    assert all(share["bound"] is None for share in shares.values() if share["operator"] != "LSTM")
    assert "\nshares of the operators in the time of ONNX Runtime" in str(found)
    plain = inspection.inspect(path)
    assert "profile" not in plain.as_dict() and "shares of the operators" not in str(plain)


def test_a_profile_leaves_no_file_and_is_refused_in_one_line(tmp_path, ready, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = inspection.inspect(saved(lstm(), tmp_path), profile=True)
    assert [share["operator"] for share in found.profile] == ["LSTM"] and found.profile[0]["time"] == 1
    (layer,) = found.network.recurrent_layers
    model = lstm()
    model.graph.node[0].name = ""
    unnamed = inspection.inspect(saved(model, tmp_path, "unnamed.onnx"), profile=True)
    assert (found.profile[0]["name"], unnamed.profile[0]["name"]) == (layer.name, "Y")
    assert {path.name for path in tmp_path.iterdir()} == {"one.onnx", "unnamed.onnx"}
    with one_line("ONNX Runtime does not run two", BuildFailed):
        inspection.inspect(saved(recurrent("GRU", layout=1, states=False), tmp_path, "two.onnx"), profile=True)
