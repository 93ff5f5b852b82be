"""`lstm-literature`: list, recordings, metrics, errors, and the plan of all workloads."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shlex
from collections import Counter
from dataclasses import replace

import pytest

from lstm_literature import implementations, schedule, sides
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
    status, out, _ = run("lstm-literature", "list", "speech-ctc-long", "--format", "json")
    (workload,) = json.loads(out)["workloads"]
    assert (workload["parameters"], workload["lengths"], workload["modes"]) == (8_565_120, [500, 1000], ["training"])
    assert "tensorrt" not in workload["implementations"]["training"]  # forward only
    assert "pytorch-one-call-compiled" not in workload["implementations"]["training"]  # the CTC loss


def test_recordings_are_shown_in_the_documents_metrics(folder, run):
    recording, failure = recorded(folder)
    status, out, _ = run("lstm-literature", "table", "--out", folder, "--format", "csv")
    rows = {(row["implementation"], row["statistic"]): row for row in csv.DictReader(io.StringIO(out))}
    assert status == 0
    ns = recording.timed_ns
    figures = {name: rows["pytorch-one-call-eager", name] for name in ("elapsed", "wall", "sequences_per_s")}
    assert len(ns) == 3 and {row["n"] for row in figures.values()} == {"3"}
    expected = {"elapsed": ns.sum() / 1e9, "wall": ns.mean() / 1e9, "sequences_per_s": 8 / (ns.mean() / 1e9)}
    assert {name: float(row["value"]) for name, row in figures.items()} == pytest.approx(expected)
    # 1/16 of the document's batch of 128 and sequence of 50, of which both are printed.
    sizes = {(row["scale"], row["batch"], row["sequence"], row["published_batch"]) for row in figures.values()}
    assert sizes == {("1/16", "8", "3", "128")} and {row["document_n"] for row in figures.values()} == {"50"}
    for cost in ("build", "first_call"):
        assert float(rows["pytorch-one-call-eager", cost]["value"]) == recording.provenance["costs_s"][f"{cost}_s"]
    failed = rows["onnxruntime", "wall"]
    assert (failed["value"], failed["status"], failed["reason"]) == ("", "failed", "didn't run")
    assert failed["detail"] == failure.reason and "training" in failure.reason
    assert Counter(name for name, _ in rows)["onnxruntime"] == 1


def test_the_table_and_json_agree(folder, run):
    _, table, _ = run("lstm-literature", "table", "--out", folder)
    header, *lines = table.splitlines()[1:]
    assert header.split()[:8] == ["workload", "scale", "mode", "implementation", "n", "elapsed", "s", "wall"]
    failed, good = sorted(lines, key=lambda line: "onnxruntime" not in line)
    assert "didn't run (onnxruntime " in failed
    assert good.startswith("ptb-lm@1/16  1/16   training  pytorch-one-call-eager  3  ")
    _, out, _ = run("lstm-literature", "table", "--out", folder, "--format", "json")
    found = {row["statistic"]: row for row in json.loads(out) if row["status"] == "ok"}
    assert f"{found['elapsed']['value']:.4f}" in good and f"{found['wall']['value']:.4f}" in good


def test_the_table_shows_the_requested_recordings(folder, run):
    _, out, _ = run("lstm-literature", "table", "--implementation", "onnxruntime", "--out", folder, "--format", "json")
    assert {row["implementation"] for row in json.loads(out)} == {"onnxruntime"}
    for arguments in (("cell",), ("ptb-lm", "--mode", "forward")):
        status, out, err = run("lstm-literature", "table", *arguments, "--out", folder)
        assert (status, out) == (2, "") and "has no matching recording" in err
    arguments = ("cell", "ptb-lm", "--implementation", "onnxruntime", "tvm-tuned")
    status, out, err = run("lstm-literature", "table", *arguments, "--out", folder)
    assert status == 3 and "ptb-lm@1/16" in out and err.count("\n") == 1
    assert "has no matching recording of cell, tvm-tuned" in err


def test_the_coverage_prints_a_row_per_published_time(folder, run):
    command = ("lstm-literature", "table", "cell", "ptb-lm", "--coverage", "--out", folder)
    status, out, err = run(*command, "--format", "json")
    rows = json.loads(out)
    assert (status, err) == (0, "") and {row["workload"] for row in rows} == {"cell", "ptb-lm"}
    recorded = [row for row in rows if row["today"] is not None]
    assert {(row["document"], row["device"]) for row in recorded} == {
        (document, "gpu") for document in ("001", "001-later", "001-newest")
    }
    for row in recorded:
        assert (row["implementation"], row["mode"], row["scale"]) == ("pytorch-one-call-eager", "training", "1/16")
        assert (row["n"], row["document_n"], row["device_today"]) == (3, 50, "cpu") and row["framework_version"]
        assert row["marks"].startswith("scaled, few batches") and row["threads"] == 1
    _, out, _ = run(*command, "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == len(rows)
    _, text, _ = run(*command)
    _, markdown, _ = run(*command, "--format", "md")
    titles = re.findall(r"^\*\*(.*)\*\*$", markdown, re.MULTILINE)
    assert len(titles) == 4 and all(f"{title}\n" in text for title in titles)
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == len(rows) + 2 * len(titles) and {line.count("|") for line in lines} == {13}
    status, out, err = run("lstm-literature", "table", "cell", "--mode", "training", *command[4:])
    assert (status, out) == (2, "") and err.count("\n") == 1


def test_the_page_has_the_coverage_of_the_recordings_that_ship(run):
    """`make figures` writes it."""
    marked = re.compile(r"^<!-- coverage: (.*) -->\n(.*?)^<!-- end of coverage -->$", re.MULTILINE | re.DOTALL)
    ((command, shown),) = marked.findall((ROOT / "docs/literature.md").read_text())
    status, out, _ = run(*shlex.split(command))
    assert status == 0 and out == shown


def test_the_same_command_resumes(folder, run):
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".lock"}
    status, out, err = run(*COMMAND, "--out", folder)
    assert status == 0 and "0 recorded, 0 failed, 1 already recorded, 1 failed earlier" in err
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".lock"} == before
    assert "pytorch-one-call-eager" in out and "didn't run" in out


def test_names_of_the_literature_are_complete_in_summaries(folder, run):
    _, out, _ = run("summarize", folder)
    assert "pytorch-one-call-eager" in out and "ptb-lm@1/16" in out


#: A command line that is complete but for its folder.
CELL = ("record", "cell", "--implementation", "onnxruntime")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", "ptb", "--implementation", "onnxruntime", "--out", "x"), "unknown workload 'ptb'"),
        (("record", "cell", "--implementation", "nobody", "--out", "x"), "unknown implementation 'nobody'"),
        (("record", "cell", "--out", "x"), "required: --implementation"),
        (("record", "--implementation", "onnxruntime", "--out", "x"), "required: WORKLOAD"),
        (("record", "cell", "--implementation", "onnxruntime"), "required: --out"),
        ((*CELL, "--mode", "training", "--out", "x"), "only forward"),
        ((*CELL, "--scale", "3", "--out", "x"), "at most 1"),
        ((*CELL, "--hidden", "8", "--out", "x"), "hidden"),
        (("record", "layer", *CELL[2:], "--variants", "--hidden", "8", "--out", "x"), "--variants"),
        ((*CELL, "--batches", "0", "--out", "x"), "batches must be at least 1"),
        ((*CELL, "--rounds", "0", "--out", "x"), "rounds must be at least 1"),
        ((*CELL, "--out", "x", "y"), "unrecognized arguments: "),
        (("list", "--format", "csv"), "invalid choice: 'csv'"),
        (("list", "--implementation", "onnxruntime"), "plain name"),
        (("table", "--format", "md", "--out", "x"), "needs --coverage"),
        (("table", "--coverage"), "required: --out"),
        (("table", "--out", "x"), "file or folder"),
        (("plan",), "--out is missing"),
        (("plan", "--dry-run", "--format", "csv"), "text and json"),
        (("plan", "cell", "--out", "x"), "unrecognized arguments: cell"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line(tmp_path, run, arguments, message):
    given = (tmp_path / "x" if text == "x" else text for text in arguments)
    status, out, err = run("lstm-literature", *given)
    assert status == 2 and out == ""
    *before, last = err.splitlines()  # a plan is printed before recording starts
    assert last.startswith("lstm-literature: ") and message in last
    assert not before or arguments == ("plan",)
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").glob("*.*"))


def test_what_is_not_installed_is_an_error_with_a_remedy(run, tmp_path):
    if availability("tensorrt").ready:
        pytest.skip("TensorRT is ready here")
    status, out, err = run("lstm-literature", "record", "cell", "--implementation", "tensorrt", "--out", tmp_path)
    assert status == 2 and out == "" and err.startswith("lstm-literature: tensorrt: ") and err.count("\n") == 1


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
    lines = str(whole).splitlines()
    assert sum(line.endswith("  recorded") for line in lines) == 1
    assert f"; {len(whole.left.entries)} of them are not recorded yet, in about" in lines[-1]
    assert f"about {whole.left.total_s / 60:.0f} min by" in lines[-1]
    assert whole.as_dict()["estimate_left_s"] == whole.left.total_s


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
            assert (configuration.runtime, configuration.mode, configuration.options.threads) == (
                entry.implementation,
                entry.mode,
                1,
            )
            assert (configuration.protocol.trials, configuration.protocol.warmup) == (entry.batches, entry.warmup)
        assert schedule.FEWEST <= entry.batches <= entry.workload.batches and entry.warmup >= 1
        assert reason(entry.implementation, entry.workload, entry.mode) is None


def test_the_dry_run_prints_each_row_and_records_nothing(entries, run, tmp_path):
    status, out, err = run("lstm-literature", "plan", "--dry-run", "--out", tmp_path / "x")
    assert status == 0 and err == "" and not (tmp_path / "x").exists()
    _, *lines, last = out.splitlines()
    assert len(lines) == len(entries)
    for line, entry in zip(lines, entries, strict=True):
        assert line.startswith(entry.workload.label) and f" {entry.implementation} " in line and " s" in line
        assert ("cannot be recorded" in line) == (entry.configuration is None)
    here = [entry for entry in entries if entry.configuration is not None]
    assert last.startswith(f"{len(here)} of {len(entries)} rows can be recorded on this machine, in about")
    assert f"about {schedule.Schedule(tuple(here)).total_s / 60:.0f} min" in last
    status, out, err = run("lstm-literature", "plan", "--dry-run", "--format", "json")
    assert status == 0 and [row["implementation"] for row in json.loads(out)["rows"]] == [
        entry.implementation for entry in entries
    ]


def test_an_estimate_grows_with_the_work():
    ptb = WORKLOADS["ptb-lm"]
    for name in implementations.names():
        if reason(name, ptb, "training") is None:
            forward, training = (schedule.step_ms(ptb, name, mode) for mode in ptb.modes)
            assert training > forward > schedule.step_ms(ptb.scaled("1/2"), name, "forward")
    speech = WORKLOADS["speech-bidirectional-ce-long"]
    cells, millions = speech.cells, implementations.weights_touched(speech)
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
    items = list(folders.read_many(tmp_path))
    assert {item.configuration.id for item in items} == {entry.configuration.id for entry in cheap}
    assert all(len(item.timed_ns) == 100 for item in items)
    status, _, err = run("lstm-literature", "plan", "--quiet", "--out", tmp_path)
    assert status == 0 and "2 already recorded" in err
