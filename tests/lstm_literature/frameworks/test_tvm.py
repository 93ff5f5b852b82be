"""The TVM implementations compared with PyTorch's `nn.LSTM`: outputs, gates, biases, costs, tuning, cache, times."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest

from lstm_literature import implementations
from lstm_literature.data import make_weights
from lstm_literature.implementations import on_tvm
from lstm_literature.workloads import VARIANTS, WORKLOADS
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable
from lstm_trt.config.format import duration, latency
from lstm_trt.store import cache
from tests.conftest import sampled
from tests.support.framework_checks import (
    apart,
    assert_costs,
    assert_outputs_agree,
    assert_time_grows_with_the_work,
    one_thread_for_the_reference,  # noqa: F401
    prepared,
    reference_outputs,
    with_two_threads,
)

UNTUNED = implementations.load_implementation("tvm-untuned")
#: As `tvm-tuned`, but with the fewest trials that include every operator.
TUNED = replace(implementations.load_implementation("tvm-tuned"), trials=8)

# If TVM is installed but cannot tune, these tests fail; they are not skipped.
needs_tvm = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="needs the extra frameworks: no TVM")

CELL = replace(WORKLOADS["cell"], batch=3, features=5, hidden=4)
LAYER = replace(WORKLOADS["layer"], batch=3, sequence=3, features=5, hidden=4)
STACK = replace(WORKLOADS["stack"], batch=2, sequence=4, features=5, hidden=4, layers=3)
#: Longer than one split and stack, with a rest.
LONG = replace(WORKLOADS["layer"], batch=2, sequence=2 * on_tvm.GROUP + 3, features=3, hidden=3)


@pytest.fixture(scope="module", autouse=True)
def tuning_cache(tmp_path_factory):
    """A cache for this module: later tests find what earlier ones tuned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@needs_tvm
@pytest.mark.parametrize("workload", (CELL, LAYER, STACK, LONG), ids=lambda workload: workload.label)
def test_outputs_agree_with_pytorch_also_for_another_batch(workload):
    assert_outputs_agree(UNTUNED, workload)


@sampled(2)
@needs_tvm
@pytest.mark.parametrize(
    "workload", (WORKLOADS["cell"], WORKLOADS["layer"], STACK), ids=lambda workload: workload.label
)
@pytest.mark.parametrize("implementation", (UNTUNED, TUNED), ids=lambda found: found.NAME)
def test_outputs_at_full_size_agree_with_pytorch(implementation, workload):
    step = prepared(implementation, workload)
    step.step()
    assert apart(step.outputs()["outputs"], reference_outputs(workload)) < 1e-5
    if implementation is TUNED:
        tuning = step.facts()["tuning"]
        assert tuning["trials_wanted"] == TUNED.trials <= tuning["trials"] + tuning["trials_failed"]


@needs_tvm
def test_costs_and_facts_of_the_untuned():
    step = prepared(UNTUNED, CELL)
    assert_costs(step, "schedule_s")
    facts = json.loads(json.dumps(step.facts()))
    assert facts["threads"] == 1 and facts["tuning"].startswith("none")
    # Two matrix products per cell, also in the first: a constant zero state would leave only one.
    assert sum("matmul" in name for name in facts["functions"]) == 2


@needs_tvm
def test_tuning_is_cached_by_content_and_the_costs_stay_those_of_the_search(monkeypatch):
    from lstm_literature.implementations import on_tvm_tuning

    searches, search = [], on_tvm_tuning._search
    monkeypatch.setattr(on_tvm_tuning, "_search", lambda *arguments: searches.append(arguments) or search(*arguments))
    workload = replace(CELL, batch=2, hidden=6, features=6)
    first = prepared(TUNED, workload)
    assert_costs(first, "schedule_s", "tuning_s")
    tuning = json.loads(json.dumps(first.facts()))["tuning"]
    assert not tuning["from_cache"]
    assert tuning["trials_wanted"] == TUNED.trials
    # The last round is completed.
    assert TUNED.trials <= tuning["trials"] + tuning["trials_failed"] < TUNED.trials + 8
    assert tuning["trials"] > TUNED.trials // 2 and tuning["tuning_s"] == first.costs["tuning_s"]
    second = prepared(TUNED, workload, weights=make_weights(workload, 2))  # other weights, the same operators
    assert len(searches) == 1
    assert second.facts()["tuning"] == tuning | {"from_cache": True}
    assert second.costs["tuning_s"] == first.costs["tuning_s"]
    for other, sizes in ((replace(TUNED, trials=4), workload), (TUNED, replace(workload, batch=5))):
        assert not prepared(other, sizes).facts()["tuning"]["from_cache"]
    assert len(searches) == 3
    assert [entry.kind for entry in cache.entries()].count("tvm-schedules") >= 3


@needs_tvm
def test_tuned_schedules_are_in_the_compiled_module(monkeypatch):
    """MetaSchedule marks the functions of a tuned module; those of an untuned module are not marked."""
    import tvm

    compiled, original = [], tvm.compile
    monkeypatch.setattr(
        tvm, "compile", lambda module, **options: compiled.append(module) or original(module, **options)
    )
    for implementation, marked in ((UNTUNED, False), (TUNED, True)):
        prepared(implementation, CELL)
        functions = [found for found in compiled.pop().functions.values() if isinstance(found, tvm.tirx.PrimFunc)]
        scheduled = [found for found in functions if found.attrs and "tirx.is_scheduled" in found.attrs]
        assert bool(scheduled) == marked, [found.attrs for found in functions]


@needs_tvm
def test_nothing_returns_before_its_work_is_done():
    assert_time_grows_with_the_work("tvm-untuned", "forward")


@needs_tvm
def test_another_number_of_threads_needs_a_new_process():
    assert with_two_threads("tvm-untuned", "threads", "tvm").startswith("BuildFailed TVM already runs with 2 threads")


@needs_tvm
def test_cells_are_inlined_and_equal_ones_share_their_functions():
    """The graph has one copy of the cell for each step and layer; the functions do not grow with their number."""
    import tvm
    from tvm import relax

    functions = []
    for workload in (STACK, replace(STACK, sequence=8, layers=4)):
        with on_tvm.target(Options(device="cpu")):
            module = on_tvm.schedule(on_tvm.unrolled(workload, make_weights(workload, 1)))
        (main,) = (function for function in module.functions.values() if isinstance(function, relax.Function))
        called = [
            str(binding.value.args[0].name_hint)
            for block in main.body.blocks
            for binding in block.bindings
            if isinstance(binding.value, relax.Call) and isinstance(binding.value.args[0], tvm.ir.GlobalVar)
        ]
        assert sum("matmul" in name for name in called) == 2 * workload.cells
        functions.append(len(module.functions))
    assert functions[0] == functions[1]


@needs_tvm
@pytest.mark.parametrize("arch", ("sm_80", "sm_90"))
def test_on_a_gpu_the_functions_are_scheduled_for_it(monkeypatch, arch):
    """For a planted GPU: TVM's pipeline for CUDA binds all functions to threads of the GPU; nothing is run."""
    import tvm
    from tvm import relax

    gpu = {"kind": "cuda", "arch": arch, "max_threads_per_block": 1024, "thread_warp_size": 32}
    found = tvm.target.Target(gpu | {"max_shared_memory_per_block": 49152})
    monkeypatch.setattr(tvm.target.Target, "from_device", lambda device: found)
    where = on_tvm.target(Options(device="cuda"))
    assert where.kind.name == "cuda" and where.arch == arch and where.host.kind.name == "llvm"
    with where:
        module = on_tvm.schedule(on_tvm.unrolled(LAYER, make_weights(LAYER, 1)))
        lowered = relax.get_default_pipeline(where)(module)
    functions = [function for function in lowered.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]
    assert functions and all("threadIdx.x" in function.script() for function in functions)


def test_what_is_supported():
    """What is refused would take longer than the limit, by the implementation's own rates, and the reason says so."""
    variants = [found for name in ("cell", "layer", "stack") for found in VARIANTS[name]]
    limit_s, steps, refused = on_tvm.LIMIT_S, on_tvm.STEPS, {}
    for implementation in (UNTUNED, implementations.load_implementation("tvm-tuned")):
        rates = implementation.RATES["forward"]
        for workload in variants:
            reason, step_ms = implementation.supports(workload, "forward"), rates.step_ms(workload)
            assert (reason is None) == (rates.building_s(workload) + steps * step_ms / 1e3 <= limit_s)
            if reason:
                assert duration(rates.building_s(workload)) in reason and latency(1e3 * step_ms, 3) in reason
                refused.setdefault(implementation.NAME, []).append(workload.label)
        assert implementation.supports(WORKLOADS["cell"].scaled("1/8"), "forward") is None
        assert "train" in implementation.supports(WORKLOADS["ptb-lm"], "training")
        for name, workload in WORKLOADS.items():
            if name not in ("cell", "layer", "stack"):
                assert "cell, layer and stack" in implementation.supports(workload, "forward")
    assert refused == {"tvm-untuned": ["layer-128x128x512", "layer-128x128x1024"]}
    assert (UNTUNED.NAME, TUNED.NAME) == ("tvm-untuned", "tvm-tuned")
    tuned = implementations.load_implementation("tvm-tuned")
    assert tuned.trials == 200 and "200 trials" in tuned.TITLE and "untuned" in UNTUNED.TITLE


@needs_tvm
def test_an_unsupported_shape_is_rejected_with_the_reason():
    workload = max(VARIANTS["layer"], key=lambda found: found.flops)
    with pytest.raises(BuildFailed, match=rf"{workload.label}.*limit is 2 min"):
        prepared(UNTUNED, workload)


def test_incompatible_versions_are_rejected(monkeypatch):
    for ffi, ready in (("0.1.14.post1", True), ("0.1.15.post2", False), ("0.2.0", False)):
        versions = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": ffi}
        for module in (on_tvm, implementations):
            monkeypatch.setattr(module, "installed_version", versions.get)
        monkeypatch.setattr(implementations, "find_spec", lambda package: object())
        assert TUNED.availability().ready == ready
        assert UNTUNED.availability().ready
    with pytest.raises(RuntimeUnavailable, match=r"apache-tvm-ffi<0\.1\.15"):
        prepared(TUNED, CELL)
    monkeypatch.setattr(implementations, "find_spec", lambda package: None)
    assert "frameworks" in UNTUNED.availability().remedy
