"""Real engines, built by TensorRT for RTX without a GPU from networks that PyTorch exported."""

from __future__ import annotations

import itertools
import json

import pytest

from lstm_trt.config.errors import BuildFailed, ExportFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.sizes import static_model
from lstm_trt.export.tensorrt import build, layers as export_layers, trt as export_trt
from lstm_trt.export.tensorrt.build import build_engine
from lstm_trt.export.tensorrt.engine import COMPUTE_CAPABILITIES, EngineOptions, Profile
from lstm_trt.export.to_onnx import export_network
from lstm_trt.machine.gpu import device_here
from tests.conftest import rest_is_heavy
from tests.support.network_in_numpy import parse
from tests.support.planted_graphs import lstm

RTX = "tensorrt-rtx"
try:
    trt = export_trt.load_module(RTX)
except RuntimeUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

#: With a GPU the builder's default may be that GPU, of which TensorRT for RTX knows not every one.
everywhere = pytest.mark.skipif(device_here() is not None, reason="there is a GPU here, the default is its own")

#: Stacked, bidirectional, one step, other numbers of features, large and long.
SHAPES = [
    LstmShape(1, 32, 16),
    LstmShape(3, 72, 24, 4),
    LstmShape(2, 64, 20, 2, directions=2),
    LstmShape(2, 48, 12, 3),
    LstmShape(1, 16, 1, 5, features=3),
    LstmShape(6, 32, 33, 8),
    LstmShape(2, 128, 256),
    LstmShape(1, 400, 50, 64, features=40),
]
#: All but what sm75 has no products for.
BUILT = [
    (shape, precision, target)
    for shape, precision, target in itertools.product(SHAPES, ("fp32", "tf32", "fp16"), COMPUTE_CAPABILITIES)
    if precision == "fp16" or target != "sm75"
]


def spelled(value) -> str | None:
    return value.label if isinstance(value, LstmShape) else None


def options(**given) -> EngineOptions:
    return EngineOptions(RTX, **{"compute_capability": "sm89", **given})


@pytest.mark.parametrize(
    ("shape", "precision", "target"),
    rest_is_heavy(
        BUILT,
        lambda shape, *how: shape.layers * shape.hidden < 192 and how in (("fp32", "sm89"), ("fp16", "sm75")),
        one_in=15,
    ),
    ids=spelled,
)
def test_engines_are_built_with_their_information(shape, precision, target):
    engine = build_engine(shape, options(precision=precision, compute_capability=target, detailed=True))
    information = engine.information
    assert (information["flavour"], information["target"]) == (RTX, {"compute_capabilities": [target], "gpu": None})
    assert information["engine"]["version"] == information["versions"][RTX] == trt.__version__
    assert information["engine"] == {"sha256": engine.sha256, "bytes": len(engine.plan), "version": trt.__version__}
    assert information["name"] == shape.label and information["tf32"] == (precision == "tf32")
    assert information["onnx"]["opset"] == 18 and len(information["onnx"]["lstms"]) == shape.layers
    assert information["warnings"] == [] and information["build_seconds"] > 0
    network = information["layers"]["network"]
    assert (network["loops"], network["recurrences"]) == (shape.layers, 2 * shape.layers)
    assert network["matrix_products"] == 2 * shape.layers + 1  # X W', H R' a layer, and the dense layer
    operators = {name for kernel in information["layers"]["kernels"] for name in kernel["onnx"]}
    assert ("inputs_to_half" in operators) == (precision == "fp16") and "/dense/Add" in operators
    assert information["layers"]["launches"] >= min(shape.sequence, 16)
    steps = sum(loop["steps"] for loop in information["layers"]["loops"])
    assert steps in (0, shape.layers * (shape.sequence // 8 * 8))


# --- options, symbolic sizes, caches


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"compute_capability": "sm90"}, UsageError, "compute capability 'sm90'"),
        ({"optimization_level": 9}, UsageError, "optimization_level"),
        ({"optimization_level": -1}, UsageError, "optimization_level"),
        ({"optimization_level": 2.5}, UsageError, "optimization_level"),
        ({"max_aux_streams": -1}, UsageError, "max_aux_streams"),
        ({"workspace_bytes": 0}, UsageError, "workspace_bytes"),
        ({"precision": "bf16"}, ExportFailed, "bf16"),
        ({"precision": "int8"}, UsageError, "'int8'"),
        ({"flavour": "tensorrt"}, UsageError, "only tensorrt-rtx"),
        ({"flavour": "tensorflow"}, UsageError, "flavour"),
    ],
    ids=str,
)
def test_options_that_no_builder_supports(given, kind, message):
    with pytest.raises(kind, match=message):
        EngineOptions(**{"flavour": RTX, "compute_capability": "sm89", **given})


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_float32_for_turing_is_an_error(precision):
    with pytest.raises(BuildFailed, match=f"sm75.*{precision}"):
        build_engine(LstmShape(1, 8, 4), options(compute_capability="sm75", precision=precision))


@pytest.mark.heavy
def test_every_option_has_an_engine_of_its_own_in_the_cache():
    shape = LstmShape(1, 8, 4)
    variants = [
        options(),
        options(compute_capability="sm86"),
        options(precision="tf32"),
        options(precision="fp16"),
        options(optimization_level=0),
        options(max_aux_streams=0),
        options(workspace_bytes=10**9),
        options(detailed=True),
        options(capturable=True),
        options(profile=Profile((1, 4, 8), (1, 1, 2))),
        options(profile=Profile((1, 4, 8), (1, 2, 2))),
    ]
    paths = {build_engine(shape, variant).path for variant in variants}
    paths |= {build_engine(LstmShape(1, 8, 5), options()).path, build_engine(shape, options(), seed=1).path}
    assert len(paths) == len(variants) + 2
    assert all(build_engine(shape, variant).cached for variant in variants)


@everywhere
def test_without_a_target_the_engine_is_for_all_of_them(tmp_path):
    engine = build_engine(LstmShape(1, 8, 4), options(compute_capability=None))
    assert engine.information["target"]["compute_capabilities"] == []  # the builder does not state which
    assert ", for the builder's default GPUs, " in str(engine)
    names = ["1x8-s4-b1-fp32-rtx-all.json", "1x8-s4-b1-fp32-rtx-all.engine"]
    assert [path.name for path in engine.write(tmp_path)] == names


def test_tf32_is_decided_and_not_left_to_the_builder():
    config = trt.Builder(export_trt.logger(RTX)).create_builder_config()
    assert config.get_flag(trt.BuilderFlag.TF32)  # its own choice
    shape = LstmShape(1, 16, 8)
    off, on = (build_engine(shape, options(precision=precision)) for precision in ("fp32", "tf32"))
    assert b"\n  tf32=0\n" in off.plan and b"\n  tf32=1\n" not in off.plan
    assert b"\n  tf32=1\n" in on.plan and b"\n  tf32=0\n" not in on.plan
    assert not off.information["tf32"] and on.information["tf32"]


def test_a_cached_engine_is_the_one_that_was_built_and_a_damaged_one_is_built_again():
    shape = LstmShape(1, 12, 4)
    first = build_engine(shape, options())
    again = build_engine(shape, options())
    assert not first.cached and again.cached and again.plan == first.plan
    assert again.information == first.information  # the seconds of the build too: nothing was built
    beside = first.path.with_suffix(".json")
    for path, content in (
        (first.path, first.plan[:1000]),
        (first.path, b""),
        (beside, b"{"),
        (beside, b""),
    ):
        path.write_bytes(content)
        if path == first.path:
            with pytest.raises(BuildFailed, match="changed since it was built"):
                _ = again.plan
        mended = build_engine(shape, options())
        assert not mended.cached and mended.plan == first.plan
        assert json.loads(beside.read_bytes())["engine"]["sha256"] == mended.sha256
    first.path.unlink()
    with pytest.raises(BuildFailed, match="no longer in the cache"):
        _ = first.plan
    # A JSON file that is whole, but of another engine, does not pass for this one's.
    other = build_engine(LstmShape(1, 13, 4), options()).path.with_suffix(".json")
    for suffix in ("", ".sha256"):
        (beside.parent / f"{beside.name}{suffix}").write_bytes((other.parent / f"{other.name}{suffix}").read_bytes())
    mended = build_engine(shape, options())
    assert not mended.cached and mended.plan == first.plan and mended.information["engine"]["sha256"] == first.sha256


def test_a_cache_that_is_too_small_still_gives_the_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LSTM_TRT_CACHE_MB", "1")
    engine = build_engine(LstmShape(3, 72, 24, 4), options())
    assert len(engine.plan) > 1_000_000 and engine.information["engine"]["sha256"] == engine.sha256


def test_symbolic_sizes_get_their_ranges():
    content = export_network(LstmShape(1, 16, 3)).path.read_bytes()
    engine = build_engine(content, options(profile=Profile((1, 8, 16), (1, 2, 4)), detailed=True), name="symbolic")
    assert engine.information["options"]["profile"] == {"sequence": [1, 8, 16], "batch": [1, 2, 4]}
    assert engine.information["layers"]["sequence"] == 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # RTX: "timing cache operations are no-ops"
def test_a_timing_cache_is_kept_and_given_to_the_next_build(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    full = EngineOptions("tensorrt")
    builder = trt.Builder(export_trt.logger(RTX))
    network, keep = parse(trt, export_trt.logger(RTX), lstm().SerializeToString())
    found = []
    for _ in range(2):
        config = builder.create_builder_config()
        with build._timing_cache(trt, config, full, {"name": "a GPU"}) as before:
            assert keep and builder.build_serialized_network(network, config) is not None
        found.append(before)
    assert found[0] == b"" and len(found[1]) > 50
    with build._timing_cache(trt, config, options(), None) as before:
        assert before is None  # RTX times nothing
    with build._timing_cache(trt, config, full, {"name": "another GPU"}) as before:
        assert before == b""


# --- messages of the builder


def test_the_builder_is_silent_and_its_reason_is_one_line(capfd):
    build_engine(LstmShape(1, 14, 4), options())
    with pytest.raises(BuildFailed) as refusal:
        build_engine(LstmShape(1, 64, 32), options(workspace_bytes=1000))
    assert "no tactics to implement the operation within workspace limit" in str(refusal.value)
    assert "\n" not in str(refusal.value) and "cuda" not in str(refusal.value).lower()
    assert capfd.readouterr() == ("", "")


def test_the_parsers_reason_names_the_operator():
    with pytest.raises(BuildFailed, match=r"mine: LSTM operator 'my_lstm': inputForget == 0"):
        build.build_plan(lstm(input_forget=1), options(), "mine", None)


def test_a_name_that_is_not_utf8_is_refused_before_tensorrt_quotes_it(capfd):
    """The bindings fail before our logger is called, and print `[ERROR] Exception caught in log()`."""
    shape = LstmShape(1, 8, 4)
    content = static_model(export_network(shape).path, shape)
    for name in (b"/lstm/LSTM", b"inputs"):
        with pytest.raises(ExportFailed, match="not UTF-8"):
            build_engine(content.replace(name, b"\xff\xfe" + name[2:]), options())
    assert capfd.readouterr() == ("", "")


# --- the layer table


@pytest.mark.parametrize(
    ("hidden", "batch", "directions", "launches", "kernels_a_step"),
    rest_is_heavy(
        [
            (64, 1, 1, 41, 9 / 8),
            (128, 1, 1, 41, 9 / 8),
            (160, 1, 1, 69, 2),
            (64, 2, 1, 69, 2),
            (64, 1, 2, 106, 25 / 8),
            (128, 1, 2, 134, 4),
            (64, 2, 2, 134, 4),
        ],
        lambda hidden, batch, *_: hidden == 64 and batch == 2,
    ),
)
def test_the_launches_are_those_that_are_known(hidden, batch, directions, launches, kernels_a_step):
    """Those of TensorRT for RTX 1.7.1, with 32 features and 32 steps."""
    shape = LstmShape(1, hidden, 32, batch, 32, directions)
    table = build_engine(shape, options(detailed=True)).information["layers"]
    assert table["launches"] == launches
    (loop,) = table["loops"]
    assert (loop["steps"], loop["steps_a_turn"], loop["turns"]) == (32, 8, 4)
    assert loop["kernels_a_step"] == kernels_a_step and loop["onnx"] == ["/lstm/LSTM"]


@pytest.mark.parametrize(
    ("sequence", "turns", "launches"), [(1, None, 2), (15, None, 19), (16, 2, 23), (37, 4, 47), (256, 32, 293)]
)
def test_short_sequences_are_unrolled_and_steps_left_over_too(sequence, turns, launches):
    table = build_engine(LstmShape(1, 64, sequence), options(detailed=True)).information["layers"]
    assert [loop["turns"] for loop in table["loops"]] == ([] if turns is None else [turns])
    assert table["launches"] == launches
    text = "\n".join(export_layers.render(table))
    assert f"iteration): {launches} = " in text
    assert ("all time steps are unrolled" in text) == (turns is None)


def test_dynamic_sequences_are_counted_for_the_steps_that_the_profile_is_best_at():
    def table(steps: int, directions: int = 1) -> dict:
        profile = Profile((1, steps, 128), (1, 1, 1))
        shape = LstmShape(1, 64, 1, directions=directions)
        return build_engine(shape, options(profile=profile, detailed=True)).information["layers"]

    assert [(loop["turns"], loop["steps_a_turn"]) for loop in table(33)["loops"]] == [(4, 8), (1, 1)]
    assert table(40)["launches"] - table(32)["launches"] == 9
    assert table(33)["launches"] - table(32)["launches"] == 3
    assert "counted for 33 time steps" in "\n".join(export_layers.render(table(33)))
    both = table(33, directions=2)
    assert [(loop["turns"], loop["steps_a_turn"]) for loop in both["loops"]] == [(33, 1)]  # not unrolled


def test_without_details_there_is_no_table_and_the_engine_is_the_same_but_for_one_byte():
    shape = LstmShape(1, 64, 32)
    plain, detailed = (build_engine(shape, options(detailed=wanted)) for wanted in (False, True))
    assert plain.information["layers"] is None
    assert sum(a != b for a, b in zip(plain.plan, detailed.plan, strict=True)) == 1


def test_an_engine_for_capture_has_the_same_kernels():
    shape = LstmShape(1, 64, 32)
    plain, capturable = (build_engine(shape, options(detailed=True, capturable=wanted)) for wanted in (False, True))
    assert capturable.plan != plain.plan, "the flag did not reach the builder"
    assert capturable.information["layers"]["launches"] == plain.information["layers"]["launches"]


def test_what_has_no_rows_gives_no_table():
    assert export_layers.rows_from_log([("VERBOSE", "nothing of the kind")]) == []
    assert export_layers.rows_of("Layers:\na name\nanother\n") == []  # an engine without details
    assert len(export_layers.render(None)) == 1
