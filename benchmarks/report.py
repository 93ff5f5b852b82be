"""Time, size and first paint of a report on 2000 configurations: `.venv/bin/python benchmarks/report.py`.

The latencies are those of the recordings in data/, repeated under the shapes of the grid `published-003`. The command
is measured in a separate process: seconds, with start-up and reading. Chromium then opens the file without a screen,
each time in a new tab with nothing cached; the first paint is the median of several. A limit that is exceeded is
marked; exit status 1 if there is one.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.analysis import ROOT, shapes
from lstm_trt.config.shape import PUBLISHED_003
from lstm_trt.store.consolidated import consolidate
from tests.lstm_judge.report.test_browser import browser

LIMIT_S, LIMIT_BYTES, LIMIT_PAINT_MS = 60, 2_000_000, 300

PAINT = "return performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime"


def make(folder: Path, number: int) -> Path:
    """A folder with this many recordings of 1000 trials or fewer."""
    pairs = zip(PUBLISHED_003, shapes(number, 2), strict=False)
    named = ((replace(item.configuration, workload=shape), item) for shape, item in pairs)
    folder.mkdir()
    consolidate((replace(item, configuration=configuration) for configuration, item in named), folder)
    return folder


def first_paints_ms(path: Path, times: int) -> list[float]:
    found = []
    for _ in range(times):
        with browser() as driver:
            driver.get(path.as_uri())
            time.sleep(1)
            found.append(driver.execute_script(PAINT))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configurations", type=int, default=len(PUBLISHED_003), metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the report")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = make(Path(folder) / "data", arguments.configurations)
        out = (arguments.out or Path(folder) / "report.html").absolute()
        command = ["report", str(data), "--deadline-us", "1000", "--percentile", "99", "--out", str(out)]
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "lstm_trt", *command], cwd=ROOT, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode not in (0, 1, 3):
            raise SystemExit(done.stderr)
        paint_ms = statistics.median(first_paints_ms(out, 5))
        checks = {
            f"report of {arguments.configurations} configurations: {seconds:.1f} s (limit {LIMIT_S} s)": seconds
            <= LIMIT_S,
            f"size: {out.stat().st_size / 1e6:.2f} MB (limit {LIMIT_BYTES / 1e6:g} MB)": out.stat().st_size
            <= LIMIT_BYTES,
            f"first paint: {paint_ms:.0f} ms (limit {LIMIT_PAINT_MS} ms)": paint_ms <= LIMIT_PAINT_MS,
        }
    for check, holds in checks.items():
        print(("ok      " if holds else "FAILED  ") + check)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
