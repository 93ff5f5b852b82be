"""Time and memory of the analyses: `.venv/bin/python benchmarks/analysis.py`.

1. Outliers and verdict for 10 000 and 1 000 000 trials with drift, a step, two clusters, a period of 20 ms and counts
   of context switches. First only the analysis (median of several runs in one process), then each command on a Parquet
   file in a separate process, including start-up and reading.
2. `--scale`: verdict and summary of 10 000 configurations of 1000 trials, a comparison of 2000 with 2000, and 100
   million trials of one configuration. The latencies are those of the recordings in data/, repeated under other shapes.
   `--keep DIR` makes these data once (5 minutes, 2 GB) and keeps them.

Each command is measured in a separate process: seconds, and the peak memory of it and its children together (the
proportional set size, read four times a second). A limit that is exceeded is marked; exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import lstm_trt as lab
from lstm_trt.store import consolidated, files, folders
from lstm_trt.store.schema import Recording

#: Limits in seconds and MB by number of trials.
LIMITS = {10_000: (0.5, 500), 1_000_000: (10, 1000)}
DEADLINE_US = 350.0
ROOT = Path(__file__).resolve().parent.parent

#: Configurations of the large summary and of each side of the comparison; parts of the long recording, and trials of a
#: part.
MANY, SIDE, PARTS, PART = 10_000, 2_000, 100, 1_000_000

#: Command -> limits in seconds and MB. `{many}` and so on are the folders of the data.
COMMANDS = {
    "verdict {many} --deadline-us 1000": (10, 800),
    "summarize {many} --clusters no": (4, 1000),
    "summarize {many}": (40, 1500),
    "summarize {many} # again": (6, 1500),
    "compare {a} {b}": (6, 1000),
    "compare {a} {b} # again": (6, 1000),
    "summarize {long}": (20, 500),
    "verdict {long} --deadline-us 1000": (20, 500),
    "outliers {long}": (20, 500),
}


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


def shapes(number: int, seed: int) -> Iterator[Recording]:
    """`number` recordings of networks of 1, 2, ... units, whose trials are those of the recordings in data/."""
    sources = [ROOT / "data" / name for name in ("epyc/grid", "xeon/grid", "xeon/batch", "xeon/deep")]
    known = [item for path in sources for item in folders.read_many(path) if isinstance(item, Recording)]
    order = np.random.default_rng(seed).integers(len(known), size=number)
    first = known[0].configuration
    for hidden, place in enumerate(order.tolist(), start=1):
        configuration = replace(first, workload=replace(first.workload, hidden=hidden))
        yield replace(known[place], configuration=configuration, round=0)


def make(folder: Path) -> dict[str, Path]:
    """The data of `COMMANDS`, made unless they are in `folder`; `a` and `b` have other trials of the same shapes."""
    made = {name: folder / name for name in ("many", "a", "b", "long")}
    for path in made.values():
        path.mkdir(parents=True, exist_ok=True)
    for name, number, seed in (("many", MANY, 1), ("a", SIDE, 2), ("b", SIDE, 3)):
        if not (made[name] / consolidated.CONFIGS_FILE).exists():
            consolidated.consolidate(shapes(number, seed), made[name])
    source = next(shapes(1, 4))
    rows = len(source.columns["trial"])
    span = int(source.columns["start_ns"][-1] + source.columns["latency_ns"][-1] - source.columns["start_ns"][0]) + 1
    generator = np.random.default_rng(5)
    for number in range(PARTS):
        part = replace(source, part=number)
        if (made["long"] / part.file_name).exists():
            continue
        times = -(-PART // rows)
        columns = {name: np.tile(values, times)[:PART] for name, values in source.columns.items()}
        columns["warmup"] = (np.arange(PART) < 100) & (number == 0)
        columns["trial"] = np.arange(PART)
        columns["start_ns"] = columns["start_ns"] + np.repeat(np.arange(times) * 2 * span, rows)[:PART]
        columns["latency_ns"] = columns["latency_ns"] + generator.integers(0, 50, PART)
        soak = {"asked_s": PARTS, "elapsed_s": number + 1, "part": number, "last": number == PARTS - 1}
        stated = {"soak": soak, "blocks": [part.provenance["blocks"][0] | {"rows": PART}]}
        files.write(replace(part, columns=columns, provenance=part.provenance | stated), made["long"])
    return made


def command(arguments: list[str], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds and peak MB of `lstm-trt ...` in a separate process, with its children."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = psutil.Popen(
            [sys.executable, "-m", "lstm_trt", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=errors,
            env=os.environ | (environment or {}),
        )
        peak = 0
        while True:
            try:
                process.wait(0.25 if peak else 0.05)
                break
            except psutil.TimeoutExpired:
                peak = max(peak, used(process))
        seconds = time.perf_counter() - began
        errors.seek(0)
        if process.returncode not in (0, 1, 3):  # exit statuses of verdicts
            message = errors.read().decode().strip()
            raise SystemExit(f"lstm-trt {' '.join(arguments)} failed with exit status {process.returncode}: {message}")
    return seconds, peak / 1e6


def used(process: psutil.Process) -> int:
    """Bytes of a process and its children; memory that they share counts once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return total


def check(text: str, seconds: list[float], megabytes: list[float], limits: tuple[float, float]) -> bool:
    """Print a line with the medians; whether they are within the limits."""
    taken, most = statistics.median(seconds), max(megabytes)
    holds = taken <= limits[0] and most <= limits[1]
    mark = "ok      " if holds else "FAILED  "
    print(f"{mark}{text}: {taken:.2f} s (limit {limits[0]:g}), peak {most:.0f} MB (limit {limits[1]})", flush=True)
    return holds


def short(repeats: int) -> bool:
    """The first part; whether all limits hold."""
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        for n, limits in LIMITS.items():
            path = Path(folder) / f"{n}.parquet"
            pq.write_table(pa.table(trials(n)), path)
            times = ", ".join(f"{name} {value:.3f} s" for name, value in alone(path, repeats).items())
            print(f"{n} trials, analysis only: {times}")
            for arguments in (["outliers", str(path)], ["verdict", str(path), "--deadline-us", str(DEADLINE_US)]):
                taken = [command(arguments) for _ in range(repeats)]
                holds &= check(f"{n} trials, lstm-trt {arguments[0]}", *map(list, zip(*taken, strict=True)), limits)
    return holds


def scale(repeats: int, folder: Path, only: str) -> bool:
    """The second part; whether all limits hold. The results that `summarize` and `compare` keep are removed before."""
    made, holds = make(folder), True
    for text, limits in COMMANDS.items():
        if only not in text:
            continue
        arguments = text.partition(" #")[0].format(**made).split()
        taken = []
        with tempfile.TemporaryDirectory() as cache:
            environment = {"XDG_CACHE_HOME": cache}
            if "again" in text:
                command(arguments, environment)
            for _ in range(repeats):
                if "again" not in text:
                    shutil.rmtree(Path(cache) / "lstm_trt", ignore_errors=True)
                taken.append(command(arguments, environment))
        holds &= check(f"lstm-trt {text}", *map(list, zip(*taken, strict=True)), limits)
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="repetitions; the median is printed (default 3)")
    parser.add_argument("--scale", action="store_true", help="many configurations and long recordings")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="with --scale: make the data once and keep them here")
    parser.add_argument("--only", default="", metavar="TEXT", help="with --scale: only commands with this text")
    arguments = parser.parse_args()
    if not arguments.scale:
        return 0 if short(arguments.runs) else 1
    with tempfile.TemporaryDirectory() as folder:
        return 0 if scale(arguments.runs, arguments.keep or Path(folder), arguments.only) else 1


if __name__ == "__main__":
    sys.exit(main())
