"""Making an environment of one library's version, by `python -m venv` and pip.

It holds the library, and what that needs and this environment does not have; all else (this
package, numpy, PyTorch) it finds here, behind its own packages. So two of them differ by the
library alone, and PyTorch is not installed again for each version of another.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lstm_trt import cache
from lstm_trt.errors import UsageError

#: Written last: an environment without it is half made.
MARKER = "made.json"
#: So many of the latest versions are told where one is asked for that there is not.
LATEST_TOLD = 5
#: Seconds that pip has to tidy up after Ctrl-C.
STOP_LIMIT_S = 5


def normal(library: str) -> str:
    """A distribution's name in the form in which names are compared: `TensorRT_RTX` -> `tensorrt-rtx`."""
    return re.sub(r"[-_.]+", "-", library).lower()


def python_of(path: Path) -> Path:
    """The Python of the environment at `path`."""
    return path / "bin" / "python"


def site_packages(path: Path) -> tuple[str, ...]:
    """Where an environment's packages are; two folders where the system keeps compiled ones apart."""
    base = {"base": str(path), "platbase": str(path)}
    return tuple(dict.fromkeys(sysconfig.get_path(name, "venv", base) for name in ("purelib", "platlib")))


def surroundings() -> str:
    """8 digits that tell apart what an environment is beside: this Python, and where its packages are."""
    return hashlib.sha256(json.dumps([sys.version, sys.base_prefix, _here()]).encode()).hexdigest()[:8]


def made(path: Path) -> dict[str, str] | None:
    """The packages (name -> version) of an environment that is wholly there, else None."""
    try:
        packages = json.loads((path / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return packages if python_of(path).exists() else None


def make(path: Path, library: str, version: str) -> dict[str, str]:
    """Make an environment at `path`; returns the packages that are in it, name -> version.

    Raises `UsageError` where the version cannot be installed; nothing stays at `path` then.
    """
    try:
        shutil.rmtree(path, ignore_errors=True)
        _install(path, library, version)
        found = importlib.metadata.distributions(path=list(site_packages(path)))
        packages = {normal(one.name): one.version for one in found if one.name not in ("pip", "setuptools")}
        if library not in packages:
            raise UsageError(f"{library} {version} cannot be installed: pip says it did, and nothing is there")
        packages = dict(sorted(packages.items()))
        cache.write_whole(path / MARKER, json.dumps(packages).encode())
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return packages


def _install(path: Path, library: str, version: str) -> None:
    own_pip = importlib.util.find_spec("pip") is None  # this environment was made by a tool that does without
    done = _run([sys.executable, "-P", "-m", "venv", *([] if own_pip else ["--without-pip"]), str(path)])
    if done.returncode:
        raise UsageError(
            f"cannot make an environment for {library} {version}: install venv for this Python"
            " (Debian: apt install python3-venv)"
        )
    lines = [f"import site; site.addsitedir({text!r})\n" for text in _here()]
    (Path(site_packages(path)[0]) / "present.pth").write_text("".join(lines))
    python = str(python_of(path))
    pip = [python, "-m", "pip"] if own_pip else [sys.executable, "-P", "-m", "pip", "--python", python]
    pip += ["install", "--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    pip += ["--retries", "2", "--prefer-binary"]
    with tempfile.TemporaryDirectory(prefix="lstm_trt-") as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{line}\n" for line in _needs(library)))
        # The library for certain, though it may be here as well; then what it needs and is not here.
        for more in (["--no-deps", "--ignore-installed"], ["--no-warn-conflicts", "-c", str(constraints)]):
            done = _run([*pip, *more, f"{library}=={version}"])
            if done.returncode:
                raise UsageError(f"{library} {version} cannot be installed: {_why(done.stderr, library, version)}")


def _run(command: list[str]) -> subprocess.CompletedProcess:
    """Run to the end; Ctrl-C here ends it and all that it started."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",
        env=variables,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate()
        except BaseException:
            with suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(child.pid, signal.SIGINT)
                child.wait(STOP_LIMIT_S)
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _why(stderr: str, library: str, version: str) -> str:
    """Pip's own reason in one line, without addresses."""
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    for line in lines:
        listed = re.search(rf"requirement {re.escape(library)}==\S+ \(from versions: (.*)\)$", line)
        if listed and listed[1] == "none":
            return f"pip finds no {library} for this Python: does it reach an index?"
        if listed:
            releases = [text for text in listed[1].split(", ") if re.fullmatch(r"[\d.]+", text)]
            return f"pip finds no such version for this Python; the latest are {', '.join(releases[-LATEST_TOLD:])}"
    everything = stderr.strip().splitlines()
    return plain(lines[0] if lines else everything[-1] if everything else "pip does not say why")


def plain(text: str) -> str:
    """One short line without addresses and folders."""
    text = re.sub(r"\S*://\S+", "(address)", " ".join(text.split()))
    return re.sub(r"(?<![\w.])/\S*/", "", text)[:240]


def _needs(library: str) -> Iterator[str]:
    """What this package needs, the library itself excepted: nothing else may become older beside an older version."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("lstm_trt") or ():
            name = re.match(r"[\w.-]+", line)
            if name and normal(name[0]) != library and "extra ==" not in line:
                yield line


def _here() -> list[str]:
    """The folders of this environment's packages."""
    return [text for text in sys.path if Path(text).name in ("site-packages", "dist-packages") and Path(text).is_dir()]
