"""Versions of a library beside each other: real environments, made by pip, and real recordings in them."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lstm_judge import environments, versions
from lstm_judge.compare.answer import Question
from lstm_judge.compare.compare import compare_groups
from lstm_judge.compare.pairing import recorded_first
from lstm_judge.environments import EnvironmentBroken, _needs, _reason, same_version
from lstm_judge.read.labels import versions_command
from lstm_judge.read.rounds import groups_of
from lstm_literature.workloads import WORKLOADS
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import LabError, UsageError
from lstm_trt.config.format import microseconds
from lstm_trt.config.shape import LstmShape
from lstm_trt.machine.process import Interpreter
from lstm_trt.store import folders
from tests.conftest import ROOT

LIBRARY, OLD = "onnxruntime", "1.20.1"
SHAPE, LAYER = LstmShape(2, 8, 4, 1), WORKLOADS["layer"]
SIZES = ("--layers", 2, "--hidden", 8, "--sequence", 4)
ASKED = {"workload": SHAPE.as_dict(), "runtime": LIBRARY, "protocol": {"trials": 50}, "options": {}}


@pytest.fixture(scope="module")
def here() -> str:
    """The version that is installed here; skips where pip cannot get both it and `OLD`."""
    version = importlib.metadata.version(LIBRARY)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0"]
    for asked in (OLD, version):
        with_folder = [*command, "--dest", os.environ["XDG_CACHE_HOME"] + "/wheels", f"{LIBRARY}=={asked}"]
        if subprocess.run(with_folder, capture_output=True, stdin=subprocess.DEVNULL).returncode:
            pytest.skip(f"needs pip and an index that has {LIBRARY} {asked} for this Python")
    assert version != OLD
    return version


@pytest.fixture(scope="module")
def recorded(here, tmp_path_factory):
    """Two versions in five rounds by the command line: the folder, and the answer as JSON."""
    folder = tmp_path_factory.mktemp("versions")
    before = files_of(LIBRARY)
    command = ["versions", LIBRARY, OLD, here, *SIZES, "--trials", 60, "--format", "json", "--out", folder]
    result = subprocess.run(
        [sys.executable, "-m", "lstm_trt", *map(str, command)], capture_output=True, text=True, cwd=ROOT, timeout=900
    )
    assert result.returncode == 0, result.stderr
    assert files_of(LIBRARY) == before  # what is installed here is what it was
    return folder, json.loads(result.stdout)


def files_of(distribution: str) -> dict[str, tuple[int, int]]:
    paths = [Path(str(file.locate())) for file in importlib.metadata.distribution(distribution).files]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.suffix != ".pyc"}


def test_versions_of_a_network_of_ones_own_are_those_of_what_reads_it():
    network = OnnxNetwork(ROOT / "data/networks/streaming_gru.onnx", sizes={"time": 16})
    assert versions.runtime_of("onnxruntime", network).NAME == "onnxruntime"
    with pytest.raises(UsageError, match=r"no runtime uses the library torch: choose from .*onnxruntime"):
        versions.runtime_of("torch", network)


@pytest.mark.heavy
def test_each_version_is_recorded_under_itself_and_in_turns(recorded, here):
    folder, answer = recorded
    recordings = list(folders.read_many(folder))
    assert {(one.configuration.runtime_version, one.round) for one in recordings} == {
        (version, number) for version in (OLD, here) for number in range(5)
    }
    assert len(recordings) == 10 and len({one.configuration.id for one in recordings}) == 2
    for one in recordings:
        assert one.provenance["versions"][LIBRARY] == one.configuration.runtime_version
        assert one.provenance["versions"]["numpy"] == importlib.metadata.version("numpy")
        assert one.provenance["parity"]["error"] <= one.provenance["parity"]["bound"]
        assert len(one.timed_ns) == 60
    started = sorted((one.provenance["started_unix_ns"], one.round) for one in recordings)
    assert [number for _, number in started] == [number for number in range(5) for _ in range(2)]
    assert [side["version"] for side in answer["versions"]] == [OLD, here]
    assert all(side["environment"]["packages"][LIBRARY] == side["version"] for side in answer["versions"])
    assert all((side["rounds"], side["n"], side["failure"]) == (5, 300, None) for side in answer["versions"])


@pytest.mark.heavy
def test_the_answer_is_what_compare_says_of_the_recordings(recorded, here):
    folder, answer = recorded
    (told,) = answer["comparisons"]
    groups = {group.configuration.runtime_version: group for group in groups_of(folders.read_many(folder))}
    again = json.loads(json.dumps(compare_groups(groups[OLD], groups[here], Question()).as_dict()))
    assert (told["a"].pop("version"), told["b"].pop("version")) == (OLD, here)
    command = told["command"]
    assert {**told, **again, "command": command} == told
    assert not command or command.startswith(f"lstm-trt versions {LIBRARY} {OLD} {here} --layers 2 --hidden 8")
    ratio = told["median"]["ratio"]
    assert ratio["low"] <= ratio["estimate"] <= ratio["high"]
    medians = {side["version"]: side["median_us"] for side in answer["versions"]}
    assert medians[here] in told["median"]["b_us"] and medians[OLD] in told["median"]["a_us"]


@pytest.mark.heavy
def test_what_is_there_is_used_again_and_a_path_of_ones_own_does_not_hide_it(recorded, here, lab, tmp_path):
    folder, _ = recorded
    (tmp_path / f"{LIBRARY}.py").write_text("__version__ = '0.0.1'\n")  # on the path before any installed package
    command = ("versions", LIBRARY, OLD, here, *SIZES, "--trials", 60, "--rounds", 6, "--out", folder)
    result = lab(*command, "--format", "csv", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "installing" not in result.stderr
    assert "2 recorded, 0 failed, 10 already recorded, of 12" in result.stderr
    old, new = csv.DictReader(io.StringIO(result.stdout))
    assert (old["version"], old["rounds"], old["against"], old["median"]) == (OLD, "6", "", "")
    assert (new["version"], new["rounds"], new["against"]) == (here, "6", OLD)
    words = lab(*command).stdout
    sides = f"B ({LIBRARY} {here}) compared with A ({LIBRARY} {OLD})"
    assert f"median {new['median']}, tail {new['tail']}: {sides}" in words
    for text in (f"  {float(new['median_ratio']):.3f}\n", f"{float(new['median_ratio_low']):.4g} and "):
        assert text in words
    for row in (old, new):  # the summary
        assert re.search(rf"{LIBRARY} {row['version']} +6 +360 +{microseconds(float(row['max_us']))} ", words)


@pytest.mark.heavy
def test_a_version_that_was_added_later_was_not_recorded_in_turns(recorded, here, lab, tmp_path):
    later = "1.21.0" if here != "1.21.0" else "1.22.0"
    more = ("--rounds", 2, "--trials", 20, *SIZES, "--format", "json", "--out", tmp_path)
    for versions_asked, not_in_turns in (((OLD, here), []), ((OLD, here, later), [later])):
        result = lab("versions", LIBRARY, *versions_asked, *more)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["not_in_turns"] == not_in_turns
    assert f"warning: {later} and {OLD} " in result.stderr


@pytest.mark.heavy
def test_a_workload_of_the_literature_has_the_batches_of_its_document(recorded, here, lab, tmp_path):
    asked = ("--workload", "layer", "--scale", "1/8", "--rounds", 2, "--format", "json", "--out", tmp_path)
    result = lab("lstm-literature", "versions", LIBRARY, OLD, here, *asked)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["workload"]["name"], answer["workload"]["scale"], answer["mode"]) == ("layer", "1/8", "forward")
    assert (answer["runtime"], answer["protocol"]["warmup"]) == (LIBRARY, LAYER.warmup)
    assert [(side["version"], side["n"]) for side in answer["versions"]] == [
        (version, 2 * LAYER.batches) for version in (OLD, here)
    ]
    command = answer["comparisons"][0]["command"]
    assert command is None or "--workload layer --scale 1/8" in command


@pytest.mark.heavy
def test_an_environment_that_loads_another_version_is_found_out_and_made_anew(recorded, here):
    place = environments.environment(LIBRARY, OLD, print)
    assert place.reused and environments.describe_there(place, ASKED).runtime_version == OLD
    package = Path(place.interpreter.first[0]) / LIBRARY
    start = package / "__init__.py"
    text = start.read_text()
    for content, found in (
        (text.replace(OLD, "1.20.9"), r"1\.20\.1 loads 1\.20\.9"),
        ("raise ImportError('no such symbol: /home/someone/lib/a.so')\n", r"ImportError: no such symbol: a\.so"),
    ):
        start.write_text(content)
        with pytest.raises(EnvironmentBroken, match=found):
            environments.describe_there(place, ASKED)
    package.rename(package.with_name("elsewhere"))  # now the one here is found behind it
    with pytest.raises(EnvironmentBroken, match=f"loads {here} .installed: {OLD}. from outside"):
        environments.describe_there(place, ASKED)
    again, configuration = environments.described(LIBRARY, OLD, ASKED, lambda line: None)
    assert not again.reused and configuration.runtime_version == OLD
    assert start.read_text() == text


@pytest.mark.heavy
def test_an_unknown_version_is_one_line_without_an_address(here, refused, tmp_path):
    told = refused("versions", LIBRARY, OLD, "1.20.999", *SIZES, "--quiet", "--out", tmp_path)
    assert "onnxruntime 1.20.999" in told
    assert here in told or "latest" in told
    assert "://" not in told
    assert not list(environments.folder().glob("*1.20.999*"))


@pytest.mark.heavy
def test_ctrl_c_while_recording_stops_and_the_same_command_goes_on(recorded, here, tmp_path):
    command = [sys.executable, "-m", "lstm_trt", "versions", LIBRARY, OLD, here, *map(str, SIZES)]
    command += ["--trials", "2000", "--out", str(tmp_path)]
    process = subprocess.Popen([*command, "--rounds", "50"], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("*.parquet"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in errors
    assert "stopped; resume with:\n  lstm-trt versions onnxruntime 1.20.1" in errors
    done = {(one.configuration.id, one.round) for one in folders.read_many(tmp_path)}
    assert len(done) >= 3
    more = max(number for _, number in done) + 1
    again = subprocess.run([*command, "--rounds", str(more)], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert again.returncode == 0, again.stderr
    assert f"{len(done)} already recorded" in again.stderr
    assert len(list(folders.read_many(tmp_path))) == 2 * more


@pytest.mark.heavy
def test_ctrl_c_while_installing_leaves_nothing(tmp_path):
    here = importlib.metadata.version(LIBRARY)
    cache, out = tmp_path / "cache", tmp_path / "out"
    index = socket.create_server(("127.0.0.1", 0))  # never answers, so that pip is at work when Ctrl-C comes
    index.settimeout(300)
    planted = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    planted |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DEFAULT_TIMEOUT": "600", "NO_PROXY": "127.0.0.1"}
    planted |= {"PIP_INDEX_URL": "http://{}:{}/simple".format(*index.getsockname()), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "lstm_trt", "versions", LIBRARY, OLD, here, *map(str, SIZES), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=planted)
    with index, index.accept()[0]:
        assert list(cache.glob("lstm_trt/versions/*/pyvenv.cfg"))
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors.splitlines()[-1] == "lstm-trt: stopped"
    left = [path for path in cache.glob("lstm_trt/versions/*") if path.name != ".lock"]  # which stays, empty
    assert left == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(cache).encode() in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.heavy
def test_what_fails_under_every_version_is_told_and_compared_with_nothing(recorded, here, lab, tmp_path):
    limit = ("--time-limit", 0.001, "--rounds", 1)
    result = lab("versions", LIBRARY, OLD, here, *SIZES, *limit, "--out", tmp_path)
    assert result.returncode == 1
    assert f"{LIBRARY} {here}: not compared: {LIBRARY} {OLD}: failed at time: " in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("library", "asked", "more", "words"),
    [
        ("onnxruntime", ["1.20.1"], {}, "at least two"),
        ("onnxruntime", ["1.20.1", "1.20.1"], {}, "at least two"),
        ("onnxruntime", ["1.20.1", "latest"], {}, "not a version"),
        ("onnxruntime", ["1.20.1", "1.2 --pre"], {}, "not a version"),
        ("numpy", ["2.0", "2.1"], {}, "choose from onnxruntime, openvino, tensorrt"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"runtime": "pytorch"}, "torch, not onnxruntime"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"rounds": 0}, "rounds"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"effect": 1.5}, "effect"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"time_limit_s": 0}, "time limit"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"options": Options(precision="fp16")}, "fp16"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"workload": LAYER, "mode": "training"}, "training"),
        ("onnxruntime", ["1.20.1", "1.21.0"], {"workload": WORKLOADS["text-classifier"]}, "training is not supported"),
        ("openvino", ["2025.4", "2026.1"], {"workload": LAYER}, "choose from apache-tvm, .*tensorflow-cpu"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_installed(monkeypatch, tmp_path, library, asked, more, words):
    monkeypatch.setattr(versions, "described", lambda *given: pytest.fail("installed something"))
    with pytest.raises(LabError, match=words):
        versions.record_versions(library, asked, **{"workload": SHAPE, "out": tmp_path, **more})


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        ([1, 2], [3, 4], "A"),
        ([3, 4], [1, 2], "B"),
        ([1, 3], [2, 4], None),
        ([1], [3, 4], "A"),
        ([1, None], [3, 4], None),
    ],
)
def test_sides_that_were_recorded_one_after_the_other_took_no_turns(a, b, first):
    sides = [SimpleNamespace(rounds=[SimpleNamespace(started_unix_ns=at) for at in side]) for side in (a, b)]
    assert recorded_first(*sides) == first


def test_the_command_that_records_versions_has_what_was_asked_for():
    configuration = Configuration(SHAPE, LIBRARY, OLD, "a CPU", Options(threads=2), Protocol(trials=60))
    line = versions_command(LIBRARY, (OLD, "1.21.0"), configuration, "rounds", 7)
    assert line.startswith(f"lstm-trt versions {LIBRARY} {OLD} 1.21.0 --layers 2 --hidden 8 --sequence 4 --batch 1 ")
    assert "--trials 60" in line and "--threads 2" in line and line.endswith("--rounds 7 --out rounds")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("torch", SHAPE), "pytorch"),
        (("torch", SHAPE, "torchscript"), "torchscript"),
        (("tensorrt-rtx", SHAPE), "tensorrt-rtx"),
        (("torch", LAYER, "pytorch-fused-eager"), "pytorch-fused-eager"),
    ],
)
def test_a_library_has_the_runtime_that_is_named_first_or_asked_for(arguments, name):
    assert name == versions.runtime_of(*arguments).NAME


@pytest.mark.parametrize("library", ["tensorflow", "tensorflow-cpu"])
def test_two_libraries_have_the_runtimes_of_one_framework(library):
    assert versions.runtime_of(library, LAYER).FRAMEWORK == "TensorFlow"


@pytest.mark.parametrize(
    ("asked", "found", "same"),
    [
        ("1.20", "1.20.0", True),
        ("1.20.0", "1.20", True),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0", False),
        ("1.20.1", "1.20.10", False),
        ("1.20", None, False),
    ],
)
def test_versions_are_the_same_as_pip_sees_them(asked, found, same):
    assert same_version(asked, found) == same


def test_pip_s_reason_is_shortened():
    unknown = (
        "WARNING: Retrying after connection broken by https://index.example/simple/onnxruntime/\n"
        "ERROR: Could not find a version that satisfies the requirement onnxruntime==9 (from versions: 1.0, 1.1,"
        " 1.2.dev3, 1.3, 1.4, 1.5, 1.6)\nERROR: No matching distribution found for onnxruntime==9\n"
    )
    assert _reason(unknown, "onnxruntime").endswith(" 1.1, 1.3, 1.4, 1.5, 1.6")
    nothing = "ERROR: Could not find a version that satisfies the requirement onnxruntime==9 (from versions: none)\n"
    assert "no onnxruntime for this Python" in _reason(nothing, "onnxruntime")
    other = "ERROR: HTTP error 500 while getting https://index.example/a.whl for /home/someone/x.whl\n"
    assert _reason(other, "onnxruntime") == "HTTP error 500 while getting (address) for x.whl"
    assert _reason("", "onnxruntime")


def test_an_older_library_must_not_replace_what_this_package_needs():
    needs = list(_needs("onnxruntime==1.20"))
    for library in ("numpy", "torch"):  # of the package itself, and of the extra with which it records
        assert any(line.startswith(f"{library}>=") for line in needs), library
    assert not any(line.startswith("onnxruntime") or "extra" in line for line in needs)
    assert not any(line.startswith(("mxnet", "numpy")) for line in _needs("mxnet", "numpy==1.23.5"))


def test_a_child_has_the_modules_of_its_environment_before_those_here(tmp_path):
    own, behind = tmp_path / "own", tmp_path / "behind"
    for folder in (own, behind):
        folder.mkdir()
        (folder / "planted_module.py").write_text(f"value = {folder.name!r}\n")
    code = f"sys.path.append({str(behind)!r}); import planted_module, lstm_trt; print(planted_module.value)"
    for interpreter, value in ((Interpreter(), "behind"), (Interpreter(first=(str(own),)), "own")):
        done = subprocess.run(interpreter.command(code), capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout.strip() == value, done.stderr


def test_looking_for_pip_does_not_disable_setuptools(monkeypatch, tmp_path):
    """Under Python 3.11, `find_spec("pip")` did: torch.compile could then no longer import setuptools."""
    monkeypatch.setattr(environments, "run_command", lambda command, **how: subprocess.CompletedProcess(command, 1))
    with pytest.raises(UsageError, match="install venv"):
        environments._install(environments.Environment(LIBRARY, OLD, tmp_path), ())
    assert not [finder for finder in sys.meta_path if "spec_for_distutils" in getattr(finder, "__dict__", {})]


def test_the_cache_command_tells_of_environments_and_clears_them(tmp_path, lab):
    place = tmp_path / "lstm_trt" / "versions" / "onnxruntime-1.2-0"
    place.mkdir(parents=True)
    (place / "file").write_bytes(bytes(1000))
    told = json.loads(lab("cache", "--format", "json", XDG_CACHE_HOME=str(tmp_path)).stdout)
    assert told["environments"] == {"count": 1, "bytes": 1000} and told["kinds"] == {}
    assert "1 version environment, " in lab("cache", "--clear", XDG_CACHE_HOME=str(tmp_path)).stdout
    assert not place.exists()
