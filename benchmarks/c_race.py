"""Generated C code beside other code: `.venv/bin/python benchmarks/c_race.py`.

A call of a stream, or of a window, of each network by each competitor, alternately, from Python on
one core: C code in fp32, with weights in bf16 and in int8, and of streams in fp32 after an untimed
`prepare_next`; ONNX Runtime, also with a thread for each core, its default; Eigen, in code written
by hand (`peers/eigen.cpp`), where `apt install libeigen3-dev` installed it; and what `--peers
FOLDER` has of RTNeural, keras2c and onnx2c (checkouts with these names, of onnx2c also its program
as onnx2c/build/onnx2c), with -O3 -march=native -ffast-math. Then C code with a thread for each
core. All compute the same outputs. Each of several processes gives the ratios of the medians to
that of the code in fp32; printed are the medians in us and the ratios, the middle one with the
lowest and the highest. Where the weights exceed the first-level cache a call is bound by reading
them, and bf16 halves their bytes, int8 quarters nearly all. Run it on an idle machine; with all
peers it takes twenty minutes. `--csv` prints rows as `data/measured/c-race-*.csv` have them.

`--before CHECKOUT --onnx FILE --size NAME=N` compares the code for a window of a file with that of
another checkout of this repository: bytes of source, seconds of the compiler, and the ratio of the
times of calls that alternate.
"""

import argparse
import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from tests.support.measured import print_rows

TICKS = [
    (1, 8),
    (1, 16),
    (1, 32),
    (1, 64),
    (2, 64),
    (1, 128),
    (2, 200),
    (2, 256),
    (3, 256),
    (3, 960),
]
WINDOWS = [(1, 32, 32), (1, 20, 100), (2, 64, 64), (2, 200, 128)]

#: Layers, units and time steps of a call.
SHAPES = [(layers, units, 1) for layers, units in TICKS] + WINDOWS

CORES = len(os.sched_getaffinity(0))

#: Name -> runtime and options.
COMPETITORS = {
    "fp32": ("c", lab.Options()),
    "bf16": ("c", lab.Options(precision="bf16")),
    "int8": ("c", lab.Options(precision="int8")),
    "ONNX Runtime": ("onnxruntime", lab.Options()),
    f"ONNX Runtime, {CORES} threads": ("onnxruntime", lab.Options(threads=CORES)),
}
FIRST = "fp32"

#: The step of a stream after `prepare_next`, which is not timed.
PREPARED = "fp32, prepared"

#: Timed after the others, since their helpers keep the other cores busy.
TOGETHER = {}
if CORES > 1:
    TOGETHER[f"fp32, {CORES} threads"] = ("c", lab.Options(threads=CORES))
    TOGETHER[f"int8, {CORES} threads"] = ("c", lab.Options(threads=CORES, precision="int8"))

EIGEN = "/usr/include/eigen3"


@dataclass(frozen=True)
class Peer:
    """Other code: a source in the folder `peers`, how it is compiled, and what must be there.

    `needs` and `includes` are places in the folder with the checkouts, or absolute.
    """

    source: str
    compiler: tuple[str, ...]
    needs: str
    includes: tuple[str, ...] = ()

    def is_here(self, checkouts: Path) -> bool:
        return (checkouts / self.needs).exists() and shutil.which(self.compiler[0]) is not None


CPP = ("g++", "-std=c++17")
C = ("gcc", "-std=gnu99")
RTNEURAL = (
    "RTNeural",
    "RTNeural/modules",
    "RTNeural/modules/Eigen",
    "RTNeural/modules/json",
    EIGEN,
)
PEERS = {
    "Eigen": Peer("eigen.cpp", CPP, EIGEN, (EIGEN,)),
    "RTNeural": Peer("rtneural.cpp", CPP, "RTNeural", RTNEURAL),
    "keras2c": Peer("keras2c.c", C, "keras2c", ("keras2c/include",)),
    "onnx2c": Peer("onnx2c.c", C, "onnx2c/build/onnx2c"),
}

PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

#: Of onnx2c the source of a larger network takes minutes to compile.
LARGEST_SOURCE = 40_000_000

#: Weights that libraries read.
KEPT: list[np.ndarray] = []

#: Time of one competitor on one network in a process, in s, and blocks of calls that alternate.
SECONDS, BLOCKS = 0.5, 20

#: Largest difference of outputs from those in fp32, relative to the largest: of the same precision,
#: and of others.
SAME, ROUNDED = 1e-5, 0.03


@dataclass(frozen=True)
class Competitor:
    """`step` is timed; `before`, which is called before each step, is not."""

    step: Callable[[], object]
    outputs: Callable[[], np.ndarray]
    before: Callable[[], object] | None = None

    def times_ns(self, calls: int) -> Iterator[int]:
        step, before = self.step, self.before
        for _ in range(calls):
            if before is not None:
                before()
            start = time.perf_counter_ns()
            step()
            yield time.perf_counter_ns() - start


def lstm_constants(weights: Mapping[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    """W, R and B of a layer as ONNX has them, with gates in the order i, o, f, g."""
    in_order = []
    for part in PARTS:
        i, f, g, o = np.split(weights[f"lstm.{part}_l{layer}"], 4)
        in_order.append(np.concatenate([i, o, f, g]))
    w, r, *biases = in_order
    return {
        f"W{layer}": w[None],
        f"R{layer}": r[None],
        f"B{layer}": np.concatenate(biases)[None],
    }


def plain_model(shape: lab.LstmShape) -> bytes:
    """ONNX of the least operators that the network needs, as onnx2c reads it.

    The states of a single sample are inputs and outputs.
    """
    weights = make_weights(shape, 0)
    constants = {
        "one": np.array([1], np.int64),
        "D": weights["dense.weight"].T,
        "DB": weights["dense.bias"],
    }
    inputs = {"x": (shape.sequence, 1, shape.features)}
    outputs = {"y": (shape.sequence, 1, 1)}
    nodes = []
    samples = "x"
    for layer in range(shape.layers):
        of_layer = lstm_constants(weights, layer)
        constants |= of_layer
        given = [samples, *of_layer]
        made = [f"y{layer}"]
        if shape.sequence == 1:
            for state in (f"h{layer}", f"c{layer}"):
                inputs[state] = outputs[f"{state}_"] = (1, 1, shape.hidden)
            given += ["", f"h{layer}", f"c{layer}"]
            made += [f"h{layer}_", f"c{layer}_"]
        samples = f"s{layer}"
        nodes.append(helper.make_node("LSTM", given, made, hidden_size=shape.hidden))
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", "one"], [samples]))
    nodes.append(helper.make_node("MatMul", [samples, "D"], ["product"]))
    nodes.append(helper.make_node("Add", ["product", "DB"], ["y"]))
    ends = float_values(inputs), float_values(outputs)
    graph = helper.make_graph(nodes, "network", *ends, initializers(constants))
    opset = helper.make_opsetid("", 13)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def float_values(sizes: Mapping[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
    number = onnx.TensorProto.FLOAT
    return [helper.make_tensor_value_info(name, number, size) for name, size in sizes.items()]


def initializers(constants: Mapping[str, np.ndarray]) -> list[onnx.TensorProto]:
    tensors = []
    for name, array in constants.items():
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return tensors


def flat_weights(shape: lab.LstmShape) -> np.ndarray:
    """The weights as `peers/peer.h` describes them."""
    weights = make_weights(shape, 0)
    arrays = []
    for layer in range(shape.layers):
        w, r, bias_of_inputs, bias_of_state = (weights[f"lstm.{part}_l{layer}"] for part in PARTS)
        arrays += [w, r, bias_of_inputs + bias_of_state]
    arrays += [weights["dense.weight"], weights["dense.bias"]]
    return np.concatenate([array.ravel() for array in arrays])


def write_code_of_onnx2c(shape: lab.LstmShape, checkouts: Path, folder: Path) -> bool:
    """Whether onnx2c can generate a source that a compiler takes."""
    (folder / "model.onnx").write_bytes(plain_model(shape))
    command = [(checkouts / PEERS["onnx2c"].needs).resolve(), "-l0", "model.onnx"]
    done = subprocess.run(command, cwd=folder, capture_output=True)
    (folder / "code.c").write_bytes(done.stdout)
    return done.returncode == 0 and len(done.stdout) <= LARGEST_SOURCE


def peer_library(peer: Peer, shape: lab.LstmShape, checkouts: Path) -> ctypes.PyDLL | None:
    """The compiled code of a peer; None where it cannot be had."""
    sources = Path(__file__).resolve().parent / "peers"
    with tempfile.TemporaryDirectory() as folder:
        if peer is PEERS["onnx2c"] and not write_code_of_onnx2c(shape, checkouts, Path(folder)):
            return None
        flags = ["-O3", "-march=native", "-ffast-math", "-w", "-shared", "-fPIC"]
        flags += [f"-I{folder}", f"-I{sources}"]
        flags += [f"-I{checkouts / place}" for place in peer.includes]
        flags += [f"-DLAYERS={shape.layers}", f"-DUNITS={shape.hidden}"]
        flags += [f"-DFEATURES={shape.features}", f"-DROWS={shape.sequence}"]
        command = [*peer.compiler, *flags, sources / peer.source, "-o", f"{folder}/peer.so", "-lm"]
        subprocess.run(command, check=True)
        return ctypes.PyDLL(f"{folder}/peer.so")


def peer_competitor(library: ctypes.PyDLL, shape: lab.LstmShape, x: np.ndarray) -> Competitor:
    """Calls of a peer from the state zero on."""
    weights = flat_weights(shape)
    y = np.empty((shape.sequence, 1, 1), np.float32)
    KEPT.append(weights)
    library.peer_init(ctypes.c_void_p(weights.ctypes.data))
    library.peer_reset()
    library.peer_step.restype = None
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, weights)]
    return Competitor(partial(library.peer_step, *pointers), lambda: y)


def prepared(request: Request, runtime: str, options: lab.Options) -> PreparedStep:
    return runtimes.load_runtime(runtime).prepare(replace(request, options=options))


def of_runtime(step: PreparedStep, before: Callable[[], object] | None = None) -> Competitor:
    def only_output() -> np.ndarray:
        (output,) = step.outputs().values()
        return output

    return Competitor(step.step, only_output, before)


def on_one_core(request: Request, checkouts: Path) -> dict[str, Competitor]:
    """All competitors but those in `TOGETHER`."""
    competitors = {}
    for name, chosen in COMPETITORS.items():
        competitors[name] = of_runtime(prepared(request, *chosen))
    if request.mode == "stream":
        step = prepared(request, "c", lab.Options(prepare=True))
        competitors[PREPARED] = of_runtime(step, step.prepare_next)
    shape = request.workload
    for name, peer in PEERS.items():
        library = peer_library(peer, shape, checkouts) if peer.is_here(checkouts) else None
        if library is not None:
            competitors[name] = peer_competitor(library, shape, request.inputs[INPUT])
    return competitors


def third_output(competitor: Competitor) -> np.ndarray:
    for _ in competitor.times_ns(calls=3):
        pass
    return competitor.outputs()


def check(name: str, output: np.ndarray, right: np.ndarray) -> None:
    error = np.abs(output - right).max() / np.abs(right).max()
    allowed = ROUNDED if name.startswith(("bf16", "int8")) else SAME
    if not error <= allowed:
        raise SystemExit(f"{name} differs from {FIRST} by {error:.2g} of the largest output")


def medians_us(shape: lab.LstmShape, checkouts: Path) -> dict[str, float]:
    """Of all competitors."""
    mode = "stream" if shape.sequence == 1 else "forward"
    network = shape.in_mode(mode)
    size = (shape.sequence, 1, shape.features)
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    path = export_network(network, 0, mode=mode).path
    request = Request(network, lab.Options(), {INPUT: x}, {}, path, mode)
    competitors = on_one_core(request, checkouts)

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # this thread, not those of a pool
    first = competitors[FIRST]
    right = third_output(first)
    for name, competitor in competitors.items():
        if name != FIRST:
            check(name, third_output(competitor), right)
    (one_ns,) = first.times_ns(calls=1)
    calls = max(1, int(1e9 * SECONDS / BLOCKS / max(one_ns, 1000)))
    times_ns: dict[str, list[int]] = defaultdict(list)
    for _ in range(BLOCKS):
        for name, competitor in competitors.items():
            times_ns[name] += competitor.times_ns(calls)
    os.sched_setaffinity(0, cores)

    for name, chosen in TOGETHER.items():
        step = prepared(request, *chosen)
        competitor = of_runtime(step)
        check(name, third_output(competitor), right)
        times_ns[name] += competitor.times_ns(BLOCKS * calls)
        step.close()
    return {name: statistics.median(times) / 1e3 for name, times in times_ns.items()}


#: Writes the code of a window with the package that is on the path: folder, file, sizes.
GENERATE = """
import json, sys
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import native_target
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.export.sizes import static_model

network = OnnxNetwork(sys.argv[2], sizes=json.loads(sys.argv[3]))
model = static_model(network.path, network)
file = c_file({"run": model}, native_target(), "network", include_weights=False)
file.write(sys.argv[1])
arguments = list(file.passes["run"].arguments.items())
print(json.dumps([list(file.compile_flags), arguments], default=int))
"""


@dataclass(frozen=True)
class Window:
    """The code for a window of a file, and what it cost."""

    run: Callable[[], object]
    outputs: list[np.ndarray]
    costs: str


def window_of(checkout: Path, path: Path, sizes: dict[str, int]) -> Window:
    """That which the package of a checkout writes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", GENERATE, folder, str(path.resolve()), json.dumps(sizes)]
        variables = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        flags, arguments = json.loads(subprocess.check_output(command, cwd=folder, env=variables))
        source = Path(folder, "network.c")
        text = source.read_text()
        source.write_text(f"{text}const unsigned long network_size = sizeof(struct network);\n")
        compiler = ["cc", *flags, "-fPIC", "-shared", "network.c", "-o", "network.so"]
        began = time.perf_counter()
        subprocess.run(compiler, cwd=folder, check=True)
        costs = f"{len(text)} bytes of source, compiled in {time.perf_counter() - began:.1f} s"
        library = ctypes.PyDLL(f"{folder}/network.so")
        weights = Path(folder, "network.bin").read_bytes()

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
    return Window(partial(library.network_run, ctypes.c_void_p(net), *pointers), outputs, costs)


def race_versions(before: Path, path: Path, sizes: dict[str, int], rounds: int = 150) -> None:
    """Print how the code of this checkout compares with that of another one."""
    here = Path(__file__).resolve().parent.parent
    windows = {"before": window_of(before, path, sizes), "now": window_of(here, path, sizes)}
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    times_ns: dict[str, list[int]] = defaultdict(list)
    for round_number in range(rounds):
        for name in sorted(windows, reverse=bool(round_number % 2)):
            start = time.perf_counter_ns()
            windows[name].run()
            times_ns[name].append(time.perf_counter_ns() - start)
    for name, window in windows.items():
        print(f"{name}: {window.costs}, median {statistics.median(times_ns[name]) / 1e6:.2f} ms")
    pairs = zip(windows["before"].outputs, windows["now"].outputs, strict=True)
    same = all(np.array_equal(old, new) for old, new in pairs)
    ratios = np.divide(times_ns["before"], times_ns["now"])
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    print(
        f"before / now: {middle:.2f} ({low:.2f} to {high:.2f} in half of {rounds} rounds);"
        f" the answers are {'the same' if same else 'different'}"
    )


@dataclass(frozen=True)
class Raced:
    """A network in several processes: medians in us of each competitor that could be had."""

    network: str
    runs: list[dict[str, float]]

    @property
    def fp32_us(self) -> float:
        return statistics.median(run[FIRST] for run in self.runs)

    def ratios(self, name: str) -> list[float]:
        return [run[name] / run[FIRST] for run in self.runs if name in run]


def raced(shapes: Sequence[tuple[int, int, int]], processes: int, peers: Path) -> Iterator[Raced]:
    for shape in shapes:
        command = [sys.executable, __file__, "--one", json.dumps(shape), "--peers", str(peers)]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(processes)]
        yield Raced(title(*shape), runs)


def other_names(checkouts: Path) -> list[str]:
    """The competitors of the code in fp32; says on stderr which peers are absent."""
    here = [name for name, peer in PEERS.items() if peer.is_here(checkouts)]
    absent = [name for name in PEERS if name not in here]
    if absent:
        why = "there is no package, checkout, program or compiler"
        print(f"absent, as {why}: {', '.join(absent)}", file=sys.stderr)
    return [name for name in COMPETITORS if name != FIRST] + [PREPARED, *TOGETHER, *here]


def rows_of_file(every: Iterator[Raced], others: Sequence[str]) -> Iterator[dict[str, object]]:
    """A row of each network and competitor."""
    for each in every:
        for name in others:
            ratios = each.ratios(name)
            if ratios:
                yield {
                    "network": each.network,
                    "competitor": name,
                    "fp32_us": f"{each.fp32_us:.2f}",
                    "ratio": f"{statistics.median(ratios):.2f}",
                    "lowest_ratio": f"{min(ratios):.2f}",
                    "highest_ratio": f"{max(ratios):.2f}",
                }


def print_race(every: Iterator[Raced], others: Sequence[str], processes: int) -> None:
    """A row of each network: the median of the code in fp32, and the ratios of the others."""
    print(f"ratios to {FIRST}, of {processes} processes: the middle one (lowest to highest)")
    print(f"| network | {FIRST}, us | {' | '.join(others)} |")
    print("| --- " * (len(others) + 2) + "|")
    for each in every:
        cells = [each.network, f"{each.fp32_us:.2f}"]
        cells += [in_words(each.ratios(name)) for name in others]
        print(f"| {' | '.join(cells)} |", flush=True)


def title(layers: int, units: int, steps: int) -> str:
    return f"{layers}x{units}" if steps == 1 else f"{layers}x{units}-s{steps}"


def shape_of(title: str) -> tuple[int, int, int]:
    network, _, steps = title.partition("-s")
    layers, _, units = network.partition("x")
    return int(layers), int(units), int(steps or 1)


def in_words(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def size_of(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    return name, int(size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5, metavar="N")
    parser.add_argument(
        "--networks",
        nargs="+",
        type=shape_of,
        default=SHAPES,
        metavar="LxU[-sT]",
        help="layers, units and time steps of a call, such as 2x64 and 1x20-s100",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="checkouts of RTNeural, keras2c and onnx2c (default: the current folder)",
    )
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="of this repository")
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="with --before: the network")
    parser.add_argument(
        "--size",
        nargs="*",
        type=size_of,
        default=[],
        metavar="NAME=N",
        help="with --before: its symbolic sizes",
    )
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.before:
        race_versions(arguments.before, arguments.onnx, dict(arguments.size))
    elif arguments.one:
        print(json.dumps(medians_us(lab.LstmShape(*arguments.one), arguments.peers)))
    else:
        others = other_names(arguments.peers)
        every = raced(arguments.networks, arguments.processes, arguments.peers)
        if arguments.csv:
            print_rows(rows_of_file(every, others))
        else:
            print_race(every, others, arguments.processes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
