"""Cost of denormal numbers in training by sequence length: `.venv/bin/python benchmarks/denormals.py`.

The loss of the workload `speech-ce-long` is that of the last time step. Its gradient becomes smaller with every step
that it goes back, until its numbers are denormal (below 1.2e-38 in float32), with which most processors compute many
times more slowly. For PyTorch's single call on one core, prints the median time of a training step with denormal
numbers, as PyTorch and the recordings have them by default, and with `torch.set_flush_denormal(True)`, which rounds
them to zero; the two alternate. Takes about a minute. Run it on an idle machine.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

import torch

from lstm_literature.data import make_batch, make_weights
from lstm_literature.implementations import load_implementation
from lstm_literature.workloads import find
from lstm_trt.config.configuration import Options
from lstm_trt.runtimes.base import Request

IMPLEMENTATION, ROUNDS = "pytorch-one-call-eager", 5
SEQUENCES = (125, 250, 500, 1000)


def main() -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'time steps':>10}{'denormal ms':>13}{'zero ms':>9}{'ratio':>7}")
    for sequence in SEQUENCES:
        workload = replace(find("speech-ce-long"), sequence=sequence)
        inputs, weights = make_batch(workload, 0).by_name(), make_weights(workload, 0)
        request = Request(workload, Options(), inputs, weights, mode="training")
        step = load_implementation(IMPLEMENTATION).prepare(request)
        times_s: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for flush, found in times_s.items():
                torch.set_flush_denormal(flush)
                began = time.perf_counter()
                step.step()
                found.append(time.perf_counter() - began)
        torch.set_flush_denormal(False)
        step.close()
        kept, zero = (1e3 * statistics.median(found) for found in times_s.values())
        print(f"{sequence:10}{kept:13.1f}{zero:9.1f}{kept / zero:7.2f}", flush=True)
    print(f"PyTorch {torch.__version__}, {workload.name}, batch {workload.batch}, {workload.hidden} units, one thread")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
