"""The roofline bound: the time that a network's arithmetic and weight traffic need at the measured
rates of the cores.

No float32 implementation on these cores is faster than the bound. It is printed before a recording
and drawn in figures. Other precisions move fewer bytes and use other units, so their latencies may
lie below it. The rates are measured on request, in the calling process and on the core to which it
is pinned, and are kept in the cache.

A lower bound must not be too high, and no library call reaches the limit of a core: on a 2-core AMD
EPYC, where a core does 250 GFLOP/s and reads 500 GB/s from its first-level cache, MKL's sgemm
reached 95 GFLOP/s, and `torch.sum`, the fastest reader found, 210 GB/s; with older instructions
libraries reach still less, and a bound from their rates lay up to 2.5 times above real latencies.
Therefore two loops run as machine code on x86-64: fused multiply-adds on registers, and repeated
loads over a buffer. They are put together below, with the assembly in comments (a test assembles it
and compares), and need a few hundred bytes of executable memory. Where they cannot run, there is no
bound, and `NoBound` says why.
"""

import ctypes
import json
import mmap
import os
import platform
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lstm_trt.config.errors import LabError
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.libraries import np
from lstm_trt.config.shape import FLOAT32_BYTES
from lstm_trt.config.workload import Workload
from lstm_trt.machine import facts, linux

#: Part of the cache key: raise it whenever rates of older files must not be used.
FORMAT = 1

#: Cached rates are measured again after this time at the latest.
LONGEST_AGE_S = 30 * 24 * 3600

KIB = 1024

#: Working sets in bytes, 16 KiB to 256 MiB, two per doubling.
WORKING_SETS = tuple(half * KIB << power for power in range(3, 18) for half in (2, 3))[:-1]

#: Two multiply-adds per cycle with a latency of four or five cycles need eight to ten of them in
#: flight.
ACCUMULATORS = 12

#: vfmadd231ps r0..r7 and r8..r11, r15, r14 by register width in bytes, without the last byte: the
#: destination.
FMA = {
    64: (b"\x62\xd2\x05\x48\xb8", b"\x62\x52\x05\x48\xb8"),
    32: (b"\xc4\xc2\x05\xb8", b"\xc4\x42\x05\xb8"),
}

LOADS = 16

#: vmovups r0, [rax + 32-bit displacement] by register width, without the displacement.
LOAD = {64: b"\x62\xf1\x7c\x48\x10\x80", 32: b"\xc5\xfc\x10\x80"}

#: Probes by register width in bytes. Older files have rates of the probe "torch", which are too low
#: for a bound.
PROBES = {64: "avx512", 32: "avx2"}

#: vzeroupper; ret
END = b"\xc5\xf8\x77\xc3"

#: Jumps with a 32-bit displacement: if not zero, and if below.
JNZ = b"\x0f\x85"
JB = b"\x0f\x82"


class NoBound(LabError):
    """No roofline bound can be trusted here; the text is the reason."""


@dataclass(frozen=True)
class MachineRates(JsonFields):
    """The best measured rates of one core.

    `gflops_per_core`: float32 multiplications and additions (a fused one counts as two), 1e9/s.
    `read_gb_s`: (working set in bytes, 1e9 bytes/s) for reading that many bytes repeatedly, by
    increasing size. `cores`: number of such cores that a bound assumes, with perfect scaling.
    `probe`: method of measurement, one of `PROBES`.
    """

    gflops_per_core: float
    read_gb_s: tuple[tuple[int, float], ...]
    cores: int
    cpu: str
    measured_at: str
    probe: str = ""

    def read_ns(self, size: float) -> float:
        """The least time in ns in which one core reads `size` bytes again and again, in any order.

        With the measured sets s1 < s2 < ... < sn up to `size`: if s(i) bytes of them stay in nearer
        caches, the others are read at best at the highest rate of s(i+1) or a larger set. This
        holds for every i, also for 0 bytes.
        """
        rates = [rate for _, rate in self.read_gb_s]
        kept = [0, *(measured for measured, _ in self.read_gb_s)]
        last = max(1, sum(measured <= size for measured, _ in self.read_gb_s))
        return max((size - kept[index]) / max(rates[index:]) for index in range(last))


@dataclass(frozen=True)
class RooflineBound:
    """A lower bound on one inference in ns, and its parts.

    `total_ns` = `input_ns` (products that need no earlier step, and those of other operators)
    + `recurrence_ns`. The latter is a sum over layers and steps of the larger of
    arithmetic and weight traffic; `arithmetic_ns` and `traffic_ns` are the sums of each.
    """

    total_ns: float
    input_ns: float
    recurrence_ns: float
    arithmetic_ns: float
    traffic_ns: float

    @property
    def limited_by(self) -> str:
        """What limits the recurrence: "arithmetic" or "weight traffic"."""
        return "arithmetic" if self.arithmetic_ns >= self.traffic_ns else "weight traffic"


def roofline_bound(workload: Workload, rates: MachineRates) -> RooflineBound:
    """The roofline bound of one forward pass in float32 (Williams, Waterman and Patterson, CACM 52,
    2009).

    With P = cores x peak rate, T(w) = least time for reading w / cores bytes on each core
    (`MachineRates.read_ns`), and for each of `workload.recurrent_layers` and each direction G gates
    (4H for an LSTM, 3H for a GRU, H for an RNN), I inputs, batch B, S steps (of sequences of
    different lengths their mean):

        inputs      max(2 * G * I * B * S / P,  T(4 * G * I))      all steps at once
        recurrence  S * max(2 * G * H * B / P,  T(4 * G * H))      step by step
        others      (`workload.least_flops` - those of the recurrent layers) / P

    The weights of each layer and direction are a separate working set, since a runtime can work
    layer by layer. Gate functions, activations and calls are left out. The first step counts too:
    all runtimes that were examined multiply by the initial state, even if it is zero. What is not
    known (`RecurrentLayer.counted`) is left out as well. Raises `NoBound` if nothing is left, for a
    network in half precision, or if the rates are not those of one of `PROBES`.
    """
    if rates.probe not in PROBES.values():
        raise NoBound(
            f"rates measured with {rates.probe or 'an unknown method'} are too low"
            " for a lower bound"
        )
    if getattr(workload, "half", False):
        raise NoBound(
            "numbers of the network are float16,"
            " whose products can take less time than those of float32"
        )
    peak = rates.cores * rates.gflops_per_core  # flop/ns

    def traffic_ns(size: int) -> float:
        return rates.read_ns(size / rates.cores)

    layers = [layer for layer in workload.recurrent_layers if layer.counted]
    counted = sum(layer.flops for layer in layers)
    inputs = max(0, workload.least_flops - counted) / peak
    recurrence = arithmetic = traffic = 0.0
    for layer in layers:
        once = traffic_ns(FLOAT32_BYTES * layer.gates * (layer.features or 0))
        inputs += max(layer.input_flops / peak, layer.directions * once)
        multiplied = layer.recurrent_flops / peak
        each_step = traffic_ns(FLOAT32_BYTES * layer.gates * (layer.hidden or 0))
        read = layer.directions * layer.computed * each_step
        recurrence += max(multiplied, read)
        arithmetic += multiplied
        traffic += read
    if not inputs + recurrence:
        raise NoBound(
            "no float32 matrix product, convolution or recurrent operator of known sizes"
            " is always computed"
        )
    return RooflineBound(inputs + recurrence, inputs, recurrence, arithmetic, traffic)


# Measurement with machine code


def multiply_loop(width: int) -> bytes:
    """void multiply(uint64 rounds): `rounds` x 12 multiply-adds on registers of `width` bytes, all
    zero."""
    body = b""
    for number in range(ACCUMULATORS):
        # vfmadd231ps r<number>, r15, r14
        body += FMA[width][number >= 8] + bytes([0xC6 | number % 8 << 3])
    body += b"\x48\xff\xcf"  # dec rdi
    vzeroall = b"\xc5\xfc\x77"
    return vzeroall + body + _jump_back(JNZ, body) + END


def read_loop(width: int) -> bytes:
    """void read(void *buffer, uint64 bytes, uint64 passes): `bytes` a multiple of 16 x `width`."""
    block = b""
    for number in range(LOADS):
        block += LOAD[width] + struct.pack("<i", width * number)  # vmovups r0, [rax + ...]
    block += b"\x48\x05" + struct.pack("<i", width * LOADS)  # add rax, ...
    block += b"\x48\x39\xc8"  # cmp rax, rcx
    body = b"\x48\x89\xf8"  # mov rax, rdi
    body += b"\x48\x8d\x0c\x37"  # lea rcx, [rdi + rsi]
    body += block + _jump_back(JB, block)
    body += b"\x48\xff\xca"  # dec rdx
    return body + _jump_back(JNZ, body) + END


def _jump_back(opcode: bytes, over: bytes) -> bytes:
    """A jump back over these instructions; its displacement counts from its own end."""
    return opcode + struct.pack("<i", -(len(over) + len(opcode) + 4))


class CoreProbe:
    """The two loops as functions `multiply(rounds)` and `read(address, bytes, passes)`; `name` is
    the instruction set.

    Raises OSError or ValueError if executable memory is refused.
    """

    def __init__(self, width: int) -> None:
        self.name = PROBES[width]
        self.flops_per_round = ACCUMULATORS * 2 * width // FLOAT32_BYTES
        multiply = multiply_loop(width)
        read = read_loop(width)
        start = -(-len(multiply) // 64) * 64
        self._memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(multiply.ljust(start, b"\x90") + read)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.multiply = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(address)
        self.read = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(
            address + start
        )


def core_probe(root: Path = linux.ROOT) -> CoreProbe:
    """The widest probe that this processor supports.

    Raises `NoBound` without one, or if executable memory is refused.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise NoBound(
            f"the rates of a core can be measured on x86-64 only, not on {platform.machine()}"
        )
    flags = linux.cpuinfo_flags(root)
    if not {"avx2", "fma"} <= flags:
        raise NoBound(
            "the rates of a core are measured with AVX2 and FMA, which the processor does not have"
        )
    try:
        return CoreProbe(64 if "avx512f" in flags else 32)
    except (OSError, ValueError):  # a hardened kernel
        raise NoBound(
            "the system refuses executable memory, with which the rates of a core are measured"
        ) from None


# Measuring


def measure_rates(threads: int = 1, *, seconds: float = 1.2) -> MachineRates:
    """Measure the core that this process runs on, in about `seconds`; `threads` becomes `cores`.

    All sizes are measured three times and the best rates are kept, so that other load does not make
    the bound too high. Raises `NoBound` as `core_probe` does.
    """
    probe = core_probe()
    rounds = 20_000
    turns = 3
    array = np.ones(WORKING_SETS[-1] + 4096, dtype=np.uint8)  # zeros would all be one physical page
    address = -(-array.ctypes.data // 4096) * 4096
    budget_ns = int(seconds * 1e9 / turns / (len(WORKING_SETS) + 4))
    peak = 0.0
    rates = dict.fromkeys(WORKING_SETS, 0.0)
    for _ in range(turns):
        took_ns = _fastest_ns(lambda: probe.multiply(rounds), 4 * budget_ns)
        peak = max(peak, rounds * probe.flops_per_round / took_ns)
        for size in WORKING_SETS:
            # 10 to 100 us per call: the overhead of the call is negligible.
            passes = max(1, 4 * 2**20 // size)
            took_ns = _fastest_ns(partial(probe.read, address, size, passes), budget_ns)
            rates[size] = max(rates[size], passes * size / took_ns)
    measured_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return MachineRates(
        peak, tuple(rates.items()), threads, facts.cpu_name(), measured_at, probe.name
    )


def _fastest_ns(call: Callable[[], object], budget_ns: int) -> int:
    """The shortest time of the calls that fit the budget, at least two."""
    clock = time.perf_counter_ns
    took_ns = []
    end = clock() + budget_ns
    while len(took_ns) < 2 or clock() < end:
        start = clock()
        call()
        took_ns.append(clock() - start)
    return min(took_ns)


def load_rates(threads: int = 1) -> MachineRates:
    """The rates of this machine from the cache, measured if they are missing or old; `threads`
    becomes `cores`.

    Raises `NoBound` as `core_probe` does, and `UsageError` if the cache cannot be written.
    """
    from lstm_trt.store import cache

    entry = cache.fetch(
        "rates", _key(), ".json", lambda: json.dumps(measure_rates().as_dict()).encode()
    )
    return replace(MachineRates.from_dict(json.loads(entry.path.read_bytes())), cores=threads)


def _key() -> dict[str, Any]:
    """Of the rates of this machine in the cache; raises `NoBound` as `core_probe` does."""
    # A kernel or microcode with other mitigations changes rates, and so does a cloud that moves a
    # machine.
    return {
        "machine": facts.fingerprint(facts.describe()),
        "kernel": os.uname().release,
        "microcode": linux.cpuinfo().get("microcode"),
        "probe": core_probe().name,
        "format": FORMAT,
        "age": time.time() // LONGEST_AGE_S,
    }


def renewed_rates(threads: int = 1) -> MachineRates:
    """The rates that are measured now, or those in the cache where they are higher; they take the
    place of these.

    A core does not exceed its rates, but the cached ones are too low if it was busy when they were
    measured. Raises what `load_rates` does.
    """
    from lstm_trt.store import cache

    cached = load_rates()
    now = measure_rates()
    before = dict(cached.read_gb_s)
    read = tuple((size, max(rate, before[size])) for size, rate in now.read_gb_s)
    best = replace(
        now, gflops_per_core=max(cached.gflops_per_core, now.gflops_per_core), read_gb_s=read
    )
    cache.keep("rates", _key(), ".json", json.dumps(best.as_dict()).encode())
    return replace(best, cores=threads)
