"""The roofline bound: formula by hand, loops compared with an assembler, and no real runtime is faster."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import RecurrentLayer
from lstm_trt.machine import floor as machine_floor
from lstm_trt.machine.floor import MachineRates, roofline_bound

UNIT = MachineRates(1.0, ((16, 1.0),), 1, "planted", "2026-01-01T00:00:00Z", "planted")
#: The machine of the first measurements of this project: L1, L2, L3, memory.
EPYC = replace(UNIT, gflops_per_core=260.0, read_gb_s=((2**14, 530), (2**16, 230), (2**20 + 1, 120), (2**25, 34)))


def test_floor_by_hand():
    # gates 8, rows 15: inputs 2*8*7*15 = 1680, dense 2*2*15 = 60, a step 2*8*2*5 = 160 against 4*8*2 = 64 bytes
    shape = LstmShape(layers=1, hidden=2, sequence=3, batch=5, features=7)
    floor = roofline_bound(shape, UNIT)
    assert (floor.input_ns, floor.recurrence_ns, floor.total_ns) == (1740, 480, 2220)
    assert (floor.arithmetic_ns, floor.traffic_ns, floor.limited_by) == (480, 192, "arithmetic")
    # a tenth of the bandwidth: inputs 4*8*7/0.1 = 2240 above 1680, a step 640 above 160
    slow = replace(UNIT, read_gb_s=((16, 0.1),))
    floor = roofline_bound(shape, slow)
    assert floor.input_ns == pytest.approx(2240 + 60)
    assert floor.recurrence_ns == pytest.approx(1920)
    assert floor.limited_by == "weight traffic"
    # two layers of two directions: inputs 2*(1680 + 2*8*4*15), dense 2*4*15, recurrence four times as much
    floor = roofline_bound(replace(shape, layers=2, directions=2), UNIT)
    assert (floor.input_ns, floor.recurrence_ns) == (2 * (1680 + 960) + 120, 4 * 480)
    # all arithmetic of the shape is in it
    assert floor.total_ns == replace(shape, layers=2, directions=2).flops
    assert roofline_bound(shape, replace(UNIT, cores=2)).total_ns == 1110


def test_the_bound_of_a_network_with_other_layers():
    gru = RecurrentLayer("GRU", hidden=2, features=7, sequence=3, batch=5, direction="bidirectional")
    products = 2 * 6 * 7 * 3 * 5 * 2 + 2 * 6 * 2 * 3 * 5 * 2  # inputs, recurrence
    found = roofline_bound(SimpleNamespace(recurrent_layers=(gru,), flops=products + 1000), UNIT)
    assert (found.total_ns, found.recurrence_ns) == (products + 1000, 2 * 6 * 2 * 3 * 5 * 2)
    assert roofline_bound(SimpleNamespace(recurrent_layers=(), flops=1000), UNIT).total_ns == 1000


def test_floor_against_the_table_of_the_project():
    """The floors written down for A, B and C, with pointwise work, were 1.38 ms, 43 us and 4.15 ms.

    They assumed that no weight stays in a nearer cache between two steps. Here 16 of the 64 KiB of B may.
    """
    a = roofline_bound(LstmShape(2, 200, 200, 1, 12), EPYC).total_ns
    b = roofline_bound(LstmShape(1, 64, 100, 1, 64), EPYC).total_ns
    c = roofline_bound(LstmShape(1, 512, 32, 8, 512), EPYC).total_ns
    assert a == pytest.approx(1.38e6, rel=0.03)
    assert b == pytest.approx(43e3 - 100 * 16384 / 230, rel=0.08)
    assert c == pytest.approx(4.15e6, rel=0.03)


def test_reading_uses_all_caches_and_never_a_rate_below_that_of_a_larger_set():
    dip = replace(UNIT, read_gb_s=((1000, 50.0), (2000, 20.0), (4000, 30.0), (8000, 10.0)))
    # up to 1999 bytes at 50; from 2000 on what exceeds 1000 bytes at 30; at 8000 what exceeds 4000 bytes at 10
    times = {1: 1 / 50, 1000: 20, 1999: 1999 / 50, 2000: 40, 3999: 2999 / 30, 4000: 100, 8000: 400, 10**6: 99600}
    assert {size: dip.read_ns(size) for size in times} == pytest.approx(times)


def test_no_order_of_reading_beats_the_least_time():
    """A set of s lines, of which those that were read last are in a cache of 10: the best order reads s - 10 others."""
    two = replace(UNIT, read_gb_s=((10, 4.0), (20, 1.0)))
    for size in (20, 25, 100):
        backwards_and_forwards = (size - 10) / 1.0 + 10 / 4.0  # hits the 10 lines that are left of the pass before
        assert two.read_ns(size) <= backwards_and_forwards


@pytest.mark.parametrize("machine_rates", [UNIT, EPYC, replace(EPYC, cores=3)])
def test_floor_grows_along_every_axis(machine_rates):
    base = LstmShape(layers=2, hidden=48, sequence=16, batch=2, features=12)
    for axis, values in {
        "layers": range(1, 8),
        "hidden": range(8, 700, 7),
        "sequence": range(1, 300, 13),
        "batch": range(1, 200, 9),
        "features": range(1, 3000, 37),
        "directions": (1, 2),
    }.items():
        floors = [roofline_bound(replace(base, **{axis: value}), machine_rates).total_ns for value in values]
        assert all(later > earlier for earlier, later in pairwise(floors)), axis


def test_more_cores_never_raise_the_floor():
    for shape in (LstmShape(2, 200, 200), LstmShape(1, 512, 32, 8, 512), LstmShape(6, 32, 256)):
        floors = [roofline_bound(shape, replace(EPYC, cores=cores)).total_ns for cores in (1, 2, 4, 16)]
        assert floors == sorted(floors, reverse=True)


def test_rates_survive_json():
    assert MachineRates.from_dict(json.loads(json.dumps(EPYC.as_dict()))) == EPYC


def test_rates_are_measured_once_and_come_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = []

    def measure(threads=1):
        measured.append(threads)
        return EPYC

    monkeypatch.setattr(machine_floor, "measure_rates", measure)
    assert machine_floor.load_rates() == machine_floor.load_rates() == EPYC
    assert machine_floor.load_rates(threads=3) == replace(EPYC, cores=3) and len(measured) == 1
    assert len(list((tmp_path / "lstm_trt" / "rates").glob("*.json"))) == 1


def test_measured_rates_are_plausible():
    measured = machine_floor.measure_rates(threads=2)
    assert measured.cores == 2 and measured.cpu and measured.probe
    assert 1 < measured.gflops_per_core < 2000
    sizes = [size for size, _ in measured.read_gb_s]
    assert sizes == sorted(sizes) and sizes[0] == 16 * 1024 and sizes[-1] == 256 * 2**20
    least_ns = [measured.read_ns(size) for size in sizes]
    assert least_ns == sorted(least_ns) and 0.5 < sizes[-1] / least_ns[-1] <= sizes[0] / least_ns[0]
    json.dumps(measured.as_dict(), allow_nan=False)


def test_torch_measures_the_rates_without_machine_code(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    import torch

    assert machine_floor.core_probe(tmp_path) is None  # a processor without flags
    best = machine_floor.measure_rates(seconds=0.3)
    monkeypatch.setattr(machine_floor, "core_probe", lambda: None)
    before = torch.get_num_threads()
    measured = machine_floor.measure_rates(seconds=0.3)
    assert torch.get_num_threads() == before
    assert measured.probe == "torch" and measured.gflops_per_core > 0.5
    assert [size for size, _ in measured.read_gb_s] == [size for size, _ in best.read_gb_s]
    if best.probe != "torch":  # a library is not faster than the processor, if no other load interferes
        monkeypatch.undo()
        peak = best.gflops_per_core
        for _ in range(5):
            if measured.gflops_per_core < 1.25 * peak:
                break
            peak = max(peak, machine_floor.measure_rates(seconds=1.0).gflops_per_core)
        assert measured.gflops_per_core < 1.25 * peak


LOOPS = [(machine_floor.multiply_loop, 64), (machine_floor.multiply_loop, 32)]
LOOPS += [(machine_floor.read_loop, 64), (machine_floor.read_loop, 32)]


@pytest.mark.skipif(not (shutil.which("as") and shutil.which("objcopy")), reason="needs an assembler: as and objcopy")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembler here is not for x86-64")
@pytest.mark.parametrize(("loop", "width"), LOOPS)
def test_the_machine_code_matches_the_assembled_text(tmp_path, loop, width):
    listing = loop(width)
    source = "\n".join([".intel_syntax noprefix", *(text for _, text in listing), ""])
    subprocess.run(["as", "--64", "-o", "code.o", "-"], input=source, text=True, cwd=tmp_path, check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", "code.o", "code"], cwd=tmp_path, check=True)
    assert (tmp_path / "code").read_bytes() == machine_floor.machine_code(listing)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize(("loop", "width"), LOOPS)
def test_each_instruction_decodes_to_its_text(tmp_path, loop, width):
    listing = [(code, text.removeprefix("{disp32} ")) for code, text in loop(width) if code]
    (tmp_path / "code").write_bytes(machine_floor.machine_code(listing))
    command = [
        "objdump",
        "-D",
        "-z",
        "--insn-width=16",
        "-b",
        "binary",
        "-m",
        "i386:x86-64",
        "-M",
        "intel",
        str(tmp_path / "code"),
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in output.splitlines() if line.count("\t") >= 2]
    decoded = [(bytes.fromhex(row[1]), row[2].strip()) for row in rows]
    assert b"".join(code for code, _ in decoded) == machine_floor.machine_code(listing)
    assert [text.split()[0].replace("jne", "jnz") for _, text in decoded] == [text.split()[0] for _, text in listing]
    offsets, at = {}, 0
    for code, text in loop(width):
        if not code:
            offsets[text.rstrip(":")] = at
        at += len(code)
    jumps = [text.split()[1] for _, text in decoded if text.startswith("j")]
    assert [int(target, 16) for target in jumps] == [
        offsets[text.split()[1]] for _, text in listing if text.startswith("j")
    ]


def _median_ns(step, trials=60) -> float:
    for _ in range(5):
        step()
    times = []
    for _ in range(trials):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


def _onnx_step(network, inputs):
    """`network` on ONNX Runtime with PyTorch's order of gates, since only the sizes matter here."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    nodes, last, weights = [], "x", [numpy_helper.from_array(np.array([1], dtype=np.int64), "directions")]
    for layer in range(network.num_layers):
        for kind in ("ih", "hh"):
            values = getattr(network, f"weight_{kind}_l{layer}").detach().numpy()[None]
            weights.append(numpy_helper.from_array(values, f"{kind}{layer}"))
        reads = [last, f"ih{layer}", f"hh{layer}"]
        nodes.append(helper.make_node("LSTM", reads, [f"y{layer}"], hidden_size=network.hidden_size))
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", "directions"], [f"z{layer}"]))
        last = f"z{layer}"
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs.shape)]
    ends.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, None))
    graph = helper.make_graph(nodes, "planted", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": inputs})


def _floors_over_medians(core: int) -> dict[str, float]:
    """Runs in a new process, pinned before torch is imported, as recordings are."""
    os.sched_setaffinity(0, [core])
    import torch

    torch.set_num_threads(1)
    measured, shares = machine_floor.measure_rates(), {}
    with torch.inference_mode():
        for shape in (LstmShape(2, 128, 64), LstmShape(1, 256, 32, batch=8)):
            floor = roofline_bound(shape, measured).total_ns
            network = torch.nn.LSTM(shape.features, shape.hidden, shape.layers)
            inputs = torch.randn(shape.sequence, shape.batch, shape.features)
            shares[f"pytorch {shape.label}"] = floor / _median_ns(lambda: network(inputs))  # noqa: B023
            with suppress(ImportError):
                shares[f"onnxruntime {shape.label}"] = floor / _median_ns(_onnx_step(network, inputs.numpy()))
    return shares


def test_the_bound_is_below_the_latencies_of_runtimes():
    """The bound was 0.3 to 0.6 of the median: only rates measured too low by half would fail this.

    Rates are that low while other programs use the core or its caches, so it is tried several times.
    """
    core = max(os.sched_getaffinity(0))
    for _ in range(5):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            shares = fresh.submit(_floors_over_medians, core).result()
        print(shares)
        if all(0.01 < share < 1.0 for share in shares.values()):
            break
    assert len(shares) >= 2
    for name, share in shares.items():
        assert 0.01 < share < 1.0, name
