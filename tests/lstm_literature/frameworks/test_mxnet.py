"""MXNet compared with PyTorch's `nn.LSTM`, and recorded, in the environment that is made for it at its first use."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from lstm_judge.environments import EnvironmentBroken
from lstm_literature import implementations
from lstm_literature.data import make_batch, weight_shapes
from lstm_literature.preparer import describe_benchmark, interpreters
from lstm_literature.workloads import WORKLOADS
from lstm_trt.config.errors import UsageError
from lstm_trt.store import folders
from tests.conftest import ROOT, sampled
from tests.support.framework_checks import (
    FORWARD,
    STEPS,
    TRAINING,
    apart,
    assert_gradients_agree,
    given,
    reference_outputs,
    trained,
)

NAME = "mxnet-one-call"
IMPLEMENTATION = implementations.load_implementation(NAME)

pytestmark = pytest.mark.heavy  # makes an environment

_STATE = IMPLEMENTATION.availability()
if not _STATE.ready:
    pytest.skip(_STATE.reason, allow_module_level=True)

SUPPORTED = {name: workload for name, workload in TRAINING.items() if not IMPLEMENTATION.supports(workload, "training")}

#: Reads workloads as JSON and writes outputs, gradients and losses; the seeds are those of `framework_checks.given`.
_RUN = f"""
sys.path.insert(0, {str(ROOT)!r})
import json
import numpy as np
from lstm_trt.config.configuration import Options
from lstm_literature import implementations
from lstm_literature.data import make_batch, make_weights
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.runtimes.base import Request
from tests.support.gradients import gradients_of
found = {{}}
for name, mode, plain in json.load(sys.stdin):
    workload = LiteratureWorkload.from_dict(plain)
    inputs, weights = make_batch(workload, 12).by_name(), make_weights(workload, 11)
    implementation = implementations.load_implementation("{NAME}")
    task = implementation.prepare(Request(workload, Options(), inputs, weights, mode=mode))
    if mode == "forward":
        for seed in (12, 99):
            task.load_inputs(make_batch(workload, seed).by_name())
            task.step()
            found[f"{{name}} outputs {{seed}}"] = task.outputs()["outputs"]
    else:
        found |= {{f"{{name}} gradient {{key}}": value for key, value in gradients_of(task).items()}}
        losses = []
        for _ in range({STEPS}):
            task.step()
            losses.append(task.loss())
        found[f"{{name}} losses"] = np.array(losses)
        found |= {{f"{{name}} weight {{key}}": value.asnumpy() for key, value in task._held.items()}}
    found[f"{{name}} {{mode}} facts"] = json.dumps(task.facts())
    task.close()
found["modules"] = [name for name in ("torch", "onnx", "tensorflow") if sys.modules.get(name)]
np.savez(sys.argv[1], **found)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What MXNet computes, by name; skips where its environment cannot be made."""
    try:
        (interpreter,) = interpreters([describe_benchmark("layer", NAME)], print).values()
    except EnvironmentBroken:
        raise
    except UsageError as error:
        pytest.skip(str(error))
    asked = [(name, "forward", workload.as_dict()) for name, workload in FORWARD.items()]
    asked += [(name, "training", workload.as_dict()) for name, workload in SUPPORTED.items()]
    path = tmp_path_factory.mktemp("mxnet") / "found.npz"
    done = subprocess.run(
        [*interpreter.command(_RUN), str(path)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**interpreter.environment(), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return np.load(path)


@sampled(2)
@pytest.mark.parametrize("name", FORWARD)
def test_outputs_agree_with_pytorch(found, name):
    workload = FORWARD[name]
    for seed, batch in ((12, None), (99, make_batch(workload, 99))):
        outputs = found[f"{name} outputs {seed}"]
        assert outputs.shape == workload.output_shape and outputs.dtype == np.float32
        assert apart(outputs, reference_outputs(workload, batch=batch)) <= 1e-5


@pytest.mark.parametrize("name", SUPPORTED)
def test_training_agrees_with_pytorch(found, name):
    workload = SUPPORTED[name]
    losses, moves = trained(workload, False)
    assert list(found[f"{name} losses"]) == pytest.approx(losses, rel=1e-4)
    assert_gradients_agree({key: found[f"{name} gradient {key}"] for key in weight_shapes(workload)}, workload)
    weights, _ = given(workload)
    # These losses hardly depend on the embedding, so compare the weights too.
    for key in ("embedding.weight", "dense.weight"):
        if key in weights:
            assert apart(found[f"{name} weight {key}"] - weights[key], moves[key]) <= 1e-2, key


def test_its_environment_has_what_it_needs_and_no_other_framework_is_loaded(found):
    assert found["modules"].size == 0
    facts = json.loads(str(found["ptb-lm training facts"]))
    assert [f"{name}=={facts[name]}" for name in ("mxnet", "numpy")] == list(IMPLEMENTATION.ENVIRONMENT[:2])
    assert facts["threads"] == "1" and facts["bias_vectors"] == 2


def test_variable_lengths_are_refused():
    refused = {name for name, workload in WORKLOADS.items() if IMPLEMENTATION.supports(workload, workload.modes[0])}
    assert refused == {name for name, workload in WORKLOADS.items() if workload.loss == "ctc"}
    assert TRAINING.keys() - SUPPORTED.keys() == {"speech-ctc-long"} < refused


# Four recordings, each in a process of its own that loads a framework: 15 s.
def test_the_command_line_records_it_beside_others(found, lab, tmp_path):
    """In the environment that the fixture has made, next to an implementation of the current one."""
    modes = {"layer": "forward", "text-classifier": "training"}
    names = (NAME, "pytorch-one-call-eager")
    command = ("lstm-literature", "record", *modes, "--implementation", *names, "--scale", "1/8", "--batches", 5)
    done = lab(*command, "--out", tmp_path)
    assert done.returncode == 0 and "4 recorded, 0 failed" in done.stderr and "installing" not in done.stderr
    items = list(folders.read_many(tmp_path))
    for workload, mode in modes.items():
        recorded = {item.configuration.runtime: item for item in items if item.configuration.workload.name == workload}
        assert recorded.keys() == set(names)
        assert {item.configuration.mode for item in recorded.values()} == {mode}
        own, other = (recorded[name].provenance["versions"] for name in names)
        pins = [f"{name}=={own[name]}" for name in ("mxnet", "numpy", "pyarrow")]
        assert pins == list(IMPLEMENTATION.ENVIRONMENT) and other["numpy"] == np.__version__
        parity = recorded[NAME].provenance["parity"]
        assert parity["error"] <= parity["bound"]
        assert (recorded[NAME].provenance["losses"] is None) == (mode == "forward")
