"""A network as one C file: LSTM and GRU layers at batch size 1, with what `reader` has around them.

The file contains a kernel (`kernel.c`, or for the target "generic" what it needs of
`kernel_generic.c`), calls of its functions with all sizes as constants, and the weights, in the
order in which they are read. `kernel.c` needs a compiler with GNU vectors (gcc, clang) and, of
libraries, only memcpy, memset and memcmp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from lstm_onnx.c.names import OWN
from lstm_onnx.c.reader import Reader
from lstm_onnx.c.stages import Layer, Recurrent, Repeat
from lstm_onnx.c.statements import KEEP_C, Pass, c_number, rounded_up
from lstm_onnx.c.targets import Target
from lstm_onnx.c.weights import HEAD, PRECISIONS, Weights, packed
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.format import listed
from lstm_trt.config.workload import State
from lstm_trt.store import cache, files

#: Changes whenever other code is generated for the same network, so that recordings are not pooled.
VERSION = "9"

#: Largest weights in bytes that are written into the source by default.
LARGEST_INCLUDED = 2**20

#: Floats per vector -> the macro that the compiler defines for the instructions.
INSTRUCTIONS = {16: "__AVX512F__", 8: "__AVX2__"}

#: Bytes on the stack that a call takes less than, compiled with -O2 or -O3; of plain code with -Os
#: too.
STACK = 8192
PLAIN_STACK = 512

#: Function -> its whole numbers and their types in C.
COUNTS = {"help": {"number": "int"}, "run_n": {"samples": "size_t"}}

#: Precision -> numbers and weights, for the head.
KINDS = {
    "fp32": "float32",
    "bf16": "float32, weights in bfloat16",
    "int8": "float32, weights in int8, of inputs and dense layers in bfloat16",
}

#: A line of each generated file.
LICENCE = "Generated code may be used, changed and passed on without any condition."


def text_of(file: str, /, **values: object) -> str:
    """A file of this folder; values are put into a template."""
    text = resources.files("lstm_onnx.c").joinpath(file).read_text()
    return Template(text).substitute(values) if values else text


def c_file(
    models: Mapping[str, bytes],
    target: Target,
    name: str,
    *,
    states: Sequence[State] = (),
    include_weights: bool | None = None,
    precision: str = "fp32",
    threads: int = 1,
) -> CFile:
    """C code of `models`: of "run" the ONNX model of a window, of "step" that of a call with state.

    There is one of them, or both, with static sizes, batch size 1 and the same weights. `states`
    are those that the step has as inputs and outputs; without any, the state of all its layers is
    carried. With the `precision` "bf16" the weights of matrices are `as_packed`, and everything is
    computed in float32; with "int8" they are, and products with what a recurrent layer bounds by 1
    are of whole numbers: weights of 8 bits with a scale for each row, and numbers of 16 bits. With
    several `threads` those of the caller help, see `help.h.in`. Raises `BuildFailed` with the
    operator or attribute that the kernel lacks.
    """
    readers = {}
    for function, model in models.items():
        readers[function] = Reader.of(model, states if function == "step" else (), name)
    _check(readers, target, precision, threads)
    weights = Weights(target.vector_length, precision)
    found = set()
    for reader in readers.values():
        for layer in reader.layers:
            layer.offset = packed(layer, weights)
        found.add(tuple(layer.offset for layer in reader.layers))
    if len(found) > 1:
        raise BuildFailed("the window and the step have different layers")
    passes = {name: Pass.of(reader, weights, threads) for name, reader in readers.items()}
    begins = {}
    for reader in readers.values():
        for state, values in reader.firsts.items():
            begins[state] = (weights.add(values), len(values))
    content = np.concatenate([np.zeros(HEAD, np.float32), *weights.parts])
    digest = cache.sha256(content.tobytes())
    content[:HEAD] = np.frombuffer(bytes.fromhex(digest), ">u2")  # 16 whole numbers
    return CFile(
        name=name,
        target=target,
        passes=passes,
        content=content,
        included=content.nbytes <= LARGEST_INCLUDED if include_weights is None else include_weights,
        network_sha256=cache.sha256(next(iter(models.values()))),
        weights_sha256=digest,
        precision=precision,
        threads=threads,
        begins=begins,
    )


def _check(readers: Mapping[str, Reader], target: Target, precision: str, threads: int) -> None:
    """Raise `BuildFailed` for what no code is generated for."""
    if target.plain and (precision != "fp32" or threads > 1):
        raise BuildFailed(
            f"the target {target.name} is in fp32 and for one thread: choose another target"
        )
    for function, reader in readers.items():
        for stage in reader.stages:
            if function == "step" and isinstance(stage, Recurrent) and stage.reverse:
                raise BuildFailed(
                    "a layer that reads the sequence backwards has no state that could be carried"
                )
            if precision != "fp32" and isinstance(stage, Repeat):
                raise BuildFailed(
                    "a layer that is computed by other operators in a loop is in float32 only:"
                    " use fp32"
                )
        if precision == "int8":
            _check_states(reader)
        if threads > 1 and not reader.layers:
            raise BuildFailed("only recurrent layers are computed by several threads: use one")


def _check_states(reader: Reader) -> None:
    """Raise `BuildFailed` for states that whole numbers could not hold."""
    if reader.given:
        raise BuildFailed(
            "a layer begins from a state that the network computes, which may exceed 1: use bf16"
        )
    for state, first in reader.firsts.items():
        if "h" in state[5:] and np.abs(first).max() > 1:
            raise BuildFailed("a layer begins from a state that exceeds 1: use bf16")


def _literal(value: np.float32, bits: np.uint32) -> str:
    """A float constant in C with all its bits; packed whole numbers may be those of a NaN."""
    if np.isnan(value):
        kind = "" if bits & 0x400000 else "s"
        return f'{"-" if bits >> 31 else ""}__builtin_nan{kind}f("{bits & 0x3FFFFF:#x}")'
    return c_number(float(value)) if np.isinf(value) else f"{float(value).hex()}f"


def _called(kernel: str, code: str) -> str:
    """A kernel of functions with empty lines between them, without those that are not called."""
    kept = []
    for block in reversed(kernel.split("\n\n")):
        defined = re.search(r"^static \w+ (\w+)\(", block, flags=re.MULTILINE)
        if not defined or re.search(rf"\b{defined[1]}\(|\({defined[1]},", code):
            kept.append(block)
            code += block
    return "\n\n".join(reversed(kept))


@dataclass(frozen=True)
class CFile:
    """C code of one network: NAME.c and NAME.h, with the weights in the source if `included`.

    `passes` are those that it has of `run` and `step`; `content`: the weights in float32, to be
    loaded at an address that is a multiple of 64; `begins`: field of the struct with a state that
    does not begin from zero -> offset of its first numbers in the weights, and how many they are;
    `any_length`: the step computes what the window does, sample after sample in the order of
    memory; `no_step`: why there is no `step`; `error`: a line for the head.
    """

    name: str
    target: Target
    passes: Mapping[str, Pass]
    content: np.ndarray
    included: bool
    network_sha256: str
    weights_sha256: str
    precision: str = "fp32"
    threads: int = 1
    begins: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    any_length: bool = False
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
        return self.target.compile_flags

    @property
    def command(self) -> str:
        """The command that compiles the file."""
        return " ".join(("cc", *self.compile_flags, "-c", f"{self.name}.c"))

    @property
    def aligned(self) -> str:
        """Before the declaration of an array with the alignment of vectors."""
        return "" if self.target.plain else "LSTM_TRT_ALIGNED "

    @property
    def prepares(self) -> bool:
        """Whether there is a function `prepare_next`."""
        return "step" in self.passes and not self.target.plain

    @property
    def strides(self) -> dict[str, int]:
        """Floats from a sample to the next of each input and output, 0 where only the last counts.

        None, if there is no `run_n`: sizes do not follow from each other, or not from a sample.
        """
        strides: dict[str, int] = {}
        if not self.any_length or self.samples["run"] == 1:
            return strides
        window = self.arguments("run")
        for key, size in self.arguments("step").items():
            if window[key] not in (size, self.samples["run"] * size):
                return {}
            strides[key] = size if window[key] > size else 0
        return strides

    def write(self, folder: str | Path) -> list[Path]:
        """Write NAME.c, NAME.h and, unless the weights are included, NAME.bin; returns paths."""
        folder = files.make_folder(Path(folder))
        contents = {f"{self.name}.c": self.source.encode(), f"{self.name}.h": self.header.encode()}
        if not self.included:
            contents[f"{self.name}.bin"] = self.weights
        return [files.put(folder / name, content) for name, content in contents.items()]

    @property
    def head(self) -> str:
        """The comment at the beginning of both files."""
        name = self.name
        kind = KINDS[self.precision]
        if self.threads > 1:
            kind += f", for {self.threads} threads"
        where = "in the source" if self.included else f"in {name}.bin"
        stack = STACK
        flash = ""
        vectors = f"vectors of {self.target.vector_length} floats"
        if self.target.plain:
            stack = PLAIN_STACK
            flash = (
                f"\n   Flash     the weights, and less than {self._code} bytes of code"
                " (-Os, Cortex-M with an FPU)"
            )
            vectors = "C99 without vectors"
        return f"""/* {name}: {", ".join(self._texts)}
   Batch size 1, {kind}. Generated by lstm_trt, kernel {VERSION}.
   Network   SHA-256 {self.network_sha256}
   Weights   {self.content.nbytes} bytes, {where}, SHA-256 {self.weights_sha256}
   Memory    {self._memory} bytes for each instance (struct {name}); \
less than {stack} bytes on the stack{flash}
   Target    {self.target.name}, {vectors}
   Compile   {self.command}
   Error     {self.error}
   {LICENCE} */
"""

    @property
    def _texts(self) -> list[str]:
        """The layers of the network in words."""
        return [stage.text for stage in self.reader.stages if stage.text]

    @property
    def _memory(self) -> int:
        """Bytes of the struct."""
        sizes = [4 * size for size in self.fields().values()]
        if self.target.plain:
            return 8 + sum(sizes)
        return 64 + 128 * (self.threads - 1) + sum(rounded_up(size, 64) for size in sizes)

    @property
    def _code(self) -> int:
        """Bytes that plain code takes less than on a microcontroller with an FPU, without libc."""
        statements = sum(len(each.lines) for each in self.passes.values())
        return rounded_up(1280 + 128 * len(set(self._texts)) + 96 * statements, 128)

    def fields(self) -> dict[str, int]:
        """Arrays of the struct and their sizes in floats."""
        sizes: dict[str, int] = {}
        copies = 4 if self.precision == "int8" else 3
        if self.target.plain:
            copies = 2
        for number, layer in enumerate(self.reader.layers):
            units = rounded_up(layer.units, self.target.vector_length)
            sizes[f"h{number}"] = copies * units
            if layer.kind in KEEP_C or not self.target.plain:
                sizes[f"c{number}"] = units
            if self.prepares:
                sizes[f"sums{number}"] = self._sums_of(layer)
        sizes |= self._states
        passes = self.passes.values()
        sizes["gates"] = max(each.gates for each in passes)
        if self.threads > 1:
            sizes["own"] = max(map(self._sums_of, self.reader.layers))
            for k in range(1, self.threads):
                sizes[f"gates{k}"] = sizes["gates"]
                sizes[f"own{k}"] = sizes["own"]
                sizes[f"copy{k}"] = max(each.copied for each in passes)
        sizes["buffer"] = max(each.buffer for each in passes)
        return {name: size for name, size in sizes.items() if size}

    def _sums_of(self, layer: Layer) -> int:
        """Floats for the product of a layer's state."""
        length = self.target.vector_length
        return layer.gates_of_h * rounded_up(layer.units, length) + length

    @property
    def _states(self) -> dict[str, int]:
        """Arrays with states that no layer carries, which only `step` has."""
        *_, last = self.passes.values()
        return last.reader.fields

    def prototype(self, function: str, prefix: str = "") -> str:
        """The declaration of a function, with the extents of its inputs and outputs."""
        arguments = [f"struct {self.name} *net"]
        rows = self.samples.get(function, 0)
        for name, size in self.arguments(function).items():
            extent = str(size)
            if function == "run_n":
                extent = ""
            elif rows > 1 and size % rows == 0:
                extent = f"{rows} * {size // rows}"
            const = "const " if name.startswith("x") else ""
            arguments.append(f"{const}float {name}[{extent}]")
        arguments += [f"{kind} {name}" for name, kind in COUNTS.get(function, {}).items()]
        return f"void {prefix or self.name}_{function}({', '.join(arguments)})"

    @property
    def header(self) -> str:
        """The content of NAME.h."""
        name = self.name
        fields = [f"    {self.aligned}const float *weights;"]
        types = ""
        errors = "2 if these are not the weights of this network"
        if not self.target.plain:
            fields.append("    int prepared;")
            types = text_of("types.h.in")
            errors = (
                f"1 if the address of one of them is not a multiple of 64, {errors},"
                " 3 if the processor lacks\n   instructions"
            )
        if self.threads > 1:
            types += text_of("team.h.in")
            fields += [
                "    struct lstm_trt_team team;",
                f"    struct lstm_trt_helper helpers[{self.threads - 1}];",
            ]
        fields += [f"    {self.aligned}float {key}[{size}];" for key, size in self.fields().items()]
        return text_of(
            "network.h.in",
            head=self.head,
            name=name,
            stddef="\n#include <stddef.h>\n" if self.strides else "",
            defines=self._defines(),
            types=types,
            fields="\n".join(fields),
            weights=f"extern const float {name}_weights[{name}_WEIGHTS];\n\n"
            if self.included
            else "",
            first=self._first,
            given=f"{name}_weights" if self.included else f"the content of {name}.bin",
            errors=errors,
            functions=self._declared(),
        )

    def _defines(self) -> str:
        """The macros with sizes."""
        macros = {"WEIGHTS": self.content.size}
        for function, rows in self.samples.items():
            macros["WINDOW" if function == "run" else "STEP"] = rows
        for key, size in self.arguments(function).items():
            side = "INPUTS" if key.startswith("x") else "OUTPUTS"
            macros[side + key[1:]] = size // rows if size % rows == 0 else size
        if self.threads > 1:
            macros["THREADS"] = self.threads
        return "\n".join(f"#define {self.name}_{key} {value}" for key, value in macros.items())

    def _declared(self) -> str:
        """The functions in the header, each with what it does."""
        what = {function: self._what_does(function) for function in self.passes}
        if self.strides:
            what["run_n"] = (
                "As run, for any number of samples, which lie one after another in x and y."
            )
        if self.prepares:
            what["prepare_next"] = (
                "Optional, between two steps: computes the part of the next step that needs no"
                " input, so that it\n   answers sooner."
            )
        declared = ""
        for function, text in what.items():
            declared += f"\n/* {text} */\n{self.prototype(function)};\n"
        if self.no_step:
            declared += f"\n/* There is no function step: {self.no_step.replace('*/', '* /')}. */\n"
        if self.threads > 1:
            declared += text_of("help.h.in", name=self.name, helpers=self.threads - 1)
        return declared

    @property
    def _first(self) -> str:
        """The states after `reset`, for the header."""
        return "the first states of the network" if self.begins else "states of zero"

    def _what_does(self, function: str) -> str:
        """What `run` or `step` does with states, for the header."""
        given = self.passes[function].reader.given
        begins = ""
        if given:
            layers = listed([f"layer {number + 1}" for number in sorted(given)])
            begins = f"; in each call the inputs give the first state of {layers}"
        if function == "step":
            return f"A call that continues from the state after the call before{begins}."
        kept = " The state after it is kept, for step." if "step" in self.passes else ""
        return f"A window of time steps{begins or f', from {self._first}'}.{kept}"

    @property
    def source(self) -> str:
        """The content of NAME.c."""
        functions: dict[str, str] = {}
        for each in self.passes.values():
            functions |= each.functions
        calls = self._functions()
        kernel = text_of("kernel.c")
        if self.target.plain:
            kernel = _called(text_of("kernel_generic.c"), "".join(calls))
        return text_of(
            "network.c.in",
            head=self.head,
            name=self.name,
            setup=self._setup(),
            kernel=kernel,
            functions="\n".join(functions.values()),
            count=HEAD,
            hash=", ".join(map(str, self.content[:HEAD].astype(int))),
            checks="" if self.target.plain else _CHECKS,
            team=self._team(),
            resets=self._resets(),
            calls="\n".join(calls),
        )

    def _setup(self) -> str:
        """What the kernel is compiled for."""
        if self.target.plain:
            return ""
        check = ""
        macro = INSTRUCTIONS.get(self.target.vector_length)
        if macro:
            flags = " ".join(self.target.flags)
            check = f'#ifndef {macro}\n#error "compile this file with {flags}"\n#endif\n'
        return (
            f"{check}#ifdef {self.name}_KEEP_FPU\n#define KEEP_FPU\n#endif\n"
            f"#define VL {self.target.vector_length}\n"
            f"#define H_BITS {PRECISIONS[self.precision][0]}\n"
            f"#define THREADS {self.threads}\n"
        )

    def _resets(self) -> str:
        """The statements of `reset`."""
        resets = ""
        for key in self.fields():
            if re.match(r"[hcs]\d", key):  # those with states
                resets += f"    memset(net->{key}, 0, sizeof net->{key});\n"
        for state, (place, size) in self.begins.items():
            resets += f"    memcpy({state}, net->weights + {place}, {4 * size});\n"
        if not self.target.plain:
            resets += "    net->prepared = 0;\n"
        return resets or "    (void)net;\n"

    def _team(self) -> str:
        """The statements of `init` for helpers."""
        if self.threads == 1:
            return ""
        team = (
            "    memset(net->helpers, 0, sizeof net->helpers);\n"
            "    begin(&net->team, net->helpers);\n"
        )
        for k in range(1, self.threads):
            helper = f"    net->helpers[{k - 1}]"
            team += (
                f"{helper}.work.gates = net->gates{k};\n"
                f"{helper}.work.sums = net->own{k};\n"
                f"{helper}.copy = net->copy{k};\n"
            )
        return team

    def _functions(self) -> list[str]:
        """The functions of the header in C but for `init` and `reset`, and the weights."""
        name = self.name
        parts = [self._definition(function) for function in self.passes]
        if self.strides:
            parts.append(self._apart("run_n", self._of_any_length))
        if self.prepares:
            body = ""
            for number, layer in enumerate(self.reader.layers):
                body += (
                    f"    prepare({PRECISIONS[self.precision][not layer.bounded]}, {layer.kind},"
                    f" {layer.features}, {layer.units}, net->weights + {layer.offset},"
                    f" net->h{number}, net->sums{number});\n"
                )
            parts.append(self._apart("prepare_next", f"{body}    net->prepared = 1;\n"))
        if self.threads > 1:
            parts += [
                self._apart("help", "    help(&net->team, number);\n"),
                f"void {name}_stop(struct {name} *net)\n{{\n"
                "    __atomic_store_n(&net->team.stopped, 1, __ATOMIC_RELEASE);\n}\n",
            ]
        if self.included:
            parts.append(
                f"{self.aligned}const float {name}_weights[{name}_WEIGHTS] ="
                f" {{\n{self._rows_of_weights()}\n}};\n"
            )
        return parts

    def _rows_of_weights(self) -> str:
        """The weights as constants in C."""
        if self.target.plain:
            numbers = [c_number(value, plain=True) for value in self.content]
        else:
            numbers = list(map(_literal, self.content, self.content.view(np.uint32)))
        rows = [", ".join(numbers[at : at + 16]) for at in range(0, len(numbers), 16)]
        return ",\n".join(rows)

    def _definition(self, function: str) -> str:
        """The function `run` or `step`."""
        lines = [*self.passes[function].lines]
        if not self.target.plain or re.search(r"\bw \+", "\n".join(lines)):
            lines.insert(0, "const float *w = net->weights;")
        known = "0"
        if self.threads > 1:
            lines[:0] = [
                "const uint64_t began = ticks();",
                "const unsigned long late = net->team.late;",
            ]
            lines.append("if (late == net->team.late) net->team.last = ticks() - began;")
        if function == "step" and self.prepares:
            lines.append("net->prepared = 0;")
            known = "(net->prepared ? net->sums##n : 0)"
        code = self._apart(function, "".join(f"    {line}\n" for line in lines))
        if self.target.plain:
            return code
        return f"#define PREPARED(n) {known}\n{code}#undef PREPARED\n"

    def _apart(self, function: str, body: str) -> str:
        """A function that computes `body` with the default control register, see `kernel.c`."""
        names = ["net", *self.arguments(function), *COUNTS.get(function, ())]
        reset = ""
        if function.startswith("run"):
            reset = f"    {self.name}_reset(net);\n"
        return (
            f"APART {self.prototype(function, OWN)}\n{{\n{body}}}\n\n"
            f"{self.prototype(function)}\n{{\n"
            f"{reset}    WITH_DEFAULTS({OWN}_{function}({', '.join(names)}));\n}}\n"
        )

    @property
    def _of_any_length(self) -> str:
        """Statements of `run_n`: windows, unless they begin from states of their own, and steps."""
        at = ""
        for key, stride in self.strides.items():
            at += f", {key} + at * {stride}" if stride else f", {key}"
        window = f"{self.name}_WINDOW"
        text = "    size_t at = 0;\n"
        if not self._states and not self.passes["run"].reader.given:
            text += f"    for (; samples - at >= {window}; at += {window}) {OWN}_run(net{at});\n"
        return f"{text}    for (; at < samples; at++) {OWN}_step(net{at});\n"

    def arguments(self, function: str) -> Mapping[str, int]:
        """The arrays of a function and their sizes, of `run_n` those of a window."""
        each = self.passes.get("run" if function == "run_n" else function)
        return each.arguments if each else {}


#: The first statements of `init`, unless the code is plain.
_CHECKS = """    if (!supported())
        return 3;
    if ((uintptr_t)net % 64 || (uintptr_t)weights % 64)
        return 1;
"""
