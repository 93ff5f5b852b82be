"""How often faults of ONNX Runtime are found: `.venv/bin/python benchmarks/reference_limit.py` (a minute).

ONNX Runtime is the reference of own networks if an evaluation in numpy confirms it
(`lstm_onnx/preparer.py`). For each seed a network and its inputs are drawn. The table has how many were
refused although ONNX Runtime computed them as they are, and how many with each planted fault
(`tests/support/planted_faults.py`). `--onnx FILE --size NAME=N` takes the inputs of a file instead.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from lstm_onnx.own_network import OnnxNetwork
from tests.support.planted_faults import FAULTS, drawn_network, is_refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them (default %(default)s)")
    parser.add_argument("--onnx", type=Path, help="a file whose operators have stored weights W, R and B")
    parser.add_argument("--size", nargs="+", default=[], help="its symbolic sizes, NAME=N")
    arguments = parser.parse_args()
    sizes = {name: int(size) for name, size in (text.split("=") for text in arguments.size)}
    refused = dict.fromkeys((None, *FAULTS), 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # networks are copied into the cache
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            rng = np.random.default_rng(seed)
            network = OnnxNetwork(arguments.onnx, sizes=sizes) if arguments.onnx else drawn_network(rng)
            for fault in refused:
                refused[fault] += is_refused(rng, network, seed, fault)
    print(f"| {arguments.seeds} seeds | refused |\n| --- | --- |")
    for fault, count in refused.items():
        print(f"| {fault or 'as it is'} | {count} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
