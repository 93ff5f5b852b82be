"""The largest network that meets a deadline, and the new recording that confirms it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lstm_judge.campaign import confirm, largest_that_meets, record_command
from lstm_judge.read.labels import size_of
from lstm_judge.read.rounds import groups_of
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import files, schema

WARMUP = 10


def recording(
    hidden: int, late: int = 0, n: int = 300, started: int = 1000, round: int = 0, machine: str = "m", **more
):
    """`n` trials near 100 us; the last `late` take 2 ms."""
    latency = np.random.default_rng(hidden).integers(99_000, 101_000, n + WARMUP)
    latency[len(latency) - late :] = 2_000_000
    columns = {
        "trial": np.arange(n + WARMUP),
        "warmup": np.arange(n + WARMUP) < WARMUP,
        "start_ns": np.cumsum(latency) + 1000 * np.arange(n + WARMUP),
        "latency_ns": latency,
    }
    protocol = Protocol(trials=n, warmup=WARMUP)
    configuration = Configuration(LstmShape(1, hidden, 4), "onnxruntime", "1.0", "a processor", protocol=protocol)
    configuration = replace(configuration, **more)
    provenance = {"machine_fingerprint": machine, "started_unix_ns": started}
    return schema.Recording(configuration, round, columns, provenance)


def test_the_largest_network_that_meets_the_deadline():
    groups = groups_of([recording(8), recording(16), recording(32, late=200), recording(64, n=298)])
    chosen = largest_that_meets(groups, 1000, "99")
    assert chosen.configuration.workload.hidden == 16  # 32 misses, 64 has one trial too few for p99
    assert largest_that_meets(groups, 50, "99") is None
    assert largest_that_meets([], 1000) is None
    with pytest.raises(UsageError, match="unknown size"):
        largest_that_meets(groups, 1000, "99", by="width")


def test_largest_means_multiply_adds_and_may_mean_parameters():
    long, wide = LstmShape(1, 8, 400), LstmShape(1, 32, 4)
    assert size_of(long) > size_of(wide) and size_of(long, "parameters") < size_of(wide, "parameters")
    # 4 gates of 8 units read 12 inputs and 8 units, and one output reads 8 units: 400 steps.
    assert size_of(long) == 400 * (4 * 8 * (12 + 8) + 8)


def test_among_equals_the_one_with_the_smallest_maximum():
    slower = recording(16, late=1, n=500, runtime="pytorch")
    groups = groups_of([slower, recording(16, n=500), recording(8)])
    assert largest_that_meets(groups, 3000, "99").configuration.runtime == "onnxruntime"


@pytest.mark.parametrize(
    "changes", [{"started": 1000}, {"machine": "other"}, {"runtime_version": "2.0"}, {"hidden": 9}, None], ids=str
)
def test_what_is_older_or_of_another_configuration_confirms_nothing(tmp_path, changes):
    (group,) = groups_of([recording(8, started=1000)])
    folder = tmp_path / "nothing"
    if changes:
        folder = tmp_path
        files.write(recording(**{"hidden": 8, "started": 2000, **changes}), folder)
    with pytest.raises(UsageError, match=r"not confirmed yet: .*lstm-trt record "):
        confirm(group, 1000, "99", data=folder)


def test_only_the_first_newer_recording_of_the_same_configuration_confirms(tmp_path):
    (group,) = groups_of([recording(8, started=1000)])
    files.write(recording(8, started=3000, round=1), tmp_path)
    assert confirm(group, 1000, "99", data=tmp_path)[0].outcome == "MET"
    assert confirm(group, 1000, "99.99", data=tmp_path)[0].outcome == "NOT ENOUGH EVIDENCE"  # it is too short
    files.write(recording(8, late=100, started=2000), tmp_path)
    again = confirm(group, 1000, "99", data=tmp_path)
    assert again[0].misses == 100 and again[0].outcome != "MET"
    assert again.runs[0].rounds[0].started_unix_ns == 2000


def test_a_confirmation_has_as_many_trials_as_all_rounds_of_the_group(tmp_path):
    (group,) = groups_of([recording(8, n=300, round=number, started=number) for number in range(3)])
    with pytest.raises(UsageError, match=r"lstm-trt record .*--trials 900"):
        confirm(group, 1000, "99", out=tmp_path)
    files.write(recording(8, n=900, started=99), tmp_path)
    assert confirm(group, 1000, "99.5", data=tmp_path)[0].n == 900


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(LstmShape(2, 64, 32), "onnxruntime", "1", "d"),
        Configuration(
            LstmShape(2, 64, 32, 4, 6, 2),
            "pytorch",
            "1",
            "d",
            Options(precision="bf16", threads=2, device="cuda", graph=False, device_clocks="all"),
            Protocol(trials=30000, warmup=3, seed=7, arrival="periodic", period_us=1234.5, wait="sleep"),
        ),
        Configuration(
            LstmShape(1, 8, 4), "onnxruntime", "1", "d", protocol=Protocol(arrival="paused", pause_ms=2_500_000.25)
        ),
    ],
    ids=["closed", "everything", "paused"],
)
def test_the_command_records_that_configuration(configuration):
    from lstm_trt.cli.common import options_of, protocol_of
    from lstm_trt.cli.main import parse
    from lstm_trt.cli.workloads import shape_of

    command = shlex.split(record_command(configuration, "a folder"))
    assert command[:2] == ["lstm-trt", "record"]
    given = parse(command[1:])
    assert shape_of(given, "") == configuration.workload and given.runtime == configuration.runtime
    assert protocol_of(given) == configuration.protocol
    assert replace(options_of(given), device=given.device or "cpu") == configuration.options
    assert str(given.out) == "a folder"


def test_recording_again_here(tmp_path, monkeypatch):
    """A network is recorded, selected, recorded again, and tested with the second recording only.

    The latencies that are written are planted, in place of those that this machine and its neighbours make.
    """
    from lstm_trt.recorder import pool
    from lstm_trt.recorder.describe import describe

    shape, started = LstmShape(1, 8, 4), [1000]

    def record(workload, runtime=None, protocol=None, options=None, *, mode=None, out):
        assert (workload, mode) == (shape, "forward") and protocol.trials == 400
        started[0] += 1000
        here = describe(workload, runtime, protocol, options, mode)
        planted = replace(recording(8, n=400, started=started[0]), configuration=here)
        Path(out).mkdir(exist_ok=True)
        files.write(planted, out)
        return planted

    monkeypatch.setattr(pool, "record", record)
    first = record(shape, protocol=Protocol(trials=400), mode="forward", out=tmp_path / "sweep")
    (group,) = groups_of([first])
    chosen = largest_that_meets([group], 1e6, "75")
    assert chosen is group
    again = confirm(chosen, 1e6, "75", record=True, out=tmp_path / "confirm")
    assert again[0].outcome == "MET" and again.runs[0].n == 400
    assert again.runs[0].rounds[0].started_unix_ns > group.rounds[0].started_unix_ns
    assert confirm(chosen, 1e6, "75", record=True, out=tmp_path / "confirm")[0].n == 400
    assert len(list((tmp_path / "confirm").glob("*.parquet"))) == 1  # the first one counts
    (foreign,) = groups_of([recording(8)])
    with pytest.raises(UsageError, match="record the sweep here first"):
        confirm(foreign, 1e6, "75", record=True, out=tmp_path / "other")


def test_what_came_from_elsewhere_cannot_be_recorded_again():
    from lstm_judge.read.rounds import Group, Round

    group = Group("numbers", (Round.of([1e5] * 400),))
    assert largest_that_meets([group], 1000, "99") is None
    with pytest.raises(UsageError, match="not recorded by this package"):
        confirm(group, 1000, "99")
