"""What engines are called, what is written of them, and the line that tells of one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.errors import UsageError
from lstm_trt.shapes import LstmShape
from lstm_trt.tensorrt_module import FLAVOURS

if TYPE_CHECKING:
    from lstm_trt.engines import Engine, Profile


def network_name(shape: LstmShape, profile: Profile | None = None) -> str:
    """`3x72-s24-b4`, or `3x72-s8to64-b1to4` where the sizes are ranges."""
    if profile is None:
        return shape.name
    sizes = [f"{r[0]}to{r[2]}" if r[0] < r[2] else f"{r[0]}" for r in (profile.sequence, profile.batch)]
    return shape.name.replace(f"-s{shape.sequence}-b{shape.batch}", f"-s{sizes[0]}-b{sizes[1]}")


def file_stem(engine: Engine) -> str:
    """Of the files `.engine` and `.json`: network, precision, flavour and target, `3x72-s24-b4-fp32-rtx-sm86`."""
    told = engine.information
    target = told["options"]["compute_capability"]
    if target is None:
        target = "all" if told["flavour"] == "tensorrt-rtx" else told["target"]["gpu"]["name"]
    words = (told["name"], told["options"]["precision"], told["flavour"].removeprefix("tensorrt-"), target)
    return "-".join(re.sub(r"[^\w.]+", "-", word).strip("-") for word in words)


def files(engine: Engine) -> list[tuple[str, bytes]]:
    """What is written of an engine: (name, content) of the JSON file that tells of it, and of the engine."""
    stem = file_stem(engine)
    return [
        (f"{stem}.json", (json.dumps(engine.information, indent=1) + "\n").encode()),
        (f"{stem}.engine", engine.plan),
    ]


def summary(engine: Engine) -> str:
    """One line: what it is, for which GPU, how it computes, how long the build took."""
    told = engine.information
    title, version = FLAVOURS[told["flavour"]].title, told["engine"]["version"]
    targets = " ".join(told["target"]["compute_capabilities"]) or told["target"]["gpu"]["name"]
    computes = f"{told['options']['precision']}, TF32 {'on' if told['tf32'] else 'off'}"
    built = f"built in {told['build_seconds']:.2f} s{', from the cache' if engine.cached else ''}"
    return (
        f"{told['name']}: {told['engine']['bytes'] / 1e6:.2f} MB, {title} {version}, for {targets}, {computes}, {built}"
    )


def read_file(path: Path) -> bytes:
    """Raises `UsageError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
