"""Virtual environments with one version of a library each: made by `python -m venv` and pip, kept in the cache.

An environment contains the library, packages that have to be pinned for it, and those of its dependencies that the
current environment lacks. Everything else (this package, numpy, PyTorch) is imported from the current environment,
after the new environment's own packages. So two environments of the same library differ only in its version, and
PyTorch is not installed again for each version of another library. A process that imports the library in the
environment verifies which version is loaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ConfigurationFailed, UsageError, file_errors
from lstm_trt.machine import facts
from lstm_trt.machine.linux import run_command
from lstm_trt.recorder.process import Interpreter, Process
from lstm_trt.store import cache

#: Written last: an environment without it is incomplete.
MARKER = "made.json"

#: Number of latest versions that the message lists if the requested version does not exist.
LATEST_NAMED = 5

#: Seconds that importing a library may take.
EXAMINE_LIMIT_S = 300

#: Gets a line of progress.
Tell = Callable[[str], None]


class EnvironmentBroken(UsageError):
    """An environment does not load the version that was installed in it."""


def normal(library: str) -> str:
    """A distribution's normalized name: `TensorRT_RTX` -> `tensorrt-rtx`."""
    return re.sub(r"[-_.]+", "-", library).lower()


def python_of(path: Path) -> Path:
    """The Python of the environment at `path`."""
    return path / "bin" / "python"


def site_packages(path: Path) -> tuple[str, ...]:
    """An environment's package folders; two where the system keeps compiled packages separately."""
    base = {"base": str(path), "platbase": str(path)}
    return tuple(dict.fromkeys(sysconfig.get_path(name, "venv", base) for name in ("purelib", "platlib")))


def surroundings(pins: Sequence[str] = ()) -> str:
    """8 hexadecimal digits that identify the current environment (its Python and its package folders) and the pins."""
    return hashlib.sha256(json.dumps([sys.version, sys.base_prefix, _here(), *pins]).encode()).hexdigest()[:8]


def made(path: Path) -> dict[str, str] | None:
    """The packages (name -> version) of a complete environment, else None."""
    try:
        packages = json.loads((path / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return packages if python_of(path).exists() else None


def make(path: Path, library: str, version: str, pins: Sequence[str] = ()) -> dict[str, str]:
    """Make an environment at `path`, with further `pins` ("numpy==1.23.5"); returns its packages, name -> version.

    Raises `UsageError` if the version cannot be installed; `path` is removed then.
    """
    try:
        shutil.rmtree(path, ignore_errors=True)
        _install(path, library, version, pins)
        found = importlib.metadata.distributions(path=list(site_packages(path)))
        packages = {normal(item.name): item.version for item in found if item.name not in ("pip", "setuptools")}
        if library not in packages:
            raise UsageError(f"cannot install {library} {version}: pip reported success, but the package is missing")
        packages = dict(sorted(packages.items()))
        cache.write_whole(path / MARKER, json.dumps(packages).encode())
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return packages


def _install(path: Path, library: str, version: str, pins: Sequence[str] = ()) -> None:
    # Not find_spec: under Python 3.11, setuptools takes it for a run of pip and can no longer be imported afterwards.
    own_pip = facts.installed_version("pip") is None  # the current environment has no pip
    done = _run([sys.executable, "-P", "-m", "venv", *([] if own_pip else ["--without-pip"]), str(path)])
    if done.returncode:
        raise UsageError(
            f"cannot create an environment for {library} {version}: install venv for this Python"
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
        constraints.write_text("".join(f"{line}\n" for line in _needs(library, *map(_name, pins))))
        # First what is pinned, even if the current environment has it too; then the missing dependencies.
        for more in (["--no-deps", "--ignore-installed"], ["--no-warn-conflicts", "-c", str(constraints)]):
            done = _run([*pip, *more, f"{library}=={version}", *pins])
            if done.returncode:
                raise UsageError(f"cannot install {library} {version}: {_reason(done.stderr, library, version)}")


def _run(command: list[str]) -> subprocess.CompletedProcess:
    """Run a command without the variables that would lead it to packages from here."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return run_command(command, env=variables)


def _reason(stderr: str, library: str, version: str) -> str:
    """The reason that pip gives, in one line, without addresses; pip has no error codes, so its text is parsed."""
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    for line in lines:
        listed = re.search(rf"requirement {re.escape(library)}==\S+ \(from versions: (.*)\)$", line)
        if listed and listed[1] == "none":
            return f"pip finds no {library} for this Python; check the network connection and the package index"
        if listed:
            releases = [text for text in listed[1].split(", ") if re.fullmatch(r"[\d.]+", text)]
            latest = ", ".join(releases[-LATEST_NAMED:])
            return f"pip finds no such version for this Python; the latest versions are {latest}"
    everything = stderr.strip().splitlines()
    return plain(lines[0] if lines else everything[-1] if everything else "pip gives no reason")


def plain(text: str) -> str:
    """The text as one short line without addresses and folders."""
    text = re.sub(r"\S*://\S+", "(address)", " ".join(text.split()))
    return re.sub(r"(?<![\w.])/\S*/", "", text)[:240]


def _name(requirement: str) -> str:
    """The normalized name in a requirement."""
    return normal(re.split(r"[^\w.-]", requirement)[0])


def _needs(*pinned: str) -> Iterator[str]:
    """This package's requirements except of what is pinned: no other package may be downgraded below them."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("lstm_trt") or ():
            if _name(line) not in pinned and "extra ==" not in line:
                yield line


def _here() -> list[str]:
    """The package folders of the current environment."""
    return [text for text in sys.path if Path(text).name in ("site-packages", "dist-packages") and Path(text).is_dir()]


def same_version(asked: str, found: str | None) -> bool:
    """Whether `found` matches the requested version by pip's rules: 1.20 matches 1.20.0, 2.13.0 matches 2.13.0+cpu."""
    if found is None:
        return False
    if "+" not in asked:
        found = found.split("+")[0]
    asked, found = (re.sub(r"(\.0)+$", "", text.lower()) for text in (asked, found))
    return asked == found


@dataclass(frozen=True)
class Environment:
    """One installed version of a library; `packages` are those installed in the environment (name -> version)."""

    library: str
    asked: str
    folder: Path
    packages: dict[str, str]
    reused: bool

    @property
    def interpreter(self) -> Interpreter:
        """The Python that loads this version; hashable, since workers are looked up by it."""
        return Interpreter(str(python_of(self.folder)), site_packages(self.folder))


def folder() -> Path:
    """The folder of the environments; not created by this call."""
    return cache.folder().absolute() / "versions"


def environment(
    library: str, version: str, tell: Tell = lambda line: None, rebuild: bool = False, pins: Sequence[str] = ()
) -> Environment:
    """The environment with this version of a library; made if it does not exist or `rebuild` is True.

    `pins`: requirements on further packages, such as "numpy==1.23.5", in place of this package's own. `tell` gets a
    line before each step that takes time. Only one process at a time makes an environment. Raises `UsageError` if the
    version cannot be installed or the cache cannot be written.
    """
    name = f"{library}-{version}-{surroundings(pins)}"
    path = folder() / name
    with file_errors(f"write the cache {folder()}", cache.HINT):
        folder().mkdir(parents=True, exist_ok=True)
        with _lock(tell):
            if not rebuild and (packages := made(path)) is not None:
                return Environment(library, version, path, packages, reused=True)
            tell(f"installing {library} {version} into a separate environment")
            packages = make(path, library, version, pins)
    return Environment(library, version, path, packages, reused=False)


def describe_there(place: Environment, asked: dict) -> Configuration:
    """The configuration described by `asked` in an environment; imports the library there to verify its version.

    `asked` has the arguments of `recorder.describe.describe` as JSON values. Raises
    `EnvironmentBroken` if the library cannot be imported there, or if another version or a module
    outside the environment is imported, and `UsageError` if the configuration is invalid.
    """
    which = f"{place.library} {place.asked}"
    with tempfile.TemporaryDirectory(prefix="lstm_trt-") as logs:
        try:
            child = Process(None, Path(logs), "describe", place.interpreter)
        except OSError as error:
            raise EnvironmentBroken(f"cannot start Python in the environment of {which}: {plain(str(error))}") from None
        try:
            job = {"kind": "describe", "library": place.library, **asked}
            loaded = child.call(job, time_limit_s=EXAMINE_LIMIT_S, memory_limit=None, listener=lambda message: None)
        except ConfigurationFailed as error:
            raise EnvironmentBroken(
                f"{which} cannot be imported together with the other installed packages: {plain(str(error))}"
            ) from None
        finally:
            child.close()
    if "error" in loaded:
        raise UsageError(f"{which}: {loaded['error']}")
    inside = str(loaded["file"]).startswith(str(place.folder) + os.sep)
    # A rebuilt package has the version 1.0.post1, while its module may still report 1.0.
    bare = re.sub(r"\.post\d+$", "", place.asked)
    module = any(same_version(version, loaded["module"]) for version in (place.asked, bare))
    if not (inside and module and same_version(place.asked, loaded["metadata"])):
        raise EnvironmentBroken(
            f"the environment of {which} loads {loaded['module']} (installed: {loaded['metadata']})"
            + ("" if inside else " from outside the environment")
        )
    configuration = Configuration.from_dict(loaded["configuration"])
    if not same_version(place.asked, configuration.runtime_version):
        raise EnvironmentBroken(
            f"in the environment of {which}, {configuration.runtime} reports version {configuration.runtime_version}"
        )
    return configuration


def described(
    library: str, version: str, asked: dict, tell: Tell, pins: Sequence[str] = ()
) -> tuple[Environment, Configuration]:
    """`environment`, and what `describe_there` finds in it; a damaged environment is made again."""
    place = environment(library, version, tell, pins=pins)
    try:
        return place, describe_there(place, asked)
    except EnvironmentBroken:
        if not place.reused:
            raise
    place = environment(library, version, tell, rebuild=True, pins=pins)
    return place, describe_there(place, asked)


def _lock(tell: Tell) -> AcquireReturnProxy:
    """A context in which no other process makes an environment."""
    lock = FileLock(folder() / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        tell("waiting for another process that is installing a version")
        return lock.acquire()
