"""What is in an ONNX network, and which runtimes run it.

A runtime is first asked for what it refuses or would misread (`onnx_checks.Rules`). If it is ready here, the
network is then prepared and compared with the reference in a worker process, as for a recording.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lstm_onnx import limits
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import read_shapes
from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import BuildFailed, UsageError, any_error
from lstm_trt.config.format import count, latency, listed, number, percent_number, short_number, table_lines
from lstm_trt.config.libraries import onnxruntime
from lstm_trt.config.workload import RecurrentLayer
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import static_model
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.doctor import RuntimeRow, frame_of, rows_of
from lstm_trt.recorder.pool import WorkerPool, nan_text
from lstm_trt.recorder.preparers.stacked import roofline_of
from lstm_trt.store import files
from lstm_trt.store.temporary import temporary_folder

#: One call, since only the preparation and the comparison matter.
_ONCE = Protocol(trials=1, warmup=0, settle=0)

#: Calls of a profile, and the share of an operator's times that count: the first call allocates memory, and some are
#: interrupted.
CALLS, KEPT = 200, 0.95

#: Operators that the text of a profile has at most.
MOST_SHARES = 12

#: States of `RuntimeAnswer`: computes what the reference does; refuses the network, or computes something else; cannot
#: run on this machine; reads no ONNX files.
RUNS, REFUSED, NOT_READY, NO_ONNX = "runs", "refused", "not ready", "reads no ONNX"


@dataclass(frozen=True)
class RuntimeAnswer:
    """What one runtime does with a network in float32: one of the states above, and the reason if it does not run.

    `mode`: in which it was tried; "stream" if the runtime takes the network in that mode only. `error`: the relative
    error of its outputs by norm, None if nothing was compared; `reference`, `reference_checked_by`, `not_checked` and
    `nan_reaches_output` as in the provenance of recordings.
    """

    runtime: str
    device: str | None
    version: str | None
    state: str
    reason: str = ""
    error: float | None = None
    reference: str | None = None
    reference_checked_by: str | None = None
    nan_reaches_output: bool | None = None
    mode: str = "forward"
    not_checked: str | None = None


@dataclass(frozen=True)
class Inspection:
    """An ONNX network with known sizes, its roofline bound on one core here, and one answer per runtime and device."""

    network: OnnxNetwork
    roofline: dict
    runtimes: tuple[RuntimeAnswer, ...]
    profile: tuple[dict, ...] = ()

    def as_dict(self) -> dict:
        """JSON values."""
        network = self.network
        return {
            **{name: getattr(network, name) for name in ("name", "sha256", "parameters", "flops")},
            "sizes": dict(network.sizes),
            "constants": network.constants,
            "inputs": [tensor.as_dict() for tensor in network.facts.inputs],
            "outputs": [tensor.as_dict() for tensor in network.facts.outputs],
            "states": dict(network.carried),
            "likely_states": network.likely_states,
            "recurrent_layers": [_layer_dict(layer) for layer in network.recurrent_layers],
            "roofline": self.roofline,
            "runtimes": [asdict(answer) for answer in self.runtimes],
            **({"profile": list(self.profile)} if self.profile else {}),
        }

    frame = property(lambda self: frame_of(self.runtimes))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def inspect(
    path: str | Path | OnnxNetwork,
    sizes: Mapping[str, int] | None = None,
    *,
    profile: bool = False,
    listener: Callable[[dict], None] = lambda message: None,
) -> Inspection:
    """Read an ONNX file, and try every runtime that is ready; `sizes` are the values of its symbolic sizes.

    `profile`: also `operator_shares`. `listener` gets the messages of the processes (stages, and `waiting` while
    another recording uses the core). Raises `UsageError` for an invalid file or size.
    """
    network = path if isinstance(path, OnnxNetwork) else OnnxNetwork(path, sizes=sizes)
    content = static_model(network.path, network)
    with temporary_folder() as folder, WorkerPool() as pool:
        answers = [
            _untried(network, content, row) or _attempt(pool, network, row, folder, listener)
            for name in registry.table("RUNTIMES")
            for row in rows_of(name)
        ]
    roofline = roofline_of(network, 1)
    return Inspection(network, roofline, tuple(answers), tuple(operator_shares(network, roofline) if profile else ()))


def _untried(network: OnnxNetwork, content: bytes, row: RuntimeRow) -> RuntimeAnswer | None:
    """The answer if it is known without an attempt."""
    who = (row.runtime, row.device, row.version)
    if row.device is None:  # the module cannot be imported
        return RuntimeAnswer(*who, NOT_READY, row.reason)
    module = runtimes.load_runtime(row.runtime)
    if not getattr(module, "NEEDS_ONNX", False):
        return RuntimeAnswer(*who, NO_ONNX)
    rules = getattr(module, "ONNX_RULES", None)
    refusal = onnx_checks.refusal(onnx_checks.read(content, network.name), rules) if rules else None
    if refusal is None and row.ready:
        return None
    if refusal is None and hasattr(module, "parser_refusal"):
        refusal = module.parser_refusal(content, network.name)
    return RuntimeAnswer(*who, REFUSED, refusal) if refusal else RuntimeAnswer(*who, NOT_READY, row.reason)


def _attempt(
    pool: WorkerPool, network: OnnxNetwork, row: RuntimeRow, folder: Path, listener: Callable[[dict], None]
) -> RuntimeAnswer:
    """In each mode of the network that the runtime has, until it runs; otherwise the reason in the first mode."""
    who = (row.runtime, row.device, row.version)
    refused = []
    for mode in network.modes:
        if mode in getattr(runtimes.load_runtime(row.runtime), "MODES", ("forward",)):
            try:
                configuration = describe(network, row.runtime, _ONCE, Options(device=row.device or "cpu"), mode)
            except UsageError as error:  # of an input whose numbers only the user knows
                return RuntimeAnswer(*who, REFUSED, str(error))
            outcome = pool.record_configuration(configuration, 0, folder, listener)
            if not outcome.failure:
                parity = files.read(outcome.path).provenance["parity"]
                names = ("error", "reference", "reference_checked_by", "nan_reaches_output", "not_checked")
                return RuntimeAnswer(*who, RUNS, mode=mode, **{name: parity[name] for name in names})
            refused.append(RuntimeAnswer(*who, REFUSED, outcome.failure.reason))
    return refused[0]


@limits.time_limit()
def operator_shares(network: OnnxNetwork, roofline: Mapping) -> list[dict]:
    """`operator`, `name` and `time`, the share of the time of ONNX Runtime on one core, the largest first.

    By its own profiler, which makes calls slower and counts whole microseconds: so only shares are given, of a run of
    its own in which nothing is timed. The operators are those after its optimizations, which fuse some.

    `bound` is the share of a recurrent layer in the roofline bound; None for other operators, and where there is no
    bound. Raises `BuildFailed` if ONNX Runtime does not run the network.
    """
    model, inputs = onnx_checks.read(static_model(network.path, network)), network.make_inputs(0)
    times: dict[tuple, list] = defaultdict(list)
    for node in onnx_checks.nodes(model.graph):
        node.name = node.name or next(filter(None, node.output), "")  # as layers are called
    with temporary_folder() as folder, any_error(BuildFailed, f"ONNX Runtime does not run {network.name}"):
        settings: Any = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level, settings.enable_profiling = 1, 4, True
        settings.profile_file_prefix = str(folder / "run")
        content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
        session: Any = onnxruntime.InferenceSession(content, settings, providers=providers)
        for _ in range(CALLS):
            limits.run(lambda options: session.run(None, inputs, options))
        events = json.loads(Path(session.end_profiling()).read_text())
    for event in events:
        name, operator = event["name"].removesuffix("_kernel_time"), event.get("args", {}).get("op_name")
        if name != event["name"] and operator not in ("If", "Loop", "Scan"):  # their operators have events, too
            times[operator, name].append(event["dur"])
    spent = {key: sum(sorted(each)[: math.ceil(KEPT * len(each))]) for key, each in times.items()}
    whole, bound, bounds = sum(spent.values()) or 1, roofline["floor_ns"], {}
    for layer in network.recurrent_layers if bound else ():
        alone: Any = SimpleNamespace(recurrent_layers=[layer], least_flops=0, flops=0)
        bounds[layer.name] = (roofline_of(alone, 1)["floor_ns"] or 0) / bound or None
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return [
        {"operator": operator, "name": name, "time": time / whole, "bound": bounds.get(name)}
        for (operator, name), time in ordered
    ]


def _layer_dict(layer: RecurrentLayer) -> dict:
    return {
        **asdict(layer),
        "weights": {name: list(shape) for name, shape in layer.weight_shapes.items()},
        "parameters": _parameters(layer),
        "flops": layer.flops,
    }


def _parameters(layer: RecurrentLayer) -> int:
    return sum(map(math.prod, layer.weight_shapes.values()))


def _lines(found: Inspection) -> Iterator[str]:
    network = found.network
    yield f"{network.name}.onnx, SHA-256 {network.sha256[:16]}"
    tensors = [("input", each) for each in network.facts.inputs]
    tensors += [("output", each) for each in network.facts.outputs]
    carried = {name: f"state, carried in the mode stream ({a} = {b})" for a, b in network.carried for name in (a, b)}
    remarks = carried if "stream" in network.modes else {}
    remarks |= {name: f"likely a state: --state {name}={output}" for name, output in network.likely_states.items()}
    remarks |= {name: f"lengths {text}" for name, text in network.length_texts().items()}
    rows = [(side, each.name, each.type, _shape(each.shape), remarks.get(each.name, "")) for side, each in tensors]
    yield from ("", *table_lines(("", "name", "type", "shape", ""), rows, left=("shape",)), "")
    axes = defaultdict(list)
    for each, shape in read_shapes(network.path).items():
        for place, symbol in enumerate(shape):
            axes[symbol].append(f"axis {place} of {each}")
    known = {network.facts.time_symbol: "sequence length, ", network.facts.batch_symbol: "batch size, "}
    for name, size in network.sizes:
        yield f"size {name} = {size}: {known.get(name, '')}{listed(axes[name])}"
    if network.recurrent_layers:
        header = ("operator", "name", "direction", "hidden", "steps", "batch", "W", "R", "B", "parameters", "within")
        end = None if any(layer.within for layer in network.recurrent_layers) else -1
        rows = [_layer_row(layer)[:end] for layer in network.recurrent_layers]
        yield from table_lines(header[:end], rows, left=("W", "R", "B", "within"))
    else:
        yield "no recurrent layer: the network has no LSTM, GRU or RNN operator"
    at_least = "at least " if network.flops is None else ""
    flops = f"{at_least}{number(network.least_flops / 1e6)} MFLOP" if network.least_flops or not at_least else "unknown"
    yield f"\n{count(network.facts.parameters, 'parameter')}; {flops} per call (matrix products and convolutions)"
    if "missing" in found.roofline:
        yield f"no roofline bound: {found.roofline['missing']}"
    else:
        bound = latency(found.roofline["floor_ns"] / 1e3)
        yield f"roofline bound: {at_least}{bound} on one core in fp32, limited by {found.roofline['limited_by']}"
    order = (RUNS, REFUSED, NOT_READY)
    tried = sorted((each for each in found.runtimes if each.state in order), key=lambda each: order.index(each.state))
    rows = [(each.state, each.runtime, each.device or "-", each.version or "-", _remark(each)) for each in tried]
    header = ("state", "runtime", "device", "version", "")
    yield from ("", *table_lines(header, rows, left=("version",), wrap=True))
    others = dict.fromkeys(answer.runtime for answer in found.runtimes if answer.state == NO_ONNX)
    if others:
        yield f"\nread no ONNX files: {', '.join(others)}"
    if found.profile:
        yield "\nshares of the operators in the time of ONNX Runtime, and in the roofline bound"
        numbers = [[percent_number(each[key]) for key in ("time", "bound")] for each in found.profile[:MOST_SHARES]]
        rows = [(*two, each["operator"], each["name"]) for two, each in zip(numbers, found.profile, strict=False)]
        yield from table_lines(("time %", "bound %", "operator", "name"), rows, left=("operator", "name"))


def _remark(answer: RuntimeAnswer) -> str:
    if answer.state != RUNS:
        return answer.reason
    checked = f" (checked by {answer.reference_checked_by})" if answer.reference_checked_by else ""
    compared = f"not checked: {answer.not_checked}"
    if answer.error is not None:
        compared = f"relative error {short_number(answer.error, 2)} against {answer.reference}{checked}"
    only = "" if answer.mode == "forward" else f"in the mode {answer.mode} only"
    return "; ".join(filter(None, (only, compared, nan_text(answer.nan_reaches_output))))


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes)) or "scalar"


def _layer_row(layer: RecurrentLayer) -> tuple[str, ...]:
    known = {"B": "" if layer.bias else "-", **{name: _shape(shape) for name, shape in layer.weight_shapes.items()}}
    shapes = [known.get(name) for name in ("W", "R", "B")]
    steps = layer.sequence if layer.steps is None else f"{layer.steps:g} of {layer.sequence}"
    sizes = [str(size or "?") for size in (layer.hidden, steps, layer.batch, *shapes, _parameters(layer))]
    return (layer.operator, layer.name, layer.direction, *sizes, layer.within)
