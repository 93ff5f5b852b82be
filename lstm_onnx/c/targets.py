"""The processors that C code is generated for."""

import platform
from dataclasses import dataclass

from lstm_trt.machine.linux import cpuinfo_flags


@dataclass(frozen=True)
class Target:
    """A processor to generate code for: floats per vector, and the compiler's flags for it."""

    name: str
    vector_length: int
    flags: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether the code is C99 without vectors, for any processor."""
        return self.vector_length == 1

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """The standard, the optimization, and the processor."""
        return (*(("-std=c99", "-O2") if self.plain else ("-std=gnu99", "-O3")), *self.flags)


TARGETS = {
    "x86-64-v4": Target("x86-64-v4", 16, ("-march=x86-64-v4",)),
    "x86-64-v3": Target("x86-64-v3", 8, ("-march=x86-64-v3",)),
    "x86-64": Target("x86-64", 4, ("-march=x86-64",)),
    "aarch64": Target("aarch64", 4, ("-march=armv8-a",)),
    "generic": Target("generic", 1, ()),
}


def native_target() -> Target:
    """The target of this processor, with all its instructions (`-march=native`)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return Target("native", 4, ("-mcpu=native",))
    flags = cpuinfo_flags()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return Target("native", 16, ("-march=native",))
    return Target("native", 8 if {"avx2", "fma"} <= flags else 4, ("-march=native",))
