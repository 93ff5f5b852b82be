"""Probes of one core: how fast it multiplies and how fast it reads, at its very limit.

A floor under latencies must not be overstated, and no library call reaches the limit:
on a 2-core AMD EPYC, where a core does 250 GFLOP/s and reads 500 GB/s from its first
cache, MKL's sgemm reached 95 GFLOP/s and `torch.sum`, the fastest reader found, 210 GB/s.
So on x86-64 two loops are run as machine code: fused multiply-adds on registers, and
loads over a buffer again and again. They are assembled below, instruction by
instruction, from the processor's manual, and take a few hundred bytes of memory that
may be executed. Where that is not allowed, or on another processor, `torch` is
the probe: its rates are too low by 10 to 15 %, and its floors too high by as much.

The speed of light: what an LSTM's arithmetic and weight traffic need at the machine's measured rates.

A floor is a time that no float32 implementation on these cores goes below. It is
printed before a timing and drawn under it. Rates are measured only when asked for, in
the calling process, on the core to which the caller has pinned it, and are kept in
the cache. Other precisions move fewer bytes and have other units: their latencies may
lie below this floor.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import platform
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lstm_trt.config.shape import FLOAT32_BYTES, LstmShape
from lstm_trt.machine import facts, linux
from lstm_trt.machine.linux import ROOT
from lstm_trt.store import cache

VZEROALL, VZEROUPPER, RET = b"\xc5\xfc\x77", b"\xc5\xf8\x77", b"\xc3"

#: vfmadd231ps r0..r7 and r8..r11 (destination in the last byte), r15, r14; two a cycle with a
#: latency of four or five cycles need eight to ten of them in flight.
FMA = {64: (b"\x62\xd2\x05\x48\xb8", b"\x62\x52\x05\x48\xb8"), 32: (b"\xc4\xc2\x05\xb8", b"\xc4\x42\x05\xb8")}

ACCUMULATORS = 12

#: vmovups r0, [rax + 32-bit displacement]
LOAD = {64: b"\x62\xf1\x7c\x48\x10\x80", 32: b"\xc5\xfc\x10\x80"}

LOADS = 16


def _back(opcode: bytes, distance: int) -> bytes:
    """A jump over `distance` bytes before this instruction; 32-bit displacements count from its end."""
    return opcode + struct.pack("<i", -(distance + len(opcode) + 4))


def fma_code(width: int) -> bytes:
    """void fma(uint64 rounds): rounds x 12 multiply-adds on registers of `width` bytes, all zero."""
    low, high = FMA[width]
    body = b"".join((low if n < 8 else high) + bytes([0xC6 | n % 8 << 3]) for n in range(ACCUMULATORS))
    body += b"\x48\xff\xcf"  # dec rdi
    return VZEROALL + body + _back(b"\x0f\x85", len(body)) + VZEROUPPER + RET  # jnz


def read_code(width: int) -> bytes:
    """void read(void *buffer, uint64 bytes, uint64 passes): `bytes` a multiple of 16 x `width`."""
    loads = b"".join(LOAD[width] + struct.pack("<i", width * n) for n in range(LOADS))
    loads += b"\x48\x05" + struct.pack("<i", width * LOADS)  # add rax, 16 * width
    loads += b"\x48\x39\xc8"  # cmp rax, rcx
    body = b"\x48\x89\xf8\x48\x8d\x0c\x37"  # mov rax, rdi; lea rcx, [rdi + rsi]
    body += loads + _back(b"\x0f\x82", len(loads))  # jb
    body += b"\x48\xff\xca"  # dec rdx
    return body + _back(b"\x0f\x85", len(body)) + VZEROUPPER + RET  # jnz


class CoreProbe:
    """`multiply(rounds)` and `read(address, bytes, passes)` as calls; `name` says how."""

    def __init__(self, width: int) -> None:
        self.name = {64: "avx512", 32: "avx2"}[width]
        self.flops_a_round = ACCUMULATORS * 2 * width // 4
        fma, read = fma_code(width), read_code(width)
        start = -len(fma) % 64 + len(fma)
        self._memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(fma.ljust(start, b"\x90") + read)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.multiply = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(address)
        words = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        self.read = ctypes.CFUNCTYPE(None, *words)(address + start)


def core_probe(root: Path = ROOT) -> CoreProbe | None:
    """The widest probe that this processor runs; None where there is none or executable memory is refused."""
    flags = linux.cpuinfo_flags(root)
    if platform.machine() not in ("x86_64", "AMD64") or not {"avx2", "fma"} <= flags:
        return None
    try:
        return CoreProbe(64 if "avx512f" in flags else 32)
    except (OSError, ValueError):  # a hardened kernel
        return None


def torch_multiply() -> list[tuple[int, Callable[[], object]]]:
    """(floating point operations, call that does them), of which the fastest counts.

    A convolution runs oneDNN's own code for the processor, sgemm the BLAS that torch
    was built with; which is faster depends on the processor.
    """
    import torch

    size, channels, side = 512, 64, 58
    a, b, out = torch.zeros(size, size), torch.zeros(size, size), torch.zeros(size, size)
    calls: list[tuple[int, Callable[[], object]]] = [(2 * size**3, lambda: torch.mm(a, b, out=out))]
    if platform.machine() in ("x86_64", "AMD64"):  # elsewhere a Winograd transform may spare operations
        image = torch.zeros(1, channels, side, side).to(memory_format=torch.channels_last)
        kernel = torch.zeros(channels, channels, 3, 3).to(memory_format=torch.channels_last)
        flops = 2 * 9 * channels * channels * (side - 2) ** 2
        calls.append((flops, lambda: torch.nn.functional.conv2d(image, kernel)))
    return calls


def torch_read(buffer, size: int, passes: int) -> Callable[[], object]:
    """A call that reads the first `size` bytes of a float32 tensor `passes` times."""
    import torch

    rows, sums = buffer[: size // 4].expand(passes, size // 4), torch.empty(passes)
    return lambda: torch.sum(rows, 1, out=sums)


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
    probe = core_probe()
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
                torch_multiply(),
                lambda size, passes: torch_read(buffer, size, passes),
                threads,
                seconds,
                "torch",
            )
    finally:
        torch.set_num_threads(before)
    # No call reads the first cache at its limit. A core loads at least one operand for
    # each multiply-add that it can do, so traffic from there never exceeds arithmetic.
    nearest = 2 * rates.gflops_per_core
    l1d = (facts.describe()["caches"] or {}).get("L1d", LARGEST_L1D_BYTES)
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
        cpu=facts.cpu_name(),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        probe=probe,
    )


def load_rates(threads: int = 1, *, again: bool = False) -> MachineRates:
    """The rates of this machine from the cache; measured where they are missing.

    `again` measures once more and keeps the best of both: while other programs read
    memory, rates of the large sets were seen halved, and floors too high. Raises `UsageError` where
    the cache cannot be written.
    """
    key = f"{facts.fingerprint(facts.describe())}-{_probe_key()}-v{FORMAT}"
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
    probe = core_probe()
    return probe.name if probe else f"torch-{facts.versions(['torch'])['torch']}"
