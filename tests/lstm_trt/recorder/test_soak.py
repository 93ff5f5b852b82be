"""Soaks: parts that are whole, killed and continued, read as one, watched."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from lstm_judge.read.runs import load
from lstm_judge.watch import follow, misses_of
from lstm_trt.config.configuration import Configuration, Protocol
from lstm_trt.config.errors import StoreError, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder import run as run_module
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import RecordJob, Written
from lstm_trt.recorder.loop import ends
from lstm_trt.recorder.pool import WorkerPool
from lstm_trt.recorder.run import Run, record_soak
from lstm_trt.recorder.snapshot import State, snapshot_of, with_trials
from lstm_trt.recorder.soak import PART_TRIALS, Rest, rest_of, seconds_of, soak_protocol
from lstm_trt.store import consolidated, files as store_files, folders, provenance, schema
from lstm_trt.store.folders import missing
from lstm_trt.store.locks import LOCK_FILE, folder_in_use, folder_lock, state_holder
from tests.conftest import ROOT, ManualClock, rest_is_heavy, wait_for
from tests.lstm_trt.store.test_store import described, planted, same
from tests.support.trials import NoSwitches

SHAPE = ("--layers", "1", "--hidden", "8", "--sequence", "4")
PAUSED = {"arrival": "paused", "pause_ms": 2}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3h", 10_800), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("75", 75), ("1d2h3m4s", 93_784)],
)
def test_times_that_people_write(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "3x", "-3", "3 h", "1m1h", "nan", "1e3", "3hh"])
def test_times_that_mean_nothing(text):
    with pytest.raises(UsageError):
        seconds_of(text)


# Parts


def configuration_of(for_s: float = 3.0, **protocol) -> Configuration:
    protocol = Protocol(**{"warmup": 4, "block_trials": 50, "block_ms": 20, "settle": 2, **protocol})
    return Configuration(LstmShape(1, 8, 4), "onnxruntime", "1", "a processor", protocol=soak_protocol(for_s, protocol))


class PlantedStep:
    """`silent_after`: after how many calls it got the inputs of silence."""

    prepare_next = None

    def __init__(self, step):
        self._step, self.calls, self.silent_after = step, 0, []

    def step(self):
        self.calls += 1
        self._step()

    def load_inputs(self, inputs):
        self.silent_after.append((self.calls, inputs))

    def facts(self):
        return {"planted": True}


def ignored(event: str, **values: object) -> None:
    """In place of a connection to a parent process."""


@pytest.fixture
def record_parts(monkeypatch, tmp_path):
    """Soak with a planted step into `tmp_path`, in this process; returns what the worker would answer.

    Each call takes `step_ns` by a clock set by hand, and storing a part takes none: how many parts and trials
    there are doesn't depend on the machine.
    """

    def run(configuration, *, step_ns=50_000, asked_s=1.0, part_s=0.3, silences=(), send=None, **more) -> Written:
        clock = ManualClock()

        @contextmanager
        def set_up(configuration, reference, send):
            told = {"machine_fingerprint": "m", "pilot": None, "versions": {}, "clock": {"call_ns": 80, "step_ns": 10}}
            seconds = {"build": 1.0, "parity": 2.0}
            step = PlantedStep(lambda: clock.advance(step_ns))
            watcher = SimpleNamespace(read=dict, gpu_state=lambda: None)
            yield Run(configuration, step, watcher, NoSwitches(), told, seconds, {"x": "zeros"})
            if step.silent_after:
                silences.extend(step.silent_after)

        job = RecordJob(configuration.as_dict(), {}, str(tmp_path), asked_s=asked_s, **more)
        with monkeypatch.context() as patched:
            patched.setattr(run_module, "set_up", set_up)
            clock.replace_clocks(patched)
            return record_soak(configuration, job, send or ignored, part_s)

    return run


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-p*.parquet"))


def trials_of_parts(folder: Path, mark: str = "") -> list[int]:
    """The numbers of timed trials of the parts in a folder, of those whose names begin so."""
    return [len(store_files.read(path).timed_ns) for path in parts_of(folder) if path.name.startswith(mark)]


def test_parts_are_whole_and_read_as_one(tmp_path, record_parts):
    configuration, seen = configuration_of(), []
    told = record_parts(
        configuration, control=True, send=lambda event, **values: seen.append(values) if event == "soak" else None
    )
    files = parts_of(tmp_path)
    assert [path.name for path in files] == [f"{configuration.id}-r0-p{n:05d}.parquet" for n in range(4)]
    assert told.parts == 4 and told.path == str(files[-1])
    parts = [store_files.read(path) for path in files]
    for number, part in enumerate(parts):
        schema.validate(part, number)
        assert (part.part, part.configuration) == (number, configuration)
        assert part.columns["warmup"][: 2 if number else 4].all() and part.provenance["runtime"] == {"planted": True}
        assert sum(block["rows"] for block in part.provenance["blocks"]) == len(part.columns["trial"])
        described = json.loads(pq.read_schema(files[number]).metadata[b"lstm_trt"])
        assert (described["part"], described["last"]) == (number, number == 3)
        # The control run comes once, after the first part.
        assert (part.control is None) == (part.provenance["control"] is None) == (number > 0)
    (whole,) = folders.read_many(tmp_path)
    schema.validate(whole, "the soak")
    columns, stated = whole.columns, whole.provenance
    assert len(whole.timed_ns) == told.trials == sum(len(part.timed_ns) for part in parts)
    for name in columns.keys() - {"trial"}:
        assert np.array_equal(columns[name], np.concatenate([part.columns[name] for part in parts]))
    start = columns["start_ns"]
    assert (start[1:] >= ends(columns)[:-1]).all() and start[0] >= 0
    # One clock: the last trial ends when the time is over, the control run aside.
    over_s = ends(columns)[-1] / 1e9 - stated["seconds"]["control"]
    assert 0.9 < over_s < 1.1 and parts[-1].provenance["soak"]["elapsed_s"] >= 1.0
    blocks = stated["blocks"]
    assert [block["first_row"] for block in blocks] == np.cumsum([0, *(b["rows"] for b in blocks)])[:-1].tolist()
    assert columns["warmup"].sum() == 4 + 2 * (len(blocks) - 1)
    assert stated["seconds"]["build"] == 1.0 and not any("soak" in warning for warning in stated["warnings"])
    assert stated["control"]["calls"] == len(whole.control["start_ns"])
    trials = [item["trials"] for item in seen]
    assert trials == sorted(set(trials)) and trials[-1] == told.trials and seen[-1]["elapsed_s"] >= 1.0


@pytest.mark.parametrize("warmup", rest_is_heavy([0, 4], lambda warmup: warmup == 4))
@pytest.mark.parametrize("arrival", [{}, {"arrival": "periodic", "period_us": 1000}, PAUSED])
def test_silence_begins_with_the_first_timed_call(tmp_path, record_parts, warmup, arrival):
    """Whatever the arrivals are, which a soak keeps to from part to part."""
    found = []
    for silence in ("zeros", None):
        record_parts(configuration_of(after_warmup=silence, warmup=warmup, **arrival), silences=found)
        assert found == [(warmup, {"x": "zeros"})] and len(parts_of(tmp_path)) > 1
    (silent, usual) = sorted(load(tmp_path), key=lambda group: group.configuration.protocol.after_warmup is None)
    assert silent.name.endswith("in silence for 3 s") and silent.name != usual.name
    for whole in folders.read_many(tmp_path):
        start, end = whole.columns["start_ns"], ends(whole.columns)
        due = whole.columns.get("intended_ns", start)
        assert (start >= due).all() and (start[1:] - end[:-1] >= 1e6 * arrival.get("pause_ms", 0)).all()
        assert (np.diff(due) >= 1e3 * arrival.get("period_us", 0)).all()


@pytest.mark.heavy
def test_a_part_ends_after_its_trials_and_has_one_trial_at_least(tmp_path, record_parts):
    configuration = configuration_of()
    short = replace(configuration, protocol=replace(configuration.protocol, trials=120))
    record_parts(short, part_s=100.0, asked_s=0.05)  # about 900 trials of 52 us
    *whole, last = trials_of_parts(tmp_path)
    assert set(whole) == {120} and last <= 120 and len(whole) > 1
    slow = configuration_of(for_s=5.0)
    record_parts(slow, step_ns=30_000_000, part_s=0.01, asked_s=0.2)
    counts = trials_of_parts(tmp_path, slow.id)
    assert len(counts) >= 2 and set(counts) == {1}


def test_only_the_columns_that_are_asked_for_are_loaded(tmp_path, record_parts):
    record_parts(configuration_of())
    (whole,) = folders.read_many(tmp_path)
    there = ("latency_ns", "warmup", "start_ns")
    (some,) = folders.read_many(tmp_path, (*there, "intended_ns"))
    np.testing.assert_equal(dict(some.columns), {name: whole.columns[name] for name in there})
    assert some.provenance == whole.provenance
    (file,) = folders.read_many(parts_of(tmp_path)[1], ["latency_ns"])
    assert list(file.columns) == ["latency_ns"]


@pytest.mark.heavy
def test_what_is_missing_is_told(tmp_path, record_parts):
    configuration = configuration_of()
    record_parts(configuration, asked_s=1.0, part_s=0.1)
    *kept, last = parts_of(tmp_path)
    left = len(kept)
    assert left >= 2
    last.unlink()

    def stated() -> dict:
        (cut,) = folders.read_many(tmp_path)
        schema.validate(cut, "what is left")
        return cut.provenance

    *_, warning = stated()["warnings"]
    assert re.fullmatch(rf"soak incomplete: {left} of about \d+ parts", warning)
    known = {"part": left - 1, "last": False, "asked_s": 1.0, "parts": left, "lacks": [warning]}
    assert known.items() <= stated()["soak"].items() and len(stated()["soak"]) == len(known) + 1
    store_files.write_failure(schema.Failure(configuration, 0, "run", "it fell over"), tmp_path)
    assert stated()["warnings"][-1] == f"{warning} (it fell over)"
    kept[0].write_bytes(kept[0].read_bytes()[:-50])
    with pytest.raises(StoreError):
        list(folders.read_many(tmp_path))
    assert folders.tidy(tmp_path) == kept[:1]
    assert "soak incomplete: part 0 missing" in stated()["warnings"]


@pytest.mark.parametrize(
    ("numbers", "elapsed_s", "told"),
    [
        ((0, 1, 2), 30.0, ["soak incomplete: 3 of about 18 parts"]),
        ((0, 2), 30.0, ["soak incomplete: part 1 missing", "soak incomplete: 2 of about 18 parts"]),
        ((0,), 179.9, ["soak incomplete: 1 of about 2 parts"]),
    ],
)
def test_how_many_parts_there_should_be(numbers, elapsed_s, told):
    soak = {"part": numbers[-1], "asked_s": 180.0, "elapsed_s": elapsed_s}
    for last, expected in ((False, told), (True, told[:-1])):
        assert list(missing(dict.fromkeys(numbers), soak | {"last": last}, None)) == expected


@pytest.mark.heavy
def test_a_soak_counts_as_recorded_and_survives_consolidation(tmp_path, record_parts):
    configuration, pair = configuration_of(), store_files.make_folder(tmp_path / "pair")
    record_parts(configuration, control=True)
    record_parts(configuration, round=1)
    assert folders.finished(tmp_path) == ({(configuration.id, 0), (configuration.id, 1)}, set())
    consolidated.consolidate(folders.read_many(tmp_path), pair, group_rows=100)
    before, after = (sorted(folders.read_many(folder), key=lambda item: item.round) for folder in (tmp_path, pair))
    assert len(after) == 2 and all(map(same, before, after))
    assert [item.control is None for item in before] == [False, True]
    np.testing.assert_equal([item.control for item in after], [item.control for item in before])


def test_a_part_with_other_columns_is_refused(tmp_path, record_parts):
    record_parts(configuration_of())
    part = store_files.read(parts_of(tmp_path)[1])
    store_files.write(replace(part, columns={**part.columns, "compute_ns": part.columns["latency_ns"]}), tmp_path)
    with pytest.raises(StoreError):
        list(folders.read_many(tmp_path))


def test_self_checks_of_parts_become_one():
    checks = [
        {"loop_ns": 100, "loop_raw_ns": 101, "clocks_differ_by": -0.5, "outside_share": 0.1},
        {"loop_ns": 300, "loop_raw_ns": 299, "clocks_differ_by": 0.2, "outside_share": 0.3},
    ]
    expected = {
        "loop_ns": 400,
        "loop_raw_ns": 400,
        "clocks_differ_by": -0.5,
        "outside_share": 0.25,
        "between_calls": None,
    }
    assert provenance.facts()["self_check"].join(checks) == pytest.approx(expected)


@pytest.mark.heavy
def test_what_is_left_of_a_soak_becomes_the_next_round(tmp_path, record_parts):
    configuration = configuration_of(for_s=1.0)
    assert rest_of(configuration, tmp_path) == Rest(0, 1.0)
    record_parts(configuration)
    assert rest_of(configuration, tmp_path) == Rest(1, 1.0)  # complete: from the beginning
    first, *others = parts_of(tmp_path)
    for path in others:
        path.unlink()
    elapsed_s = store_files.read(first).provenance["soak"]["elapsed_s"]
    left = Rest(1, 1.0 - elapsed_s, 0, elapsed_s)
    assert rest_of(configuration, tmp_path) == left and 0 < left.asked_s < 1
    record_parts(configuration, round=1, asked_s=left.asked_s)
    assert rest_of(configuration, tmp_path) == Rest(2, 1.0)
    # A round that failed before its first part does not hide what is left.
    for path in tmp_path.glob("*-r1-*"):
        path.unlink()
    store_files.write_failure(schema.Failure(configuration, 1, "build", "no"), tmp_path)
    assert rest_of(configuration, tmp_path) == left
    assert rest_of(configuration_of(for_s=2.0), tmp_path) == Rest(0, 2.0)


# For real


#: The program lstm-trt, whose parts end after fewer trials.
SHORT_PARTS = """
import sys
from lstm_trt.cli.main import main
from lstm_trt.recorder import soak
soak.PART_TRIALS = {trials}
sys.exit(main(sys.argv[1:]))
"""


def start_soak(folder: Path, *more: str, part_trials: int = PART_TRIALS) -> subprocess.Popen:
    program = SHORT_PARTS.format(trials=part_trials)
    return subprocess.Popen(
        [sys.executable, "-c", program, "record", *SHAPE, *more, "--out", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


# A soak of 12 s, of which 11 are left when it is killed.
@pytest.mark.heavy
def test_a_soak_that_is_killed_keeps_its_parts_and_goes_on(tmp_path):
    for_s, part_trials = 12, 200
    command = ("--for", f"{for_s}s", "--arrival", "paused", "--pause-ms", "2")  # it sleeps most of the time
    process = start_soak(tmp_path, *command, part_trials=part_trials)
    try:
        # Looked for while waiting: the soak must not end before it is killed.
        workers: set[psutil.Process] = set()
        children = psutil.Process(process.pid).children
        assert wait_for(lambda: workers.update(children(recursive=True)) or parts_of(tmp_path), 300, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert workers and wait_for(lambda: not any(map(running, workers)))
    kept = trials_of_parts(tmp_path)
    assert 0 < min(kept) <= max(kept) <= part_trials
    (cut,) = folders.read_many(tmp_path)
    assert cut.provenance["warnings"][-1].startswith(f"soak incomplete: {len(kept)} of about ")
    again = start_soak(tmp_path, *command, "--format", "text", part_trials=part_trials)
    output, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert errors.count("as round 1") == 1 and "round 0 was interrupted after" in errors
    for said in ("round 1, ", "complete: lstm-trt verdict", "control run", "a NaN in the input does not reach"):
        assert said in output
    first, second = sorted(folders.read_many(tmp_path), key=lambda item: item.round)
    assert same(first, cut)
    soaks = [item.provenance["soak"] for item in (first, second)]
    assert soaks[1]["last"] and soaks[1]["asked_s"] == pytest.approx(for_s - soaks[0]["elapsed_s"])
    assert not any("soak" in warning for warning in second.provenance["warnings"])  # a busy machine adds others
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


@pytest.mark.heavy
def test_ctrl_c_leaves_the_parts_and_says_how_to_go_on(tmp_path):
    process = start_soak(tmp_path, "--for", "1h", "--no-control")
    assert wait_for(lambda: parts_of(tmp_path), 300, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and output == "" and "Traceback" not in errors
    assert "resume with:\n  lstm-trt record" in errors and "--for 1h" in errors
    assert all(store_files.read(path).part == number for number, path in enumerate(parts_of(tmp_path)))
    assert not folder_in_use(tmp_path)


def peak_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


@pytest.mark.heavy
def test_memory_is_bounded(tmp_path):
    """One worker: a short recording, then parts of 200 000 trials; the highest it ever held."""
    peaks = []
    with WorkerPool() as crew:
        for protocol, asked_s in ((Protocol(trials=1000), None), (soak_protocol(1.0), 4.0)):
            configuration = describe(LstmShape(1, 8, 4), "onnxruntime", protocol)
            outcome = crew.record_configuration(configuration, 0, tmp_path, control=True, asked_s=asked_s)
            outcome.check()
            (worker,) = crew._workers.values()
            peaks.append(peak_bytes(worker.child.pid))
    # Where the machine is fast these are several parts of 200 000 trials.
    counts = trials_of_parts(tmp_path)
    assert outcome.written.parts == len(counts) >= 1 and 0 < min(counts) <= max(counts) <= PART_TRIALS
    assert peaks[1] - peaks[0] < 200e6, peaks


# Watching


@pytest.mark.random(tail=0, why="identity")
def test_a_snapshot_is_exact(rng):
    def seen(latency_ns, deadline_us: float | None = 70.0):
        misses = None if deadline_us is None else misses_of(latency_ns, deadline_us)
        return snapshot_of(State.IDLE, latency_ns, None, 1, misses, deadline_us)

    empty = seen(None)
    assert (empty.n, empty.median_us, empty.max_us, empty.misses, seen(None, None).misses) == (0, None, None, 0, None)
    kept = [(60_000 * rng.lognormal(0, 0.2, 5_000)).astype(np.int64) for _ in range(20)]
    kept += [np.array([1, 10**15, 0]), np.array([], np.int64)]
    found = seen(reduce(with_trials, kept, None))
    sorted_ns = np.sort(np.concatenate(kept))
    assert (found.n, found.max_us, found.misses) == (len(sorted_ns), 1e12, (sorted_ns > 70_000).sum())
    for share, quantile_us in ((Fraction(1, 2), found.median_us), (Fraction(999, 1000), found.p999_us)):
        assert quantile_us == sorted_ns[math.ceil(len(sorted_ns) * share) - 1] / 1e3
    # 1e3 * 64.1 is below 64100 in floating point.
    assert seen(with_trials(None, np.array([64_100, 64_101])), 64.1).misses == 1


def test_watching_reads_each_part_once_and_ends_with_the_last(tmp_path, record_parts, monkeypatch):
    record_parts(configuration_of(for_s=1.0))
    files = parts_of(tmp_path)
    aside = [path.rename(path.with_suffix(".aside")) for path in files]
    read, read_it = [], store_files.read
    monkeypatch.setattr(store_files, "read", lambda path, columns: read.append(path) or read_it(path, columns))
    with folder_lock(tmp_path):
        sights = follow(tmp_path, deadline_us=1e6, poll_s=0)
        assert next(sights).state == "recording"
        for count, (path, hidden) in enumerate(zip(files, aside, strict=True), 1):
            hidden.rename(path)
            sight = next(sights)
            assert (sight.state, sight.files, sight.misses) == ("recording", count, 0)
            assert 0 < sight.elapsed_s < 3 and "verdict" in str(sight)
            assert next(sights).files == count
    assert read == files
    (sight,) = follow(tmp_path, 1e6)
    (whole,) = folders.read_many(tmp_path)
    assert (sight.state, sight.left_s) == ("complete", 0) and "verdict" not in str(sight)
    assert (sight.n, sight.max_us) == (len(whole.timed_ns), whole.timed_ns.max() / 1e3)


def written_in_order(folder: Path, *recordings: schema.Recording) -> Path:
    """Files of recordings, each a second newer than the one before; returns the last."""
    for place, recording in enumerate(recordings):
        path = store_files.write(recording, folder)
        os.utime(path, (1e9 + place, 1e9 + place))
    return path


def test_watching_a_sweep_tells_of_the_last_configuration(tmp_path):
    written_in_order(tmp_path, *map(planted, (8, 9, 10)))
    sight = next(follow(tmp_path))
    assert (sight.state, sight.files, sight.configurations, sight.n) == ("idle", 3, 3, 17)
    assert sight.name.startswith("1x10") and sight.max_us == planted(10).timed_ns.max() / 1e3
    assert "3 files, of 3 configurations" in str(sight) and sight.misses is sight.left_s is None
    with folder_lock(tmp_path):
        state_holder(tmp_path, 12)  # as a sweep does
        sight = next(follow(tmp_path))
        assert sight.total == 12 and str(sight).startswith("3 of 12 files, of 3 configurations; latest: 1x10")
    (tmp_path / f"{planted(11).configuration.id}-r0.parquet").write_text("damaged")
    assert "1 unreadable file" in str(next(follow(tmp_path)))


def test_watching_a_sweep_in_rounds_adds_them_up_and_passes_over_a_newer_file(tmp_path):
    """Each round has the networks in another order; the numbers are those of all rounds of the last one."""
    path = written_in_order(tmp_path, planted(8), planted(9), planted(9, 1), planted(8, 1))
    sights = follow(tmp_path, poll_s=0)
    sight = next(sights)
    rounds = [planted(8).timed_ns, planted(8, 1).timed_ns]
    assert (sight.n, sight.configurations) == (34, 2) and sight.name.startswith("1x8")
    assert sight.max_us == np.concatenate(rounds).max() / 1e3
    newer = described(pq.read_table(path), schema_version=schema.SCHEMA_VERSION + 1)
    pq.write_table(newer, tmp_path / f"{planted(10).configuration.id}-r0.parquet")
    sight = next(sights)
    assert sight.n == 34 and "1 unreadable file" in str(sight)


def test_a_recorder_that_is_gone_is_told(tmp_path, record_parts, monkeypatch):
    record_parts(configuration_of(for_s=1.0))
    parts_of(tmp_path)[-1].unlink()
    sights = follow(tmp_path, poll_s=0.1)
    assert next(sights).state == "idle"
    monkeypatch.setattr("lstm_judge.watch.GONE_S", 0.3)  # only now: a busy machine may take longer to look
    *before, last = (sight.state for sight in sights)
    assert last == "recorder stopped" and set(before) <= {"idle"} and len(before) < 20


def test_the_command_that_watches(tmp_path, record_parts, typed, refused, monkeypatch):
    record_parts(configuration_of(for_s=1.0))
    (whole,) = folders.read_many(tmp_path)
    line, command = typed("watch {} --deadline-us 1000", tmp_path).splitlines()
    assert f"n {len(whole.timed_ns)}," in line and "misses of the 1000 us deadline" in line
    assert command == f"complete: lstm-trt verdict {tmp_path} --deadline-us 1000"
    answer = typed("watch {} --once --format json", tmp_path)
    assert (answer["n"], answer["state"], answer["misses"]) == (len(whole.timed_ns), "complete", None)
    empty = store_files.make_folder(tmp_path / "empty")
    once = typed("watch {} --once", empty)
    assert "nothing yet: no recordings, and none in progress: give the --out folder of a running" in once
    monkeypatch.setattr("lstm_judge.watch.GONE_S", 0.1)
    typed("watch {}", empty, status=2)
    refused("watch", tmp_path / "nowhere")
    refused("watch", tmp_path, "--deadline-us", -1)


def test_looking_at_the_lock_does_not_take_it(tmp_path):
    assert not folder_in_use(tmp_path) and not (tmp_path / LOCK_FILE).exists()
    with folder_lock(tmp_path):
        assert folder_in_use(tmp_path)
        with pytest.raises(UsageError), folder_lock(tmp_path):
            pass
    assert not folder_in_use(tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from lstm_trt.store.locks import folder_in_use\n"
        "end = time.monotonic() + 0.5\nwhile time.monotonic() < end: folder_in_use(Path(sys.argv[1]))"
    )
    looking = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    while looking.poll() is None:  # however often it is looked at
        with folder_lock(tmp_path):
            pass
    assert looking.returncode == 0
