"""Virtual environments with one version of a library each: made by `python -m venv` and pip, kept
in the cache.

An environment contains the library, packages that have to be pinned for it, and those of its
dependencies that the current environment lacks. Everything else (this package, numpy, PyTorch) is
imported from the current environment, after the new environment's own packages. So two environments
of the same library differ only in its version, and PyTorch is not installed again for each version
of another library. A process that imports the library in the environment verifies which version is
loaded.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ConfigurationFailed, UsageError, file_errors
from lstm_trt.config.libraries import RECORDING, has_packages
from lstm_trt.machine import facts
from lstm_trt.machine.linux import run_command
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.jobs import DescribeJob
from lstm_trt.recorder.process import Limits, Process
from lstm_trt.store import cache
from lstm_trt.store.temporary import temporary_folder

#: Made last: an environment without it is incomplete.
MARKER = "made.json"

#: Packages that `venv` may install.
_OF_VENV = ("pip", "setuptools")

#: How pip installs: quietly, without questions, binaries where there are some.
PIP_INSTALL = (
    "install", "--quiet", "--no-input", "--disable-pip-version-check",
    "--progress-bar", "off", "--retries", "2", "--prefer-binary",
)  # fmt: skip

#: Number of latest versions that the message lists if the requested version does not exist.
LATEST_NAMED = 5

#: Seconds that importing a library may take.
EXAMINE_LIMIT_S = 300

#: Gets a line of progress.
Tell = Callable[[str], None]


class EnvironmentBroken(UsageError):
    """An environment does not load the version that was installed in it."""


def surroundings(pins: Sequence[str] = ()) -> str:
    """8 hexadecimal digits that identify the current environment (its Python and its package
    folders) and the pins."""
    text = json.dumps([sys.version, sys.base_prefix, package_folders(), *pins])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Environment:
    """One installed version of a library, in `folder`; `reused`: it had been made before."""

    library: str
    asked: str
    folder: Path
    reused: bool = False

    def __str__(self) -> str:
        return f"{self.library} {self.asked}"

    @property
    def interpreter(self) -> Interpreter:
        """Its Python and package folders, two where compiled packages are kept apart; hashable, as
        a key of workers."""
        base = {"base": str(self.folder), "platbase": str(self.folder)}
        folders = (sysconfig.get_path(name, "venv", base) for name in ("purelib", "platlib"))
        return Interpreter(str(self.folder / "bin" / "python"), tuple(dict.fromkeys(folders)))

    @property
    def packages(self) -> dict[str, str]:
        """The packages that are installed in it, name -> version."""
        found = importlib.metadata.distributions(path=list(self.interpreter.first))
        named: dict[str, str] = {}
        for each in sorted(found, key=lambda each: canonicalize_name(each.name)):
            if each.name not in _OF_VENV:
                named[canonicalize_name(each.name)] = each.version
        return named


def _install(place: Environment, pins: Sequence[str]) -> None:
    """Make an environment with its library and `pins`; raises `UsageError` if one of them cannot be
    installed."""
    python = place.interpreter.executable
    variables = place.interpreter.environment()
    # Not find_spec: under Python 3.11, setuptools takes it for a run of pip and can no longer be
    # imported afterwards.
    here = [sys.executable, "-P", "-m"]
    venv = [*here, "venv", str(place.folder)]
    pip = [python, "-m", "pip"]
    if facts.installed_version("pip"):
        venv.append("--without-pip")
        pip = [*here, "pip", "--python", python]
    if run_command(venv, env=variables).returncode:
        raise UsageError(
            f"cannot create an environment for {place}: install venv for this Python (Debian: apt"
            " install python3-venv)"
        )
    sites = [f"import site; site.addsitedir({text!r})\n" for text in package_folders()]
    (Path(place.interpreter.first[0]) / "present.pth").write_text("".join(sites))
    constraints = place.folder / "constraints.txt"
    constraints.write_text("\n".join(_needs(place.library, *pins)))
    install = [*pip, *PIP_INSTALL, f"{place.library}=={place.asked}", *pins]
    # First what is pinned, even if the current environment has it too; then the missing
    # dependencies.
    for more in (
        ["--no-deps", "--ignore-installed"],
        ["--no-warn-conflicts", "-c", str(constraints)],
    ):
        done = run_command([*install, *more], env=variables)
        if done.returncode:
            raise UsageError(f"cannot install {place}: {_reason(done.stderr, place.library)}")
    if place.library not in place.packages:
        raise UsageError(
            f"cannot install {place}: pip reported success, but the package is missing"
        )


def _reason(stderr: str, library: str) -> str:
    """The reason that pip gives, in one line, without addresses; pip has no error codes, so its
    text is parsed."""
    known = re.search(
        rf"(?m)^ERROR: .* requirement {re.escape(library)}==\S+ \(from versions: (.*)\)$", stderr
    )
    if known is None:
        errors = re.findall(r"(?m)^ERROR: (.*)", stderr) or stderr.strip().splitlines()[-1:]
        return plain(errors[0]) if errors else "pip gives no reason"
    if known[1] == "none":
        return (
            f"pip finds no {library} for this Python; check the network connection and the package"
            " index"
        )
    releases = [text for text in known[1].split(", ") if re.fullmatch(r"[\d.]+", text)]
    return (
        "pip finds no such version for this Python; the latest versions are"
        f" {', '.join(releases[-LATEST_NAMED:])}"
    )


def plain(text: str) -> str:
    """The text as one short line without addresses and folders."""
    text = re.sub(r"\S*://\S+", "(address)", " ".join(text.split()))
    return re.sub(r"(?<![\w.])/\S*/", "", text)[:240]


def _needs(*pins: str) -> Iterator[str]:
    """What recording requires except of what is pinned: no other package may be downgraded below
    that."""
    pinned = {canonicalize_name(Requirement(pin).name) for pin in pins}
    with suppress(importlib.metadata.PackageNotFoundError):
        for needed in map(Requirement, importlib.metadata.requires("lstm_trt") or ()):
            here = needed.marker is None or needed.marker.evaluate({"extra": RECORDING})
            if here and canonicalize_name(needed.name) not in pinned:
                yield f"{needed.name}{needed.specifier}"


def same_version(asked: str, found: str | None) -> bool:
    """Whether `found` matches the requested version by pip's rules: 1.20 matches 1.20.0, 2.13.0
    matches 2.13.0+cpu."""
    with suppress(InvalidVersion):
        return SpecifierSet(f"=={asked}").contains(found or "", prereleases=True)
    return False


def folder() -> Path:
    """The folder of the environments; not created by this call."""
    return cache.folder().absolute() / "versions"


#: What `lstm-trt cache` shows and clears.
CACHE = cache.Uncounted("version environment", folder)


def environment(
    library: str, version: str, tell: Tell, rebuild: bool = False, pins: Sequence[str] = ()
) -> Environment:
    """The environment with this version of a library; made if it does not exist or `rebuild` is
    True.

    `pins`: requirements on further packages, such as "numpy==1.23.5", in place of this package's
    own. `tell` gets a line before each step that takes time. Only one process at a time makes an
    environment. Raises `UsageError` if the version cannot be installed or the cache cannot be
    written.
    """
    place = Environment(library, version, folder() / f"{library}-{version}-{surroundings(pins)}")
    cache.make_folder(folder().name)
    with file_errors(f"write the cache {folder()}", cache.HINT), _lock(tell):
        made = (place.folder / MARKER).exists() and Path(place.interpreter.executable).exists()
        if made and not rebuild:
            return replace(place, reused=True)
        tell(f"installing {place} into a separate environment")
        try:
            shutil.rmtree(place.folder, ignore_errors=True)
            _install(place, pins)
            (place.folder / MARKER).touch()
        except BaseException:
            shutil.rmtree(place.folder, ignore_errors=True)
            raise
    return place


def describe_there(place: Environment, asked: dict) -> Configuration:
    """The configuration described by `asked` in an environment; imports the library there to verify
    its version.

    `asked` has the arguments of `recorder.describe.describe` as JSON values, as a configuration
    has. Raises `EnvironmentBroken` if the library cannot be imported there, or if another version
    or a module outside the environment is imported, and `UsageError` if the configuration is
    invalid.
    """
    names = ("workload", "runtime", "protocol", "options", "mode")
    job = DescribeJob(place.library, **{name: asked[name] for name in names if name in asked})
    with temporary_folder() as logs:
        try:
            with closing(Process(None, logs, "describe", place.interpreter)) as child:
                loaded = child.call(job, Limits(EXAMINE_LIMIT_S))
        except OSError as error:
            raise EnvironmentBroken(
                f"cannot start Python in the environment of {place}: {plain(str(error))}"
            ) from None
        except ConfigurationFailed as error:
            raise EnvironmentBroken(
                f"{place} cannot be imported together with the other installed packages:"
                f" {plain(str(error))}"
            ) from None
    if loaded.error is not None:
        raise UsageError(f"{place}: {loaded.error}")
    inside = str(loaded.file).startswith(str(place.folder) + os.sep)
    # A rebuilt package has the version 1.0.post1, while its module may still report 1.0.
    bare = re.sub(r"\.post\d+$", "", place.asked)
    module = same_version(place.asked, loaded.module) or same_version(bare, loaded.module)
    if not (inside and module and same_version(place.asked, loaded.metadata)):
        raise EnvironmentBroken(
            f"the environment of {place} loads {loaded.module} (installed: {loaded.metadata}) from"
            f" {'inside' if inside else 'outside'} the environment"
        )
    configuration = Configuration.from_dict(loaded.configuration)
    if not same_version(place.asked, configuration.runtime_version):
        raise EnvironmentBroken(
            f"in the environment of {place}, {configuration.runtime} reports version"
            f" {configuration.runtime_version}"
        )
    return configuration


def described(
    library: str,
    version: str,
    asked: dict,
    tell: Tell,
    pins: Sequence[str] = (),
    rebuild: bool = False,
) -> tuple[Environment, Configuration]:
    """`environment`, and what `describe_there` finds in it; a damaged environment is made again."""
    place = environment(library, version, tell, rebuild, pins)
    try:
        return place, describe_there(place, asked)
    except EnvironmentBroken:
        if not place.reused:
            raise
    return described(library, version, asked, tell, pins, rebuild=True)


def package_folders() -> list[str]:
    """Those of the module path: of this environment, then of one on which it stands."""
    return [folder for folder in sys.path if has_packages(folder) and Path(folder).is_dir()]


def _lock(tell: Tell) -> AcquireReturnProxy:
    """A context in which no other process makes an environment."""
    lock = FileLock(folder() / ".lock")
    with suppress(Timeout):
        return lock.acquire(timeout=0)
    tell("waiting for another process that is installing a version")
    return lock.acquire()
