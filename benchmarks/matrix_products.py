"""Which library multiplies fastest on one core: `.venv/bin/python benchmarks/matrix_products.py`.

An LSTM on a CPU is matrix products, x W^T + h R^T, and PyTorch has two libraries for them: its
BLAS, which plain tensors take (MKL in the usual builds), and oneDNN, which TensorFlow uses as
well. numpy's BLAS stands beside. For products of the literature's workloads: GFLOP/s by each,
interleaved, the best of some rounds, and the ratio to PyTorch's own choice. Run it alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np
import torch

ROUNDS, LEAST_S = 9, 0.02
#: What it is -> rows, inner size, columns.
PRODUCTS = {
    "ptb-lm, dense layer": (128 * 50, 256, 10001),
    "ptb-lm, inputs of a layer": (128 * 50, 256, 1024),
    "cell, both gates' products": (128, 1024, 2048),
    "text-classifier-h512, a step": (128, 512, 2048),
    "speech, a step": (32, 320, 1280),
    "200 units at batch 1, a step": (1, 200, 800),
}


def seconds(product: Callable[[], object]) -> float:
    """Of one product, over as many as `LEAST_S` hold."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < LEAST_S:
        product()
        count += 1
    return passed / count


def main() -> int:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    generator = torch.Generator().manual_seed(1)
    header = f"{'product (rows x inner x columns)':50}{'PyTorch':>9}{'oneDNN':>9}{'numpy':>9}  GFLOP/s; over PyTorch"
    print(header)
    for name, (rows, inner, columns) in PRODUCTS.items():
        x, w = torch.randn(rows, inner, generator=generator), torch.randn(columns, inner, generator=generator)
        dense_x, dense_w, plain_x, plain_w = x.to_mkldnn(), w.to_mkldnn(), x.numpy(), w.numpy()
        ways: dict[str, Callable[[], object]] = {
            "PyTorch": lambda x=x, w=w: torch.nn.functional.linear(x, w),
            "oneDNN": lambda x=dense_x, w=dense_w: torch.nn.functional.linear(x, w),
            "numpy": lambda x=plain_x, w=plain_w: np.matmul(x, w.T),
        }
        best = dict.fromkeys(ways, float("inf"))
        with torch.inference_mode(), torch.no_grad():
            for _ in range(ROUNDS):
                for way, product in ways.items():
                    best[way] = min(best[way], seconds(product))
        rates = {way: 2e-9 * rows * inner * columns / found for way, found in best.items()}
        label = f"{name} ({rows} x {inner} x {columns})"
        cells = "".join(f"{rates[way]:9.1f}" for way in ways)
        print(f"{label:50}{cells}  {rates['oneDNN'] / rates['PyTorch']:.2f}, {rates['numpy'] / rates['PyTorch']:.2f}")
    blas = [
        line.strip(" -") for line in torch.__config__.show().splitlines() if "Math Kernel" in line or "MKL-DNN" in line
    ]
    print(f"PyTorch {torch.__version__}, {'; '.join(blas) or 'no MKL, no oneDNN'}; numpy {np.__version__}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
