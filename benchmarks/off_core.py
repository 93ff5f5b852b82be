"""How this machine interrupts a busy thread: `.venv/bin/python benchmarks/off_core.py` (10 s, no privilege needed).

A thread that only reads the clock is pinned to one core. What is printed: how often and for how long it was off its
core, preempted (it could have gone on) or waiting by itself, and the longest gap between two readings that is not
explained by that: interrupts, or a hypervisor, which a guest cannot.

How this is measured, and where it is allowed: `lstm_trt/machine/switches.py`.
"""

import argparse
import os
import sys
import time

import numpy as np

from lstm_trt.machine.switches import Switches


def spin(seconds: float, watched: Switches) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Start and end of every gap of more than 1 us between two readings of the clock, and their `columns`."""
    clock, gaps = time.perf_counter_ns, []
    watched.discard()
    before = clock()
    end = before + int(1e9 * seconds)
    while before < end:
        now = clock()
        if now - before > 1000:
            gaps.append((before, now))
        before = now
    start_ns, end_ns = np.array(gaps, np.int64).reshape(-1, 2).T
    return start_ns, end_ns, watched.take(start_ns, end_ns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="default: the last one allowed")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, [arguments.core])
    with Switches() as watched:
        start_ns, end_ns, found = spin(arguments.seconds, watched)
        described = watched.as_dict()
    if described["missing"]:
        print(f"the kernel refuses: {described['missing']}", file=sys.stderr)
        return 2
    gaps_ns, off_ns, preempted_ns = end_ns - start_ns, found["off_core_ns"], found["preempted_ns"]
    rows = (
        ("preempted", preempted_ns),
        ("waiting by itself", off_ns - preempted_ns),
        ("on the core, cause not observed", gaps_ns - off_ns),
    )
    print(f"{len(gaps_ns)} gaps of more than 1 us in {arguments.seconds:g} s on core {arguments.core}")
    for name, times_ns in rows:
        held = times_ns[times_ns > 1000]
        longest_us = held.max(initial=0) / 1e3
        print(f"  {name}: {len(held)} times, {held.sum() / 1e6:.3f} ms in all, the longest {longest_us:.1f} us")
    for name, ran in described["ran"].items():
        shortest_us, longest_us = ran["shortest_ns"] / 1e3, ran["longest_ns"] / 1e3
        print(f"  {name} ran there {ran['times']} times, {shortest_us:.1f} to {longest_us:.1f} us")
    if described["ran_missing"]:
        print(f"  what ran there is not known: {described['ran_missing']}")
    if described["lost"]:
        print(f"  {described['lost']} records did not fit into the ring")
    return 0


if __name__ == "__main__":
    sys.exit(main())
