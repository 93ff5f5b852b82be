"""The C compiler of this machine, what it compiles, kept in the cache, and loaded networks.

ctypes holds the GIL during a call (`PyDLL`): releasing and taking it would cost more than the
shortest networks take.
"""

import ctypes
import importlib.util
import mmap
import os
import shlex
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lstm_onnx.c.file import CFile
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable, any_error
from lstm_trt.config.libraries import how_to_install
from lstm_trt.machine.facts import cpu_name
from lstm_trt.machine.linux import cpuinfo_flags, run_command
from lstm_trt.store import cache
from lstm_trt.store.temporary import temporary_folder

#: A compilation that takes longer is ended: so much, and more for each statement and each byte of
#: the source. That is 20 times and more what an idle machine takes: a call of a matrix product, of
#: which the sizes are constants, takes gcc 0.2 s, and a million bytes of weights 4 s.
LIMIT_S = 60.0
STATEMENT_S = 0.25
BYTE_S = 80e-6

#: Results of a network's function `init` other than 0.
INIT_ERRORS = {
    1: "its memory is not aligned to 64 bytes",
    2: "the weights are those of another network",
    3: "this processor lacks instructions that it was compiled for",
}

ALIGNMENT = 64

_VERSIONS = (
    "__clang_major__ __clang_minor__ __clang_patchlevel__"
    " __GNUC__ __GNUC_MINOR__ __GNUC_PATCHLEVEL__"
)


@dataclass(frozen=True)
class Compiler:
    """A C compiler: its command without flags, and its version, "gcc 12.2.0"."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """That of the variable CC, or else the first of cc, gcc, clang and ziglang that works.

    Raises `RuntimeUnavailable` if there is none.
    """
    remedy = f"install a C compiler: apt install gcc, or {how_to_install('c')}"
    try:
        given = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise RuntimeUnavailable("c", f"the variable CC cannot be read: {error}", remedy) from None
    zig = [[sys.executable, "-m", "ziglang", "cc"]] if importlib.util.find_spec("ziglang") else []
    reason = (
        f"the compiler {given[0]!r} of the variable CC was not found" if given else "no C compiler"
    )
    for command in [given] if given else [["cc"], ["gcc"], ["clang"], *zig]:
        if shutil.which(command[0]):
            try:
                return Compiler(tuple(command), _version(command))
            except BuildFailed as error:
                reason = str(error)
    raise RuntimeUnavailable("c", reason, remedy)


def _version(command: Sequence[str]) -> str:
    """From the macros of gcc and clang; raises `BuildFailed` for another or a broken compiler."""
    with temporary_folder() as folder:
        (folder / "version.c").write_text(f"{_VERSIONS}\n")
        values = _run(command, ["-E", "-P", "version.c"], folder).split()
    name = "clang"
    numbers = values[:3]
    if not all(map(str.isdigit, numbers)):
        name = "gcc"
        numbers = values[3:6]
    if len(numbers) < 3 or not all(map(str.isdigit, numbers)):
        raise BuildFailed(f"{' '.join(command)} is neither gcc nor clang")
    return f"{name} {'.'.join(numbers)}"


def limit_s(source: str) -> float:
    """Seconds after which the compilation of a source is ended."""
    return LIMIT_S + STATEMENT_S * source.count(";") + BYTE_S * len(source)


def shared_library(
    compiler: Compiler, name: str, source: str, header: str, flags: Sequence[str]
) -> cache.Entry:
    """The library of the file NAME.c with its header NAME.h.

    The flags are not used for linking: with -ffast-math, gcc would link code that sets
    flush-to-zero in the process that loads the library. Raises `BuildFailed` with the compiler's
    first error, `UsageError` if the cache cannot be written.
    """
    identity = {
        "source": cache.sha256(source.encode()),
        "header": cache.sha256(header.encode()),
        "flags": list(flags),
        "compiler": [*compiler.command, compiler.version],
        "cpu": [cpu_name(), *sorted(cpuinfo_flags())],  # what -march=native depends on
    }

    def compiled() -> bytes:
        with temporary_folder() as folder:
            (folder / f"{name}.c").write_text(source)
            (folder / f"{name}.h").write_text(header)
            compile_only = [*flags, "-fPIC", "-c", f"{name}.c", "-o", f"{name}.o"]
            _run(compiler.command, compile_only, folder, limit_s(source))
            _run(compiler.command, ["-shared", f"{name}.o", "-o", f"{name}.so"], folder)
            return (folder / f"{name}.so").read_bytes()

    return cache.fetch("c", identity, ".so", compiled)


def _run(
    command: Sequence[str], arguments: Sequence[str], folder: Path, seconds: float = LIMIT_S
) -> str:
    """The standard output of a compiler that runs in a folder, to which all its files are confined.

    Raises `BuildFailed` with its first error if it fails or writes no file, or if it does not end
    in time.
    """
    name = " ".join((Path(command[0]).name, *command[1:]))
    variables = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        done = run_command([*command, *arguments], seconds, cwd=folder, env=variables)
    except subprocess.TimeoutExpired:
        remedy = (
            "end what else runs on this machine and try again, or choose a network of fewer layers"
        )
        raise BuildFailed(f"{name} did not end within {round(seconds, 1):g} s: {remedy}") from None
    except OSError as error:
        raise BuildFailed(f"{name} cannot be run: {error.strerror or error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        status = (
            f"ended by signal {-done.returncode}"
            if done.returncode < 0
            else f"exit status {done.returncode}"
        )
        first = next((line for line in lines if "error: " in line), lines[-1] if lines else status)
        raise BuildFailed(f"{name} failed: {first}")
    if "-o" in arguments and not (folder / arguments[-1]).exists():
        raise BuildFailed(f"{name} wrote no file, but reported no error")
    return done.stdout


def _help(help: Callable[[], None], core: int, memory: mmap.mmap) -> None:
    """Run a helper on a core until it is stopped; it keeps the `memory` that it uses."""
    os.sched_setaffinity(0, {core})
    help()
    del memory


class LoadedNetwork:
    """One instance of a network in this process: its functions, and its struct and weights.

    Code of several threads has helpers on `cores`, after the first; without cores this thread
    computes all parts. Raises the errors of `shared_library`, and `BuildFailed` if this processor
    cannot run it.
    """

    def __init__(self, file: CFile, compiler: Compiler, cores: Sequence[int] = ()) -> None:
        source = (
            f"{file.source}\nconst unsigned long {file.name}_size = sizeof(struct {file.name});\n"
        )
        path, _, self.cached = shared_library(
            compiler, file.name, source, file.header, file.compile_flags
        )
        # The cache is in a file system without executable files, for example.
        with any_error(BuildFailed, "the compiled network cannot be loaded"):
            self._name = file.name
            self._library = ctypes.PyDLL(str(path))
        size = ctypes.c_ulong.in_dll(self._library, f"{file.name}_size").value
        weights_at = -(-size // ALIGNMENT) * ALIGNMENT
        # Zero, at the beginning of a page.
        self._memory = mmap.mmap(-1, weights_at + len(file.weights))
        self._memory[weights_at:] = file.weights
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        weights = ctypes.c_void_p(self._address + weights_at)
        result = self._library[f"{file.name}_init"](ctypes.c_void_p(self._address), weights)
        if result:
            raise BuildFailed(
                f"the compiled network cannot be used: {INIT_ERRORS.get(result, result)}"
            )
        if file.threads > 1:
            help = ctypes.CDLL(str(path))[f"{file.name}_help"]  # its calls release the GIL
            for number, core in enumerate(cores[1 : file.threads], 1):
                call = partial(help, ctypes.c_void_p(self._address), number)
                threading.Thread(target=_help, args=(call, core, self._memory), daemon=True).start()
            weakref.finalize(
                self, self._library[f"{file.name}_stop"], ctypes.c_void_p(self._address)
            )

    def bound(self, function: str, *arrays: np.ndarray) -> Callable[..., None]:
        """The function NAME_`function` with this instance and these arrays; keep them alive.

        It is called without a Python frame.
        """
        found = self._library[f"{self._name}_{function}"]
        found.restype = None
        return partial(
            found,
            ctypes.c_void_p(self._address),
            *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
        )
