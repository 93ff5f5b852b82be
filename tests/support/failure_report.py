"""What a report of a failed test needs: the machine as tests see it, without host, user or path."""

from __future__ import annotations

import locale
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from lstm_trt.machine import facts, linux

#: Beginnings of the flags of processors that decide what libraries compute with.
VECTOR = ("avx", "amx", "fma", "sse4_2", "asimd", "sve", "bf16", "i8mm")
LIBRARIES = ("numpy", "torch", "onnxruntime", "openvino")
ROOT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """The commit that is checked out, with "-dirty" after changes; "unknown" without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return described.stdout.strip() or "unknown"


def lines(seed: int, root: Path = linux.ROOT) -> list[str]:
    """The lines that stand below the failures."""
    flags = sorted(flag for flag in linux.cpuinfo_flags(root) if flag.startswith(VECTOR))
    versions = facts.versions(LIBRARIES)
    quota = linux.cpu_quota_cores(root)
    cores = f"{len(linux.allowed_cores())} of {len(linux.online_cores(root))} cores"
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return [
        f"processor: {facts.cpu_name(root)}, {platform.machine()}, {linux.hypervisor(root) or 'unknown'} hypervisor",
        f"features: {' '.join(flags) or 'none known'}",
        f"cores: {cores}, quota {quota or 'none'}, load {load}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        f"surroundings: locale {locale.setlocale(locale.LC_CTYPE)}, {sys.getfilesystemencoding()}, "
        f"UTC{time.strftime('%z')}, {user}",
        f"commit {commit()}, --seed {seed}",
        "A report needs these lines and all from FAILURES on; docs/contributing.md says what to try first.",
    ]
