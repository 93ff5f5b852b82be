"""Sweeps on Dask against plain ones: `.venv-frameworks/bin/python benchmarks/cluster.py`; needs the extra cluster.

A scheduler and two workers run on loopback, and with `--nanny` each worker under a nanny. The same networks are
recorded by them and by a plain sweep, alternately, `--pairs` times each; a table has the median and p99 of all trials
of a network on both ways, and their ratios. `--rate` prints instead how many results a second the sweep writes, of
`--kb` each, if they arrive at once: nothing is recorded, and no Dask is needed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np

import lstm_trt as lab
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.task import Result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

NETWORKS = lab.Grid(layers=(1,), hidden=(32, 64), sequence=(32, 64))


def compare(pairs: int, trials: int, nanny: bool) -> None:
    """Print the table."""
    from tests.support.dask_cluster import DaskCluster

    os.environ["LSTM_TRT_LOCKS"] = tempfile.mkdtemp()
    names, taken = ("plain", "cluster"), {}
    with tempfile.TemporaryDirectory() as work, DaskCluster(Path(work)) as cluster, cluster.client() as client:
        for _ in range(2):
            cluster.add_worker(nanny)
        client.wait_for_workers(2)
        executor = client.get_executor(pure=False, resources={"lstm_trt": 1})
        for pair in range(pairs):
            for name in names[:: 1 if pair % 2 else -1]:
                out = Path(work) / f"{name}-{pair}"
                how = {"executor": executor} if name == "cluster" else {}
                report = lab.sweep(NETWORKS, protocol=lab.Protocol(trials=trials), rounds=1, out=out, **how)
                print(f"{name} {pair}: {report.recorded} recorded in {report.wall_s:.1f} s", file=sys.stderr)
                for group in lab.load(out):
                    taken.setdefault(group.configuration.name, {}).setdefault(name, []).append(
                        np.concatenate([round_.timed_ns for round_ in group.rounds])
                    )
    print(f"{'network':16} {'':8}" + "".join(f"{name:>12}" for name in names) + f"{'ratio':>10}")
    for network, ways in sorted(taken.items()):
        for label, rank in (("median", 50), ("p99", 99)):
            values = [float(np.percentile(np.concatenate(ways[name]), rank)) / 1e3 for name in names]
            print(f"{network:16} {label:8}" + "".join(f"{value:9.1f} us" for value in values), end="")
            print(f"{values[1] / values[0]:10.3f}")


class AtOnce(Executor):
    """Gives results of so many bytes at once."""

    _max_workers = 500

    def __init__(self, size: int) -> None:
        self._content = os.urandom(size)

    def submit(self, fn, /, job):
        done: Future = Future()
        known = {"key": job["key"], "round": job["round"], "machine": platform.node(), "content": self._content}
        done.set_result(Result(path=Path(f"{job['key']}-r0.parquet"), failure=None, seconds=Seconds(), **known))
        return done


def rate(kb: float) -> None:
    """Print how many results a second are written."""
    grid = lab.Grid(layers=(1, 2), hidden=tuple(range(8, 108, 4)), sequence=tuple(range(4, 84, 4)), batch=(1, 2))
    with tempfile.TemporaryDirectory(dir=".") as out:
        began = time.perf_counter()
        report = lab.sweep(grid, out=out, executor=AtOnce(int(1e3 * kb)), show_progress=False)
        seconds = time.perf_counter() - began
    print(f"{report.recorded} results of {kb:g} kB in {seconds:.2f} s: {report.recorded / seconds:.0f} a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--nanny", action="store_true")
    parser.add_argument("--rate", action="store_true")
    parser.add_argument("--kb", type=float, default=70.0)
    given = parser.parse_args()
    if given.rate:
        rate(given.kb)
    else:
        compare(given.pairs, given.trials, given.nanny)


if __name__ == "__main__":
    main()
