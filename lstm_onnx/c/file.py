"""A network as one C file: LSTM and GRU layers at batch size 1, with what `network` has around them.

The file contains `kernel.c`, calls of its functions with all sizes as constants, and the weights, packed in the order
in which they are read. It needs a compiler with GNU vectors (gcc, clang) and, of libraries, only memcpy, memset and
memcmp.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np

from lstm_onnx.c.moves import BASE, Loop
from lstm_onnx.c.names import OWN
from lstm_onnx.c.reader import Reader
from lstm_onnx.c.stages import Binary, Call, Copy, Dense, End, Layer, Pointwise, Recurrent, Repeat
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.format import listed
from lstm_trt.config.workload import State
from lstm_trt.export.network import to_bfloat16
from lstm_trt.machine.linux import cpuinfo_flags
from lstm_trt.store import cache, files

#: Changes whenever other code is generated for the same network, so that recordings are not pooled.
VERSION = "9"

#: Largest weights in bytes that are written into the source by default.
LARGEST_INCLUDED = 2**20

#: Vectors of a group of columns in a packed matrix, as in `kernel.c`: in products of many rows, and of one.
TILE, GROUP = 4, 8

#: Precision -> bits of a weight in products with what a recurrent layer bounds by 1, and in all others.
PRECISIONS = {"fp32": (32, 32), "bf16": (16, 16), "int8": (8, 16)}

#: The whole number that stands for 1 in a product of whole numbers.
WHOLE = 32767

#: Columns up to which a dense layer is computed as separate dot products.
FEW_COLUMNS = 4

#: Floats per vector -> the macro that the compiler defines for the instructions.
INSTRUCTIONS = {16: "__AVX512F__", 8: "__AVX2__"}

#: Floats before the weights: their SHA-256 as 16 whole numbers.
HEAD = 16

#: Time steps of which `kernel.c` computes the input's products at once.
CHUNK = 24

#: Bytes on the stack that a call takes less than, compiled with -O2 or -O3.
STACK = 8192

#: Function -> its whole numbers and their types in C.
COUNTS = {"help": {"number": "int"}, "run_n": {"samples": "size_t"}}

#: A line of each generated file.
LICENCE = "Generated code may be used, changed and passed on without any condition."

#: The alignment of what vectors are read from, before a declaration in C; the header can be included by MSVC too.
ALIGNED = "LSTM_TRT_ALIGNED"
_ALIGNED = """
#ifndef LSTM_TRT_ALIGNED
#ifdef _MSC_VER
#define LSTM_TRT_ALIGNED __declspec(align(64))
#else
#define LSTM_TRT_ALIGNED __attribute__((aligned(64)))
#endif
#endif
"""


@dataclass(frozen=True)
class Target:
    """A processor to generate code for: floats per vector, and the compiler's flags for it."""

    name: str
    vector_length: int
    flags: tuple[str, ...]


TARGETS = {
    "x86-64-v4": Target("x86-64-v4", 16, ("-march=x86-64-v4",)),
    "x86-64-v3": Target("x86-64-v3", 8, ("-march=x86-64-v3",)),
    "x86-64": Target("x86-64", 4, ("-march=x86-64",)),
    "aarch64": Target("aarch64", 4, ("-march=armv8-a",)),
}


def native_target() -> Target:
    """The target of this processor, with all its instructions (`-march=native`)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return Target("native", 4, ("-mcpu=native",))
    flags = cpuinfo_flags()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return Target("native", 16, ("-march=native",))
    return Target("native", 8 if {"avx2", "fma"} <= flags else 4, ("-march=native",))


# Packing weights


def in_pairs(values: np.ndarray) -> np.ndarray:
    """Float32 numbers, (..., k), in words of two, (..., (k + 1) // 2), as `kernel.c` reads them.

    The lower half of a word is the even number, rounded to bfloat16; the upper half is that with which the whole word,
    read as float32, is nearest to the odd number.
    """
    padded = np.pad(values.astype(np.float32), [(0, 0)] * (values.ndim - 1) + [(0, values.shape[-1] % 2)])
    low = to_bfloat16(np.ascontiguousarray(padded[..., ::2])).view(np.uint32) >> 16
    odd = np.ascontiguousarray(padded[..., 1::2]).view(np.uint32).astype(np.int64)
    high = np.clip(((odd & 0x7FFFFFFF) - low + 0x8000) >> 16, 0, 0x7F7F)
    return (odd & 0x80000000 | high << 16 | low).astype(np.uint32).view(np.float32)


def in_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers as whole numbers from -127 to 127, in int8, and the scale of each row, (..., 1) in float32."""
    scales = np.abs(values).max(axis=-1, keepdims=True, initial=0) / np.float32(127)
    return np.rint(values / np.where(scales > 0, scales, 1)).astype(np.int8), scales


def as_packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Rows of numbers, (..., k), as generated code reads them from so many bits each."""
    if bits == 8:
        whole, scales = in_bytes(values)
        return whole * scales
    words = in_pairs(values).view(np.uint32)
    both = np.stack([words << 16, words], axis=-1).view(np.float32)
    return both.reshape(*values.shape[:-1], -1)[..., : values.shape[-1]]


class Weights:
    """Packed matrices and vectors, each of them once, at multiples of 16 floats; `bits` as in `PRECISIONS`."""

    def __init__(self, vector_length: int, precision: str = "fp32") -> None:
        self.length, self.bits = vector_length, PRECISIONS[precision]
        self.parts: list[np.ndarray] = []
        self.known: dict[str, int] = {}
        self.size = HEAD

    def add(self, *arrays: np.ndarray) -> int:
        """The offset in floats of these arrays, one after another."""
        part = np.concatenate([array.ravel() for array in arrays]).astype(np.float32)
        part = np.pad(part, (0, -len(part) % 16))
        key = cache.sha256(part.tobytes())
        if key not in self.known:
            self.known[key] = self.size
            self.parts.append(part)
            self.size += len(part)
        return self.known[key]

    def vector(self, values: np.ndarray) -> np.ndarray:
        """Padded with zeros along the first axis to a multiple of the vector length."""
        return np.pad(values, [(0, -len(values) % self.length)] + [(0, 0)] * (values.ndim - 1))

    def gates(self, values: np.ndarray, gates: int) -> np.ndarray:
        """(gates x units, ...) as blocks of a vector of each gate, then all gates of the remaining units."""
        each = values.reshape(gates, -1, *values.shape[1:])
        rest = each.shape[1] % self.length
        blocks = each[:, : each.shape[1] - rest].reshape(gates, -1, self.length, *values.shape[1:])
        whole = blocks.swapaxes(0, 1).reshape(-1, *values.shape[1:])
        return np.concatenate([whole, self.vector(each[:, each.shape[1] - rest :].reshape(-1, *values.shape[1:]))])

    def matrix(self, columns: np.ndarray, group: int, bounded: bool = False) -> np.ndarray:
        """(columns, k) in groups of `group` vectors of columns, in a group row after row.

        `bounded`: the matrix is multiplied by what a recurrent layer bounds by 1.
        """
        bits = self.bits[not bounded]
        if bits == 8:  # a vector of words has the pairs of two rows of all its columns, then those of the next two
            whole, scales = in_bytes(self.vector(columns))
            count, whole = (whole.shape[1] + 3) // 4, np.pad(whole, ((0, 0), (0, -whole.shape[1] % 4)))
            whole = whole.reshape(-1, self.length, count, 2, 2).transpose(0, 2, 3, 1, 4)
            words = whole.reshape(-1, count, 4 * self.length).view(np.float32)
            vectors = np.concatenate([scales.reshape(-1, 1, self.length) / np.float32(WHOLE), words], axis=1)
        else:
            columns = in_pairs(columns) if bits == 16 else columns
            vectors = self.vector(columns).reshape(-1, self.length, columns.shape[-1]).swapaxes(1, 2)
        groups = [vectors[at : at + group].swapaxes(0, 1).ravel() for at in range(0, len(vectors), group)]
        return np.concatenate([*groups, np.zeros(0, np.float32)])

    def recurrent(self, rows: np.ndarray, gates: int) -> np.ndarray:
        """(gates x units, units) in the groups of `groups` in `kernel.c`; the last one may be larger."""
        packed, units, size = self.gates(rows, gates), rows.shape[-1], GROUP // gates * self.length
        full = units // size - (units >= size and units % size < self.length)
        parts = [packed[: full * size * gates], packed[full * size * gates :]]
        sizes = (GROUP // gates * gates, 4 * GROUP)
        return np.concatenate([self.matrix(part, size, True) for part, size in zip(parts, sizes, strict=True)])


def packed(layer: Layer, weights: Weights) -> int:
    """The offset of a layer's packed weights, in the order of `recurrent` in `kernel.c`."""
    w, r, wb, rb = layer.weights
    first, last = layer.gates_of_h, (layer.gates - 1) * layer.units
    biases, recurrent = wb + rb, np.zeros_like(rb)
    if layer.kind == "GRU":  # the last gate's own bias is multiplied by the reset gate
        biases[last:], recurrent[last:] = wb[last:], rb[last:]
    parts = [weights.matrix(weights.gates(w, layer.gates), TILE, layer.bounded), weights.gates(biases, layer.gates)]
    parts.append(weights.recurrent(r[: first * layer.units], first))
    if layer.kind == "RESET":
        parts.append(weights.recurrent(r[last:], 1))
    parts.append(weights.gates(recurrent, layer.gates))
    return weights.add(*parts)


# Writing C


@dataclass(frozen=True)
class Pass:
    """`run` or `step`: its statements, the functions that they call, and the floats that it needs in the struct."""

    reader: Reader
    functions: dict[str, str]
    lines: list[str]
    buffer: int
    gates: int

    @property
    def arguments(self) -> dict[str, int]:
        """Inputs and outputs: parameter -> size."""
        return {**self.reader.inputs, **{name: size for name, (_, size) in self.reader.outputs.items()}}


def c_file(
    model: bytes | None,
    step: bytes | None,
    target: Target,
    name: str,
    *,
    states: Sequence[State] = (),
    include_weights: bool | None = None,
    precision: str = "fp32",
    threads: int = 1,
    any_length: bool = False,
    no_step: str = "",
) -> CFile:
    """C code for a network: `model` is an ONNX model of a window, `step` one of a call that carries its state.

    Either may be None. Both have static sizes, batch size 1 and the same weights. `states` are those that `step` has as
    inputs and outputs; without any, the state of all its layers is carried. With the `precision` "bf16" the weights of
    matrices are `as_packed`, and everything is computed in float32; with "int8" they are, and products with what a
    recurrent layer bounds by 1 are of whole numbers: weights of 8 bits with a scale for each row, and numbers of 16
    bits. With several `threads` those of the caller help, see `_TEAM`. `any_length`: the step computes what the window
    does, sample after sample in the order of memory, so that a function `run_n` can take any number of samples.
    `no_step`: why there is none, for the header. Raises `BuildFailed` with the operator or attribute that the kernel
    lacks.
    """
    weights = Weights(target.vector_length, precision)
    readers = {"run": Reader.of(model, (), name)} if model else {}
    readers |= {"step": Reader.of(step, states, name)} if step else {}
    if step and any(stage.reverse for stage in readers["step"].stages if isinstance(stage, Recurrent)):
        raise BuildFailed("a layer that reads the sequence backwards has no state that could be carried")
    for reader in readers.values():
        if precision != "fp32" and any(isinstance(stage, Repeat) for stage in reader.stages):
            raise BuildFailed("a layer that is computed by other operators in a loop is in float32 only: use fp32")
    if precision == "int8" and any(reader.given for reader in readers.values()):
        raise BuildFailed("a layer begins from a state that the network computes, which may exceed 1: use bf16")
    firsts = {field: values for reader in readers.values() for field, values in reader.firsts.items()}
    if precision == "int8" and any(np.abs(first).max() > 1 for field, first in firsts.items() if "h" in field[5:]):
        raise BuildFailed("a layer begins from a state that exceeds 1: use bf16")
    layers, *others = [[(layer, packed(layer, weights)) for layer in reader.layers] for reader in readers.values()]
    if any([at for _, at in other] != [at for _, at in layers] for other in others):
        raise BuildFailed("the window and the step have different layers")
    if threads > 1 and not layers:
        raise BuildFailed("only recurrent layers are computed by several threads: use one")
    passes = {function: _pass(reader, layers, weights, threads) for function, reader in readers.items()}
    begins = {field: (weights.add(values), len(values)) for field, values in firsts.items()}
    content = np.concatenate([np.zeros(HEAD, np.float32), *weights.parts])
    digest = cache.sha256(content.tobytes())
    content[:HEAD] = np.frombuffer(bytes.fromhex(digest), ">u2")  # 16 whole numbers
    included = content.nbytes <= LARGEST_INCLUDED if include_weights is None else include_weights
    network = cache.sha256(model or step or b"")
    strides: dict[str, int] = {}
    if any_length and model and step and (rows := readers["run"].rows) > 1:
        sizes = [(key, size, passes["run"].arguments[key]) for key, size in passes["step"].arguments.items()]
        strides = {key: size * (whole > size) for key, size, whole in sizes if whole in (size, rows * size)}
        strides = strides if len(strides) == len(sizes) else {}
    facts = (layers, content, included, network, digest, precision, threads, strides, begins, no_step)
    return CFile(name, target, passes, *facts)


#: A helper's part of a layer, in C.
_PART = """static void {name}_part(const struct lstm_trt_work *to, int part, const struct lstm_trt_work *from)
{{
    products({sizes}, to, part, from);
}}
"""

#: Types in the header for code of several threads. A team has one helper less than threads.
_TEAM = """
#ifndef LSTM_TRT_TEAM
#define LSTM_TRT_TEAM
struct lstm_trt_work;
typedef void lstm_trt_part(const struct lstm_trt_work *work, int part, const struct lstm_trt_work *from);
struct lstm_trt_work {
    lstm_trt_part *part;
    const float *x, *w, *h;
    float *gates, *sums;
    int rows;
};
struct LSTM_TRT_ALIGNED lstm_trt_helper {
    struct lstm_trt_work work;
    unsigned given, done;
};
struct lstm_trt_team {
    struct lstm_trt_helper *helpers;
    unsigned stopped;
    unsigned long late; /* parts that this thread computed because a helper had not within 10 times the last call */
    unsigned long long last;
};
#endif
"""

#: Functions in the header for code of several threads.
_HELP = """
/* To be called by {helpers} other threads of the program, each with another number from 1 on: helps `run` and `step`,
   and returns after `stop`. It spins, so it needs a core of its own. `stop` ends all helpers of an instance, which must
   not be copied or freed before they have returned; net->team.late counts what they did not compute in time. */
void {name}_help(struct {name} *net, int number);
void {name}_stop(struct {name} *net);
"""


def _pass(reader: Reader, layers: Sequence[tuple[Layer, int]], weights: Weights, threads: int) -> Pass:
    functions: dict[str, str] = {}
    calls: list[str] = []
    gates = 0
    for base, values in reader.constants.items():
        reader.bases[base] = f"w + {weights.add(values)}"
    for stage in reader.stages:
        x, y, into = reader.place(stage.x), reader.bases[stage.y // BASE], stage.y % BASE
        if isinstance(stage, Recurrent):
            layer, offset = layers[stage.layer]
            bits = weights.bits[not layer.bounded]
            part = f"{bits}, {layer.kind}, {layer.features}, {layer.units}, {stage.rows}"
            sizes = f"{part}, {int(stage.reverse)}"
            name = re.sub(r"\W+", "_", f"layer_{sizes.lower()}_{stage.width}")
            arguments = ("x", "w", "sums", "h", "c", "gates", "y")
            parameters = ", ".join(f"{'const ' * (number < 3)}float *{each}" for number, each in enumerate(arguments))
            team = f", team, {name}_part, own" * (threads > 1)
            call = f"recurrent({sizes}, {', '.join(arguments)}, {stage.width}{team})"
            if team:
                functions[f"{name}_part"] = _PART.format(name=name, sizes=part)
                parameters += ", struct lstm_trt_team *team, float *own"
            functions[name] = f"static void {name}({parameters})\n{{\n    {call};\n}}\n"
            columns = len(weights.gates(layer.weights[2], layer.gates))
            inputs = (_rounded_up(layer.features, weights.length) // 2 + 1) * (bits == 8)
            gates = max(gates, min(stage.rows, CHUNK) * (columns + inputs) + weights.length)
            number = stage.layer
            prepared = "0" if number in reader.given else f"PREPARED({number})"
            state = f"{prepared}, net->h{number}, net->c{number}, net->gates"
            calls.append(f"{name}({x}, w + {offset}, {state}, {y} + {into}{', &net->team, net->own' * (threads > 1)});")
        elif isinstance(stage, Dense):
            k, columns = stage.matrix.shape
            few = columns <= FEW_COLUMNS
            matrix = weights.vector(stage.matrix).T if few else weights.matrix(stage.matrix.T, TILE)
            where = f"w + {weights.add(matrix)}, w + {weights.add(weights.vector(stage.bias))}"
            function = "dots(" if few else f"dense({weights.bits[1]}, "
            calls.append(f"{function}{stage.rows}, {k}, {columns}, {x}, {stage.stride}, {where}, {y}, {columns});")
        elif isinstance(stage, Pointwise):
            a, b = (*map(c_number, stage.parameters), "0", "0")[:2]
            calls.append(f"POINTWISE({stage.function}, {stage.size}, {x}, {y}, {a}, {b});")
        elif isinstance(stage, Binary):
            count, other = stage.size // stage.rows, reader.place(stage.other)
            sizes = f"{stage.rows}, {count}, {x}, {other}, {0 if stage.repeated else count}"
            calls.append(f"BINARY({stage.function}, {sizes}, {y});")
        elif isinstance(stage, Copy):
            calls.append(_copied(stage, x, f"{y} + {into}"))
        elif isinstance(stage, Call):
            arguments = (*map(str, stage.numbers), x, *map(reader.place, stage.others), y)
            calls.append(f"{stage.function}({', '.join(arguments)});")
        elif isinstance(stage, Repeat):
            calls.append(f"for (int t = 0; t < {stage.rows}; t++) {{")
        elif isinstance(stage, End):
            calls.append("}")
    places, size = _buffers(reader)
    pointers = {base: f"net->buffer + {place}" for base, place in places.items()}
    pointers |= {base: name for name, (base, _) in reader.outputs.items()}
    begin = [f"float *{reader.bases[base]} = {pointer};" for base, pointer in pointers.items()]
    return Pass(reader, functions, [*begin, *calls], size, gates)


def _copied(stage: Copy, x: str, y: str) -> str:
    """The statement of a copy: loops around adjacent numbers, or around single ones."""
    *around, last = stage.loops or (Loop(1, 0, 0),)
    adjacent = (last.read, last.write) == (1, 1)
    begin = ""
    for number, loop in enumerate(around if adjacent else (*around, last)):
        begin += f"for (int i{number} = 0; i{number} < {loop.count}; i{number}++) "
        x += f" + i{number} * {loop.read}"
        y += f" + i{number} * {loop.write}"
    return f"{begin}memcpy({y}, {x}, {4 * last.count if adjacent else 4});"


def _rounded_up(size: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def _literal(value: np.float32, bits: np.uint32) -> str:
    """A float constant in C with all its bits, which for packed whole numbers may be those of a NaN."""
    if np.isnan(value):
        kind, payload = "" if bits & 0x400000 else "s", bits & 0x3FFFFF
        return f'{"-" * int(bits >> 31)}__builtin_nan{kind}f("{payload:#x}")'
    return c_number(float(value)) if np.isinf(value) else f"{float(value).hex()}f"


def c_number(value: float) -> str:
    """A float constant in C."""
    return f"{'-' * bool(value < 0)}__builtin_inff()" if math.isinf(value) else f"{np.float32(value)!s}f"


def _buffers(reader: Reader) -> tuple[dict[int, int], int]:
    """Base -> place of each buffer in floats, and the size of all: a place is used again after the last reading."""
    outputs = [base for base, _ in reader.outputs.values()]
    last = {address // BASE: number for number, stage in enumerate(reader.stages) for address in stage.reads}
    free: list[tuple[int, int]] = []
    places: dict[int, tuple[int, int]] = {}
    total = 0
    for number, stage in enumerate(reader.stages):
        reads, writes = {address // BASE for address in stage.reads}, stage.y // BASE
        if writes in reader.buffers.keys() - {*places, *outputs}:
            needed = _rounded_up(reader.buffers[writes], 16)
            fitting = min((entry for entry in free if entry[0] >= needed), default=None)
            if fitting:
                free.remove(fitting)
            else:
                fitting = (needed, total)
                total += needed
            places[writes] = fitting
        free += [places[base] for base in reads if last[base] == number and base in places]
    return {base: place for base, (_, place) in places.items()}, total


@dataclass(frozen=True)
class CFile:
    """C code of one network: NAME.c and NAME.h, and the weights, which are in the source if `included`.

    `passes` are those that it has of `run` and `step`; `layers` with the offset of their weights; `content`: the
    weights in float32, to be loaded at an address that is a multiple of 64; `strides`: if it has `run_n`, floats from a
    sample to the next of each input and output, 0 where only the last counts; `begins`: field of the struct with a
    state that does not begin from zero -> offset of its first numbers in the weights, and how many they are; `no_step`:
    why there is no `step`; `error`: a line for the head.
    """

    name: str
    target: Target
    passes: Mapping[str, Pass]
    layers: Sequence[tuple[Layer, int]]
    content: np.ndarray
    included: bool
    network_sha256: str
    weights_sha256: str
    precision: str = "fp32"
    threads: int = 1
    strides: Mapping[str, int] = field(default_factory=dict)
    begins: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    no_step: str = ""
    error: str = "not measured"

    @property
    def weights(self) -> bytes:
        """The content of NAME.bin."""
        return self.content.tobytes()

    @property
    def samples(self) -> dict[str, int]:
        """Function -> samples of a call."""
        return {function: each.reader.rows for function, each in self.passes.items()}

    @property
    def reader(self) -> Reader:
        """The first graph; all have the same layers and outputs."""
        return next(iter(self.passes.values())).reader

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Flags of gcc and clang, without input and output."""
        return ("-std=gnu99", "-O3", *self.target.flags)

    def write(self, folder: str | Path) -> list[Path]:
        """Write the source, the header and, if they are not included, the weights as NAME.bin; returns the paths."""
        folder = files.make_folder(Path(folder))
        contents = {f"{self.name}.c": self.source.encode(), f"{self.name}.h": self.header.encode()}
        contents |= {} if self.included else {f"{self.name}.bin": self.weights}
        return [files.put(folder / name, content) for name, content in contents.items()]

    @property
    def head(self) -> str:
        """The comment at the beginning of both files."""
        name, target, sizes = self.name, self.target, []
        for stage in self.reader.stages:
            if isinstance(stage, Recurrent):
                layer = self.reader.layers[stage.layer]
                kind = "GRU" if layer.kind == "RESET" else layer.kind
                sizes.append(f"{kind} {layer.features} -> {layer.units}{' backwards' * stage.reverse}")
            elif isinstance(stage, Dense):
                sizes.append(f"dense {' -> '.join(map(str, stage.matrix.shape))}")
            elif isinstance(stage, Pointwise):
                sizes.append(stage.function)
            elif isinstance(stage, Repeat):
                sizes.append(stage.text)
        where = "in the source" if self.included else f"in {name}.bin"
        memory = 64 * self.threads + sum(_rounded_up(4 * size, 64) for size in self.fields().values())
        kept = {"bf16": ", weights in bfloat16", "int8": ", weights in int8, of inputs and dense layers in bfloat16"}
        kept = kept.get(self.precision, "") + f", for {self.threads} threads" * (self.threads > 1)
        return f"""/* {name}: {", ".join(sizes)}
   Batch size 1, float32{kept}. Generated by lstm_trt, kernel {VERSION}.
   Network   SHA-256 {self.network_sha256}
   Weights   {self.content.nbytes} bytes, {where}, SHA-256 {self.weights_sha256}
   Memory    {memory} bytes for each instance (struct {name}); less than {STACK} bytes on the stack
   Target    {target.name}, vectors of {target.vector_length} floats
   Compile   cc {" ".join(self.compile_flags)} -c {name}.c
   Error     {self.error}
   {LICENCE} */
"""

    def fields(self) -> dict[str, int]:
        """Arrays of the struct and their sizes in floats."""
        length, sizes = self.target.vector_length, {}
        for number, (layer, _) in enumerate(self.layers):
            units = _rounded_up(layer.units, length)
            sizes |= {f"h{number}": (4 if PRECISIONS[self.precision][0] == 8 else 3) * units, f"c{number}": units}
            if "step" in self.passes:
                sizes[f"sums{number}"] = layer.gates_of_h * units + length
        each = self.passes.values()
        for one in each:
            sizes |= one.reader.fields
        gates = max(one.gates for one in each)
        if self.threads > 1:
            own = max(
                (layer.gates_of_h * _rounded_up(layer.units, length) + length for layer, _ in self.layers), default=0
            )
            sizes |= {
                f"{key}{k or ''}": size for k in range(self.threads) for key, size in (("gates", gates), ("own", own))
            }
        sizes |= {"gates": gates, "buffer": max(one.buffer for one in each)}
        return {name: size for name, size in sizes.items() if size}

    def prototype(self, function: str, prefix: str = "") -> str:
        """The declaration of `run`, `step` or `prepare_next`, with the extents of input and outputs."""
        arguments, rows = [f"struct {self.name} *net"], self.samples.get(function, 0)
        for name, size in self._arguments(function).items():
            extent = f"{rows} * {size // rows}" if rows > 1 and size % rows == 0 else size
            extent = "" if function == "run_n" else extent
            arguments.append(f"{'const ' * name.startswith('x')}float {name}[{extent}]")
        arguments += [f"{kind} {name}" for name, kind in COUNTS.get(function, {}).items()]
        return f"void {prefix or self.name}_{function}({', '.join(arguments)})"

    @property
    def header(self) -> str:
        """The content of NAME.h."""
        name, samples = self.name, self.samples
        function, rows = list(samples.items())[-1]
        macros = {"WEIGHTS": self.content.size, "WINDOW": samples.get("run"), "STEP": samples.get("step")}
        for key, size in self.passes[function].arguments.items():
            side = "INPUTS" if key.startswith("x") else "OUTPUTS"
            macros[side + key[1:]] = size // rows if size % rows == 0 else size
        defines = "\n".join(f"#define {name}_{key} {value}" for key, value in macros.items() if value is not None)
        fields = "\n".join(f"    {ALIGNED} float {key}[{size}];" for key, size in self.fields().items())
        given = f"{name}_weights" if self.included else f"the content of {name}.bin"
        functions = "".join(f"\n/* {self._what_does(key)} */\n{self.prototype(key)};\n" for key in self.passes)
        if self.strides:
            what = "As run, for any number of samples, which lie one after another in x and y."
            functions += f"\n/* {what} */\n{self.prototype('run_n')};\n"
        if self.no_step:
            functions += f"\n/* There is no function step: {self.no_step.replace('*/', '* /')}. */\n"
        if "step" in self.passes:
            what = "computes the part of the next step that needs no input, so that it\n   answers sooner."
            functions += f"\n/* Optional, between two steps: {what} */\n{self.prototype('prepare_next')};\n"
        weights = f"extern const float {name}_weights[{name}_WEIGHTS];\n\n" if self.included else ""
        team = ""
        if self.threads > 1:
            functions += _HELP.format(name=name, helpers=self.threads - 1)
            team = f"    struct lstm_trt_team team;\n    struct lstm_trt_helper helpers[{self.threads - 1}];\n"
            defines += f"\n#define {name}_THREADS {self.threads}"
        stddef = "\n#include <stddef.h>\n" * bool(self.strides)
        return f"""{self.head}
#ifndef {name}_H
#define {name}_H
{stddef}
#ifdef __cplusplus
extern "C" {{
#endif

/* Numbers of weights, time steps of a call, and numbers of one time step. */
{defines}
{_ALIGNED}{_TEAM * bool(team)}
/* One instance: states and buffers. Instances are independent of each other. */
struct {name} {{
    {ALIGNED} const float *weights;
    int prepared;
{team}{fields}
}};

{weights}/* Begins with {self._first}. `weights`: {given}, {name}_WEIGHTS floats, which every call reads.
   Returns 0, or 1 if the address of one of them is not a multiple of 64, 2 if these are not the weights of this
   network, 3 if the processor lacks instructions. */
int {name}_init(struct {name} *net, const void *weights);

/* Begins anew, with {self._first}. */
void {name}_reset(struct {name} *net);
{functions}
#ifdef __cplusplus
}}
#endif

#endif
"""

    @property
    def _first(self) -> str:
        """The states after `reset`, for the header."""
        return "the first states of the network" if self.begins else "states of zero"

    def _what_does(self, function: str) -> str:
        """What `run` or `step` does with states, for the header."""
        reader = self.passes[function].reader
        layers = [f"layer {number + 1}" for number in sorted(reader.given)]
        begins = f"; in each call the inputs give the first state of {listed(layers)}" if layers else ""
        if function == "step":
            return f"A call that continues from the state after the call before{begins}."
        kept = " The state after it is kept, for step." if "step" in self.passes else ""
        return f"A window of time steps{begins or f', from {self._first}'}.{kept}"

    @property
    def source(self) -> str:
        """The content of NAME.c."""
        name, target = self.name, self.target
        macro = INSTRUCTIONS.get(target.vector_length)
        check = f'#ifndef {macro}\n#error "compile this file with {" ".join(target.flags)}"\n#endif\n'
        keep = f"#ifdef {name}_KEEP_FPU\n#define KEEP_FPU\n#endif\n"
        kernel = resources.files("lstm_onnx.c").joinpath("kernel.c").read_text()
        functions = {key: text for each in self.passes.values() for key, text in each.functions.items()}
        numbers = ", ".join(str(int(value)) for value in self.content[:HEAD])
        reset = "    memset(net->{0}{1}, 0, sizeof net->{0}{1});\n"
        resets = "".join(reset.format(field, number) for number in range(len(self.layers)) for field in "hc")
        kept = [name for each in self.passes.values() for name in each.reader.fields]
        resets += "".join(f"    memset(net->{name}, 0, sizeof net->{name});\n" for name in kept)
        for state, (place, size) in self.begins.items():
            resets += f"    memcpy({state}, net->weights + {place}, {4 * size});\n"
        team = ""
        if self.threads > 1:
            team = "    memset(net->helpers, 0, sizeof net->helpers);\n    begin(&net->team, net->helpers);\n"
            for k in range(1, self.threads):
                team += f"    net->helpers[{k - 1}].work.gates = net->gates{k};\n"
                team += f"    net->helpers[{k - 1}].work.sums = net->own{k};\n"
        parts = [
            self.head,
            f'#include "{name}.h"\n\n{check if macro else ""}{keep}#define VL {target.vector_length}\n#define H_BITS'
            f" {PRECISIONS[self.precision][0]}\n#define THREADS {self.threads}\n\n{kernel}",
            *functions.values(),
            f"""int {name}_init(struct {name} *net, const void *weights)
{{
    static const float hash[{HEAD}] = {{{numbers}}};
    if (!supported())
        return 3;
    if ((uintptr_t)net % 64 || (uintptr_t)weights % 64)
        return 1;
    if (memcmp(hash, weights, sizeof hash))
        return 2;
    net->weights = (const float *)weights;
{team}    {name}_reset(net);
    return 0;
}}
""",
            f"void {name}_reset(struct {name} *net)\n{{\n{resets}    net->prepared = 0;\n}}\n",
            *map(self._definition, self.passes),
        ]
        if self.strides:
            parts.append(self._apart("run_n", self._of_any_length))
        if "step" in self.passes:
            calls = ""
            for number, (layer, offset) in enumerate(self.layers):
                places = f"net->weights + {offset}, net->h{number}, net->sums{number}"
                bits = PRECISIONS[self.precision][not layer.bounded]
                calls += f"    prepare({bits}, {layer.kind}, {layer.features}, {layer.units}, {places});\n"
            parts.append(self._apart("prepare_next", f"{calls}    net->prepared = 1;\n"))
        if self.threads > 1:
            parts.append(self._apart("help", "    help(&net->team, number);\n"))
            stop = "__atomic_store_n(&net->team.stopped, 1, __ATOMIC_RELEASE)"
            parts.append(f"void {name}_stop(struct {name} *net)\n{{\n    {stop};\n}}\n")
        if self.included:
            rows = (map(_literal, row, row.view(np.uint32)) for row in self.content.reshape(-1, 16))
            values = ",\n".join(map(", ".join, rows))
            parts.append(f"{ALIGNED} const float {name}_weights[{name}_WEIGHTS] = {{\n{values}\n}};\n")
        return "\n".join(parts)

    def _definition(self, function: str) -> str:
        """The function `run` or `step`."""
        lines = ["const float *w = net->weights;", *self.passes[function].lines]
        known = "0"
        if self.threads > 1:
            lines[:0] = ["const uint64_t began = ticks();", "const unsigned long late = net->team.late;"]
            lines.append("if (late == net->team.late) net->team.last = ticks() - began;")
        if function == "step":
            lines.append("net->prepared = 0;")
            known = "(net->prepared ? net->sums##n : 0)"
        text = "".join(f"    {line}\n" for line in lines)
        return f"#define PREPARED(n) {known}\n{self._apart(function, text)}#undef PREPARED\n"

    def _apart(self, function: str, body: str) -> str:
        """A function that computes what is in `body` with the default control register, see `kernel.c`."""
        names = ["net", *self._arguments(function), *COUNTS.get(function, ())]
        call = f"{OWN}_{function}({', '.join(names)})"
        inner = f"APART {self.prototype(function, OWN)}\n{{\n{body}}}"
        reset = f"    {self.name}_reset(net);\n" * function.startswith("run")
        return f"{inner}\n\n{self.prototype(function)}\n{{\n{reset}    WITH_DEFAULTS({call});\n}}\n"

    @property
    def _of_any_length(self) -> str:
        """The statements of `run_n`: whole windows, unless these begin from a state of their own, then single steps."""
        at = "".join(f", {key} + at * {stride}" if stride else f", {key}" for key, stride in self.strides.items())
        window, readers = f"{self.name}_WINDOW", {key: each.reader for key, each in self.passes.items()}
        lines = ["    size_t at = 0;\n", f"    for (; at < samples; at++) {OWN}_step(net{at});\n"]
        if not readers["step"].fields and not readers["run"].given:
            lines.insert(1, f"    for (; samples - at >= {window}; at += {window}) {OWN}_run(net{at});\n")
        return "".join(lines)

    def _arguments(self, function: str) -> Mapping[str, int]:
        function = "run" if function == "run_n" else function
        return self.passes[function].arguments if function in self.passes else {}
