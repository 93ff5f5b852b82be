"""Benchmarks that reach into the package still run; what they measure is no test."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ran, sampled


@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("recorder.py --pairs 1 --trials 50", "pooled ratio"),
        ("verdict_rates.py --recordings 1", "\nbursts of 4,"),
        ("answer_rates.py --table breaks --recordings 1", "\n10,60,"),
        ("reference_limit.py --seeds 1", "| a gate swapped | 1 |"),
        ("start_up.py", "--help"),
        ("c_race.py --processes 1 --networks 2x8", "| 2x8 |"),
        ("telemetry.py --rounds 1 --trials 50 --shape 1 8 4 --runtimes onnxruntime", "other threads' CPU"),
        pytest.param(
            *("against_peers.py --rounds 1 --trials 1000 --networks 1", "what it cannot do"),
            id="against_peers.py --rounds 1 --trials 1000-what it cannot do",
        ),
    ],
)
def test_a_benchmark_runs(line, printed):
    name, *options = line.split()
    done = ran(sys.executable, f"benchmarks/{name}", *options, status=None, timeout=900)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    assert printed in done.stdout
