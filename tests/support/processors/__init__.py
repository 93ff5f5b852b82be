"""Other processors on this one: CPUID faults and answers with less, and /proc/cpuinfo says the same.

Programs run at full speed and cannot use what is masked, if they ask CPUID, as all libraries here do. This shows what
tests and package do on a processor with other vector instructions; it does not imitate speed, caches or cores.
`cpuid.c` is compiled once per kind with the header that is made from the table here.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Set to anything: the preloaded library lets CPUID fault.
VARIABLE = "LSTM_TRT_FAULT_CPUID"
SOURCE = Path(__file__).with_name("cpuid.c")
EAX, EBX, ECX, EDX = range(4)
EXTENDED = 0x80000000
AMD, INTEL = "AuthenticAMD", "GenuineIntel"

#: Flags of /proc/cpuinfo and their bits in CPUID: (leaf, subleaf, register) -> {flag: bit}. Flags of leaf 7 that are
#: not listed are masked in every kind; elsewhere only those that are listed and not of the kind.
PLACES = {
    (1, 0, ECX): {"fma": 12, "movbe": 22, "xsave": 26, "osxsave": 27, "avx": 28, "f16c": 29, "rdrand": 30},
    (7, 0, EBX): {
        **{"fsgsbase": 0, "tsc_adjust": 1, "bmi1": 3, "hle": 4, "avx2": 5, "smep": 7, "bmi2": 8, "erms": 9},
        **{"invpcid": 10, "rtm": 11, "avx512f": 16, "avx512dq": 17, "rdseed": 18, "adx": 19, "smap": 20},
        **{"avx512ifma": 21, "clflushopt": 23, "clwb": 24, "avx512pf": 26, "avx512er": 27, "avx512cd": 28},
        **{"sha_ni": 29, "avx512bw": 30, "avx512vl": 31},
    },
    (7, 0, ECX): {
        **{"avx512vbmi": 1, "umip": 2, "pku": 3, "ospke": 4, "avx512_vbmi2": 6, "gfni": 8, "vaes": 9},
        **{"vpclmulqdq": 10, "avx512_vnni": 11, "avx512_bitalg": 12, "avx512_vpopcntdq": 14, "rdpid": 22},
    },
    (7, 0, EDX): {
        **{"avx512_4vnniw": 2, "avx512_4fmaps": 3, "fsrm": 4, "avx512_vp2intersect": 8, "serialize": 14},
        **{"amx_bf16": 22, "avx512_fp16": 23, "amx_tile": 24, "amx_int8": 25},
    },
    (7, 1, EAX): {"avx_vnni": 4, "avx512_bf16": 5, "amx_fp16": 21, "avx_ifma": 23},
    (7, 1, EBX): {},
    (7, 1, ECX): {},
    (7, 1, EDX): {"avx_vnni_int8": 4, "avx_ne_convert": 5, "amx_complex": 8, "avx_vnni_int16": 10, "avx10": 19},
    (0xD, 1, EAX): {"xsaveopt": 0, "xsavec": 1, "xgetbv1": 2, "xsaves": 3},
    (EXTENDED + 1, 0, ECX): {
        **{"cmp_legacy": 1, "svm": 2, "extapic": 3, "cr8_legacy": 4, "abm": 5, "sse4a": 6, "misalignsse": 7},
        **{"osvw": 9, "xop": 11, "fma4": 16, "tbm": 21, "topoext": 22, "perfctr_core": 23},
    },
    (EXTENDED + 1, 0, EDX): {"mmxext": 22, "fxsr_opt": 25},
}
FLAGS = {flag: (place, bit) for place, bits in PLACES.items() for flag, bit in bits.items()}
#: Beginnings of flags that a kind has only if it lists them, also those of processors that are not known yet.
VECTOR = ("avx", "amx", "fma")

_AMD_ONLY = frozenset(PLACES[EXTENDED + 1, 0, ECX]) - {"abm"} | {"mmxext", "fxsr_opt"}
_HASWELL = frozenset(PLACES[1, 0, ECX]) | {
    *("fsgsbase", "tsc_adjust", "bmi1", "avx2", "smep", "bmi2", "erms", "invpcid", "abm", "xsaveopt"),
}
_SKYLAKE = _HASWELL | {
    *("rdseed", "adx", "smap", "clflushopt", "clwb", "pku", "ospke", "xsavec", "xgetbv1", "xsaves"),
    *("avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"),
}
_GENOA = (
    _SKYLAKE
    | (_AMD_ONLY - {"xop", "fma4", "tbm"})
    | {
        *("umip", "sha_ni", "gfni", "vaes", "vpclmulqdq", "rdpid", "fsrm", "avx512ifma", "avx512vbmi", "avx512_vbmi2"),
        *("avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16"),
    }
)
#: State that XSAVE keeps: x87, SSE and AVX; AVX-512 and protection keys.
_AVX_STATE, _AVX512_STATE = 0b111, 0b10_1110_0111


@dataclass(frozen=True)
class Kind:
    """A kind of processor: what its CPUID and /proc/cpuinfo say."""

    vendor: str
    model_name: str
    signature: int
    flags: frozenset[str]
    xstate: int = _AVX512_STATE
    highest_leaf: int = 0xD

    @property
    def needed(self) -> frozenset[str]:
        """Flags that the real processor must have, since code that finds them uses them."""
        return frozenset(flag for flag in self.flags if flag.startswith(VECTOR))

    @property
    def family(self) -> int:
        base = self.signature >> 8 & 0xF
        return base + (self.signature >> 20 & 0xFF) if base == 0xF else base

    @property
    def model(self) -> int:
        return (self.signature >> 4 & 0xF) | (self.signature >> 12 & 0xF0)

    def header(self) -> str:
        """The header kind.h of cpuid.c."""
        kept: dict[tuple[int, int], list[int]] = {}
        for (leaf, subleaf, register), bits in PLACES.items():
            of_kind = sum(1 << bit for flag, bit in bits.items() if flag in self.flags)
            others = 0 if leaf == 7 else 0xFFFFFFFF - sum(1 << bit for bit in bits.values())
            kept.setdefault((leaf, subleaf), [0xFFFFFFFF] * 4)[register] = of_kind | others
        kept[0xD, 0] = [self.xstate, 0xFFFFFFFF, 0xFFFFFFFF, 0]
        rows = [f"{{{leaf:#x}, {subleaf}, {{{', '.join(map(hex, row))}}}}}," for (leaf, subleaf), row in kept.items()]
        highest_extended = EXTENDED + (0x1E if self.vendor == AMD else 8)
        return "\n".join(
            [
                f'#define VENDOR "{self.vendor}"',
                f'#define BRAND "{self.model_name}"',
                f"#define IS_AMD {int(self.vendor == AMD)}",
                f"#define SIGNATURE {self.signature:#x}u",
                f"#define XSTATE {self.xstate:#x}u",
                f"#define HIGHEST_LEAF {self.highest_leaf:#x}u",
                f"#define HIGHEST_EXTENDED_LEAF {highest_extended:#x}u",
                "static const struct { uint32_t leaf, subleaf, kept[4]; } MASKS[] = {",
                *rows,
                "};\n",
            ]
        )

    def cpuinfo(self, real: str) -> str:
        """The text of /proc/cpuinfo, made from the real one."""
        stated = {
            "vendor_id": self.vendor,
            "cpu family": self.family,
            "model": self.model,
            "model name": self.model_name,
            "stepping": self.signature & 0xF,
            "cpuid level": self.highest_leaf,
        }
        lines = []
        for line in real.splitlines():
            key, colon, value = line.partition(":")
            if key.strip() in stated:
                value = f" {stated[key.strip()]}"
            elif key.strip() == "flags":
                masked = {flag for flag in value.split() if flag in FLAGS or flag.startswith(VECTOR)} - self.flags
                value = " " + " ".join(flag for flag in value.split() if flag not in masked)
            lines.append(key + colon + value)
        return "\n".join([*lines, ""])


KINDS = {
    "sse": Kind(INTEL, "Intel(R) Xeon(R) CPU X5650 @ 2.67GHz", 0x206C2, frozenset(), 0, 0xB),
    "haswell": Kind(INTEL, "Intel(R) Core(TM) i7-4770 CPU @ 3.40GHz", 0x306C3, _HASWELL, _AVX_STATE),
    "skylake-server": Kind(INTEL, "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 0x50654, _SKYLAKE),
    "genoa": Kind(AMD, "AMD EPYC 9554 64-Core Processor", 0xA10F11, _GENOA),
}


def flags_in(read: Callable[[int, int], tuple[int, int, int, int]]) -> set[str]:
    """The flags that CPUID shows; `read(leaf, subleaf)` returns its four registers."""
    return {
        flag for flag, ((leaf, subleaf, register), bit) in FLAGS.items() if read(leaf, subleaf)[register] >> bit & 1
    }


def cannot_build() -> str | None:
    """Why cpuid.c cannot be compiled here; None where it can."""
    if platform.machine() not in ("x86_64", "AMD64") or os.name != "posix":
        return "not an x86-64 processor"
    return None if shutil.which("gcc") else "needs gcc"


def build(kind: Kind, folder: Path) -> Path:
    """Compile the library that answers as this kind."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kind.h").write_text(kind.header())
    library = folder / "cpuid.so"
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{folder}", SOURCE, "-o", library]
    subprocess.run([*command, "-ldl"], check=True, capture_output=True, text=True)
    return library
