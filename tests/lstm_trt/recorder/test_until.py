"""Recordings that end when the verdict is decided: what they store, and what is said of them."""

import json
import shlex

import numpy as np
import pytest

import lstm_trt as lab
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
    recording = lab.record(STEP, protocol=protocol, out=tmp_path)
    assert len(recording.timed_ns) == trials
    kept = recording.provenance["until"]
    assert (kept["outcome"], kept["n"], kept["looks"]) == (outcome, trials, trials // 1000)
    assert kept["misses"] == (trials if outcome == Outcome.MISSED else 0)
    (verdict,) = lab.verdict(tmp_path, protocol.deadline_us)
    assert verdict.outcome == outcome and verdict.evidence
    assert (verdict.evidence.log_met, verdict.evidence.log_missed) == (kept["log_met"], kept["log_missed"])
    assert verdict.question.burst_length == protocol.burst_length
    # Another deadline is judged by the same evidence.
    (other,) = lab.verdict(tmp_path, ALWAYS_US)
    assert other.outcome == Outcome.MISSED and other.evidence


def test_the_command_prints_the_verdict_and_its_exit_status(tmp_path, capsys):
    command = f"record --step {STEP.function} --until decided --burst-length 1"
    line = f"{command} --deadline-us {NEVER_US:.0f} --out {tmp_path}"
    assert main(shlex.split(line)) == 0
    assert "MET: at least 99.9 %" in capsys.readouterr().err
    assert main(shlex.split(f"{command} --deadline-ms {ALWAYS_US / 1e3} --out {tmp_path}")) == 1
    assert "MISSED: fewer than 99.9 %" in capsys.readouterr().err
    line = f"{command} --deadline-us {NEVER_US:.0f} --at-most 1000 --format json --out {tmp_path}"
    assert main(shlex.split(line)) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["summary"]["n"] == 1000
    assert "NOT ENOUGH EVIDENCE" in printed.err and "1000 trials did not decide it" in printed.err


@pytest.mark.heavy
def test_a_sweep_decides_each_configuration_and_says_so(tmp_path, capsys):
    line = (
        "sweep --layers 1 --hidden 4 --sequence 2 --batch 1 2 --runtime onnxruntime --until decided --burst-length 1"
        f" --deadline-us {NEVER_US:.0f} --rounds 1 --quiet --out {tmp_path}"
    )
    assert main(shlex.split(line)) == 0
    assert "2 configurations 2 met it" in capsys.readouterr().err
    assert all(3309 <= group.n < 10_000 for group in lab.load(tmp_path))


def test_the_intervals_of_such_a_recording_have_a_warning(tmp_path, capsys):
    lab.record(STEP, protocol=until(NEVER_US, 1000), out=tmp_path)
    for command in (["summarize"], ["compare", str(tmp_path)], ["outliers"]):
        assert main([*command, str(tmp_path)]) in (0, 3)
        assert "the number of trials depended on the data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"deadline_us": 1000}, "add --until decided"),
        ({"burst_length": 20}, "add --until decided"),
        ({"until": "decided"}, "needs deadline_us"),
        ({"until": "decided", "deadline_us": 1000}, "needs burst_length"),
        ({"until": "decided", "deadline_us": 0, "burst_length": 1}, "deadline_us must be"),
        ({"until": "decided", "deadline_us": 1, "burst_length": 0.5}, "burst_length must be"),
        ({"until": "decided", "deadline_us": 1, "burst_length": float("nan")}, "burst_length must be"),
        ({"until": "decided", "deadline_us": 1, "burst_length": 1, "percentile": 100}, "percentile must be"),
        ({"until": "decided", "deadline_us": 1, "burst_length": 1, "percentile": 49}, "percentile must be at least 50"),
        ({"until": "decided", "deadline_us": float("inf"), "burst_length": 1}, "deadline_us must be above 0"),
        ({"until": "decided", "deadline_us": 1, "burst_length": 1, "for_s": 5}, "exclude each other"),
        ({"until": "tired"}, "unknown until"),
    ],
)
def test_wrong_fields_are_refused_in_one_line(fields, message):
    with pytest.raises(UsageError, match=message) as raised:
        Protocol(**fields)
    assert "\n" not in str(raised.value)


def test_a_fixed_number_of_trials_keeps_its_id_and_the_command_records_the_same_again(tmp_path):
    assert not {"until", "deadline_us", "percentile", "burst_length"} & Protocol().as_dict().keys()
    recording = lab.record(STEP, protocol=until(ALWAYS_US, 1500, 4, percentile=99), out=tmp_path)
    command = record_command(recording.configuration, "again")
    assert "--until decided" in command and "--percentile 99" in command and "--burst-length 4" in command
    assert main([*shlex.split(command)[1:-1], str(tmp_path / "again")]) == 1
    (again,) = folders.read_many(tmp_path / "again")
    assert again.configuration.id == recording.configuration.id


def of(*rounds: np.ndarray) -> list[Round]:
    return [Round(latency_ns, np.zeros(len(latency_ns), bool), round=i) for i, latency_ns in enumerate(rounds)]


def test_rounds_decide_for_themselves():
    """Two rounds that are each too short are not MET together; one that alone is MISSED denies MET, and is named."""
    good, short = (1e5 + np.arange(n) % 7 for n in (4000, 2000))
    bad = good.copy()
    bad[::50] = 1e7
    question = Question(1000)
    assert judge(of(good, good), question, 1.0).outcome == Outcome.MET
    assert judge(of(good, short), question, 1.0).outcome == Outcome.NOT_ENOUGH_EVIDENCE
    assert judge(of(short, short), question, 1.0).outcome == Outcome.NOT_ENOUGH_EVIDENCE
    assert judge(of(bad, bad), question, 1.0).outcome == Outcome.MISSED
    mixed = judge(of(good, bad), question, 1.0)
    assert mixed.outcome == Outcome.NOT_ENOUGH_EVIDENCE
    alone = "round 1 alone is MISSED (80 misses in 4000 trials), but all rounds together do not prove it"
    assert mixed.reasons == (alone,)
    assert judge(of(good), Question(1000, burst_length=4), 1.0).outcome == Outcome.NOT_ENOUGH_EVIDENCE


def test_rounds_are_recorded_as_far_as_they_are_missing(tmp_path, capsys):
    lab.record(STEP, protocol=Protocol(trials=20), rounds=1, control=False, out=tmp_path)
    (first,) = tmp_path.glob("*-r0.parquet")
    kept = first.stat().st_mtime_ns
    line = f"record --step {STEP.function} --trials 20 --no-control --rounds 2 --out {tmp_path}"
    assert main(shlex.split(f"{line} --format json")) == 0
    second = first.with_name(first.name.replace("-r0", "-r1"))
    assert [row["path"] for row in json.loads(capsys.readouterr().out)] == [str(first), str(second)]
    assert first.stat().st_mtime_ns == kept and second.exists()
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.count("20 trials after warm-up") == 2
    for wrong, message in (("--rounds 0", "at least 1"), ("--rounds 2 --for 9s", "exclude each other")):
        assert main(shlex.split(f"record --step {STEP.function} --no-control --out {tmp_path} {wrong}")) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match="give out as well"):
        lab.record(STEP, rounds=2)
