"""Environments that hold one version of a library each: kept under the cache, used again, and asked what they load.

`versions_install.py` makes them. Which version is loaded there is asked of a process that imports it.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lstm_trt import cache
from lstm_trt.child import Interpreter
from lstm_trt.configuration import Configuration
from lstm_trt.errors import LabError, UsageError
from lstm_trt.versions_install import made, make, plain, python_of, site_packages, surroundings

#: Seconds that importing a library may take.
EXAMINE_LIMIT_S = 300

Tell = Callable[[str], None]


class EnvironmentBroken(UsageError):
    """An environment does not load the version that it was made for."""


def same_version(asked: str, found: str | None) -> bool:
    """Whether `found` is the version that was asked for: 1.20 is 1.20.0, and 2.13.0 is 2.13.0+cpu, as for pip."""
    if found is None:
        return False
    if "+" not in asked:
        found = found.split("+")[0]
    asked, found = (re.sub(r"(\.0)+$", "", text.lower()) for text in (asked, found))
    return asked == found


@dataclass(frozen=True)
class Environment:
    """One version of a library, installed; `packages` are those that came with it (name -> version)."""

    library: str
    asked: str
    folder: Path
    packages: dict[str, str]
    reused: bool

    @property
    def interpreter(self) -> Interpreter:
        """The Python that loads this version; hashable, it is a worker's key."""
        return Interpreter(str(python_of(self.folder)), site_packages(self.folder))


def folder() -> Path:
    """Where the environments are; not created by asking."""
    return cache.folder().absolute() / "versions"


def present() -> list[tuple[Path, int]]:
    """The environments that are there, with their bytes."""
    found = sorted(path for path in folder().glob("*") if path.is_dir())
    return [(path, sum(_size(item) for item in path.rglob("*"))) for path in found]


def clear() -> tuple[int, int]:
    """Remove all environments; returns (environments, bytes) removed."""
    found = present()
    for path, _ in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found), sum(size for _, size in found)


def environment(library: str, version: str, tell: Tell = lambda line: None, anew: bool = False) -> Environment:
    """The environment with this version of a library, made where it is not there, or where `anew` says so.

    `tell` gets a line before what takes time. One process at a time makes one. Raises `UsageError`
    where the version cannot be installed, or the cache not be written.
    """
    name = f"{library}-{version}-{surroundings()}"
    path = folder() / name
    if not anew and (packages := made(path)) is not None:
        return Environment(library, version, path, packages, reused=True)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _alone(tell):
            if not anew and (packages := made(path)) is not None:
                return Environment(library, version, path, packages, reused=True)
            tell(f"installing {library} {version} into an environment of its own")
            packages = make(path, library, version)
    except OSError as error:
        raise UsageError(
            f"cannot write the cache {folder()}: {error.strerror or error}; set XDG_CACHE_HOME to a folder with room"
        ) from None
    return Environment(library, version, path, packages, reused=False)


def describe(place: Environment, asked: dict) -> Configuration:
    """The configuration that `asked` means in an environment, whose version is proved by importing the library.

    `asked` has the arguments of `recording.describe_configuration` as JSON values. Raises
    `EnvironmentBroken` where the library cannot be imported there, or where what is imported is
    another version or lies elsewhere, and `UsageError` where the configuration cannot be described.
    """
    which = f"{place.library} {place.asked}"
    command = place.interpreter.command("from lstm_trt.versions_environments import tell; tell()")
    job = json.dumps({"library": place.library, **asked})
    try:
        child = subprocess.run(
            [*command, job],
            capture_output=True,
            text=True,
            errors="replace",
            env=place.interpreter.environment(),
            timeout=EXAMINE_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentBroken(f"{which}: its environment does not start: {plain(str(error))}") from None
    lines = child.stdout.strip().splitlines()
    told = json.loads(lines[-1]) if child.returncode == 0 and lines else None
    if told is None:
        last = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise EnvironmentBroken(f"{which} cannot be imported beside the other packages here: {plain(last)}")
    if "error" in told:
        raise UsageError(f"{which}: {told['error']}")
    inside = str(told["file"]).startswith(str(place.folder) + os.sep)
    # A package that was built again is 1.0.post1, and its module still 1.0.
    bare = re.sub(r"\.post\d+$", "", place.asked)
    module = any(same_version(version, told["module"]) for version in (place.asked, bare))
    if not (inside and module and same_version(place.asked, told["metadata"])):
        raise EnvironmentBroken(
            f"{which} was asked for, its environment loads {told['module']} (installed: {told['metadata']})"
            + ("" if inside else " from elsewhere")
        )
    configuration = Configuration.from_dict(told["configuration"])
    if not same_version(place.asked, configuration.runtime_version):
        raise EnvironmentBroken(
            f"{which} was asked for, {configuration.runtime} says {configuration.runtime_version} there"
        )
    return configuration


def tell() -> None:
    """In the child: what is loaded, as a line of JSON on standard output; the job is the first argument."""
    job = json.loads(sys.argv[1])
    library = job.pop("library")
    module = importlib.import_module(library.replace("-", "_"))
    told: dict = {
        "metadata": importlib.metadata.version(library),
        "module": getattr(module, "__version__", None),
        "file": getattr(module, "__file__", None),
    }
    from lstm_trt.configuration import Protocol
    from lstm_trt.recording import describe_configuration
    from lstm_trt.shapes import LstmShape

    shape, protocol = LstmShape(**job.pop("shape")), Protocol(**job.pop("protocol"))
    try:
        told["configuration"] = describe_configuration(shape, protocol=protocol, **job).as_dict()
    except LabError as error:
        told["error"] = str(error)
    print("\n" + json.dumps(told))


@contextmanager
def _alone(tell: Tell) -> Iterator[None]:
    """Wait until no other process makes an environment."""
    handle = os.open(folder(), os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another process that installs a version")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
