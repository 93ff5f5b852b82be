"""Keras on JAX and PyTorch: `keras_checks` in a process for each, since a process can have one backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lstm_literature import implementations
from tests.conftest import sampled
from tests.support.framework_checks import refused_by

NAMES = ("keras-jax", "keras-torch")


# JAX compiles each workload for inference, for training and for its gradients: half a minute. One backend a run.
@sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_with_pytorch(name):
    state = implementations.load_implementation(name).availability()
    if not state.ready:
        pytest.skip(f"needs the extra frameworks: {state.reason}")
    checks = Path(__file__).with_name("keras_checks.py")
    command = [sys.executable, "-m", "pytest", str(checks), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, env=os.environ | {"CHECKED": name}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_what_is_supported():
    refused = refused_by(NAMES)
    assert refused == {(name, f"speech-ctc-{kind}", "training") for name in NAMES for kind in ("long", "linspace")}


def test_availability_imports_nothing_and_names_what_is_missing(monkeypatch):
    script = "import sys; from lstm_literature import implementations as i\n"
    script += "for n in ('keras-jax', 'keras-torch'): i.load_implementation(n).availability()\n"
    script += "assert not {'keras', 'jax', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=900)
    for name in NAMES:
        implementation = implementations.load_implementation(name)
        missing = implementation.backend
        monkeypatch.setattr(
            "lstm_literature.implementations.find_spec",
            lambda package, missing=missing: None if package == missing else object(),
        )
        state = implementation.availability()
        assert not state.ready and missing in state.reason and "frameworks" in state.remedy
