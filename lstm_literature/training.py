"""What accompanies the batches of a training loop: losses, and the time between batches.

A recording fails unless the loss is finite and decreases, and it has a warning if too much time passed between the
batches.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lstm_trt.config.errors import RunFailed
from lstm_trt.runtimes.base import Observer

#: Time between the batches of a training loop that causes no warning: 1 % of the loop (document 004),
#: or, in short loops, `BETWEEN_NS` of the recorder's own work per batch plus `SWITCH_NS`, the time slice
#: of another program, for each batch with a context switch.
LOOP_BOUND, BETWEEN_NS, SWITCH_NS = 0.01, 20_000, 5_000_000


class TrainingObserver(Observer):
    """Keeps the loss of one step before the loop and of each block's last batch, and checks them and the loop."""

    def __init__(self, step: Any) -> None:
        step.step()
        self._step = step
        self._losses = [float(step.loss())]

    def block(self, done: int) -> None:
        if done:
            self._losses.append(float(self._step.loss()))

    def finish(self, columns: Mapping[str, np.ndarray], self_check: Mapping, warnings: list[str]) -> dict:
        check_losses(self._losses)
        warnings.extend(check_between_batches(columns, self_check))
        return {"losses": self._losses}


def check_losses(losses: list[float]) -> None:
    """Raises `RunFailed` unless the losses of a training loop are finite and the last is below the first."""
    if not all(map(math.isfinite, losses)):
        raise RunFailed(f"the loss is not finite: first {losses[0]:.6g}, last {losses[-1]:.6g}")
    if not losses[-1] < losses[0]:
        raise RunFailed(f"the loss does not decrease: first {losses[0]:.8g}, last {losses[-1]:.8g}")


def check_between_batches(columns: Mapping[str, np.ndarray], self_check: Mapping) -> list[str]:
    """A warning if more time of a training loop is spent between its batches than is accounted for.

    This is not an error, because a busy machine can interrupt the loop between two batches without
    affecting the batch times. Raises `RunFailed` if the batches together take longer than the loop
    that contains them, since then one of the times must be wrong.
    """
    batches, loop = (self_check[name] for name in ("batches_ns", "batches_loop_ns"))
    if batches > loop:
        raise RunFailed(
            f"self-check: the batches took {batches / 1e9:.6g} s in total, more than the loop's {loop / 1e9:.6g} s"
        )
    # The gap between two batches is too short to be interrupted more than once.
    interrupted = int(np.count_nonzero(columns["involuntary_switches"]))
    allowed = max(LOOP_BOUND * loop, BETWEEN_NS * len(columns["start_ns"]) + SWITCH_NS * interrupted)
    if loop - batches <= allowed:
        return []
    return [
        f"{(loop - batches) / 1e6:.3g} ms of the loop's {loop / 1e6:.3g} ms were spent between the batches; the"
        f" recorder and the counted context switches explain only {allowed / 1e6:.3g} ms (was the machine busy?)"
    ]
