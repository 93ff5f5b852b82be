"""Environments that each hold one version of a library: made by `python -m venv` and pip, kept in the cache.

An environment holds the library, and what that needs and this environment does not have; all
else (this package, numpy, PyTorch) it finds here, behind its own packages. So two of them
differ by the library alone, and PyTorch is not installed again for each version of another.
Which version an environment loads is found out by a process that imports it there.
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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ConfigurationFailed, UsageError
from lstm_trt.config.format import bytes_text, count
from lstm_trt.recorder.process import Interpreter, Process
from lstm_trt.store import cache

#: Written last: an environment without it is half made.
MARKER = "made.json"

#: How many of the latest versions the message names where one is asked for that does not exist.
LATEST_NAMED = 5

#: Seconds that pip has to tidy up after Ctrl-C.
STOP_LIMIT_S = 5

#: Seconds that importing a library may take.
EXAMINE_LIMIT_S = 300

#: Gets a line of progress.
Tell = Callable[[str], None]


class EnvironmentBroken(UsageError):
    """An environment does not load the version that it was made for."""


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
    """8 digits that identify what an environment is made beside: this Python, and where its packages are."""
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
        packages = {normal(each.name): each.version for each in found if each.name not in ("pip", "setuptools")}
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
    """Pip's own reason in one line, without addresses; pip gives no codes, so that its messages must be read."""
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    for line in lines:
        listed = re.search(rf"requirement {re.escape(library)}==\S+ \(from versions: (.*)\)$", line)
        if listed and listed[1] == "none":
            return f"pip finds no {library} for this Python: does it reach an index?"
        if listed:
            releases = [text for text in listed[1].split(", ") if re.fullmatch(r"[\d.]+", text)]
            return f"pip finds no such version for this Python; the latest are {', '.join(releases[-LATEST_NAMED:])}"
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


@dataclass(frozen=True)
class CacheContents:
    """Bytes of what the cache on disk holds: of the files of each kind, and of each environment of a version.

    `removed`: it was cleared; then this is what it held.
    """

    folder: Path
    limit_bytes: int
    kinds: dict[str, list[int]]
    environments: list[int]
    removed: bool = False

    @property
    def sizes(self) -> list[int]:
        """Of all files beside the environments."""
        return [size for sizes in self.kinds.values() for size in sizes]

    def as_dict(self) -> dict:
        """JSON values; `environments` only where there are any, since they are beside the limit."""
        amount = "removed" if self.removed else "count"
        beside = {"environments": {amount: len(self.environments), "bytes": sum(self.environments)}}
        beside = beside if self.environments else {}
        if self.removed:
            return {"removed": len(self.sizes), "bytes": sum(self.sizes), **beside}
        return {
            "folder": str(self.folder),
            "bytes": sum(self.sizes),
            "limit_bytes": self.limit_bytes,
            "kinds": {kind: {"files": len(sizes), "bytes": sum(sizes)} for kind, sizes in self.kinds.items()},
            **beside,
        }

    def __str__(self) -> str:
        total, environments = bytes_text(sum(self.sizes)), count(len(self.environments), "version environment")
        beside = f"{environments}, {bytes_text(sum(self.environments))}"
        if self.removed:
            removed = f"removed {count(len(self.sizes), 'file')}, {total}"
            return f"{removed}, and {beside}" if self.environments else removed
        lines = [f"{self.folder}: {total} of at most {bytes_text(self.limit_bytes)}"]
        lines += [
            f"  {kind}: {count(len(sizes), 'file')}, {bytes_text(sum(sizes))}" for kind, sizes in self.kinds.items()
        ]
        lines += [f"  {beside}, not counted in the limit"] if self.environments else []
        return "\n".join(lines)


def cache_contents() -> CacheContents:
    """What the cache holds, environments of versions among it."""
    kinds: dict[str, list[int]] = {}
    for entry in sorted(cache.entries(), key=lambda entry: entry.kind):
        kinds.setdefault(entry.kind, []).append(entry.size_bytes)
    return CacheContents(cache.folder(), cache.limit_bytes(), kinds, [size for _, size in present()])


def clear_cache() -> CacheContents:
    """Remove everything in the cache; returns what it held."""
    held = replace(cache_contents(), removed=True)
    cache.clear()
    for path, _ in present():
        shutil.rmtree(path, ignore_errors=True)
    return held


def environment(library: str, version: str, tell: Tell = lambda line: None, anew: bool = False) -> Environment:
    """The environment with this version of a library, made where it is not there, or where `anew` says so.

    `tell` gets a line before what takes time. One process at a time makes one. Raises `UsageError`
    where the version cannot be installed, or the cache not be written.
    """
    name = f"{library}-{version}-{surroundings()}"
    path = folder() / name
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _lock(tell):
            if not anew and (packages := made(path)) is not None:
                return Environment(library, version, path, packages, reused=True)
            tell(f"installing {library} {version} into an environment of its own")
            packages = make(path, library, version)
    except OSError as error:
        raise UsageError(
            f"cannot write the cache {folder()}: {error.strerror or error}; set XDG_CACHE_HOME to a folder with room"
        ) from None
    return Environment(library, version, path, packages, reused=False)


def describe_there(place: Environment, asked: dict) -> Configuration:
    """The configuration that `asked` means in an environment, whose version is proved by importing the library.

    `asked` has the arguments of `recorder.session.describe` as JSON values. Raises
    `EnvironmentBroken` where the library cannot be imported there, or where what is imported is
    another version or lies elsewhere, and `UsageError` where the configuration cannot be described.
    """
    which = f"{place.library} {place.asked}"
    with tempfile.TemporaryDirectory(prefix="lstm_trt-") as logs:
        try:
            child = Process(None, Path(logs), "describe", place.interpreter)
        except OSError as error:
            raise EnvironmentBroken(f"{which}: its environment does not start: {plain(str(error))}") from None
        try:
            job = {"kind": "describe", "library": place.library, **asked}
            loaded = child.call(job, time_limit_s=EXAMINE_LIMIT_S, memory_limit=None, listener=lambda answer: None)
        except ConfigurationFailed as error:
            raise EnvironmentBroken(
                f"{which} cannot be imported beside the other packages here: {plain(str(error))}"
            ) from None
        finally:
            child.close()
    if "error" in loaded:
        raise UsageError(f"{which}: {loaded['error']}")
    inside = str(loaded["file"]).startswith(str(place.folder) + os.sep)
    # A package that was built again is 1.0.post1, and its module still 1.0.
    bare = re.sub(r"\.post\d+$", "", place.asked)
    module = any(same_version(version, loaded["module"]) for version in (place.asked, bare))
    if not (inside and module and same_version(place.asked, loaded["metadata"])):
        raise EnvironmentBroken(
            f"{which} was asked for, its environment loads {loaded['module']} (installed: {loaded['metadata']})"
            + ("" if inside else " from elsewhere")
        )
    configuration = Configuration.from_dict(loaded["configuration"])
    if not same_version(place.asked, configuration.runtime_version):
        raise EnvironmentBroken(
            f"{which} was asked for, {configuration.runtime} says {configuration.runtime_version} there"
        )
    return configuration


def _lock(tell: Tell) -> AcquireReturnProxy:
    """A context in which no other process makes an environment."""
    lock = FileLock(folder() / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        tell("waiting for another process that installs a version")
        return lock.acquire()


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
