"""What PyTorch runs for one LSTM inference: `python3 benchmarks/gpu_kernels.py --hidden 128 192 193 200 256`.

For each size: the kernels on the GPU (on the CPU: the operators), by torch.profiler, with their counts; and the time
for which the GPU computes. The column `compute_ns` of a recording, and `gap` here, is the time between two events in
an empty queue, so it includes waiting for the host, which launches the kernels one after another. Here the queue is
first filled with a kernel that only waits (`torch.cuda._sleep`), so that all of the network's kernels are launched
before the first begins: the time between the same events is then `busy`. busy < gap: the inference is bound by its
launches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # lstm_trt need not be installed

#: Cycles for which the queue is held: 20 ms at 2 GHz, longer than the launches of any network here take.
HELD_CYCLES = 40_000_000
REPEATS = 9


def gpu_times_us(run, stream) -> tuple[float, float]:
    """Medians of the time between two events around `run()`: in an empty queue, and in one that is held."""
    import torch

    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(REPEATS):
        for held in (False, True):
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            stream.synchronize()
            if held:
                torch.cuda._sleep(HELD_CYCLES)
            before.record(stream)
            run()
            after.record(stream)
            stream.synchronize()
            found[held].append(1e3 * before.elapsed_time(after))
    return statistics.median(found[False]), statistics.median(found[True])


def measured(hidden: int, layers: int, sequence: int, device: str) -> dict:
    """One network: its kernels (or operators) with counts, and on a GPU its times in us."""
    import torch

    import lstm_trt as lab
    from lstm_trt.export.network import make_inputs, make_weights
    from lstm_trt.export.to_onnx import INPUT
    from lstm_trt.runtimes import load_runtime
    from lstm_trt.runtimes.base import Request

    shape = lab.LstmShape(layers, hidden, sequence)
    inputs = {INPUT: make_inputs(shape, 0)[0]}
    step = load_runtime("pytorch").prepare(Request(shape, lab.Options(device=device), inputs, make_weights(shape, 0)))
    step.load_inputs(inputs)
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA if device == "cuda" else kinds.CPU]) as profile:
        step.step()
    row = {"network": shape.label, "lstm_kernel": step.facts()["lstm_kernel"], "gap_us": None, "busy_us": None}
    if device == "cuda":
        row["gap_us"], row["busy_us"] = gpu_times_us(step._bound.run, step._stream)
    on_device = torch.autograd.DeviceType.CUDA if device == "cuda" else torch.autograd.DeviceType.CPU
    row["kernels"] = dict(Counter(event.name for event in profile.events() if event.device_type == on_device))
    step.close()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 192, 193, 200, 256], help="hidden units")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=128, help="time steps")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, help="also write the rows into this file")
    arguments = parser.parse_args()
    rows = [measured(each, arguments.layers, arguments.sequence, arguments.device) for each in arguments.hidden]
    for row in rows:
        times = "" if row["busy_us"] is None else f", gap {row['gap_us']:.1f} us, busy {row['busy_us']:.1f} us"
        print(f"{row['network']}: {row['lstm_kernel']}, {sum(row['kernels'].values())} in all{times}")
        for name, count in sorted(row["kernels"].items(), key=lambda pair: -pair[1])[:8]:
            print(f"  {count:6} {name[:100]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
