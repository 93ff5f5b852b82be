"""Time of the second start of a finished sweep of 2 000 networks: `.venv/bin/python benchmarks/second_start.py`.

Plants a folder with a recording of each (`--trials` of one real recording under other sizes), and times the command
that finds nothing left to record, `--starts` times, as a plain sweep and with `--scheduler`, at which nobody answers.
The limit is 2 s of wall time for the median; the time of the processor is what an idle machine would take. Exit
status 1 if the limit is exceeded.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import lstm_trt as lab
from lstm_trt.store import files

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 2.0
SIZES = {"layers": (1, 2), "hidden": range(8, 108, 4), "sequence": range(4, 84, 4), "batch": (1, 2)}


def plant(folder: Path, trials: int) -> int:
    """Write the recordings; returns their number."""
    real = lab.load(ROOT / "data/epyc/deadline").recordings[0]
    columns = {name: values[:trials] for name, values in real.columns.items()}
    blocks = [real.provenance["blocks"][0] | {"rows": len(columns["trial"])}]
    more = {"round": 0, "control": None, "provenance": real.provenance | {"blocks": blocks}}
    grid = lab.Grid(**{name: tuple(values) for name, values in SIZES.items()})
    for shape in grid:
        configuration = lab.describe(shape, "onnxruntime")
        files.write(replace(real, configuration=configuration, columns=columns, **more), folder)
    return len(grid)


def cpu_s() -> float:
    """Processor time of all ended children, in s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=5)
    given = parser.parse_args()
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        number = plant(Path(folder), given.trials)
        sizes = [word for name, values in SIZES.items() for word in (f"--{name}", *map(str, values))]
        command = [sys.executable, "-m", "lstm_trt", "sweep", *sizes, "--out", folder, "--quiet"]
        for name, more in (("plain", []), ("scheduler", ["--scheduler", "tcp://127.0.0.1:1"])):
            taken, used_s = [], -cpu_s()
            for _ in range(given.starts):
                began = time.perf_counter()
                done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT, env=os.environ)
                taken.append(time.perf_counter() - began)
                assert f"{number} already recorded" in done.stdout, done
            median = statistics.median(taken)
            slow |= median > LIMIT_S
            each = f"{min(taken):.2f} to {max(taken):.2f} s in {given.starts} starts"
            print(f"{name:10} median {median:.2f} s, {each}, processor {(used_s + cpu_s()) / given.starts:.2f} s each")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
