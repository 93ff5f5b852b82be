"""Start-up time of the package and the command line: `.venv/bin/python benchmarks/start_up.py`.

New processes, interleaved: a bare interpreter, one that imports lstm_trt, one that prints
the command line's help. Limits: 100 ms more than the bare start for the import, five bare
starts for the help. Neither may load torch, pandas or matplotlib. Exit status 1 if a check fails.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 21
HEAVY = ("torch", "pandas", "matplotlib")
ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "bare start": [sys.executable, "-c", "pass"],
    "import lstm_trt": [sys.executable, "-c", "import lstm_trt"],
    "lstm-trt --help": [sys.executable, "-m", "lstm_trt", "--help"],
}


def start_ms(command: list[str]) -> float:
    """Wall time of one process, in ms."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=os.environ)
    return 1e3 * (time.perf_counter() - began)


def loaded(statement: str) -> list[str]:
    """The packages of `HEAVY` that a statement loads."""
    code = f"import sys; {statement}; print(*[name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.split()


def main() -> int:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            times[name].append(start_ms(command))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{name:16} median {medians[name]:6.1f} ms, {min(values):.1f} to {max(values):.1f} ms in {ROUNDS} starts")
    bare = medians["bare start"]
    help = medians["lstm-trt --help"]
    over = medians["import lstm_trt"] - bare
    heavy = loaded("import lstm_trt") + loaded("import lstm_trt.cli.main as main; main.build_parser()")
    checks = {
        f"import: {over:.1f} ms more than a bare start (limit 100 ms)": over <= 100,
        f"help: {help / bare:.1f} bare starts (limit 5)": help <= 5 * bare,
        f"loaded packages of {', '.join(HEAVY)}: {', '.join(heavy) or 'none'}": not heavy,
    }
    for check, holds in checks.items():
        print(("ok      " if holds else "FAILED  ") + check)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
