"""How often a verdict is false on planted misses: `.venv/bin/python benchmarks/verdict_rates.py` (10 minutes).

Recordings of each kind of misses (`tests/support/planted_misses.py`) at the allowed rate of 0.1 %, and at twice that,
are judged at 95 % confidence. The table has the percentage that is called MISSED by the plain count of misses and by
the verdict, which counts a burst as one; and at 100 000 trials the percentage called MET for bursts of up to 20 calls.
"""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from lstm_trt.analysis import bursts, quantiles
from tests.support.planted_misses import KINDS

ALLOWED = Fraction(1, 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=int, default=2000, help="per cell (default 2000)")
    parser.add_argument("--trials", type=int, nargs="+", default=[5000, 20_000, 50_000])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    heads = [f"{n}: plain / verdict / at twice the rate" for n in arguments.trials]
    print("| misses | " + " | ".join(heads) + " | MET for bursts of 20, 100000 |")
    print("| --- |" + " --- |" * (len(heads) + 1))
    for kind, places in KINDS.items():
        cells = []
        for n in arguments.trials:
            found = []
            for times in (1, 2):
                plain = verdict = 0
                for _ in range(arguments.recordings):
                    late = places(rng, n, times * float(ALLOWED))
                    if quantiles.proves_above(len(late), n, ALLOWED):
                        plain += 1
                        tau = bursts.autocorrelation_time([late], [n])
                        verdict += quantiles.proves_above(len(late) / tau, n / tau, ALLOWED)
                found += [plain, verdict]
            shares = [f"{100 * each / arguments.recordings:.1f}" for each in (found[0], found[1], found[3])]
            cells.append(" / ".join(shares))
        met = sum(
            bursts.proves_below(len(places(rng, 100_000, float(ALLOWED))), 100_000, ALLOWED, 0.95, 20)
            for _ in range(arguments.recordings)
        )
        print(f"| {kind} | " + " | ".join([*cells, f"{100 * met / arguments.recordings:.1f}"]) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
