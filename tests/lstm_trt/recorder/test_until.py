"""Recordings that end when the verdict is decided: what they store, and what is said of them."""

import json
import shlex

import numpy as np
import pytest

import lstm_trt
from lstm_judge.outcomes import Outcome
from lstm_judge.read.labels import record_command
from lstm_judge.read.rounds import Round
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import judge
from lstm_trt.cli.main import main
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.step import Step
from lstm_trt.store import folders

STEP = Step("tests.support.own_steps:make_numpy")
#: No call takes a minute, and every call takes longer than a nanosecond.
NEVER_US, ALWAYS_US = 6e7, 1e-3


def until(deadline_us: float, most: int = 20_000, burst_length: float = 1, **others) -> Protocol:
    return Protocol(trials=most, until="decided", deadline_us=deadline_us, burst_length=burst_length, **others)


@pytest.mark.parametrize(
    ("protocol", "outcome", "trials"),
    [
        (until(NEVER_US, block_ms=60_000), Outcome.MET, 4000),  # the first end of a block after 3309 trials
        (until(ALWAYS_US, block_ms=60_000), Outcome.MISSED, 1000),
        (until(NEVER_US, 2000, 20, block_ms=60_000), Outcome.NOT_ENOUGH_EVIDENCE, 2000),
    ],
)
def test_a_recording_ends_when_it_is_decided(tmp_path, protocol, outcome, trials):
    recording = lstm_trt.record(STEP, protocol=protocol, out=tmp_path)
    assert len(recording.timed_ns) == trials
    kept = recording.provenance["until"]
    assert (kept["outcome"], kept["n"], kept["looks"]) == (outcome, trials, trials // 1000)
    assert kept["misses"] == (trials if outcome == Outcome.MISSED else 0)
    (verdict,) = lstm_trt.verdict(tmp_path, protocol.deadline_us)
    assert verdict.outcome == outcome and verdict.evidence
    assert (verdict.evidence.log_met, verdict.evidence.log_missed) == (kept["log_met"], kept["log_missed"])
    assert verdict.question.burst_length == protocol.burst_length
    # Another deadline is judged by the same evidence.
    (other,) = lstm_trt.verdict(tmp_path, ALWAYS_US)
    assert other.outcome == Outcome.MISSED and other.evidence


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        (f"--deadline-us {NEVER_US:.0f}", 0, "MET: at least 99.9 %"),
        (f"--deadline-ms {ALWAYS_US / 1e3}", 1, "MISSED: fewer than 99.9 %"),
        (f"--deadline-us {NEVER_US:.0f} --at-most 1000 --format json", 3, "NOT ENOUGH EVIDENCE"),
    ],
)
def test_the_command_prints_the_verdict_and_its_exit_status(tmp_path, lab, asked, status, said):
    line = f"record --step {STEP.function} --until decided --burst-length 1 {asked} --out {tmp_path}"
    done = lab(*shlex.split(line))
    assert done.returncode == status and said in done.stderr
    if "--format json" in asked:
        assert json.loads(done.stdout)["summary"]["n"] == 1000 and "1000 trials did not decide it" in done.stderr


@pytest.mark.heavy
def test_a_sweep_decides_each_configuration_and_says_so(tmp_path, lab):
    line = (
        "sweep --layers 1 --hidden 4 --sequence 2 --batch 1 2 --runtime onnxruntime --until decided --burst-length 1"
        f" --deadline-us {NEVER_US:.0f} --rounds 1 --quiet --out {tmp_path}"
    )
    done = lab(*shlex.split(line))
    assert done.returncode == 0 and "2 configurations 2 met it" in done.stderr
    assert all(3309 <= group.n < 10_000 for group in lstm_trt.load(tmp_path))


def test_the_intervals_of_such_a_recording_have_a_warning(tmp_path, lab):
    lstm_trt.record(STEP, protocol=until(NEVER_US, 1000), out=tmp_path)
    for command in (["summarize"], ["compare", tmp_path], ["outliers"]):
        assert "the number of trials depended on the data" in lab(*command, tmp_path).stderr


def test_a_fixed_number_of_trials_keeps_its_id_and_the_command_records_the_same_again(tmp_path):
    assert not {"until", "deadline_us", "percentile", "burst_length"} & Protocol().as_dict().keys()
    recording = lstm_trt.record(STEP, protocol=until(ALWAYS_US, 1500, 4, percentile=99), out=tmp_path)
    command = record_command(recording.configuration, "again")
    assert "--until decided" in command and "--percentile 99" in command and "--burst-length 4" in command
    assert main([*shlex.split(command)[1:-1], str(tmp_path / "again")]) == 1
    (again,) = folders.read_many(tmp_path / "again")
    assert again.configuration.id == recording.configuration.id


@pytest.mark.parametrize(
    ("rounds", "burst_length", "outcome"),
    [
        ("good good", 1, Outcome.MET),
        ("good", 4, Outcome.NOT_ENOUGH_EVIDENCE),
        ("good short", 1, Outcome.NOT_ENOUGH_EVIDENCE),
        ("short short", 1, Outcome.NOT_ENOUGH_EVIDENCE),
        ("bad bad", 1, Outcome.MISSED),
        ("good bad", 1, Outcome.NOT_ENOUGH_EVIDENCE),
    ],
)
def test_rounds_decide_for_themselves(rounds, burst_length, outcome):
    """Two rounds that are each too short are not MET together; one that alone is MISSED denies MET, and is named."""
    kinds = {"good": 1e5 + np.arange(4000) % 7, "short": 1e5 + np.arange(2000) % 7}
    kinds["bad"] = np.where(np.arange(4000) % 50, kinds["good"], 1e7)
    samples = [Round.of(kinds[kind], round=number) for number, kind in enumerate(rounds.split())]
    found = judge(samples, Question(1000, burst_length=burst_length), 1.0)
    assert found.outcome == outcome
    alone = "round 1 alone is MISSED (80 misses in 4000 trials), but all rounds together do not prove it"
    assert (found.reasons == (alone,)) == (rounds == "good bad")


def test_rounds_are_recorded_as_far_as_they_are_missing(tmp_path, typed):
    lstm_trt.record(STEP, protocol=Protocol(trials=20), rounds=1, control=False, out=tmp_path)
    (first,) = tmp_path.glob("*-r0.parquet")
    kept = first.stat().st_mtime_ns
    line = f"record --step {STEP.function} --trials 20 --no-control --rounds 2 --out {{}}"
    second = first.with_name(first.name.replace("-r0", "-r1"))
    assert [row["path"] for row in typed(f"{line} --format json", tmp_path)] == [str(first), str(second)]
    assert first.stat().st_mtime_ns == kept and second.exists()
    assert typed(line, tmp_path).count("20 trials after warm-up") == 2
    with pytest.raises(UsageError):
        lstm_trt.record(STEP, rounds=2)
