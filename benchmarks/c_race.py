"""C code in fp32, and with weights in bf16 and int8, beside other code: `.venv/bin/python benchmarks/c_race.py`.

A call of a stream, or of a window, of each network by each competitor, alternately, from Python on one core: generated
C code; ONNX Runtime, also with a thread for each core, its default; and what `--peers FOLDER` has of RTNeural, keras2c,
onnx2c (checkouts with these names, of onnx2c also its program as onnx2c/build/onnx2c; RTNeural is compiled with
Eigen), with -O3 -march=native -ffast-math. Then C code with a thread for each core. All compute the same outputs. Each
of several processes gives the ratios of the medians to that of the code in fp32; printed are the medians in us and the
ratios, the middle one with the lowest and the highest. Where the weights exceed the first-level cache a call is bound
by reading them, and bf16 halves their bytes, int8 quarters nearly all. Run it on an idle machine; with peers it
takes twenty minutes.

`--before CHECKOUT --onnx FILE --size NAME=N` compares the code for a window of a file with that of another checkout of
this repository: bytes of source, seconds of the compiler, and the ratio of the times of calls that alternate.
"""

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lstm_trt as lab
from lstm_trt import runtimes
from lstm_trt.export.network import make_weights
from lstm_trt.export.to_onnx import INPUT, export_network
from lstm_trt.runtimes.base import PreparedStep, Request

TICKS = [(1, 8), (1, 16), (1, 32), (1, 64), (2, 64), (1, 128), (2, 200), (2, 256), (3, 256), (3, 960)]
SHAPES = [(*tick, 1) for tick in TICKS] + [(1, 32, 32), (1, 20, 100), (2, 64, 64), (2, 200, 128)]
CORES = len(os.sched_getaffinity(0))

#: Name -> runtime and options.
COMPETITORS = {
    "fp32": ("c", lab.Options()),
    "bf16": ("c", lab.Options(precision="bf16")),
    "int8": ("c", lab.Options(precision="int8")),
    "ORT": ("onnxruntime", lab.Options()),
    f"ORT, {CORES} threads": ("onnxruntime", lab.Options(threads=CORES)),
}
FIRST = "fp32"

#: Timed after the others, since their helpers keep the other cores busy.
TOGETHER = {
    f"fp32, {CORES} threads": ("c", lab.Options(threads=CORES)),
    f"int8, {CORES} threads": ("c", lab.Options(threads=CORES, precision="int8")),
}

#: Source in the folder `peers` -> what is included from the checkout of this name, and the compiler.
PEERS = {
    "rtneural.cpp": ("RTNeural", ("", "modules", "modules/Eigen", "modules/json"), ("g++", "-std=c++17")),
    "keras2c.c": ("keras2c", ("include",), ("gcc", "-std=gnu99")),
    "onnx2c.c": ("onnx2c", (), ("gcc", "-std=gnu99")),
}

PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

#: Of onnx2c the source of a larger network takes minutes to compile.
LARGEST_SOURCE = 40_000_000

#: Weights that libraries read.
KEPT: list[np.ndarray] = []

#: Time of one competitor on one network in a process, in s, and blocks of calls that alternate.
SECONDS, BLOCKS = 0.5, 20

#: Largest difference of outputs from those in fp32, relative to the largest: of the same precision, and of others.
SAME, ROUNDED = 1e-5, 0.03


def plain_model(shape: lab.LstmShape) -> bytes:
    """ONNX of the least operators that the network needs, as onnx2c reads it: states are inputs of a single sample."""
    weights, units, rows = make_weights(shape, 0), shape.hidden, shape.sequence
    constants, nodes, inputs, outputs, name = [], [], [], [], "x"

    def value(name: str, *sizes: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    for layer in range(shape.layers):
        parts = [np.split(weights[f"lstm.{part}_l{layer}"], 4) for part in PARTS]
        turned = [np.concatenate([part[gate] for gate in (0, 3, 1, 2)]) for part in parts]  # ONNX has i, o, f, g
        given = [name, constant(f"W{layer}", turned[0][None]), constant(f"R{layer}", turned[1][None])]
        given.append(constant(f"B{layer}", np.concatenate(turned[2:])[None]))
        states = [f"h{layer}", f"c{layer}"] if rows == 1 else []
        inputs += [value(state, 1, 1, units) for state in states]
        outputs += [value(f"{state}_", 1, 1, units) for state in states]
        made = [f"y{layer}", *(f"{state}_" for state in states)]
        nodes.append(helper.make_node("LSTM", [*given, "", *states] if states else given, made, hidden_size=units))
        name = f"s{layer}"
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", "one"], [name]))
    constant("one", np.array([1], np.int64))
    nodes.append(helper.make_node("MatMul", [name, constant("D", weights["dense.weight"].T)], ["product"]))
    nodes.append(helper.make_node("Add", ["product", constant("DB", weights["dense.bias"])], ["y"]))
    inputs, outputs = [value("x", rows, 1, shape.features), *inputs], [value("y", rows, 1, 1), *outputs]
    graph = helper.make_graph(nodes, "network", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()


def has(folder: Path, name: str) -> bool:
    """Whether there is a checkout, and of onnx2c its program."""
    return (folder / name / ("build/onnx2c" if name == "onnx2c" else "")).exists()


def peer_call(source: str, shape: lab.LstmShape, folder: Path, x: np.ndarray, y: np.ndarray) -> Callable | None:
    """A call of another library from the state zero on; None where it cannot be had."""
    name, places, compiler = PEERS[source]
    root, here = (folder / name).resolve(), Path(__file__).resolve().parent / "peers"
    if not has(folder, name):
        return None
    with tempfile.TemporaryDirectory() as built:
        if name == "onnx2c":
            Path(built, "model.onnx").write_bytes(plain_model(shape))
            code = subprocess.run([root / "build/onnx2c", "-l0", "model.onnx"], cwd=built, capture_output=True)
            if code.returncode or len(code.stdout) > LARGEST_SOURCE:
                return None
            Path(built, "code.c").write_bytes(code.stdout)
        sizes = {"LAYERS": shape.layers, "UNITS": shape.hidden, "FEATURES": shape.features, "ROWS": shape.sequence}
        flags = ["-O3", "-march=native", "-ffast-math", "-w", "-shared", "-fPIC", f"-I{built}", f"-I{here}"]
        flags += [f"-I{root / place}" for place in places] + [f"-D{key}={size}" for key, size in sizes.items()]
        flags += ["-I/usr/include/eigen3"] * (name == "RTNeural")
        subprocess.run([*compiler, *flags, here / source, "-o", f"{built}/peer.so", "-lm"], check=True)
        library = ctypes.PyDLL(f"{built}/peer.so")
    weights = make_weights(shape, 0)
    arrays = []
    for layer in range(shape.layers):
        w, r, wb, rb = (weights[f"lstm.{part}_l{layer}"] for part in PARTS)
        arrays += [w, r, wb + rb]
    flat = np.concatenate([array.ravel() for array in (*arrays, weights["dense.weight"], weights["dense.bias"])])
    library.peer_init(ctypes.c_void_p(flat.ctypes.data))
    library.peer_reset()
    call = partial(library.peer_step, ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data))
    KEPT.append(flat)
    return call


def medians_us(shape: lab.LstmShape, peers: Path | None) -> dict[str, float]:
    """Of all competitors."""
    mode = "stream" if shape.sequence == 1 else "forward"
    network = shape.in_mode(mode)
    path = export_network(network, 0, mode=mode).path
    inputs = {INPUT: np.random.default_rng(0).standard_normal((shape.sequence, 1, shape.features)).astype(np.float32)}
    held, outputs, steps = {}, {}, {}

    def prepared(runtime: str, options: lab.Options) -> PreparedStep:
        return runtimes.load_runtime(runtime).prepare(Request(network, options, inputs, {}, path, mode))

    for name, chosen in COMPETITORS.items():
        held[name] = prepared(*chosen)
        steps[name] = held[name].step
    for source in PEERS if peers else ():
        name, y = PEERS[source][0], np.empty((shape.sequence, 1, 1), np.float32)
        call = peer_call(source, shape, peers, inputs[INPUT], y)
        if call:
            steps[name], outputs[name] = call, y
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # this thread, not those of a pool

    def check(name: str) -> None:
        for _ in range(3):
            steps[name]()
        if name in held:
            (outputs[name],) = held[name].outputs().values()
        error = np.abs(outputs[name] - outputs[FIRST]).max() / np.abs(outputs[FIRST]).max()
        if not error <= (ROUNDED if name.startswith(("bf16", "int8")) else SAME):
            raise SystemExit(f"{name} differs from {FIRST} by {error:.2g} of the largest output")

    for name in steps:
        check(name)
    times_ns: dict[str, list[int]] = defaultdict(list)
    began = time.perf_counter_ns()
    steps[FIRST]()
    calls = max(1, int(1e9 * SECONDS / BLOCKS / max(time.perf_counter_ns() - began, 1000)))

    def run(name: str) -> None:
        call, times = steps[name], times_ns[name]
        for _ in range(calls):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)

    for _ in range(BLOCKS):
        for name in steps:
            run(name)
    os.sched_setaffinity(0, cores)
    for name, chosen in TOGETHER.items() if CORES > 1 else ():
        held[name] = prepared(*chosen)
        steps[name] = held[name].step
        check(name)
        for _ in range(BLOCKS):
            run(name)
        held.pop(name).close()
        del steps[name]
    return {name: statistics.median(times) / 1e3 for name, times in times_ns.items()}


#: Writes the code of a window with the package that is on the path: folder, file, sizes.
GENERATE = """
import json, sys
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import native_target
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.export.sizes import static_model

network = OnnxNetwork(sys.argv[2], sizes=json.loads(sys.argv[3]))
file = c_file(static_model(network.path, network), None, native_target(), "network", include_weights=False)
file.write(sys.argv[1])
print(json.dumps([list(file.compile_flags), list(file.passes["run"].arguments.items())], default=int))
"""


def window_of(checkout: Path, path: Path, sizes: dict[str, int]) -> tuple[Callable, list[np.ndarray], str]:
    """A call of the code for a window of a file by the package of a checkout, its outputs, and what it costs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", GENERATE, folder, str(path.resolve()), json.dumps(sizes)]
        variables = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        flags, arguments = json.loads(subprocess.check_output(command, cwd=folder, env=variables))
        source = Path(folder, "network.c")
        text = source.read_text()
        source.write_text(f"{text}const unsigned long network_size = sizeof(struct network);\n")
        began = time.perf_counter()
        subprocess.run(["cc", *flags, "-fPIC", "-shared", "network.c", "-o", "network.so"], cwd=folder, check=True)
        costs = f"{len(text)} bytes of source, compiled in {time.perf_counter() - began:.1f} s"
        library, weights = ctypes.PyDLL(f"{folder}/network.so"), Path(folder, "network.bin").read_bytes()
    place = -(-ctypes.c_ulong.in_dll(library, "network_size").value // 64) * 64
    memory = mmap.mmap(-1, place + len(weights))  # at the beginning of a page
    memory[place:] = weights
    net = np.frombuffer(memory, np.uint8).ctypes.data
    if library.network_init(ctypes.c_void_p(net), ctypes.c_void_p(net + place)):
        raise SystemExit("the code cannot be run here")
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(size).astype(np.float32) for name, size in arguments}
    KEPT.extend([np.frombuffer(memory, np.uint8), *arrays.values()])
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays.values()]
    outputs = [array for name, array in arrays.items() if name.startswith("y")]
    return partial(library.network_run, ctypes.c_void_p(net), *pointers), outputs, costs


def race_versions(before: Path, path: Path, sizes: dict[str, int], rounds: int = 150) -> None:
    """Print how the code of this checkout compares with that of another one, for a window of a file."""
    here = Path(__file__).resolve().parent.parent
    windows = {"before": window_of(before, path, sizes), "now": window_of(here, path, sizes)}
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    times_ns: dict[str, list[int]] = defaultdict(list)
    for round_number in range(rounds):
        for name in sorted(windows, reverse=bool(round_number % 2)):
            start = time.perf_counter_ns()
            windows[name][0]()
            times_ns[name].append(time.perf_counter_ns() - start)
    for name, (_, _, costs) in windows.items():
        print(f"{name}: {costs}, median {statistics.median(times_ns[name]) / 1e6:.2f} ms")
    (_, old, _), (_, new, _) = windows.values()
    same = all(np.array_equal(one, other) for one, other in zip(old, new, strict=True))
    ratios = sorted(one / other for one, other in zip(times_ns["before"], times_ns["now"], strict=True))
    quarter = len(ratios) // 4
    print(
        f"before / now: {statistics.median(ratios):.2f} ({ratios[quarter]:.2f} to {ratios[-quarter - 1]:.2f} in half of"
        f" {rounds} rounds); the answers are {'the same' if same else 'different'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5, metavar="N")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="checkouts of RTNeural, keras2c and onnx2c")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout of this repository")
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="with --before: the network")
    parser.add_argument("--size", nargs="*", default=[], metavar="NAME=N", help="with --before: its symbolic sizes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.before:
        sizes = {name: int(size) for name, size in (each.split("=") for each in arguments.size)}
        race_versions(arguments.before, arguments.onnx, sizes)
        return 0
    if arguments.one:
        print(json.dumps(medians_us(lab.LstmShape(*json.loads(arguments.one)), arguments.peers)))
        return 0
    others = [name for name in COMPETITORS | TOGETHER if name != FIRST and (CORES > 1 or name not in TOGETHER)]
    others += [name for name, *_ in PEERS.values() if arguments.peers and has(arguments.peers, name)]
    absent = [name for name, *_ in PEERS.values() if name not in others]
    if absent:
        print(f"absent, as --peers has no checkout or program: {', '.join(absent)}")
    print(f"ratios to {FIRST}, of {arguments.processes} processes: the middle one (lowest to highest)")
    print(f"{'network':>12}{FIRST + ', us':>10}" + "".join(f"{name:>24}" for name in others))
    for shape in SHAPES:
        command = [sys.executable, __file__, "--one", json.dumps(shape)]
        command += ["--peers", str(arguments.peers)] if arguments.peers else []
        runs = [json.loads(subprocess.check_output(command)) for _ in range(arguments.processes)]
        row = f"{lab.LstmShape(*shape).title('forward').removesuffix('-b1'):>12}"
        row += f"{statistics.median(run[FIRST] for run in runs):10.2f}"
        for name in others:
            ratios = sorted(run[name] / run[FIRST] for run in runs if name in run) or [float("nan")]
            row += f"{f'{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})':>24}"
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
