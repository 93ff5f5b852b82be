"""Recordings of the literature's workloads: parity gate, self-checks, costs, identity, metrics."""

from __future__ import annotations

import json
import resource
import shlex
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lstm_judge.read.labels import versions_command
from lstm_judge.read.rounds import groups_of
from lstm_judge.summarize.summarize import summarize
from lstm_literature import commands, implementations, metrics, preparer
from lstm_literature.data import make_batch
from lstm_literature.preparer import PREPARER, describe_benchmark, protocol_of
from lstm_literature.training import BETWEEN_NS, SWITCH_NS, check_between_batches, check_losses
from lstm_literature.workloads import VARIANTS, WORKLOADS, base_of
from lstm_trt.cli.common import options_of
from lstm_trt.cli.main import parse
from lstm_trt.config.configuration import Configuration, Options
from lstm_trt.config.errors import ParityFailed, RunFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder import pool
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.loop import Trials
from lstm_trt.recorder.parity import check_parity
from lstm_trt.recorder.run import loop_against_batches
from lstm_trt.runtimes.base import PreparedStep
from lstm_trt.store import consolidated, files, folders, schema
from lstm_trt.store.schema import Failure, Recording
from tests.support.trials import record_here

#: The smallest networks with an embedding and a head, and with variable lengths.
TEXT = WORKLOADS["text-classifier"].variant(hidden=16)
CTC = replace(WORKLOADS["speech-ctc-long"], hidden=8, layers=1).scaled("1/50")

PLANTED = """
import numpy as np
from lstm_literature.implementations.on_pytorch import FUSED_EAGER as _REAL
from lstm_trt.runtimes.base import Availability, PreparedStep
from tests.support.trials import record_here
NAME, TITLE, FRAMEWORK, STYLE, EXECUTION, EXTRA = "planted", "Planted", "None", "basic", "eager", None
DISTRIBUTION, DEVICES, PRECISIONS = "numpy", ("cpu",), {{"cpu": ("fp32",)}}
def supports(workload, mode, device):
    return "planted reason" if workload.name == "cell" else None
def availability(device):
    return Availability(True, "1.0")
def prepare(request):
    {trouble}
    return _Step(_REAL.prepare(request))
class _Step(PreparedStep):
    def __init__(self, real):
        self._real, self.costs = real, {{"build_s": 1.25, "schedule_s": 2.5, "tuning_s": 3.5}}
    def step(self):
        self._real.step()
    def load_inputs(self, inputs):
        self._real.load_inputs(inputs)
    def outputs(self):
        return {{"outputs": self._real.outputs()["outputs"] * {factor}}}
    def loss(self):
        return {loss}
"""


def record(workload, name: str, *, out: Path | None = None, **asked) -> Recording:
    made = describe_benchmark(workload, name, **asked)
    return pool.record(made.workload, made.runtime, made.protocol, made.options, mode=made.mode, out=out)


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> Path:
    """The folder of the planted implementations."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture
def planted(modules, monkeypatch):
    """Write an implementation with a defect as a new module; returns its name."""
    monkeypatch.syspath_prepend(str(modules))

    def write(name: str, factor: str = "1", loss: str = "self._real.loss()", trouble: str = "pass") -> str:
        source = PLANTED.format(factor=factor, loss=loss, trouble=trouble)
        package = modules / f"planted_{name}"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "it.py").write_text(source)
        return f"planted_{name}.it"

    return write


@pytest.fixture(scope="module")
def workers():
    """One preparing process for the planted implementations, since starting one takes seconds."""
    with pool.WorkerPool() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One recording each of forward, training, and training with variable lengths."""
    out = tmp_path_factory.mktemp("literature")
    record("layer", "onnxruntime", out=out, batches=5)
    record(TEXT, "pytorch-one-call-eager", out=out, scale="1/8", batches=6)
    record(CTC, "pytorch-fused-eager", out=out, batches=4)
    return out


def by_name(folder: Path) -> dict[str, Recording]:
    return {item.configuration.workload.name: item for item in folders.read_many(folder)}


@pytest.mark.heavy
def test_a_forward_workload_is_a_recording_like_any_other(folder):
    recording = by_name(folder)["layer"]
    assert recording.configuration.mode == "forward" and recording.configuration.runtime == "onnxruntime"
    assert len(recording.timed_ns) == 5 and recording.columns["warmup"].sum() == 1
    parity = recording.provenance["parity"]
    assert parity["of"] == "outputs" and 0 <= parity["error"] <= parity["bound"] == 1e-5
    assert recording.provenance["costs_s"].keys() == {"export_s", "build_s", "first_call_s"}
    assert all(seconds > 0 for seconds in recording.provenance["costs_s"].values())
    assert recording.provenance["losses"] is None
    assert recording.provenance["threads"]["pinned_to"] == list(recording.configuration.options.cores)
    schema.validate(recording, "here")


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["text-classifier", "speech-ctc-long"])
def test_a_training_loop_checks_itself(folder, name):
    recording = by_name(folder)[name]
    losses = recording.provenance["losses"]
    assert len(losses) >= 2 and np.isfinite(losses).all() and losses[-1] < losses[0]
    parity = recording.provenance["parity"]
    assert parity["of"] == "first loss" and 0 <= parity["error"] <= parity["bound"] == 1e-4
    assert parity["nan_reaches_output"] is None
    check = recording.provenance["self_check"]
    latency, start = recording.columns["latency_ns"], recording.columns["start_ns"]
    assert check["batches_ns"] == latency.sum()
    assert check["batches_ns"] <= check["batches_loop_ns"] <= start[-1] + latency[-1] - start[0]
    # No batch within the loop is marked as warm-up.
    assert recording.configuration.protocol.settle == 0 and np.flatnonzero(recording.columns["warmup"]).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "asked", "batches", "warmup"),
    [
        ("ptb-lm", {}, 50, 10),
        ("text-classifier", {}, 50, 2),
        ("speech-ce-long", {"batches": 20}, 20, 5),  # 400 and 100 in proportion
        ("ptb-lm", {"batches": 7, "warmup": 0}, 7, 0),
    ],
)
def test_the_protocol_has_the_documents_batches(name, asked, batches, warmup):
    found = protocol_of(WORKLOADS[name], **asked)
    assert (found.trials, found.warmup) == (batches, warmup)


def test_the_identity_has_sizes_and_scale_but_no_note():
    def described(workload="ptb-lm", name="pytorch-fused-eager", mode="training", scale="1/8", **more):
        return describe_benchmark(workload, name, mode, scale=scale, **more)

    first = described()
    assert Configuration.from_dict(json.loads(json.dumps(first.as_dict()))) == first
    assert first.as_dict()["workload"]["kind"] == "literature" and "note" not in first.as_dict()["workload"]
    assert described(replace(WORKLOADS["ptb-lm"], note="another note")).id == first.id
    others = ({"scale": "1"}, {"mode": "forward"}, {"name": "pytorch-basic-eager"}, {"batches": 5}, {"seed": 1})
    assert len({first.id, *(described(**other).id for other in others)}) == 6
    assert first.name == "ptb-lm@1/8 training"


def test_a_shape_has_a_name_and_forward_passes_only():
    shape = LstmShape(2, 64, 32)
    assert Configuration(shape, "onnxruntime", "1.31.1", "a CPU").name == "2x64-s32-b1"
    with pytest.raises(UsageError, match="backward"):
        describe(shape, mode="backward")


def test_a_scaled_workload_finds_its_document_size():
    for name, variants in VARIANTS.items():
        for workload in variants:
            assert base_of(workload) is workload
            found = base_of(workload.scaled("1/2"))
            assert replace(found.scaled("1/2"), note="") == replace(workload.scaled("1/2"), note=""), name
    assert base_of(WORKLOADS["text-classifier"].variant(hidden=100).scaled("1/2")) is None


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (("ptb", "onnxruntime"), {}, "'ptb'"),
        (("cell", "nobodys"), {}, "'nobodys'"),
        (("cell", "onnxruntime", "training"), {}, "forward"),
        (("speech-ce-short", "onnxruntime", "forward"), {}, "training"),
        (("cell", "onnxruntime"), {"scale": "2"}, "scale"),
        (("cell", "onnxruntime"), {"scale": "a half"}, "a half"),
        (("cell", "onnxruntime"), {"options": Options(threads=4096)}, "threads"),
        (("cell", "onnxruntime"), {"options": Options(device="cuda", precision="tf32")}, "tf32"),
        (("cell", "onnxruntime"), {"batches": 0}, "batches"),
        (("cell", "onnxruntime"), {"batches": -3}, "batches"),
    ],
)
def test_wrong_arguments_are_rejected(arguments, options, match):
    with pytest.raises(UsageError, match=match):
        describe_benchmark(*arguments, **options)


def test_a_missing_framework_is_reported_with_its_extra():
    if implementations.load_implementation("tensorflow-xla").availability().ready:
        pytest.skip("TensorFlow is installed")
    with pytest.raises(RuntimeUnavailable, match="frameworks"):
        describe_benchmark("cell", "tensorflow-xla")


class _FixedStep(PreparedStep):
    """A step with given outputs or loss."""

    def __init__(self, outputs=None, loss=None):
        self._outputs, self._loss = outputs, loss

    def load_inputs(self, inputs):
        self.inputs = inputs

    def step(self):
        pass

    def outputs(self):
        return {"outputs": self._outputs}

    def loss(self):
        return self._loss


def gate_of(configuration: Configuration, answers: np.ndarray, folder: Path):
    np.save(folder / "answers.npy", answers)
    return PREPARER.gate(configuration, {"gate_seed": 3, "reference_path": str(folder / "answers.npy")})


def test_the_gate_of_outputs_has_its_stated_bound(tmp_path):
    workload = WORKLOADS["layer"]
    configuration = Configuration(workload, "x", "1", "a CPU")
    truth = np.random.default_rng(0).standard_normal(workload.output_shape).astype(np.float32)
    gate = gate_of(configuration, truth, tmp_path)
    step = _FixedStep(truth * np.float32(1 + 5e-6))
    assert check_parity(step, configuration, gate)["error"] == pytest.approx(5e-6, rel=0.1)
    assert np.array_equal(step.inputs["inputs"], make_batch(workload, 3).inputs)
    for wrong in (truth * np.float32(1 + 2e-5), truth[:-1], np.full_like(truth, np.nan)):
        with pytest.raises(ParityFailed):
            check_parity(_FixedStep(wrong), configuration, gate)


def test_the_gate_of_the_first_loss_has_its_stated_bound(tmp_path):
    configuration = Configuration(TEXT, "x", "1", "a CPU", mode="training")
    gate = gate_of(configuration, np.array([2.0]), tmp_path)
    check_parity(_FixedStep(loss=2 * (1 + 9e-5)), configuration, gate)
    for wrong in (2 * (1 + 2e-4), float("nan")):
        with pytest.raises(ParityFailed, match="first loss"):
            check_parity(_FixedStep(loss=wrong), configuration, gate)


def between(trials) -> list[str]:
    """The warnings of these trials."""
    return check_between_batches(trials.columns, trials.self_check)


def loop(
    gaps_ns: list[int], latency_ns: int = 1_000_000, between_blocks_ns: int = 50_000_000, switches: int = 0
) -> Trials:
    """Two blocks of batches with one latency and these gaps after them; the first `switches` were interrupted."""
    start, at = [], 0
    for number, gap in enumerate(gaps_ns):
        start.append(at)
        at += latency_ns + gap + (between_blocks_ns if number == len(gaps_ns) // 2 - 1 else 0)
    columns = {"start_ns": np.array(start), "latency_ns": np.full(len(start), latency_ns)}
    columns["involuntary_switches"] = 3 * (np.arange(len(start)) < switches)
    half = len(start) // 2
    blocks = [{"first_row": 0, "rows": half}, {"first_row": half, "rows": len(start) - half}]
    trials = Trials(columns, blocks, {}, 0, 0)
    trials.self_check.update(loop_against_batches(trials))
    return trials


def test_the_time_of_the_loop_excludes_the_time_between_blocks():
    clean = loop([5_000] * 10)
    # Eight gaps of 5 us are within the two blocks; the gap between the blocks is not part of the loop.
    assert clean.self_check == {"batches_ns": 10_000_000, "batches_loop_ns": 10_040_000}
    assert between(clean) == []


def test_a_warning_says_how_long_the_time_between_the_batches_was():
    (warning,) = between(loop([5_000, 5_000, 400_000] * 4))
    assert all(number in warning for number in ("0.84 ms", "12.8 ms", "0.24 ms"))


#: Time slices of other processes after two of six batches.
SLICES = [5_000, SWITCH_NS // 2, 5_000, SWITCH_NS, 5_000, 5_000]


@pytest.mark.parametrize(
    ("gaps_ns", "more", "warned"),
    [
        # As on a busy machine: 0.14 ms of 5.34 ms is the recorder's own work after each of eight batches.
        ([23_000] * 8, {"latency_ns": 650_000}, False),
        # In a long loop the limit is 1 %, independent of the number of batches.
        ([900_000] * 10, {"latency_ns": 100_000_000}, False),
        ([1_300_000] * 10, {"latency_ns": 100_000_000}, True),
        # A counted context switch explains one time slice.
        (SLICES, {"switches": 0}, True),
        (SLICES, {"switches": 1}, True),
        (SLICES, {"switches": 2}, False),
        ([*SLICES[:3], 2 * SWITCH_NS + 6 * BETWEEN_NS, *SLICES[4:]], {"switches": 2}, True),
    ],
)
def test_unexplained_time_between_the_batches_causes_a_warning(gaps_ns, more, warned):
    assert bool(between(loop(gaps_ns, **more))) == warned


def test_batches_longer_than_their_loop_are_an_error():
    inconsistent = loop([5_000] * 10)
    inconsistent.self_check["batches_ns"] = inconsistent.self_check["batches_loop_ns"] + 1
    with pytest.raises(RunFailed, match="self-check"):
        between(inconsistent)


@pytest.mark.heavy
def test_a_slow_recorder_causes_a_warning_and_no_failure(monkeypatch, tmp_path):
    configuration = describe_benchmark(TEXT, "pytorch-one-call-eager", "training", scale="1/8", batches=4)
    path = tmp_path / "answers.npy"
    made = PREPARER.reference(configuration, 3, path, lambda event, **values: None)
    reference = {"reference_path": str(path), **made}
    getrusage = resource.getrusage

    def slow_reading(who):
        time.sleep(2 * (SWITCH_NS + BETWEEN_NS) / 1e9)  # more than a context switch per batch would explain
        return getrusage(who)

    monkeypatch.setattr(resource, "getrusage", slow_reading)
    monkeypatch.setattr("lstm_literature.training.LOOP_BOUND", 0.0)  # the batches may take long here
    done = record_here(tmp_path, configuration, reference)
    assert any("between the batches" in text for text in done.warnings)
    assert files.read(Path(done.path)).provenance["warnings"] == done.warnings


@pytest.mark.parametrize(
    ("losses", "match"),
    [([2.0, float("nan")], "nan"), ([1.0, 1.0], "first 1, last 1"), ([1.0, 1.5], "first 1, last 1.5")],
)
def test_a_loss_that_does_not_decrease_is_an_error(losses, match):
    with pytest.raises(RunFailed, match=match):
        check_losses(losses)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("flaw", "mode", "stage", "reason", "documents_term"),
    [
        ({"factor": "np.float32(1.001)"}, "forward", "parity", "PyTorch", "outputs"),
        ({"loss": "1.001 * self._real.loss()"}, "training", "parity", "PyTorch", "first loss"),
        ({"trouble": "raise MemoryError('none left')"}, "forward", "memory", "memory", "out of mem"),
        ({"trouble": "raise RecursionError('maximum recursion')"}, "forward", "build", "recursion", "recursion depth"),
        ({"trouble": "import os; os.abort()"}, "forward", "build", "SIGABRT", "didn't run"),
    ],
    ids=["outputs", "loss", "memory", "recursion", "crash"],
)
def test_a_failure_is_a_row_in_the_documents_terms(
    planted, workers, tmp_path, flaw, mode, stage, reason, documents_term
):
    configuration = describe_benchmark("ptb-lm", planted(documents_term[:4], **flaw), mode, scale="1/50", batches=2)
    failure = workers.record_configuration(configuration, 0, tmp_path).failure
    assert (failure.stage, reason in failure.reason) == (stage, True)
    (row,) = metrics.table(folders.read_many(tmp_path))
    assert (row.status, row.value, row.detail, row.scale) == ("failed", None, failure.reason, "1/50")
    assert row.reason.startswith(documents_term)


def test_an_unsupported_workload_is_a_failure_row_without_a_process(planted, tmp_path):
    configuration = describe_benchmark("cell", planted("refuses"), batches=2)
    with pool.WorkerPool() as workers:
        failure = workers.record_configuration(configuration, 0, tmp_path).failure
        assert not workers._workers and workers._maker is None
    assert failure.stage == "build" and "planted reason" in failure.reason
    assert metrics.reason(failure) == "didn't run"


@pytest.mark.heavy
def test_costs_are_rows(planted, workers, tmp_path):
    configuration = describe_benchmark("layer", planted("costs"), batches=3)
    recording = files.read(workers.record_configuration(configuration, 0, tmp_path).path)
    rows = {row.statistic: row for row in metrics.table([recording])}
    costs = {"schedule": 2.5, "tuning": 3.5, "build": 1.25}
    assert {name: (rows[name].value, rows[name].unit) for name in costs} == {n: (s, "s") for n, s in costs.items()}
    assert rows["tuning"].framework == "None"


@pytest.mark.heavy
def test_metrics_are_the_documents(folder):
    rows = list(metrics.table(folders.read_many(folder)))
    found = {(row.source, row.statistic): row for row in rows}
    of_layer, of_text, of_speech = (by_name(folder)[name] for name in ("layer", "text-classifier", "speech-ctc-long"))
    for name in ("mean", "median", "max", "min", "std"):
        assert found["000", name].value == pytest.approx(getattr(np, name)(of_layer.timed_ns) / 1e6)
    assert found["000", "parameters"].value == 8448
    mean = found["002", "mean"]
    assert mean.value == pytest.approx(of_text.timed_ns.mean() / 1e6)
    assert (mean.scale, mean.batch, mean.published_batch) == ("1/8", 16, None)
    losses, check = (of_speech.provenance[name] for name in ("losses", "self_check"))
    assert [found["004", f"loss_{name}"].value for name in ("first", "last")] == [losses[0], losses[-1]]
    assert found["004", "loop_over_batches"].value == check["batches_loop_ns"] / check["batches_ns"] >= 1
    for cost in ("export", "build", "first_call"):
        assert found["000", cost].unit == "s" and found["000", cost].value > 0
    assert {(row.source, row.unit) for row in rows if row.statistic == "mean"} == {
        (d, "ms") for d in ("000", "002", "004")
    }
    in_ms = [row for row in rows if row.unit == "ms"]
    assert [row.seconds for row in in_ms] == pytest.approx([row.value / 1e3 for row in in_ms])
    assert {row.seconds for row in rows if row.unit in ("count", "ratio", "loss")} == {None}


def test_document_001_counts_sequences():
    figures = metrics.document_statistics("001", np.array([100_000_000, 300_000_000]), batch=64)
    assert figures == {
        "elapsed": (pytest.approx(0.4), "s"),
        "wall": (pytest.approx(0.2), "s"),
        "sequences_per_s": (pytest.approx(320), "sequences/s"),
    }


@pytest.mark.heavy
def test_summary_groups_and_consolidation_include_them(folder, tmp_path):
    items = list(folders.read_many(folder))
    rows = summarize(items)
    assert {(row.configuration["hidden"], row.configuration["mode"], row.group["workload"]) for row in rows} == {
        (32, "forward", "layer-32x8x32"),
        (16, "training", "text-classifier-h16@1/8"),
        (8, "training", "speech-ctc-long@1/50"),
    }
    assert str(rows).count("text-classifier-h16@1/8") == 1
    shape = Configuration(LstmShape(1, 8, 4), "pytorch", "2", "a CPU")
    assert len(summarize([*items, Failure(shape, 0, "build", "no")])) == 4
    assert len(groups_of(items)) == 3
    consolidated.consolidate(items, tmp_path)
    again = {item.configuration.id: item for item in folders.read_many(tmp_path)}
    assert all(np.array_equal(again[item.configuration.id].timed_ns, item.timed_ns) for item in items)


@pytest.mark.heavy
def test_the_command_of_a_configuration_gives_the_same_configuration(tmp_path):
    for workload, scale, name, mode in (
        (WORKLOADS["ptb-lm"], "1/8", "pytorch-fused-eager", "training"),
        (WORKLOADS["layer"].variant(batch=128, sequence=100, hidden=128), "1/3", "onnxruntime", "forward"),
        (VARIANTS["stack"][-1], "1", "onnxruntime", "forward"),
        (TEXT, "1", "pytorch-basic-eager", "training"),
    ):
        configuration = describe_benchmark(workload, name, mode, scale=scale, batches=4, warmup=1, seed=3)
        arguments = shlex.split(configuration.workload.command(configuration, tmp_path))[1:]
        assert [item.id for item in commands.configurations(parse(arguments, commands.PROGRAM))] == [configuration.id]
        line = versions_command("a-library", ("1.0", "2.0"), configuration, tmp_path, 3)
        given = parse(shlex.split(line)[1:], commands.PROGRAM)
        (asked, protocol), options = commands.version_workload(given), options_of(given)
        assert describe(asked, given.runtime, protocol, options, given.mode).id == configuration.id
        assert (given.library, given.versions, given.rounds) == ("a-library", ["1.0", "2.0"], 3)


@pytest.mark.heavy
def test_without_its_environment_a_named_implementation_is_refused_and_others_are_recorded(monkeypatch):
    def refuse(library: str, version: str, *more: object) -> None:
        raise UsageError(f"cannot install {library} {version}: no network")

    monkeypatch.setattr(preparer, "described", refuse)
    own, other = (Configuration(WORKLOADS["layer"], name, "1", "a CPU") for name in ("mxnet-one-call", "onnxruntime"))
    with pytest.raises(UsageError, match=r"^cannot install mxnet 1\.9\.1"):
        preparer.interpreters([own, other], lambda line: None)
    told: list[str] = []
    assert preparer.interpreters([own, other], told.append, optional=True) == {other.id: None}
    assert len(told) == 1 and "no network" in told[0]
