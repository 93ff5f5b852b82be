"""What is in an ONNX network, and which runtimes run it.

A runtime is first asked for what it refuses or would misread (`onnx_checks.Rules`). If it is ready
here, the network is then prepared and compared with the reference in a worker process, as for a
recording.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lstm_onnx import limits
from lstm_onnx.operations import name_of
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import session_of
from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import BuildFailed, UsageError, any_error
from lstm_trt.config.format import (
    count,
    latency,
    listed,
    number,
    percent_number,
    short_number,
    table_lines,
)
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

#: Calls of a profile.
CALLS = 200

#: The share of an operator's times that count: the first call allocates memory, and some are
#: interrupted.
KEPT = 0.95

#: Operators that the text of a profile has at most.
MOST_SHARES = 12

#: States of `RuntimeAnswer`: computes what the reference does; refuses the network, or computes
#: something else; cannot run on this machine; reads no ONNX files.
RUNS = "runs"
REFUSED = "refused"
NOT_READY = "not ready"
NO_ONNX = "reads no ONNX"

#: What an answer takes from the provenance of a recording.
PARITY = ("error", "reference", "reference_checked_by", "nan_reaches_output", "not_checked")


@dataclass(frozen=True)
class RuntimeAnswer:
    """What one runtime does with a network in float32: one of the states above, and the reason if
    it does not run.

    `mode`: in which it was tried; "stream" if the runtime takes the network in that mode only.
    `error`: the relative error of its outputs by norm, None if nothing was compared; `reference`,
    `reference_checked_by`, `not_checked` and `nan_reaches_output` as in the provenance of
    recordings.
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
    """An ONNX network with known sizes, its roofline bound on one core here, and one answer per
    runtime and device."""

    network: OnnxNetwork
    roofline: dict
    runtimes: tuple[RuntimeAnswer, ...]
    profile: tuple[dict, ...] = ()

    def as_dict(self) -> dict:
        """JSON values."""
        network = self.network
        plain = {
            "name": network.name,
            "sha256": network.sha256,
            "parameters": network.parameters,
            "flops": network.flops,
            "sizes": dict(network.sizes),
            "constants": network.constants,
            "inputs": [tensor.as_dict() for tensor in network.facts.inputs],
            "outputs": [tensor.as_dict() for tensor in network.facts.outputs],
            "states": dict(network.carried),
            "likely_states": network.likely_states,
            "recurrent_layers": [_layer_dict(layer) for layer in network.recurrent_layers],
            "roofline": self.roofline,
            "runtimes": [asdict(answer) for answer in self.runtimes],
        }
        if self.profile:
            plain["profile"] = list(self.profile)
        return plain

    frame = property(lambda self: frame_of(self.runtimes))

    def __str__(self) -> str:
        network = self.network
        parts = [
            [f"{network.name}.onnx, SHA-256 {network.sha256[:16]}"],
            _tensor_lines(network),
            [*_size_lines(network), *_layer_lines(network.recurrent_layers)],
            _work_lines(network, self.roofline),
            _runtime_lines(self.runtimes),
        ]
        if self.profile:
            parts.append(_profile_lines(self.profile[:MOST_SHARES]))
        return "\n\n".join("\n".join(lines) for lines in parts)


def inspect(
    path: str | Path | OnnxNetwork,
    sizes: Mapping[str, int] | None = None,
    *,
    profile: bool = False,
    listener: Callable[[dict], None] = lambda message: None,
) -> Inspection:
    """Read an ONNX file, and try every runtime that is ready; `sizes` are the values of its
    symbolic sizes.

    `profile`: also `operator_shares`. `listener` gets the messages of the processes (stages, and
    `waiting` while another recording uses the core). Raises `UsageError` for an invalid file or
    size.
    """
    network = path if isinstance(path, OnnxNetwork) else OnnxNetwork(path, sizes=sizes)
    content = static_model(network.path, network)
    roofline = roofline_of(network, 1)
    answers = []
    with temporary_folder() as folder, WorkerPool() as pool:
        for name in registry.table("RUNTIMES"):
            for row in rows_of(name):
                answer = _untried(network, content, row)
                answers.append(answer or _attempt(pool, network, row, folder, listener))
    return Inspection(
        network,
        roofline,
        tuple(answers),
        tuple(operator_shares(network, roofline) if profile else ()),
    )


def _answer(row: RuntimeRow, state: str, reason: str = "", **compared: Any) -> RuntimeAnswer:
    return RuntimeAnswer(row.runtime, row.device, row.version, state, reason, **compared)


def _untried(network: OnnxNetwork, content: bytes, row: RuntimeRow) -> RuntimeAnswer | None:
    """The answer if it is known without an attempt."""
    if row.device is None:  # the module cannot be imported
        return _answer(row, NOT_READY, row.reason)
    module = runtimes.load_runtime(row.runtime)
    if not getattr(module, "NEEDS_ONNX", False):
        return _answer(row, NO_ONNX)
    refusal = None
    if hasattr(module, "ONNX_RULES"):
        refusal = onnx_checks.refusal(onnx_checks.read(content, network.name), module.ONNX_RULES)
    if not refusal and row.ready:
        return None
    if not refusal and hasattr(module, "parser_refusal"):
        refusal = module.parser_refusal(content, network.name)
    return _answer(row, REFUSED, refusal) if refusal else _answer(row, NOT_READY, row.reason)


def _attempt(
    pool: WorkerPool,
    network: OnnxNetwork,
    row: RuntimeRow,
    folder: Path,
    listener: Callable[[dict], None],
) -> RuntimeAnswer:
    """In each mode of the network that the runtime has, until it runs; otherwise the reason in the
    first mode."""
    refused = []
    able = getattr(runtimes.load_runtime(row.runtime), "MODES", ("forward",))
    for mode in filter(able.__contains__, network.modes):
        try:
            configuration = describe(
                network, row.runtime, _ONCE, Options(device=row.device or "cpu"), mode
            )
        except UsageError as error:  # of an input whose numbers only the user knows
            return _answer(row, REFUSED, str(error))
        outcome = pool.record_configuration(configuration, 0, folder, listener)
        if not outcome.failure:
            parity = files.read(outcome.path).provenance["parity"]
            return _answer(row, RUNS, mode=mode, **{name: parity[name] for name in PARITY})
        refused.append(_answer(row, REFUSED, outcome.failure.reason))
    return refused[0]


def operator_shares(network: OnnxNetwork, roofline: Mapping) -> list[dict]:
    """`operator`, `name` and `time`, the share of the time of ONNX Runtime on one core, the largest
    first.

    By its own profiler, which makes calls slower and counts whole microseconds: so only shares are
    given, of a run of its own in which nothing is timed. The operators are those after its
    optimizations, which fuse some.

    `bound` is the share of a recurrent layer in the roofline bound; None for other operators, and
    where there is no bound. Raises `BuildFailed` if ONNX Runtime does not run the network.
    """
    times: dict[tuple, list] = defaultdict(list)
    for event in _profiled(network):
        name = event["name"].removesuffix("_kernel_time")
        operator = event.get("args", {}).get("op_name")
        # The operators inside of these have events, too.
        if name != event["name"] and operator not in ("If", "Loop", "Scan"):
            times[operator, name].append(event["dur"])
    spent = {key: sum(sorted(each)[: math.ceil(KEPT * len(each))]) for key, each in times.items()}
    whole = sum(spent.values()) or 1
    bounds = {}
    for layer in network.recurrent_layers if roofline["floor_ns"] else ():
        alone: Any = SimpleNamespace(recurrent_layers=[layer], least_flops=0, flops=0)
        of_layer = roofline_of(alone, 1)["floor_ns"]
        if of_layer:
            bounds[layer.name] = of_layer / roofline["floor_ns"]
    shares = []
    for operator, name in sorted(spent, key=spent.__getitem__, reverse=True):
        shares.append(
            {
                "operator": operator,
                "name": name,
                "time": spent[operator, name] / whole,
                "bound": bounds.get(name),
            }
        )
    return shares


@limits.time_limit()
def _profiled(network: OnnxNetwork) -> list[dict]:
    """The events of `CALLS` calls in ONNX Runtime's profiler; operators are named as layers are."""
    model = onnx_checks.read(static_model(network.path, network))
    for node in onnx_checks.nodes(model.graph):
        node.name = name_of(node)
    inputs = network.make_inputs(0)
    with (
        temporary_folder() as folder,
        any_error(BuildFailed, f"ONNX Runtime does not run {network.name}"),
    ):
        settings: Any = onnxruntime.SessionOptions()
        settings.enable_profiling = True
        settings.profile_file_prefix = str(folder / "run")
        session = session_of(model, settings)
        for _ in range(CALLS):
            limits.run(lambda options: session.run(None, inputs, options))
        return json.loads(Path(session.end_profiling()).read_text())


def _layer_dict(layer: RecurrentLayer) -> dict:
    return {
        **asdict(layer),
        "weights": {name: list(shape) for name, shape in layer.weight_shapes.items()},
        "parameters": _parameters(layer),
        "flops": layer.flops,
    }


def _parameters(layer: RecurrentLayer) -> int:
    return sum(map(math.prod, layer.weight_shapes.values()))


def _tensor_lines(network: OnnxNetwork) -> list[str]:
    remarks = {}
    if "stream" in network.modes:
        for before, after in network.carried:
            text = f"state, carried in the mode stream ({before} = {after})"
            remarks[before] = remarks[after] = text
    for before, after in network.likely_states.items():
        remarks[before] = f"likely a state: --state {before}={after}"
    for name, text in network.length_texts().items():
        remarks[name] = f"lengths {text}"
    rows = []
    for side, tensors in (("input", network.facts.inputs), ("output", network.facts.outputs)):
        for each in tensors:
            rows.append(
                (side, each.name, each.type, _shape(each.shape), remarks.get(each.name, ""))
            )
    return table_lines(("", "name", "type", "shape", ""), rows, left=("shape",))


def _size_lines(network: OnnxNetwork) -> Iterator[str]:
    axes = defaultdict(list)
    for name, shape in network.file.shapes.items():
        for place, symbol in enumerate(shape):
            axes[symbol].append(f"axis {place} of {name}")
    known = {
        network.facts.time_symbol: "sequence length, ",
        network.facts.batch_symbol: "batch size, ",
    }
    for name, size in network.sizes:
        yield f"size {name} = {size}: {known.get(name, '')}{listed(axes[name])}"


def _layer_lines(layers: Sequence[RecurrentLayer]) -> list[str]:
    if not layers:
        return ["no recurrent layer: the network has no LSTM, GRU or RNN operator"]
    header = (
        "operator",
        "name",
        "direction",
        "hidden",
        "steps",
        "batch",
        "W",
        "R",
        "B",
        "parameters",
        "within",
    )
    columns = len(header) if any(layer.within for layer in layers) else -1
    return table_lines(
        header[:columns],
        [_layer_row(layer)[:columns] for layer in layers],
        left=("W", "R", "B", "within"),
    )


def _work_lines(network: OnnxNetwork, roofline: Mapping) -> Iterator[str]:
    at_least = "at least " if network.flops is None else ""
    flops = "unknown"
    if network.least_flops or not at_least:
        flops = f"{at_least}{number(network.least_flops / 1e6)} MFLOP"
    yield (
        f"{count(network.parameters, 'parameter')}; {flops} per call (matrix products and"
        " convolutions)"
    )
    if "missing" in roofline:
        yield f"no roofline bound: {roofline['missing']}"
    else:
        yield (
            f"roofline bound: {at_least}{latency(roofline['floor_ns'] / 1e3)} on one core in fp32,"
            f" limited by {roofline['limited_by']}"
        )


def _runtime_lines(answers: Sequence[RuntimeAnswer]) -> Iterator[str]:
    rows = []
    for state in (RUNS, REFUSED, NOT_READY):
        for each in answers:
            if each.state == state:
                rows.append(
                    (state, each.runtime, each.device or "-", each.version or "-", _remark(each))
                )
    yield from table_lines(
        ("state", "runtime", "device", "version", ""), rows, left=("version",), wrap=True
    )
    others = dict.fromkeys(each.runtime for each in answers if each.state == NO_ONNX)
    if others:
        yield f"\nread no ONNX files: {', '.join(others)}"


def _profile_lines(shares: Sequence[Mapping]) -> Iterator[str]:
    yield "shares of the operators in the time of ONNX Runtime, and in the roofline bound"
    rows = [
        (
            percent_number(each["time"]),
            percent_number(each["bound"]),
            each["operator"],
            each["name"],
        )
        for each in shares
    ]
    yield from table_lines(
        ("time %", "bound %", "operator", "name"), rows, left=("operator", "name")
    )


def _remark(answer: RuntimeAnswer) -> str:
    if answer.state != RUNS:
        return answer.reason
    remarks = []
    if answer.mode != "forward":
        remarks.append(f"in the mode {answer.mode} only")
    if answer.error is None:
        remarks.append(f"not checked: {answer.not_checked}")
    else:
        checked = (
            f" (checked by {answer.reference_checked_by})" if answer.reference_checked_by else ""
        )
        remarks.append(
            f"relative error {short_number(answer.error, 2)} against {answer.reference}{checked}"
        )
    return "; ".join(filter(None, (*remarks, nan_text(answer.nan_reaches_output))))


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes)) or "scalar"


def _layer_row(layer: RecurrentLayer) -> tuple[str, ...]:
    shapes = {name: _shape(shape) for name, shape in layer.weight_shapes.items()}
    bias = shapes.get("B") if layer.bias else "-"
    steps = layer.sequence if layer.steps is None else f"{layer.steps:g} of {layer.sequence}"
    sizes = (
        layer.hidden,
        steps,
        layer.batch,
        shapes.get("W"),
        shapes.get("R"),
        bias,
        _parameters(layer),
    )
    return (
        layer.operator,
        layer.name,
        layer.direction,
        *(str(size or "?") for size in sizes),
        layer.within,
    )
