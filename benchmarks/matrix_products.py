"""Speed of matrix products by library on one core: `.venv/bin/python benchmarks/matrix_products.py`.

On a CPU an LSTM consists mainly of matrix products, x W^T + h R^T. PyTorch has two libraries for
them: its BLAS, used for plain tensors (MKL in the usual builds), and oneDNN, which TensorFlow uses
too. numpy's BLAS is included for comparison. For products of the literature's workloads, prints the
GFLOP/s of each library (interleaved, best of several rounds) and the ratio to PyTorch's default.
Run it on an idle machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np
import torch

ROUNDS, LEAST_S = 9, 0.02
#: Product -> rows, inner size, columns.
PRODUCTS = {
    "ptb-lm, dense layer": (128 * 50, 256, 10001),
    "ptb-lm, inputs of a layer": (128 * 50, 256, 1024),
    "cell, both gates' products": (128, 1024, 2048),
    "text-classifier-h512, a step": (128, 512, 2048),
    "speech, a step": (32, 320, 1280),
    "200 units at batch 1, a step": (1, 200, 800),
}


def seconds(product: Callable[[], object]) -> float:
    """Mean seconds per product, over a run of at least `LEAST_S`."""
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
    header = (
        f"{'product (rows x inner x columns)':50}{'PyTorch':>9}{'oneDNN':>9}{'numpy':>9}  GFLOP/s; ratios to PyTorch"
    )
    print(header)
    for name, (rows, inner, columns) in PRODUCTS.items():
        x, w = torch.randn(rows, inner, generator=generator), torch.randn(columns, inner, generator=generator)
        dense_x, dense_w, plain_x, plain_w = x.to_mkldnn(), w.to_mkldnn(), x.numpy(), w.numpy()
        products: dict[str, Callable[[], object]] = {
            "PyTorch": lambda x=x, w=w: torch.nn.functional.linear(x, w),
            "oneDNN": lambda x=dense_x, w=dense_w: torch.nn.functional.linear(x, w),
            "numpy": lambda x=plain_x, w=plain_w: np.matmul(x, w.T),
        }
        best = dict.fromkeys(products, float("inf"))
        with torch.inference_mode(), torch.no_grad():
            for _ in range(ROUNDS):
                for library, product in products.items():
                    best[library] = min(best[library], seconds(product))
        rates = {library: 2e-9 * rows * inner * columns / time_s for library, time_s in best.items()}
        label = f"{name} ({rows} x {inner} x {columns})"
        cells = "".join(f"{rate:9.1f}" for rate in rates.values())
        print(f"{label:50}{cells}  {rates['oneDNN'] / rates['PyTorch']:.2f}, {rates['numpy'] / rates['PyTorch']:.2f}")
    blas = [
        line.strip(" -") for line in torch.__config__.show().splitlines() if "Math Kernel" in line or "MKL-DNN" in line
    ]
    print(f"PyTorch {torch.__version__}, {'; '.join(blas) or 'without MKL and oneDNN'}; numpy {np.__version__}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
