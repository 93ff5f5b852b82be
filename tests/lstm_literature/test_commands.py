"""`lstm-literature`: list, recordings, metrics, errors, and the plan of all workloads."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import replace

import pytest

from lstm_literature import completeness, implementations, schedule, sides
from lstm_literature.preparer import availability, reason
from lstm_literature.workloads import AS_THERE, TEXT, VARIANTS, WORKLOADS
from lstm_trt.store import folders, schema
from lstm_trt.store.schema import Failure
from tests.conftest import ROOT, run_here

#: ONNX Runtime does not train: one recording and one failure.
COMMAND = (
    *("lstm-literature", "record", "ptb-lm", "--implementation", "pytorch-one-call-eager", "onnxruntime"),
    *("--mode", "training", "--scale", "1/16", "--batches", "3", "--quiet"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recorded once; its standard output and error are discarded."""
    out = tmp_path_factory.mktemp("literature")
    assert run_here([*COMMAND, "--out", str(out)]).returncode == 0
    return out


def recorded(folder) -> tuple[schema.Recording, Failure]:
    items = sorted(folders.read_many(folder), key=lambda item: isinstance(item, Failure))
    assert [isinstance(item, Failure) for item in items] == [False, True]
    return tuple(items)


def test_the_list_has_every_workload_and_every_implementation(run):
    status, out, err = run("lstm-literature", "list")
    assert status == 0 and err == ""
    for name, workload in WORKLOADS.items():
        assert f"{name}  (document {workload.document}; {', '.join(workload.modes)})" in out
        assert f"{workload.parameters} parameters" in out
    assert set(implementations.names()) <= set(re.findall(r"[\w-]+", out))


def test_recordings_are_shown_in_the_documents_metrics(folder, run):
    recording, failure = recorded(folder)
    _, out, _ = run("lstm-literature", "table", "--out", folder, "--format", "csv")
    rows = {(row["implementation"], row["statistic"]): row for row in csv.DictReader(io.StringIO(out))}
    ns, costs = recording.timed_ns, recording.provenance["costs_s"]
    expected = {"elapsed": ns.sum() / 1e9, "wall": ns.mean() / 1e9, "sequences_per_s": 8 / (ns.mean() / 1e9)}
    expected |= {cost: costs[f"{cost}_s"] for cost in ("build", "first_call")}
    figures = {name: rows.pop(("pytorch-one-call-eager", name)) for name in expected}
    assert {name: float(row["value"]) for name, row in figures.items()} == pytest.approx(expected)
    # 1/16 of the document's batch of 128 and sequence of 50, of which both are printed, and 3 of its 50 batches.
    columns = ("scale", "batch", "sequence", "published_batch", "n", "document_n")
    assert {tuple(row[name] for name in columns) for row in figures.values()} == {("1/16", "8", "3", "128", "3", "50")}
    (failed,) = (row for (name, _), row in rows.items() if name == "onnxruntime")
    assert [failed[name] for name in ("statistic", "value", "status", "reason", "detail")] == [
        *("wall", "", "failed", "didn't run", failure.reason)
    ]


def test_the_table_has_a_line_for_a_recording_and_one_for_a_failure(folder, run):
    recording, failure = recorded(folder)
    _, table, _ = run("lstm-literature", "table", "--out", folder)
    failed, good = sorted(table.splitlines()[2:], key=lambda line: "onnxruntime" not in line)
    assert failed.endswith(f"  didn't run ({failure.reason})")
    assert good.split()[:5] == ["ptb-lm@1/16", "1/16", "training", "pytorch-one-call-eager", "3"]
    assert f"{recording.timed_ns.mean() / 1e9:.4f}" in good


def test_the_table_shows_the_requested_recordings(folder, run):
    _, out, _ = run("lstm-literature", "table", "--implementation", "onnxruntime", "--out", folder, "--format", "json")
    assert {row["implementation"] for row in json.loads(out)} == {"onnxruntime"}
    arguments = ("cell", "ptb-lm", "--implementation", "onnxruntime", "tvm-tuned")
    status, out, err = run("lstm-literature", "table", *arguments, "--out", folder)
    assert status == 3 and "ptb-lm@1/16" in out and err.count("\n") == 1
    assert "has no matching recording of cell, tvm-tuned" in err


@pytest.mark.parametrize(
    "asked", [("cell",), ("ptb-lm", "--mode", "forward"), ("cell", "--coverage", "--mode", "training")]
)
def test_what_no_recording_or_document_has_is_refused(folder, refused, asked):
    refused("lstm-literature", "table", *asked, "--out", folder)


def test_the_coverage_prints_a_row_per_published_time(folder, run):
    command = ("lstm-literature", "table", "cell", "ptb-lm", "--coverage", "--out", folder, "--format")
    printed = {form: run(*command, form)[1] for form in ("json", "csv", "text")}
    rows = json.loads(printed["json"])
    assert {row["workload"] for row in rows} == {"cell", "ptb-lm"}
    recorded = [row for row in rows if row["today"] is not None]
    assert {row["document"] for row in recorded} == {"001", "001-later", "001-newest"}
    wanted = {"implementation": "pytorch-one-call-eager", "mode": "training", "scale": "1/16", "threads": 1}
    wanted |= {"n": 3, "document_n": 50, "device": "gpu", "device_today": "cpu"}
    for row in recorded:
        assert wanted.items() <= row.items() and row["marks"].startswith("scaled, few batches")
    assert len(list(csv.DictReader(io.StringIO(printed["csv"])))) == len(rows)
    titles = re.findall(r"^.*: \d+ of \d+ rows? recorded", printed["text"], re.MULTILINE)
    assert len(titles) == 4


def test_without_a_folder_the_coverage_is_that_of_the_recordings_that_ship(run):
    """`make figures` writes the file."""
    command = ("lstm-literature", "table", "--coverage", "--format")
    for form in ("csv", "text"):
        status, out, _ = run(*command, form, "--out", ROOT / "data/xeon/literature")
        assert status == 0 and run(*command, form)[1] == out
    assert run(*command, "csv")[1] == (ROOT / completeness.SHIPPED).read_text()


def test_the_same_command_resumes(folder, run):
    def changed():
        return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".lock"}

    before = changed()
    status, out, err = run(*COMMAND, "--out", folder)
    assert status == 0 and "0 recorded, 0 failed, 1 already recorded, 1 failed earlier" in err
    assert changed() == before
    assert "pytorch-one-call-eager" in out and "didn't run" in out


def test_names_of_the_literature_are_complete_in_summaries(folder, run):
    _, out, _ = run("summarize", folder)
    assert "pytorch-one-call-eager" in out and "ptb-lm@1/16" in out


#: A command line that is complete but for its folder.
CELL = "record cell --implementation onnxruntime"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("record ptb --implementation onnxruntime --out x", "unknown workload 'ptb'"),
        ("record cell --implementation nobody --out x", "unknown implementation 'nobody'"),
        ("record cell --out x", "required: --implementation"),
        ("record --implementation onnxruntime --out x", "required: WORKLOAD"),
        (CELL, "required: --out"),
        (f"{CELL} --mode training --out x", "only forward"),
        (f"{CELL} --scale 3 --out x", "at most 1"),
        (f"{CELL} --hidden 8 --out x", "hidden"),
        ("record layer --implementation onnxruntime --variants --hidden 8 --out x", "--variants"),
        (f"{CELL} --batches 0 --out x", "batches must be at least 1"),
        (f"{CELL} --rounds 0 --out x", "rounds must be at least 1"),
        (f"{CELL} --out x y", "unrecognized arguments: "),
        ("list --format csv", "invalid choice: 'csv'"),
        ("list --implementation onnxruntime", "plain name"),
        ("table", "--out is missing"),
        ("table --out x", "file or folder"),
        ("plan", "--out is missing"),
        ("plan --dry-run --format csv", "text and json"),
        ("plan cell --out x", "unrecognized arguments: cell"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, run, line, message):
    status, out, err = run("lstm-literature", *(tmp_path / "x" if word == "x" else word for word in line.split()))
    *before, last = err.splitlines()  # a plan is printed before recording starts
    assert (status, out) == (2, "") and (not before or line == "plan")
    assert last.startswith("lstm-literature: ") and message in last
    assert not list((tmp_path / "x").glob("*.*"))


def test_what_is_not_installed_is_an_error_with_a_remedy(refused, tmp_path):
    if availability("tensorrt").ready:
        pytest.skip("TensorRT is ready here")
    said = refused("lstm-literature", "record", "cell", "--implementation", "tensorrt", "--out", tmp_path)
    assert said.startswith("lstm-literature: tensorrt: ")


@pytest.fixture(scope="module")
def entries():
    return schedule.plan().entries


def on_a_cpu(entries):
    return [entry for entry in entries if implementations.load_implementation(entry.implementation).DEVICES[0] == "cpu"]


def spans_of(path) -> dict:
    """Configuration id -> when its preparation began and when its last batch ended, in s."""
    found = {}
    for item in folders.read_many(path):
        if isinstance(item, schema.Recording):
            seconds, began = item.provenance["seconds"], item.provenance["started_unix_ns"] / 1e9
            found[item.configuration.id] = (began - seconds["build"] - seconds["parity"], began + seconds["timing"])
    return found


def test_the_estimate_is_the_time_that_the_recordings_took(entries):
    """The rows that `plan` recorded one after another on the 2-core Xeon, whose ids other machines do not have."""
    keys = {}
    for item in folders.read_many(ROOT / "data/xeon/literature"):
        made = item.configuration
        keys[made.id] = made.workload, made.runtime, made.mode, made.protocol.trials, made.protocol.warmup
    plan = {(e.workload, e.implementation, e.mode, e.batches, e.warmup): e for e in entries}
    spans = sorted((end, began, plan.get(keys[config_id])) for config_id, (began, end) in
                   spans_of(ROOT / "data/xeon/literature").items())  # fmt: skip
    taken_s, estimate_s, number = 0.0, 0.0, 0
    for (before, _, previous), (end, began, entry) in itertools.pairwise(spans):
        if entry and previous and began - before < 60:  # without pauses
            taken_s, estimate_s, number = taken_s + end - before, estimate_s + entry.estimate_s, number + 1
    assert number > 300 and taken_s > 40 * 60
    assert estimate_s == pytest.approx(taken_s, rel=0.03)


def test_no_row_comes_near_the_time_limit(entries):
    assert all(0 < entry.estimate_s < schedule.TIME_LIMIT_S / 2 for entry in on_a_cpu(entries))


def test_the_plan_says_what_is_left(entries, run, tmp_path):
    """Of two rows that are ready here, one is recorded: the other is left, and only its time counts."""
    ready = [entry for entry in entries if entry.configuration is not None and entry.workload.name == "layer"][:2]
    whole = schedule.plan(recorded={ready[0].configuration.id})
    marked = [entry for entry in whole.entries if entry.recorded]
    assert [entry.configuration.id for entry in marked] == [ready[0].configuration.id]
    assert whole.ready.total_s > whole.left.total_s > 0
    assert len(whole.left.entries) == len(whole.ready.entries) - 1
    assert whole.as_dict()["estimate_left_s"] == whole.left.total_s
    *lines, last = str(whole).splitlines()
    assert [line for line in lines if line.endswith("  recorded")] == [lines[1 + whole.entries.index(marked[0])]]
    number = len(whole.left.entries)
    assert f"; {number} of them are not recorded yet, in about {whole.left.total_s / 60:.0f} min by" in last


def test_the_plan_has_every_implementation_workload_and_document(entries):
    assert {entry.implementation for entry in entries} == set(implementations.names())
    modes = {(entry.workload.name, entry.mode) for entry in entries}
    assert modes == {(name, mode) for name, workload in WORKLOADS.items() for mode in workload.modes}
    # Documents 000 and 001 have published times: all of their sizes, not scaled.
    for name in ("cell", "layer", "stack", "ptb-lm"):
        whole = {entry.workload for entry in entries if entry.workload.name == name and entry.workload.scale == "1"}
        assert whole == set(VARIANTS[name])
    for name in TEXT:
        hidden = {entry.workload.hidden for entry in entries if entry.workload.name == name}
        assert hidden == {128, 256, 512, 1024, 2048}
    # What takes the place of each program of document 002 is recorded on the workload as the program has it.
    recorded = {(entry.workload.name, entry.implementation) for entry in entries}
    for (workload, program), name in AS_THERE.items():
        assert workload != "text-classifier" or (name, sides.successors("002")[program][0]) in recorded
    assert len({(entry.workload, entry.mode, entry.implementation) for entry in entries}) == len(entries)


def test_what_can_be_recorded_here_is_the_row(entries):
    for entry in entries:
        assert (entry.configuration is not None) == availability(entry.implementation).ready, entry
        assert entry.configuration is not None or entry.reason
        if entry.configuration is not None:
            configuration = entry.configuration
            assert replace(configuration.workload, note="") == replace(entry.workload, note="")
            assert (configuration.runtime, configuration.mode) == (entry.implementation, entry.mode)
            protocol = configuration.protocol
            assert (protocol.trials, protocol.warmup) == (entry.batches, entry.warmup)
        assert schedule.FEWEST <= entry.batches <= entry.workload.batches and entry.warmup >= 1
        assert reason(entry.implementation, entry.workload, entry.mode) is None


def test_the_dry_run_prints_each_row_and_records_nothing(entries, run, tmp_path):
    status, out, err = run("lstm-literature", "plan", "--dry-run", "--out", tmp_path / "x")
    assert status == 0 and err == "" and not (tmp_path / "x").exists()
    _, *lines, last = out.splitlines()
    for line, entry in zip(lines, entries, strict=True):
        assert line.startswith(entry.workload.label) and f" {entry.implementation} " in line and " s" in line
        assert ("cannot be recorded" in line) == (entry.configuration is None)
    here = schedule.Schedule(entries).ready
    assert last.startswith(f"{len(here.entries)} of {len(entries)} rows")
    assert f"about {here.total_s / 60:.0f} min" in last
    _, out, _ = run("lstm-literature", "plan", "--dry-run", "--format", "json")
    assert json.loads(out) == schedule.Schedule(entries).as_dict()


def test_an_estimate_grows_with_the_work():
    ptb = WORKLOADS["ptb-lm"]
    for name in implementations.names():
        if reason(name, ptb, "training") is None:
            forward, training = (schedule.step_ms(ptb, name, mode) for mode in ptb.modes)
            assert training > forward > schedule.step_ms(ptb.scaled("1/2"), name, "forward")
    speech = WORKLOADS["speech-bidirectional-ce-long"]
    only_weights = implementations.Rates(gflop_ms=0.0, cell_ms=0.0, weights_ms=1.0, outputs_ms=0.0)
    cells, millions = speech.cells, only_weights.step_ms(speech)
    # 8.53 million trained numbers less dense and biases, each touched at each of 1000 steps
    assert cells == 8000 and millions == pytest.approx(1000 * (8_533_760 - 6_400 - 8 * 2 * 4 * 320) / 1e6)
    assert schedule.batches_of(ptb, "pytorch-one-call-eager", "forward", 1e9) == (50, 10)
    assert schedule.batches_of(ptb, "pytorch-one-call-eager", "forward", 0) == (3, 1)


@pytest.mark.heavy
def test_rows_of_a_plan_record_and_resume(entries, tmp_path, monkeypatch, run):
    """Two cheap rows of the real plan, by the real command."""
    cheap = [e for e in entries if e.workload == VARIANTS["layer"][0] and e.implementation in schedule.TWO]
    assert len(cheap) == 2
    monkeypatch.setattr(schedule, "plan", lambda more, recorded: schedule.Schedule(tuple(cheap)))
    status, _, err = run("lstm-literature", "plan", "--quiet", "--out", tmp_path)
    assert status == 0 and "2 recorded, 0 failed" in err
    batches = {item.configuration.id: len(item.timed_ns) for item in folders.read_many(tmp_path)}
    assert batches == {entry.configuration.id: 100 for entry in cheap}
    status, _, err = run("lstm-literature", "plan", "--quiet", "--out", tmp_path)
    assert status == 0 and "2 already recorded" in err
