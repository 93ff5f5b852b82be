"""Probes of one core: how fast it multiplies and how fast it reads, at its very limit.

A floor under latencies must not be overstated, and no library call reaches the limit:
on a 2-core AMD EPYC, where a core does 250 GFLOP/s and reads 500 GB/s from its first
cache, MKL's sgemm reached 95 GFLOP/s and `torch.sum`, the fastest reader found, 210 GB/s.
So on x86-64 two loops are run as machine code: fused multiply-adds on registers, and
loads over a buffer again and again. They are assembled below, instruction by
instruction, from the processor's manual, and take a few hundred bytes of memory that
may be executed. Where that is not allowed, or on another processor, `torch` is
the probe: its rates are too low by 10 to 15 %, and its floors too high by as much.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Callable
from pathlib import Path

from lstm_trt import system
from lstm_trt.system import ROOT

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
    flags = system.cpuinfo_flags(root)
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
