"""LSTMs beside loads, and cyclictest on the same core in the same hour: `.venv/bin/python benchmarks/beside.py`.

Two networks by ONNX Runtime and as C code, quiet and beside each of four loads on the other cores, in interleaved
rounds: a stream through memory, a computation, a writer of files, and a copy of the network itself. Each of the
stream's three arrays is 32 times as large as the second-level cache of a core, so that they do not fit there.

After each round cyclictest (Debian: rt-tests) waits for a timer 1000 times a second beside the same loads, as a thread
of real-time priority 80: what the machine alone costs. stress-ng (Debian) makes the loads. Prints the latencies of all
rounds as CSV, in us. Run it as root on an idle machine; what is recorded already is not recorded again.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lstm_trt as lab
from lstm_trt.machine.linux import choose_cores, read_text
from lstm_trt.recorder.beside import Load, cores_of
from lstm_trt.store import folders
from tests.support.measured import print_rows

NETWORKS = {"forward": lab.LstmShape(2, 64, 128), "stream": lab.LstmShape(2, 256, 1)}

RUNTIMES = ("onnxruntime", "c")

#: The stream's arrays, in second-level caches.
CACHES = 32

QUIET = "quiet"


def loads(folder: Path) -> dict[str, dict[str, str]]:
    """Name -> the loads of a protocol."""
    cache_kib = int((read_text("/sys/devices/system/cpu/cpu0/cache/index2/size") or "1024K").removesuffix("K"))
    commands = {
        "stream": f"stress-ng --stream 1 --stream-l3-size {CACHES * cache_kib}k",
        "compute": "stress-ng --cpu 1",
        "disk": f"stress-ng --hdd 1 --hdd-bytes 256m --temp-path {folder}",
        "COPIES": "1",
    }
    return {QUIET: {}, **{name: {name: command} for name, command in commands.items()}}


def waits_us(core: int, seconds: int) -> list[float]:
    """How late cyclictest's thread woke, from its histogram; what lies beyond that is its maximum."""
    line = f"cyclictest --quiet --mlockall --priority 80 --interval 1000 --affinity {core} --histogram 20000"
    done = subprocess.run([*line.split(), "--duration", str(seconds)], capture_output=True, text=True, check=True)
    counted = [(int(us), int(calls)) for us, calls in re.findall(r"(?m)^(\d{6}) (\d+)$", done.stdout)]
    found = list(itertools.chain.from_iterable([us] * calls for us, calls in counted))
    beyond = re.search(r"# Histogram Overflows: (\d+)", done.stdout)
    longest = re.search(r"# Max Latencies: (\d+)", done.stdout)
    if beyond is None or longest is None:
        raise SystemExit(f"cyclictest printed something else:\n{done.stdout}")
    return found + [int(longest[1])] * int(beyond[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/local/beside"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=6000, help="of each round")
    parser.add_argument("--seconds", type=int, default=10, help="of cyclictest, beside each load in each round")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    beside = loads(Path("/tmp"))
    protocols = [lab.Protocol(trials=asked.trials, beside=each) for each in beside.values()]
    times_us: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for number in range(asked.rounds):
        for mode, shape in NETWORKS.items():
            lab.sweep([shape], RUNTIMES, protocols, out=asked.out, mode=mode, rounds=number + 1)
        for name, commands in beside.items():
            options = lab.Options(cores=choose_cores(1))
            running = []
            for load, command in commands.items():
                if load != "COPIES":
                    running.append(Load(load, command, cores_of(lab.Protocol(beside=commands), options)))
            if running or name == QUIET:
                times_us["cyclictest"][name] += waits_us(options.cores[0], asked.seconds)
            for load in running:
                load.end()
    for recording in folders.read_many(asked.out):
        name = dict(recording.configuration.protocol.beside) or {QUIET: ""}
        times_us[recording.configuration.title]["".join(name)].append(recording.timed_ns / 1e3)
    print_rows(rows(dict(sorted(times_us.items())), list(beside)))
    return 0


def rows(times_us: dict[str, dict[str, list]], names: list[str]):
    """A row for each program and statistic, with a column for each load."""
    shares = {"median_us": 0.5, "p99_us": 0.99, "p99.9_us": 0.999, "max_us": 1.0}
    for what, by_load in times_us.items():
        pooled = {name: np.concatenate([np.ravel(part) for part in by_load[name]]) for name in names if by_load[name]}
        for statistic, share in shares.items():
            row = {"what": what, "statistic": statistic}
            for name in names:
                row[name] = ""
                if name in pooled:
                    row[name] = f"{np.quantile(pooled[name], share, method='inverted_cdf'):.1f}"
            yield row


if __name__ == "__main__":
    raise SystemExit(main())
