"""The tests once more, as other machines and users would run them: `python -m tests.support.elsewhere [NAME ...]`.

Each surrounding of `SURROUNDINGS` says what is different, how that is made, and which tests can depend on it. What
cannot be made here is skipped with its reason. Exit status 1 if a test fails, or if no other processor was tried on a
machine that can imitate them.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import multiprocessing
import os
import platform
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from lstm_trt.machine.linux import allowed_cores, cpuinfo_flags
from tests.support import processors

ROOT = Path(__file__).resolve().parents[2]
#: A flag of /proc/cpuinfo: the kernel can make CPUID fault.
FAULTS = "cpuid_fault"


class CannotMake(Exception):
    """Why a surrounding cannot be made here."""


@dataclass(frozen=True)
class Setting:
    """How the tests are started in a surrounding: the command before theirs, and arguments of `subprocess.run`."""

    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    folder: Path = ROOT
    process: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Surrounding:
    """What is different, how it is made in a temporary folder, and the tests that can depend on it.

    `tests`: files or single tests; `without`: tests of these files that cannot depend on it, and take long.
    """

    what: str
    make: Callable[[Path], Setting]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()


def mounting(*pairs: tuple[Path, Path]) -> tuple[str, ...]:
    """A command that runs another one with files or folders mounted over others, seen by it alone."""
    script = 'while [ "$1" != -- ]; do mount --rbind "$1" "$2" || exit; shift 2; done; shift; exec "$@"'
    own = () if os.geteuid() == 0 else ("--map-root-user",)
    paths = [str(path) for pair in pairs for path in pair]
    command = ("unshare", "--mount", *own, "sh", "-c", script, "sh", *paths, "--")
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        raise CannotMake("mounting is not permitted here: needs root, or namespaces of users")
    return command


def processor(kind: processors.Kind) -> Callable[[Path], Setting]:
    def make(folder: Path) -> Setting:
        if reason := processors.cannot_build():
            raise CannotMake(reason)
        flags = cpuinfo_flags()
        if FAULTS not in flags:
            raise CannotMake(f"CPUID cannot fault here: /proc/cpuinfo has no flag {FAULTS}")
        if missing := sorted(kind.needed - flags):
            raise CannotMake(f"this processor has no {', '.join(missing)}")
        stated = folder / "cpuinfo"
        stated.write_text(kind.cpuinfo(Path("/proc/cpuinfo").read_text()))
        library = processors.build(kind, folder / "library")
        environment = {"LD_PRELOAD": str(library), processors.VARIABLE: "1"}
        return Setting(environment, mounting((stated, Path("/proc/cpuinfo"))))

    return make


def one_core(folder: Path) -> Setting:
    if len(cores := allowed_cores()) == 1:
        raise CannotMake("there is one core here, as in `make test`")
    return Setting(process={"preexec_fn": lambda: os.sched_setaffinity(0, cores[-1:])})


def copied(folder: Path) -> Path:
    """The tracked files as a repository of one commit in `folder`."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise CannotMake("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=elsewhere", "-c", "user.email=elsewhere", "-c", "core.hooksPath=/dev/null"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "The tracked files"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True)
    return folder


def spaces(folder: Path) -> Setting:
    temporary = folder / "temporary files"
    temporary.mkdir()
    return Setting({"TMPDIR": str(temporary)}, folder=copied(folder / "a clone"))


def terminal(folder: Path) -> Setting:
    environment = {"COLUMNS": "40", "LC_ALL": "C", "TZ": "Asia/Kathmandu"}
    return Setting(environment, process={"umask": 0o077})


def ordinary_user(folder: Path) -> Setting:
    if os.geteuid():
        raise CannotMake("the tests run as an ordinary user already")
    nobody = pwd.getpwnam("nobody")
    clone, home = copied(folder / "clone"), folder / "home"
    home.mkdir()
    folder.chmod(0o755)
    subprocess.run(["chown", "-R", f"{nobody.pw_uid}:{nobody.pw_gid}", clone, home], check=True)
    identity = ("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
    prefix = (*mounting(*opened(folder / "opened", Path(sys.prefix), Path(sys.base_prefix))), *identity)
    # A child of it: setpriv can start what the user cannot.
    program = "import pytest, subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    if subprocess.run([*prefix, sys.executable, "-c", program], cwd=clone, capture_output=True).returncode:
        raise CannotMake(f"another user cannot run {sys.executable}")
    return Setting({"HOME": str(home), "TMPDIR": str(home)}, prefix, folder=clone)


def opened(folder: Path, *needed: Path) -> list[tuple[Path, Path]]:
    """What to mount over folders that are closed to other users, as the home of root, to show nothing but `needed`."""
    pairs, stages = [], {}
    for path in map(Path.resolve, needed):
        closed = next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o1), None)
        if closed:
            stage = stages.setdefault(closed, folder / str(len(stages)))
            shown = stage / path.relative_to(closed)
            shown.mkdir(parents=True)
            pairs.append((path, shown))
    return pairs + [(stage, closed) for closed, stage in stages.items()]


def home_not_writable(folder: Path) -> Setting:
    return Setting({"HOME": "/proc"})  # where root cannot create files either


def no_cpufreq(folder: Path) -> Setting:
    found = sorted(Path("/sys/devices/system/cpu").glob("cpu*/cpufreq"))
    if not found:
        raise CannotMake("this machine has none, as in `make test`")
    empty = folder / "empty"
    empty.mkdir()
    return Setting(prefix=mounting(*((empty, path) for path in found)))


def no_perf(folder: Path) -> Setting:
    number = {"x86_64": 298, "aarch64": 241}.get(platform.machine())
    if number is None:
        raise CannotMake("the number of perf_event_open is not known for this architecture")

    def refuse() -> None:
        """A seccomp filter: load the number of the system call; if it is this one, EACCES, else allowed."""
        rows = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EACCES), (0x06, 0, 0, 0x7FFF0000))
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)))
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(38, 1, 0, 0, 0) or library.prctl(22, 2, program):  # no new privileges; the filter
            raise OSError(ctypes.get_errno(), "seccomp")

    setting = Setting(process={"preexec_fn": refuse})
    try:
        subprocess.run(["true"], **setting.process)
    except subprocess.SubprocessError:
        raise CannotMake("filters of system calls are not permitted here") from None
    return setting


MACHINE = (
    "lstm_trt/machine/test_machine.py",
    "lstm_trt/machine/test_switches.py",
    "lstm_trt/recorder/test_doctor.py",
    "lstm_trt/recorder/test_switches.py",
)
COMPILED = ("lstm_onnx/c/test_runtime.py", "test_deploy.py", "lstm_onnx/test_export.py")
#: Compare numbers that only another processor could change, or copy the package.
NUMBERS = (
    "lstm_trt/config/test_fields.py::test_a_field_is_added_in_one_place",
    "lstm_judge/read/test_resolution.py",
    "test_deploy.py::test_denormal_numbers_and_the_callers_control_register",
    "lstm_onnx/test_export.py::test_the_self_test_finds_one_other_weight",
)
RUNTIMES = ("lstm_trt/runtimes/test_onnxruntime.py", "lstm_trt/runtimes/test_openvino.py")
TORCH = "lstm_trt/runtimes/test_torch_runtimes.py"
C_FILE, STREAM = "lstm_onnx/c/test_file.py::", "lstm_trt/recorder/test_stream.py::"
PARITY = "lstm_trt/recorder/test_parity.py::"
#: What computes with the vector instructions that it finds; the others are compiled for a processor that they name.
PROCESSOR = (
    "test_elsewhere.py",
    "lstm_trt/machine/test_roofline.py",
    *RUNTIMES,
    "lstm_onnx/c/test_runtime.py",
    "test_deploy.py",
    "lstm_onnx/c/test_functions.py",
    C_FILE + "test_sizes_at_the_edges",
    C_FILE + "test_pointwise_functions_over_the_whole_range",
    STREAM + "test_calls_of_a_few_samples_equal_one_pass",
    STREAM + "test_silence_after_the_warm_up_carries_the_state_on",
    PARITY + "test_onnx_runtime_hides_a_nan_that_others_pass_and_none_remains",
    PARITY + "test_what_computes_in_less_than_it_was_asked_for_fails",
)
SESSION, HOOK = "lstm_trt/recorder/test_run.py::", "hook/test_hook.py::"
LOADS = ("lstm_trt/recorder/test_beside.py", "lstm_trt/recorder/test_real_time.py")
CORES = (
    *LOADS,
    "lstm_trt/recorder/test_loop.py",
    "lstm_judge/test_confirmation.py",
    "lstm_trt/machine/test_roofline.py",
    SESSION + "test_a_recording_waits_for_its_cores_after_preparing_and_says_so",
    SESSION + "test_the_preparing_process_leaves_the_cores_that_are_timed",
    SESSION + "test_more_threads_than_cores_are_refused",
)
INSTALLER = (
    HOOK + "test_make_starts_the_installer_and_the_check",
    HOOK + "test_installing_from_a_linked_worktree_serves_all",
    HOOK + "test_from_a_subfolder_from_elsewhere_and_with_another_index",
    HOOK + "test_another_hook_stays_and_can_call_ours",
)
FILES = ("lstm_trt/store", "lstm_judge/read", "test_setup.py", "lstm_trt/cli/test_main.py")
COMMANDS = "lstm_literature/test_preparer.py::test_the_command_of_a_configuration_gives_the_same_configuration"

SURROUNDINGS = {
    **{
        # Compiling for minutes, and the same with AVX-512: once is enough.
        name: Surrounding(f"as {kind.model_name}", processor(kind), PROCESSOR + ((TORCH,) if name == "haswell" else ()))
        for name, kind in processors.KINDS.items()
    },
    "one-core": Surrounding("one core", one_core, (*MACHINE, *RUNTIMES, "lstm_onnx/c/test_runtime.py", *CORES)),
    "spaces": Surrounding(
        "spaces in TMPDIR and in the path of the clone",
        spaces,
        (*FILES, *COMPILED, COMMANDS, "lstm_trt/cli/test_build.py", *INSTALLER),
        NUMBERS,
    ),
    # One run: none of these facts can hide what another one breaks.
    "terminal": Surrounding(
        "40 columns, the locale C, a time zone at 5:45 h, and umask 077",
        terminal,
        (
            *FILES,
            *COMPILED,
            "lstm_trt/cli/test_help.py",
            "lstm_trt/cli/test_statuses.py",
            "lstm_trt/config",
            "test_golden.py",
            "lstm_judge/test_answers.py",
        ),
        NUMBERS,
    ),
    "ordinary-user": Surrounding(
        "an ordinary user instead of root", ordinary_user, (*MACHINE, *FILES, *COMPILED, *LOADS), NUMBERS
    ),
    "home": Surrounding(
        "a HOME that cannot be written",
        home_not_writable,
        (*COMPILED, *RUNTIMES, "lstm_judge/cli/test_tails.py"),
        NUMBERS,
    ),
    "no-cpufreq": Surrounding("no cpufreq in /sys/devices/system/cpu", no_cpufreq, MACHINE),
    "no-perf": Surrounding("perf_event_open is refused", no_perf, (*MACHINE, "lstm_trt/recorder/test_loop.py")),
}


def run(surrounding: Surrounding, seed: int, folder: Path) -> subprocess.CompletedProcess:
    """The tests of a surrounding; `CannotMake` with the reason if there is none here."""
    setting = surrounding.make(folder)
    # In one process: the other cores have surroundings of their own.
    options = ["-q", "-n", "0", "-m", "not heavy", "-p", "no:cacheprovider"]
    return subprocess.run(
        [
            *setting.prefix,
            sys.executable,
            "-m",
            "pytest",
            *options,
            "--seed",
            str(seed),
            *(f"tests/{name}" for name in surrounding.tests),
            *(f"--deselect=tests/{name}" for name in surrounding.without),
        ],
        cwd=setting.folder,
        env=os.environ | {"PYTHONPATH": str(setting.folder)} | setting.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **setting.process,
    )


def outcome_of(name: str, seed: int) -> tuple[str, str]:
    """How the tests of a surrounding ended, `passed`, `failed` or `skipped`, and what to print of it."""
    surrounding = SURROUNDINGS[name]
    # Not in TMPDIR, which may contain a space: LD_PRELOAD cannot.
    with tempfile.TemporaryDirectory(prefix="elsewhere-", dir="/tmp") as folder:
        try:
            done = run(surrounding, seed, Path(folder))
        except CannotMake as reason:
            return "skipped", f"  skipped: {reason}"
    if done.returncode == 0:
        return "passed", f"  passed: {done.stdout.splitlines()[-1]}"
    return "failed", f"{done.stdout}\n  failed; again: python -m tests.support.elsewhere --seed {seed} {name}"


def run_all(names: list[str], seed: int) -> int:
    """Run the surroundings, as many at a time as there are cores, print each, and return the exit status."""
    ended: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    started = time.monotonic()
    # Processes and not threads: what a surrounding changes before its tests start belongs to one process.
    with ProcessPoolExecutor(len(allowed_cores()), multiprocessing.get_context("fork")) as pool:
        outcomes = {pool.submit(outcome_of, name, seed): name for name in names}
        for number, outcome in enumerate(as_completed(outcomes), 1):
            name = outcomes[outcome]
            how, text = outcome.result()
            ended[how].append(name)
            print(f"[{number}/{len(names)}] {name}: {SURROUNDINGS[name].what}\n{text}", flush=True)
    no_processor = set(processors.KINDS) <= {*ended["skipped"]} and FAULTS in cpuinfo_flags()
    if no_processor:
        print(f"all kinds of processor were skipped, though this one has {FAULTS}")
    seconds = time.monotonic() - started
    counted = [f"{len(ended['passed'])} of {len(names)} surroundings passed in {seconds:.0f} s"]
    for how in ("failed", "skipped"):
        if ended[how]:
            in_order = [name for name in names if name in ended[how]]
            counted.append(f"{len(in_order)} {how} ({', '.join(in_order)})")
    print("; ".join(counted))
    return int(bool(ended["failed"]) or no_processor)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.elsewhere", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"surroundings: {', '.join(SURROUNDINGS)} (default: all)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the tests that draw random numbers (default: 1)")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(SURROUNDINGS)):
        parser.error(f"no surrounding {', '.join(unknown)}: choose from {', '.join(SURROUNDINGS)}")
    return run_all(arguments.names or list(SURROUNDINGS), arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
