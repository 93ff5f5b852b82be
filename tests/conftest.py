"""What the tests share: the seed, a cache of their own, a clock set by hand, a machine, recordings, commands."""

from __future__ import annotations

import gc
import io
import os
import secrets
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_literature.commands import main as literature_main
from lstm_trt.cli.main import main
from lstm_trt.config.libraries import turn_telemetry_off
from lstm_trt.machine.gpu import SHIM_VARIABLE
from lstm_trt.machine.linux import cpuinfo_flags
from lstm_trt.recorder.pool import WorkerPool
from lstm_trt.recorder.process import Process
from lstm_trt.runtimes import openvino
from lstm_trt.store import files
from lstm_trt.store.schema import Recording
from tests.support import failure_report, times

ROOT = Path(__file__).resolve().parent.parent

# Importing nbformat compiles a grammar of web addresses, which takes seconds and which notebooks do not need
# (see .githooks/strip_staged.py).
sys.modules.setdefault("rfc3987_syntax", None)

# Before a test imports a runtime: the processes of the tests send nothing either.
turn_telemetry_off()


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, help="seed of the tests that draw random numbers (default: a new one)")
    parser.addoption("--seeds", type=int, default=1, help="repeat those tests under so many seeds, from --seed on")
    parser.addoption("--all", action="store_true", help="run also the cases that have their turn under other seeds")
    parser.addoption("--must-pass", action="store_true", help="fail unless a test passed, as where a GPU is expected")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if session.config.option.must_pass and not (reporter and reporter.stats.get("passed")):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config):
    if config.option.seed is None:
        config.option.seed = getattr(config, "workerinput", {}).get("seed") or secrets.randbits(32)
    times.register(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """The processes of pytest-xdist have the seed of the one that started them."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config):
    return f"seed: {config.option.seed}"


def pytest_make_parametrize_id(val):
    """Names bytes by their number: workers collect at different times, and gzip writes the time."""
    if isinstance(val, bytes):
        return f"{len(val)} bytes"
    return None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    """Repeats the tests that draw random numbers where several `--seeds` are asked for."""
    first, count = metafunc.config.option.seed, metafunc.config.option.seeds
    if count > 1 and "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(first, first + count), ids=SEED_ID.format)


#: The last part of a repeated test's id.
SEED_ID = "seed={}"


def own_id(nodeid: str, seed: int) -> str:
    """The id of a test without the seed that `--seeds` adds, nor the group that pytest-xdist adds."""
    name = nodeid.split("@")[0] if "[" not in nodeid else nodeid[: nodeid.rindex("]") + 1]
    repeated = SEED_ID.format(seed)
    return name.replace(f"[{repeated}]", "").replace(f"-{repeated}]", "]")


@pytest.fixture
def seed(pytestconfig) -> int:
    """The seed of this run; repeat a failure with `--seed`."""
    return pytestconfig.option.seed


@pytest.fixture
def rng(request, seed) -> np.random.Generator:
    """Random numbers that depend on the seed and on the test, in whatever order and how often the tests run."""
    return np.random.default_rng([seed, zlib.crc32(own_id(request.node.nodeid, seed).encode())])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        drawn = item.callspec.params if hasattr(item, "callspec") else {}
        seed = drawn.get("seed", item.config.option.seed)
        report.sections.append(("seed", f'repeat with "{own_id(item.nodeid, seed)}" --seed {seed}'))
    return report


def pytest_terminal_summary(terminalreporter, config):
    """Below failures, once: the machine, and what to send with a report."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.section("this machine")
        for line in failure_report.lines(config.option.seed):
            terminalreporter.write_line(line)


def pytest_collection_finish():
    """What was loaded to collect the tests stays: the collector need not look at it again.

    Recording and many tests collect garbage, each time over some million objects: a fifth of the suite's time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """One cache for the session, away from the user's, and timing locks that other processes do not hold."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("LSTM_TRT_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def warm_preparer(tmp_path_factory, own_cache):
    """One process for all references that are made from this process: loading PyTorch takes most of their time.

    A test that changes the environment or the module path gets one of its own, as users do.
    """
    logs, kept = tmp_path_factory.mktemp("preparer"), {}
    original = WorkerPool._reference_process

    def surroundings() -> tuple:
        by_itself = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")  # PyTorch sets the second when it compiles
        environment = {name: value for name, value in os.environ.items() if name not in by_itself}
        return environment, tuple(sys.path)

    def shared(pool: WorkerPool) -> Process:
        if surroundings() != kept["surroundings"] or pool._maker is not None:
            return original(pool)
        if "process" not in kept or not kept["process"].alive:
            kept["process"] = Process(None, logs, "reference")
        return kept["process"]

    kept["surroundings"] = surroundings()
    WorkerPool._reference_process = shared
    yield
    WorkerPool._reference_process = original
    if "process" in kept:
        kept["process"].close(0.0)


@pytest.fixture(scope="session", autouse=True)
def heeded_interrupts():
    """Ctrl-C reaches the processes that tests start, also where a script began the tests in the background.

    A shell without job control starts those with SIGINT ignored, and that is inherited.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def computes_bf16(runtime: str) -> bool:
    """Whether a runtime computes LSTMs in bf16 on this processor."""
    if runtime == "torch-compile":  # oneDNN's LSTM
        import torch

        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return runtime != "openvino" or bool(openvino.BFLOAT16_FLAGS & cpuinfo_flags())


def rest_is_heavy(cases: Iterable, quick: Callable[..., bool], one_in: int = 2) -> list:
    """Cases for `parametrize`, of which `make test` runs those that are `quick`, and the heavy part the others.

    Of these it runs one in `one_in`, chosen by the seed, so that all have their turn.
    """
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if quick(*values) else [pytest.mark.heavy, sampled(one_in)]))
    return marked


def sampled(one_in: int) -> pytest.MarkDecorator:
    """A mark for the cases of a test of which one in so many runs, chosen by the seed."""
    return pytest.mark.sampled(one_in)


def of_this_seed(items: list[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items that run under this seed, and the sampled ones that do not."""
    chosen, others, places = [], [], {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        one_in = mark.args[0] if mark else 1
        test = item.nodeid.partition("[")[0]
        # Each test begins elsewhere, so that all seeds run about as many.
        first = seed + zlib.crc32(test.encode())
        place = places.get((test, one_in), first)
        places[test, one_in] = place + 1
        (chosen if place % one_in == 0 else others).append(item)
    return chosen, others


def wait_for(condition, seconds: float = 120.0, process: subprocess.Popen | None = None) -> bool:
    """Whether `condition` came true within so many seconds, and before `process` ended; a busy machine needs many."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            return condition()  # once more: it may have come true during a pause of this process
        time.sleep(0.02)
    return True


class ManualClock:
    """Stands in for the clocks that the recorder reads, so that a test doesn't depend on the machine's speed.

    Time passes when the clock is read (`READ_NS`), slept by (the sleep and `WAKE_NS`, since no system wakes
    on time) and advanced.
    """

    READ_NS = 1_000
    WAKE_NS = 60_000

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000

    def read_ns(self, *clock: int) -> int:
        self.now_ns += self.READ_NS
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(1e9 * seconds) + self.WAKE_NS

    def replace_clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "perf_counter_ns", self.read_ns)
        monkeypatch.setattr(time, "perf_counter", lambda: self.read_ns() / 1e9)
        monkeypatch.setattr(time, "clock_gettime_ns", self.read_ns)
        monkeypatch.setattr(time, "sleep", self.sleep)


@pytest.fixture
def manual_clock(monkeypatch) -> ManualClock:
    """The recorder's clocks, replaced by a `ManualClock` for the whole test."""
    clock = ManualClock()
    clock.replace_clocks(monkeypatch)
    return clock


#: Program -> its module and its function; a command line without one is of `lstm-trt`.
PROGRAMS = {"lstm-trt": ("lstm_trt", main), "lstm-literature": ("lstm_literature", literature_main)}


def run_here(arguments: list[str], cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run `lstm-trt ...`, or another of `PROGRAMS` if that is the first argument, in this process."""
    run = main
    if arguments and arguments[0] in PROGRAMS:
        (_, run), arguments = PROGRAMS[arguments[0]], arguments[1:]
    out, errors = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with chdir(cwd), redirect_stdout(out), redirect_stderr(errors):
        try:
            status = run(arguments)
        except SystemExit as ended:  # --help and --version
            status = ended.code or 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


@pytest.fixture
def lab(monkeypatch):
    """Run `lstm-trt ...`, or another of `PROGRAMS`; the result has returncode, stdout, stderr.

    It runs in this process, unless `process` asks for one of its own, where that is the point of the test.
    """

    def run(
        *arguments: object, process: bool = False, timeout: float = 900, cwd: Path = ROOT, **environment: str
    ) -> subprocess.CompletedProcess:
        given = list(map(str, arguments))
        if process:
            module = PROGRAMS[given.pop(0)][0] if given and given[0] in PROGRAMS else "lstm_trt"
            own = {**os.environ, **environment}
            return ran(sys.executable, "-m", module, *given, status=None, timeout=timeout, cwd=cwd, env=own)
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return run_here(given, cwd)

    return run


def ran(*command: object, status: int | None = 0, **how: Any) -> subprocess.CompletedProcess:
    """A process in the root of the checkout, with its output as text; it must end with `status` (None: with any)."""
    done = subprocess.run([str(word) for word in command], **{"cwd": ROOT, "capture_output": True, "text": True, **how})
    assert status in (None, done.returncode), done
    return done


class Machine:
    """What a test plants of the machine until it ends: a compiler, packages that are not installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def compiler(self, command: str = "no-such-compiler") -> None:
        """The only C compiler."""
        self.monkeypatch.setenv("CC", command)

    def without(self, *packages: str) -> None:
        """These packages are not installed."""
        for name in packages:
            self.monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def stored(tmp_path):
    """Write recordings into a folder of the test, which is made: as given, or planted ones of these hidden sizes."""
    from tests.lstm_trt.store.test_store import planted

    def write(*recordings: Recording | int, into: str | Path = "") -> Path:
        folder = files.make_folder(tmp_path / into)
        for each in recordings:
            files.write(planted(each) if isinstance(each, int) else each, folder)
        return folder

    return write


@pytest.fixture
def run(lab):
    """Run a command: (exit status, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        result = lab(*arguments)
        return result.returncode, result.stdout, result.stderr

    return call


@pytest.fixture
def refused(lab):
    """Run a command that must be refused: exit 2, one line on standard error, nothing on standard output."""

    def run(*arguments: object, **options: object) -> str:
        result = lab(*arguments, **options)
        assert result.returncode == 2, result
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith(f"{next((name for name in PROGRAMS if name in arguments[:1]), 'lstm-trt')}: ")
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
        return result.stderr

    return run


#: What fails at once comes first; then the files that take longest, so that the processes that share the files end
#: together; then the others. A file stays on one process, since its tests share recordings and pages.
QUICK = ("config", "store")
LONGEST = (
    "lstm_trt/recorder/test_telemetry",
    "lstm_onnx/c/test_file",
    "lstm_onnx/c/test_functions",
    "lstm_literature/frameworks/test_jax_pytensor",
    "lstm_literature/frameworks/test_tensorflow",
    "lstm_literature/frameworks/test_keras",
    "test_notebooks",
    "lstm_trt/test_shim",
    "hook/test_hook",
    "lstm_trt/recorder/test_sweep",
    "lstm_literature/test_preparer",
    "lstm_judge/plots/test_plots",
    "lstm_judge/plots/test_pictures",
    "lstm_trt/recorder/test_soak",
    "lstm_trt/export/test_engine",
    "lstm_trt/recorder/test_run",
    "lstm_judge/plots/test_pages",
    "lstm_trt/recorder/test_arrivals",
    "test_readme",
    "lstm_judge/cli/test_tails",
    "lstm_judge/test_rerun",
    "lstm_literature/test_commands",
    "lstm_trt/recorder/test_other_kind",
    "lstm_trt/machine/test_roofline",
)

#: Files of which the tests are dealt one by one: they share little, and other processes would wait for the whole file.
SPLIT = (
    "lstm_trt/test_shim",
    "test_mutants",
    "test_benchmarks",
    "test_gpu_session",
    "test_notebooks",
    "test_readme",
    "lstm_judge/plots/test_make_figures",
    "lstm_judge/report/test_browser",
)


def name_of(path: Path) -> str:
    """A file of tests as `LONGEST` and `SPLIT` name it."""
    return str(path.relative_to(ROOT / "tests").with_suffix(""))


def place(path: Path) -> int:
    """The place of a file of tests in the order in which they run."""
    name = name_of(path)
    return -1 if path.parent.name in QUICK else LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Deals files to the processes, and the tests of `SPLIT` one by one."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return nodeid if name_of(ROOT / file) in SPLIT else file

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items, config):
    """Order the files; tests of frameworks are marked; GPU tests skip where there is no GPU."""
    if not config.option.all:
        items[:], others = of_this_seed(items, config.option.seed)
        config.hook.pytest_deselected(items=others)
    items.sort(key=lambda item: place(item.path))
    for item in items:
        if item.path.parent.name == "frameworks":
            item.add_marker("frameworks")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    shim = os.environ.get(SHIM_VARIABLE)  # those run over it that tests/lstm_trt/test_shim.py names
    if marked and not shim and (reason := gpu_missing()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def torch_on_gpu():
    """The module torch, where it sees the GPU; over the tests' stand-in for a driver it does not."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU here")
    return torch


def gpu_missing() -> str | None:
    """Why tests of a GPU cannot run here; None where they can."""
    if not any(Path("/dev").glob("nvidia*")) and not Path("/dev/dxg").exists():  # PyTorch takes seconds to load
        return "needs an NVIDIA GPU"
    try:
        import torch
    except ImportError:
        return "needs PyTorch"
    return None if torch.cuda.is_available() else "needs an NVIDIA GPU with a CUDA build of PyTorch"
