"""Planted campaigns: a small grid on two runtimes, of which the latencies are known, and one with hostile names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lstm_judge.read.runs import load
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import files
from lstm_trt.store.schema import Failure, Recording

TRIALS = 400
DEADLINE_US = 150.0

#: Names as a recording of somebody else may have them.
HOSTILE = (
    "<script>document.title='run'</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!-- --> \"'` & {{ 7 * 7 }}",
    "a|b\nc",
    "\u202eright to left",
    "\x1b[31m red \x00 nul",
    "x" * 10_000,
)


def recording(shape: LstmShape, runtime: str, median_us: float, draw: int = 0, **how) -> Recording:
    """A recording of `TRIALS` trials within 1 % of a median; `how` are fields of the configuration and provenance.

    `protocol` and `stated` are more of them, `max_us` the latency of one trial.
    """
    generator = np.random.default_rng([draw, shape.hidden, shape.sequence])
    latency_ns = (1e3 * median_us * generator.uniform(0.99, 1.01, TRIALS)).astype(np.int64)
    latency_ns[TRIALS // 2] = 1e3 * how.pop("max_us", latency_ns[TRIALS // 2] / 1e3)
    columns = {
        "trial": np.arange(TRIALS),
        "warmup": np.arange(TRIALS) < 10,
        "start_ns": np.cumsum(latency_ns),
        "latency_ns": latency_ns,
    }
    provenance = {
        "machine_fingerprint": "0123456789abcdef",
        "machine": {"cpu": how.pop("cpu", "a processor"), "caches": {"L2": 1 << 20}},
        "versions": {"numpy": "2.0"},
        "started_unix_ns": how.pop("started", 1),
        "parity": {"error": how.pop("error", 1e-7)},
        "others": {"pinned_cores_ns": 0, "all_cores_ns": 0, "alone": True},
        "warnings": how.pop("warnings", []),
        **how.pop("stated", {}),
    }
    protocol = Protocol(trials=how.pop("trials", TRIALS - 10), **how.pop("protocol", {}))
    options = Options(precision=how.pop("precision", "fp32"))
    device = how.pop("device", "a device")
    configuration = Configuration(shape, runtime, "1.0", device, options, protocol)
    return Recording(configuration, how.pop("round", 0), columns, provenance)


def failure(shape: LstmShape, runtime: str, reason: str) -> Failure:
    configuration = replace(recording(shape, runtime, 1.0).configuration)
    return Failure(configuration, 0, "build", reason, {"machine_fingerprint": "0123456789abcdef"})


def record_campaign(folder) -> None:
    """Times grow with hidden size and sequence, from 40 to 320 us; fast takes half as long as slow."""
    for runtime, factor in (("slow", 1.0), ("fast", 0.5)):
        for hidden in (8, 16, 32):
            for sequence in (4, 8):
                shape = LstmShape(1, hidden, sequence)
                files.write(recording(shape, runtime, factor * 1.25 * hidden * sequence), folder)
        files.write_failure(failure(LstmShape(1, 64, 4), runtime, "no memory in /home/alice/model.onnx"), folder)
    files.write(recording(LstmShape(1, 32, 2), "slow", DEADLINE_US / 1.0096), folder)  # 2 % of its calls miss
    files.write(recording(LstmShape(1, 8, 4), "fast", 15.0, precision="fp16", error=1e-3), folder)


DAY_NS = 86_400 * 10**9


def record_on_two_machines(folder) -> None:
    """Three recordings: on the 1st and the 3rd of May 2026 on one machine, on the 7th on another one with a GPU."""
    first_ns = 1_777_593_600 * 10**9
    for hidden, (cpu, day, version) in enumerate([("Alpha", 0, "1.0"), ("Alpha", 2, "1.1"), ("Beta", 6, "1.2")], 8):
        device = "NVIDIA Gamma" if cpu == "Beta" else cpu
        made = recording(
            LstmShape(1, hidden, 4), "fast", 100.0, started=first_ns + day * DAY_NS, cpu=cpu, device=device
        )
        made = replace(made, configuration=replace(made.configuration, runtime_version=version))
        made.provenance["versions"]["lstm_trt"] = {"Alpha": "0.8", "Beta": "0.9"}[cpu]
        if cpu == "Beta":
            made.provenance["machine_fingerprint"] = "fedcba9876543210"
        files.write(made, folder)


def record_old_and_new(folder) -> tuple[Path, Path]:
    """Folders of a baseline and of new recordings: one is slower, one faster, one failed, one is on each side alone."""
    old, new = folder / "old", folder / "new"
    for side, medians in {
        old: {8: 100.0, 16: 100.0, 32: 100.0, 64: 100.0},
        new: {8: 60.0, 16: 150.0, 128: 100.0},
    }.items():
        side.mkdir()
        for hidden, median_us in medians.items():
            made = recording(LstmShape(1, hidden, 4), "fast", median_us, draw=side == new)
            if side == new:
                made.provenance["machine_fingerprint"] = "fedcba9876543210"
                made.provenance["machine"]["cpu"] = "another processor"
            files.write(made, side)
    files.write_failure(failure(LstmShape(1, 32, 4), "fast", "no memory"), new)
    return old, new


@pytest.fixture(scope="package")
def campaign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    record_campaign(folder)
    return folder


@pytest.fixture(scope="package")
def hostile(tmp_path_factory):
    """A folder of recordings with `HOSTILE` runtimes, processors, devices, warnings and reasons."""
    folder = tmp_path_factory.mktemp("hostile")
    for place, name in enumerate(HOSTILE):
        shape = LstmShape(1, 8 + place, 4)
        files.write(recording(shape, name, 100.0, cpu=name, device=name, warnings=[name]), folder)
        files.write_failure(failure(LstmShape(1, 8 + place, 5), name, name), folder)
    return folder


@pytest.fixture(scope="package")
def runs(campaign):
    return load(campaign)
