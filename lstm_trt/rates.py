"""The speed of light: what an LSTM's arithmetic and weight traffic need at the machine's measured rates.

A floor is a time that no float32 implementation on these cores goes below. It is
printed before a timing and drawn under it. Rates are measured only when asked for, in
the calling process, on the core to which the caller has pinned it, and are kept in
the cache. Other precisions move fewer bytes and have other units: their latencies may
lie below this floor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from lstm_trt import cache, machine, probes
from lstm_trt.shapes import FLOAT32_BYTES, LstmShape

FORMAT = 1
KIB = 1024
#: Working sets, 16 KiB to 256 MiB, two a doubling.
WORKING_SETS = tuple(half * KIB << power for power in range(3, 18) for half in (2, 3))[:-1]
#: First-level caches are at most this large where the system does not tell.
LARGEST_L1D_BYTES = 128 * KIB


@dataclass(frozen=True)
class MachineRates:
    """Rates of one core: the best that was seen.

    `gflops_per_core`: float32 multiplications and additions (two a fused one), 1e9/s.
    `read_gb_s`: (working set in bytes, 1e9 bytes/s) of reading that many bytes again
    and again, by rising size. `cores`: how many such cores a floor may use; that k
    cores do k times as much is true at best, so the floor stays one. `probe`: how it
    was measured, see `probes.py`.
    """

    gflops_per_core: float
    read_gb_s: tuple[tuple[int, float], ...]
    cores: int
    cpu: str
    measured_at: str
    probe: str = ""

    def read_rate(self, size: float) -> float:
        """1e9 bytes/s at which one core reads a working set of `size` bytes.

        That of the largest measured set that is not larger, and no less than that of
        any larger set: where in doubt, the faster.
        """
        below = [index for index, (measured, _) in enumerate(self.read_gb_s) if measured <= size]
        return max(rate for _, rate in self.read_gb_s[below[-1] if below else 0 :])

    def as_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict) -> MachineRates:
        pairs = tuple((int(size), float(rate)) for size, rate in plain["read_gb_s"])
        return cls(**{**plain, "read_gb_s": pairs})

    def best_of(self, other: MachineRates) -> MachineRates:
        """The higher of each rate; for two measurements of one machine by one probe."""
        pairs = zip(self.read_gb_s, other.read_gb_s, strict=True)
        return replace(
            self,
            gflops_per_core=max(self.gflops_per_core, other.gflops_per_core),
            read_gb_s=tuple((size, max(rate, again)) for (size, rate), (_, again) in pairs),
        )


@dataclass(frozen=True)
class Floor:
    """A lower bound on one inference, in ns, and what it consists of.

    `total_ns` = `input_ns` (products that need no earlier step, and the dense layer)
    + `recurrence_ns`. The latter is a sum over layers and steps of the larger of its
    arithmetic and its weight traffic; those, summed by themselves, are
    `arithmetic_ns` and `traffic_ns`.
    """

    total_ns: float
    input_ns: float
    recurrence_ns: float
    arithmetic_ns: float
    traffic_ns: float

    @property
    def limited_by(self) -> str:
        """What the recurrence waits for: "arithmetic" or "weight traffic"."""
        return "arithmetic" if self.arithmetic_ns >= self.traffic_ns else "weight traffic"


def floor_ns(shape: LstmShape, rates: MachineRates) -> Floor:
    """The floor under one forward pass of `shape` in float32.

    With P = cores x peak rate, R(w) = cores x rate of reading w / cores bytes again and
    again on each core, and for each layer and direction 4H gates, I inputs, batch B,
    S steps:

        inputs      max(2 * 4H * I * B * S / P,  4 * 4H * I / R)      all steps at once
        recurrence  S * max(2 * 4H * H * B / P,  4 * 4H * H / R)      step by step
        dense       2 * H * directions * B * S / P

    The weights of one layer and direction count as a working set of their own, since a
    runtime can work layer by layer. Left out: the gates' functions, activations, calls.
    Every runtime seen multiplies by the state before the first step, zeros or not, so
    that step counts. A kernel that kept part of the weights in a nearer cache from one
    step to the next could come below this; none was seen that does.
    """
    peak = rates.cores * rates.gflops_per_core  # flop/ns

    def traffic(size: int) -> float:
        share = size / rates.cores
        return share / rates.read_rate(share)

    gates, steps = 4 * shape.hidden, shape.sequence
    rows = shape.batch * steps
    inputs = 2 * shape.hidden * shape.directions * rows / peak
    for width in shape.layer_inputs():
        once = max(2 * gates * width * rows / peak, traffic(FLOAT32_BYTES * gates * width))
        inputs += shape.directions * once
    arithmetic = 2 * gates * shape.hidden * shape.batch / peak
    weights = traffic(FLOAT32_BYTES * gates * shape.hidden)
    passes = steps * shape.layers * shape.directions
    recurrence = passes * max(arithmetic, weights)
    return Floor(inputs + recurrence, inputs, recurrence, passes * arithmetic, passes * weights)


def _fastest_ns(call: Callable[[], object], budget_ns: int) -> int:
    """The shortest of the calls that fit the budget, at least two."""
    clock, best, count = time.perf_counter_ns, 1 << 62, 0
    end = clock() + budget_ns
    while count < 2 or clock() < end:
        start = clock()
        call()
        best = min(best, clock() - start)
        count += 1
    return best


def measure_rates(threads: int = 1, *, seconds: float = 1.2) -> MachineRates:
    """Measure the core that this process runs on, in about `seconds`; `threads` becomes `cores`.

    The sizes are gone through three times and the best of all is kept, so that a
    moment in which the machine did something else does not make a floor too high.
    """
    probe = probes.core_probe()
    if probe is None:
        return _measure_torch(threads, seconds)
    import numpy as np

    array = np.ones(WORKING_SETS[-1] + 4096, dtype=np.uint8)  # ones: untouched pages would all be one page of zeros
    address = -(-array.ctypes.data // 4096) * 4096

    def reader(size: int, passes: int) -> Callable[[], object]:
        return lambda: probe.read(address, size, passes)

    rounds = 20_000
    multiply = [(rounds * probe.flops_a_round, lambda: probe.multiply(rounds))]
    return _measure(multiply, reader, threads, seconds, probe.name)


def _measure_torch(threads: int, seconds: float) -> MachineRates:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        buffer = torch.ones(WORKING_SETS[-1] // FLOAT32_BYTES)
        with torch.inference_mode():
            rates = _measure(
                probes.torch_multiply(),
                lambda size, passes: probes.torch_read(buffer, size, passes),
                threads,
                seconds,
                "torch",
            )
    finally:
        torch.set_num_threads(before)
    # No call reads the first cache at its limit. A core loads at least one operand for
    # each multiply-add that it can do, so traffic from there never exceeds arithmetic.
    nearest = 2 * rates.gflops_per_core
    l1d = (machine.describe()["caches"] or {}).get("L1d", LARGEST_L1D_BYTES)
    pairs = tuple((size, max(rate, nearest) if size <= l1d else rate) for size, rate in rates.read_gb_s)
    return replace(rates, read_gb_s=pairs)


def _measure(
    multiply: list[tuple[int, Callable[[], object]]],
    reader: Callable[[int, int], Callable[[], object]],
    threads: int,
    seconds: float,
    probe: str,
) -> MachineRates:
    turns = 3
    budget_ns = int(seconds * 1e9 / turns / (len(WORKING_SETS) + 4))
    peak, rates = 0.0, dict.fromkeys(WORKING_SETS, 0.0)
    for _ in range(turns):
        for flops, call in multiply:
            peak = max(peak, flops / _fastest_ns(call, 4 * budget_ns // len(multiply)))
        for size in WORKING_SETS:
            passes = max(1, 4 * 2**20 // size)  # 10 to 100 us a call: the call itself does not count
            rates[size] = max(rates[size], passes * size / _fastest_ns(reader(size, passes), budget_ns))
    return MachineRates(
        gflops_per_core=peak,
        read_gb_s=tuple(rates.items()),
        cores=threads,
        cpu=machine.cpu_name(),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        probe=probe,
    )


def load_rates(threads: int = 1, *, again: bool = False) -> MachineRates:
    """The rates of this machine from the cache; measured where they are missing.

    `again` measures once more and keeps the best of both: while other programs read
    memory, rates of the large sets were seen halved, and floors too high. Raises `UsageError` where
    the cache cannot be written.
    """
    key = f"{machine.fingerprint(machine.describe())}-{_probe_key()}-v{FORMAT}"
    before: MachineRates | None = None

    def make() -> bytes:
        rates = measure_rates()
        return json.dumps((rates.best_of(before) if before else rates).as_dict()).encode()

    path, _, found = cache.fetch("rates", key, ".json", make)
    if again and found:
        before = MachineRates.from_dict(json.loads(path.read_bytes()))
        status = path.stat()
        cache.remove(cache.Entry("rates", path, status.st_size, status.st_mtime))
        path, _, _ = cache.fetch("rates", key, ".json", make)
    return replace(MachineRates.from_dict(json.loads(path.read_bytes())), cores=threads)


def _probe_key() -> str:
    """What the rates depend on beside the machine: the probe, and torch's version where it is the probe."""
    probe = probes.core_probe()
    return probe.name if probe else f"torch-{machine.versions(['torch'])['torch']}"
