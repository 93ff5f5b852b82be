"""Time and memory of the analyses: `.venv/bin/python benchmarks/analysis.py`.

Outliers and verdict for 10 000 and 1 000 000 trials with drift, a step, two clusters, a period of
20 ms and counts of context switches. First only the analysis (median of several runs in one
process), then each command on a Parquet file in a separate process, including start-up and reading.
Limits: 1 s and 10 s, for both analyses together and for each command, and 1 GB peak memory per
command. Exit status 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lstm_trt as lab

LIMITS_S = {10_000: 1.0, 1_000_000: 10.0}
LIMIT_MB = 1000
DEADLINE_US = 350.0
ROOT = Path(__file__).resolve().parent.parent


def trials(n: int) -> dict[str, np.ndarray]:
    """Columns of a closed loop with about 100 us per trial."""
    generator = np.random.default_rng(5)
    position = np.arange(n) / n
    level_ns = 1e5 * (1 + 0.03 * position) * np.where(position > 0.37, 1.05, 1)
    latency_ns = level_ns * generator.lognormal(0, 0.02, n)
    slow, doubled = generator.random(n) < 0.02, generator.random(n) < 0.005
    # A timer delays the current trial: the one in which the sum passes a multiple of 20 ms.
    slow |= np.diff(np.floor(np.cumsum(latency_ns) / 20e6), prepend=0) > 0
    latency_ns *= np.where(doubled, 2, np.where(slow, 1.25, 1))
    ends_ns = np.cumsum(latency_ns + 700)
    switches = generator.random(n) < np.where(doubled, 0.8, 0.001)
    return {
        "start_ns": (ends_ns - latency_ns - 700).astype(np.int64),
        "latency_ns": latency_ns.round().astype(np.int64),
        "involuntary_switches": switches.astype(np.int64),
    }


def alone(path: Path, repeats: int) -> dict[str, float]:
    """Median seconds of each analysis including its text output, in this process."""
    runs = lab.load(path)
    analyses = {
        "outliers": lambda: str(lab.outliers(runs)),
        "verdict": lambda: str(lab.verdict(runs, DEADLINE_US)),
    }
    seconds = {}
    for name, analysis in analyses.items():
        times = []
        analysis()  # first run: imports modules
        for _ in range(repeats):
            began = time.perf_counter()
            analysis()
            times.append(time.perf_counter() - began)
        seconds[name] = statistics.median(times)
    return seconds


def command(arguments: list[str]) -> tuple[float, float]:
    """Seconds and peak resident MB of `lstm-trt ...` in a separate process."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "lstm_trt", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process.stdout, process.stderr:
        process.stdout.read()
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):  # exit statuses of verdicts
        raise SystemExit(
            f"lstm-trt {' '.join(arguments)} failed with exit status {process.returncode}: {errors.strip()}"
        )
    return seconds, usage.ru_maxrss / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="repetitions; the median is printed (default 3)")
    repeats = parser.parse_args().runs
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        for n, limit_s in LIMITS_S.items():
            path = Path(folder) / f"{n}.parquet"
            pq.write_table(pa.table(trials(n)), path)
            seconds = alone(path, repeats)
            both = sum(seconds.values())
            times = ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items())
            print(f"{n} trials, analysis only: {times}")
            verdict_arguments = ["verdict", str(path), "--deadline-us", str(DEADLINE_US)]
            slowest, most = 0.0, 0.0
            for name, arguments in {"outliers": ["outliers", str(path)], "verdict": verdict_arguments}.items():
                taken, used = zip(*(command(arguments) for _ in range(repeats)), strict=True)
                print(f"{n} trials, lstm-trt {name}: {statistics.median(taken):.2f} s, peak {max(used):.0f} MB")
                slowest = max(slowest, statistics.median(taken))
                most = max(most, *used)
            checks = {
                f"both analyses of {n} trials: {both:.2f} s (limit {limit_s:g} s)": both <= limit_s,
                f"slower command including start-up: {slowest:.2f} s (limit {limit_s:g} s)": slowest <= limit_s,
                f"peak memory: {most:.0f} MB (limit {LIMIT_MB} MB)": most <= LIMIT_MB,
            }
            for check, holds_here in checks.items():
                print(("ok      " if holds_here else "FAILED  ") + check)
            holds &= all(checks.values())
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
