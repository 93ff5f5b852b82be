"""Steps of the user's own: named, imported and called in the worker, recorded and judged like networks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import lstm_trt as lab
from lstm_judge.read.labels import record_command
from lstm_trt.cli import common, workloads
from lstm_trt.cli.main import main, parse
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.step import Step
from lstm_trt.machine import gpu
from lstm_trt.recorder import child, jobs
from lstm_trt.recorder.describe import availability, describe
from lstm_trt.recorder.preparers.step import UserStep, code_version, find_module, prepare
from lstm_trt.recorder.sweep import run_sweep
from lstm_trt.runtimes.base import Request
from lstm_trt.store import folders
from tests.conftest import ROOT
from tests.support import own_steps
from tests.support.packages import PACKAGES
from tests.support.pictures import text_of

MODULE = "tests.support.own_steps"
NUMPY, PIPELINE = Step(f"{MODULE}:make_numpy"), Step(f"{MODULE}:Pipeline")
SHORT = Protocol(trials=60, warmup=5)

#: Function -> stage and reason of its failure.
FAILING = {
    "absent": ("build", "AttributeError: module 'tests.support.own_steps' has no attribute 'absent'"),
    "raises_at_once": ("build", "ValueError: no such accelerator"),
    "needs_an_argument": ("build", "missing 1 required positional argument: 'name'"),
    "returns_nothing": ("build", "returns None, not a callable or an object with a method `step`"),
    "returns_a_coroutine": ("build", "returns a coroutine"),
    "FactsAreWrong": ("build", "RuntimeError: no facts"),
    "raises_later": ("run", "StopIteration"),
    "leaves": ("build", "the licence has ended"),
}


# Names and versions


@pytest.mark.parametrize("name", ["make", "a.py", ":f", "a:", "a b:f", "a:b.c", "a::f", "/tmp/a.py:f", 7, None])
def test_other_names_are_refused(name):
    with pytest.raises(UsageError):
        Step(name)


def test_a_step_is_its_name_and_has_no_sizes():
    configuration = describe(NUMPY, protocol=SHORT)
    assert (configuration.name, configuration.runtime, configuration.mode) == (NUMPY.function, "python", "forward")
    assert set(NUMPY.axes.values()) == {None} and lab.Step(NUMPY.function) == NUMPY
    assert Configuration.from_dict(configuration.as_dict()) == configuration == describe(NUMPY, "python", SHORT)
    assert describe(NUMPY, options=Options("bf16")).options.precision == "bf16"


def test_changed_code_is_another_configuration(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module, step = tmp_path / "own_changing.py", Step("own_changing:make")
    module.write_text("def make():\n    return int\n")
    first = describe(step)
    module.write_text("def make():\n    return str\n")
    second = describe(step)
    assert first.runtime_version.startswith("source ") and first.id != second.id
    module.write_text("def make():\n    return int\n")
    assert describe(step) == first
    # An installed distribution that has this very file states the version; one of the same name elsewhere does not.
    information = tmp_path / "own_changing-2.5.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-changing\nVersion: 2.5\n")
    (information / "top_level.txt").write_text("own_changing\n")
    (information / "RECORD").write_text("elsewhere/own_changing.py,,\n")
    assert code_version("own_changing") == first.runtime_version
    (information / "RECORD").write_text("own_changing.py,,\n")
    assert code_version("own_changing") == "2.5"


def test_neither_the_module_nor_its_packages_are_imported_here(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_package" / "inner"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py", package / "module.py"):
        path.write_text("raise SystemExit('imported')\n")
    assert find_module("own_package.inner.module").origin == str(package / "module.py")
    assert code_version("own_package.inner.module") == code_version("own_package.inner")  # the files are equal
    assert code_version("time")
    assert not [name for name in sys.modules if name.startswith("own_package")]
    for name in ("own_package.other", "own_package.inner.module.deeper", "own_absent", "own_absent.inner", "__main__"):
        with pytest.raises(UsageError, match="there is no module"):
            describe(Step(f"{name}:make"))


def test_a_gpu_is_needed_for_cuda(monkeypatch):
    def none(place=0):
        raise gpu.NoCudaDevice("no GPU driver", False)

    monkeypatch.setattr(gpu, "cuda_device", none)
    availability.cache_clear()
    with pytest.raises(RuntimeUnavailable):
        describe(NUMPY, options=Options(device="cuda"))
    availability.cache_clear()


# What the function returns


def test_methods_that_the_object_lacks_do_nothing():
    step = UserStep("f", lambda: 1)
    step.reset()
    step.close()
    assert step.facts() == {"step": {}} and step.step() == 1
    pipeline = own_steps.Pipeline()
    step = UserStep("f", pipeline)
    assert step.step == pipeline.step  # no frame in between
    step.step()
    step.load_inputs({})
    assert pipeline.calls == 1 and not step.outputs()["alarm"]
    step.reset()
    assert (pipeline.calls, pipeline.resets) == (0, 1)
    facts = step.facts()["step"]
    assert facts["nan"] == "NaN" and facts["array"] == "[0 1]" and json.dumps(facts, allow_nan=False)


# Recorded in real workers


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A function in a closed loop and an object with a period in one folder, with control runs."""
    folder = tmp_path_factory.mktemp("steps")
    periodic = Protocol(trials=60, warmup=5, arrival="periodic", period_us=2000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTS_OWN_STEPS_PARENT", str(os.getpid()))
        configurations = [describe(NUMPY, protocol=SHORT), describe(PIPELINE, protocol=periodic)]
        report = run_sweep(configurations, folder, control=True, show_progress=False)
    assert (report.recorded, report.failures) == (2, [])
    assert report.as_dict()["control_s"] == report.seconds.control > 0 and "control runs" in str(report).splitlines()[1]
    return folder


def test_it_is_called_in_the_pinned_worker_and_reset_before_the_trials(recorded):
    pipeline, function = sorted(folders.read_many(recorded), key=lambda item: item.configuration.name)
    for item in (function, pipeline):
        assert len(item.timed_ns) == 60 and item.control is not None
        parity = item.provenance["parity"]
        assert item.provenance["floor_ns"] is parity["error"] is parity["nan_reaches_output"] is None
    facts = pipeline.provenance["runtime"]["step"]
    assert facts["calls"] == len(pipeline.columns["trial"]) and facts["resets"] >= 1 and not facts["in_parent"]
    assert facts["cores"] == list(pipeline.configuration.options.cores) and pipeline.provenance["pilot"]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("summarize {}", 0),
        ("verdict {} --deadline-us 1e9", 3),  # too few trials for p99.9, and no pause is so long
        ("outliers {}", 0),
        ("compare {0} {0}", 3),  # one process per side
    ],
)
def test_the_commands_take_steps(recorded, typed, command, status):
    text = typed(command, recorded, status=status)
    assert "own_steps:make_numpy" in text and "own_steps:Pipeline" in text
    assert ("not checked" in text) == (command == "summarize {}")


def test_the_command_that_records_a_step(recorded):
    """Its arguments give the same configuration."""
    for item in folders.read_many(recorded):
        line = shlex.split(record_command(item.configuration, "a folder"))
        assert line[:4] == ["lstm-trt", "record", "--step", item.configuration.name] and line[-1] == "a folder"
        arguments = parse(line[1:])
        again = describe(
            workloads.one_workload(arguments),
            arguments.runtime,
            common.protocol_of(arguments),
            common.options_of(arguments),
            arguments.mode,
        )
        assert again.id == item.configuration.id


@pytest.mark.heavy
def test_a_sweep_of_modules_in_the_current_folder_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    source = "def a():\n    return int\n\n\ndef b():\n    return float\n"
    words = ["sweep", "--step", "own_local:a", "own_local:b", "--trials", "30", "--out", "out", "--quiet"]
    for code, said in ((source, "2 recorded"), (source, "2 already recorded"), (f"{source}# changed\n", "2 recorded")):
        (tmp_path / "own_local.py").write_text(code)
        assert main(words) == 0 and said in capsys.readouterr().out
    assert len(lab.load("out")) == 4  # changed code is not pooled with the old
    assert "own_local" not in sys.modules


#: Modules that the packages, a runtime or the standard library has, some of which are imported after the step.
NOT_OURS = (
    *PACKAGES,
    *("numpy", "psutil", "pyarrow", "scipy", "pynvml", "json", "random", "onnx", "onnxruntime", "torch"),
)

OWN_FOLDER = {
    "own_step.py": "import own_helper, pytest\n\n\ndef make():\n    return own_helper.later\n",
    "own_helper.py": "def later():\n    import own_later\n",
    "own_later.py": "",
    "pytest.py": "",  # installed, but the file in the folder comes first
}


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A working folder with a step, what it imports, and files with the names of other modules, which leave a mark."""
    for name in NOT_OURS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w')\nraise SystemExit('planted')\n")
    for name, text in OWN_FOLDER.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


@pytest.mark.heavy
@pytest.mark.parametrize(
    "workload", ["--step own_step:make", "--layers 1 --hidden 8 --sequence 4 --runtime onnxruntime"]
)
def test_files_of_the_working_folder_take_the_place_of_no_other_module(own_folder, workload):
    record = f"-m lstm_trt record {workload} --trials 20 --out".split()
    for options, out in ((["-P"], "out"), ([], "again")):
        command = [sys.executable, *options, *record, out]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        assert [name for name in NOT_OURS if (own_folder / name).exists()] == []
        (own_folder / "lstm_trt.py").unlink(missing_ok=True)  # python -m itself imports it


def test_the_module_of_a_step_is_the_one_whose_version_is_stored(own_folder, monkeypatch):
    assert find_module("own_step").origin == str(own_folder / "own_step.py")
    assert find_module("pytest").origin == str(own_folder / "pytest.py")  # before the installed package
    assert find_module("json").origin == json.__file__ and find_module("tests").origin  # not before others
    request = Request(Step("numpy:zeros"), Options(), {})
    with pytest.raises(BuildFailed, match=re.escape(f"{own_folder / 'numpy.py'} cannot be imported beside")):
        prepare(request)
    assert [name for name in NOT_OURS if (own_folder / name).exists()] == []


@pytest.mark.heavy
def test_the_legend_of_a_figure_does_not_repeat_the_step(recorded):
    """Each block is named by its step."""
    assert text_of(lab.plots.runtimes(recorded)).count("own_steps:make_numpy") == 1


@pytest.mark.heavy
def test_what_fails_in_the_worker_is_a_row_with_its_reason(tmp_path):
    steps = [Step(f"{MODULE}:{name}") for name in FAILING]
    report = lab.sweep([*steps, NUMPY], protocol=Protocol(trials=1000), out=tmp_path, show_progress=False)
    assert report.recorded == 1 and len(report.failures) == len(FAILING)
    for failure in report.failures:
        stage, reason = FAILING[failure.configuration.workload.function.partition(":")[2]]
        assert failure.stage == stage and reason in failure.reason, failure
        assert "\n" not in failure.reason and not re.match(r"\w+(Error|Exception|Iteration)\b", failure.reason)


@pytest.mark.parametrize("kind", [jobs.ReferenceJob, jobs.RecordJob, jobs.DescribeJob])
@pytest.mark.parametrize("planted", [ValueError("zip() argument 2 is longer\nthan argument 1"), KeyError(), OSError(5)])
def test_the_text_of_an_unexpected_error_follows_what_failed_and_where(kind, planted):
    def work():
        raise planted

    try:
        work()
    except Exception as error:
        told = child.failure(error, kind)
    line = work.__code__.co_firstlineno + 1
    what = f"{kind.doing} failed unexpectedly in test_step.py, line {line}: {type(planted).__name__}"
    assert told.reason.startswith(what) and "\n" not in told.reason
    assert "in work" in told.detail and told.spent


@pytest.mark.heavy
def test_a_soak_takes_steps(tmp_path):
    done = lab.soak(PIPELINE, 1.0, protocol=Protocol(arrival="periodic", period_us=1000.0), out=tmp_path)
    (whole,) = folders.read_many(tmp_path)
    assert done.trials == len(whole.timed_ns) > 0 and done.control["calls"]
    assert whole.provenance["runtime"]["step"]["calls"] == len(whole.columns["trial"])


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_binding_of_a_c_function(tmp_path, monkeypatch):
    source, library = tmp_path / "energy.c", tmp_path / "energy.so"
    source.write_text("double energy(double *x, long n) { double s = 0; while (n--) s += x[n] * x[n]; return s; }")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("TESTS_OWN_STEPS_LIBRARY", str(library))
    recording = lab.record(Step(f"{MODULE}:make_c"), protocol=SHORT, out=tmp_path / "out")
    assert len(recording.timed_ns) == 60 and lab.verdict(recording, 1e6)[0].n == 60
