"""One value where a function takes several is a list of one, in every public function, or an error of one line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lstm_literature as literature
import lstm_trt as lab
from lstm_judge import plots
from lstm_judge.campaign import load_or_record
from lstm_judge.rerun import check_notebooks
from lstm_trt import registry
from lstm_trt.config.errors import UsageError
from lstm_trt.recorder.sweep import plan_configurations
from lstm_trt.store import files
from tests.conftest import ROOT, rest_is_heavy
from tests.lstm_judge.read.test_rounds import put
from tests.lstm_trt.store.test_store import planted

SHAPE = lab.LstmShape(1, 8, 4)
SHORT = lab.Protocol(trials=17)
NOTEBOOK = ROOT / "notebooks/06_deadline.ipynb"


class Place:
    """A folder with recordings of three networks, and a table."""

    def __init__(self, folder):
        self.recordings, self.folder = folder / "recordings", folder
        self.recordings.mkdir()
        for hidden in (8, 9, 10):
            files.write(planted(hidden), self.recordings)
        columns = {"model": ["a", "a", "b", "b"], "latency_us": [1.0, 2.0, 3.0, 4.0], "odd_faults": [0, 1, 0, 1]}
        self.runs, self.new = lab.load(self.recordings), folder / "new"
        self.table = put(folder / "times.csv", columns)

    def names(self, **given: Any) -> list[str]:
        return [group.name for group in load_or_record(**{"data": self.recordings, "workloads": SHAPE, **given})]

    def load(self, **given: Any) -> list[tuple]:
        runs = lab.load(self.table, **given)
        return [(group.name, [sorted(round_.causes) for round_ in group.rounds]) for group in runs]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("single"))


def planned(workloads=SHAPE, runtimes="onnxruntime", protocol=SHORT, options=None) -> list[str]:
    return [each.id for each in plan_configurations(workloads, runtimes, protocol, options)[0]]


def exported(**names: Any) -> tuple:
    network = lab.TorchNetwork(torch.nn.Linear(2, 2), torch.zeros(1, 2), name="net", **names)
    return tuple(network.input_shapes), tuple(network.output_shapes)


def refusal(function: Callable, *given: Any, **named: Any) -> str:
    with pytest.raises(UsageError) as caught:
        function(*given, **named)
    return str(caught.value)


#: Function and parameter -> one value, and what is compared of a call with it and with a list of it.
CASES: dict[str, tuple[Any, Callable[[Place, Any], Any]]] = {
    **{
        f"Grid.{axis}": (2, lambda place, value, axis=axis: [*lab.Grid(**{**vars(SHAPE), axis: value})])
        for axis in vars(SHAPE)
        if axis != "directions"
    },
    "Grid.directions": (2, lambda place, value: [*lab.Grid(1, 8, 4, directions=value)]),
    "Options.cores": (0, lambda place, value: lab.Options(cores=value)),
    "TorchNetwork.example_inputs": (
        torch.zeros(1, 2),
        lambda place, value: lab.TorchNetwork(torch.nn.ReLU(), value).input_shapes,
    ),
    "TorchNetwork.input_names": ("audio", lambda place, value: exported(input_names=value)),
    "TorchNetwork.output_names": ("sound", lambda place, value: exported(output_names=value)),
    "doctor.names": ("onnxruntime", lambda place, value: [row.runtime for row in lab.doctor(value).runtimes]),
    "load.path": (
        "times.csv",
        lambda place, value: [group.n for group in lab.load(_in(place, value), group_by=["model"])],
    ),
    "load.group_by": ("model", lambda place, value: place.load(group_by=value)),
    "load.causes": ("odd_faults", lambda place, value: place.load(causes=value, one_group=True)),
    "load_or_record.data": ("recordings", lambda place, value: place.names(data=_in(place, value))),
    "load_or_record.grids": (
        {"layers": 1, "hidden": [8, 9], "sequence": 4},
        lambda place, value: place.names(workloads=(), grids=value),
    ),
    "load_or_record.workloads": (SHAPE, lambda place, value: place.names(workloads=value)),
    "load_or_record.runtimes": ("onnxruntime", lambda place, value: place.names(runtimes=value)),
    "load_or_record.protocols": (SHORT, lambda place, value: place.names(protocols=value)),
    "load_or_record.options": (lab.Options(), lambda place, value: place.names(options=value)),
    "own_networks.lengths": (
        8,
        lambda place, value: [
            network.name + str(network.sizes)
            for network in lab.own_networks("data/networks/streaming_gru.onnx", {"time": 4}, lengths=value)
        ],
    ),
    **{
        name: ("recordings", lambda place, value, answer=answer: str(answer(_in(place, value), place.recordings)))
        for name, answer in {
            "compare.a": lab.compare,
            "compare.b": lambda runs, others: lab.compare(others, runs),
            "compare.others": lambda runs, others: lab.compare(others, others, runs),
            "explore.runs": lambda runs, others: repr(lab.explore(runs)),
            "report.runs": lambda runs, others: lab.report(runs, 1e6).as_dict(),
            "report.baseline": lambda runs, others: lab.report(others, 1e6, baseline=runs).as_dict(),
        }.items()
    },
    **{
        name: ("recordings", lambda place, value, answer=answer: str(answer(_in(place, value))))
        for name, answer in {
            "outliers.runs": lab.outliers,
            "replay.runs": lambda runs: lab.replay(runs, 1e6),
            "scaling.source": lab.scaling,
            "summarize.runs": lab.summarize,
            "verdict.runs": lambda runs: lab.verdict(runs, 1e3),
        }.items()
    },
    "replay.percentiles": ("99", lambda place, value: str(lab.replay(place.recordings, 1e6, percentiles=value))),
    "report.out": (
        "report.md",
        lambda place, value: lab.report(place.recordings, 1e6, out=_in(place, value)).as_dict(),
    ),
    "report.percentiles": ("90", lambda place, value: lab.report(place.recordings, 1e6, percentiles=value).as_dict()),
    "rerun_notebooks.notebooks": (NOTEBOOK, lambda place, value: check_notebooks(value, {})),
    "summarize.percentiles": ("90", lambda place, value: str(lab.summarize(place.recordings, percentiles=value))),
    "sweep.workloads": (SHAPE, lambda place, value: planned(workloads=value)),
    "sweep.runtimes": ("onnxruntime", lambda place, value: planned(runtimes=value)),
    "sweep.protocol": (SHORT, lambda place, value: planned(protocol=value)),
    "sweep.options": (lab.Options(), lambda place, value: planned(options=value)),
    "versions.versions": (
        "1.20.1",
        lambda place, value: refusal(lab.versions, "onnxruntime", value, SHAPE, out=place.folder / "versions"),
    ),
    **{
        f"{name}.formats": ("svg", lambda place, value, name=name: _drawn(place, name, value))
        for name in ("draw_outliers", "draw_scaling", "draw_sweep", "draw_verdicts")
    },
    "literature.workloads": ("cell", lambda place, value: _literature(workloads=value)),
    "literature.implementations": ("onnxruntime", lambda place, value: _literature(implementations=value)),
    "literature.data": (ROOT / "data/xeon/literature", lambda place, value: _literature(data=value)),
}

#: What takes several and never one, and why.
OTHERS = {
    "Runs": "made by load",
    "Recording": "made by a recording",
    "Failure": "made by a recording",
    "load.columns": "latencies need at least two",
    "draw_outliers.findings": "the answers of outliers",
    "draw_verdicts.verdicts": "the answers of verdict",
    "violins.pair": "two values",
    "Protocol.beside": "commands by name",
}


def _in(place: Place, value: Any) -> Any:
    return place.folder / value if isinstance(value, str) else [place.folder / each for each in value]


def _drawn(place: Place, name: str, formats: Any) -> list[str]:
    runs = lab.load(place.recordings)[:1] if name != "draw_scaling" else None
    folder = place.folder / "figures"
    first = {
        "draw_outliers": lambda: (runs, lab.outliers(runs), folder),
        "draw_scaling": lambda: (lab.scaling(place.recordings).findings, folder),
        "draw_sweep": lambda: (runs, folder),
        "draw_verdicts": lambda: (runs, lab.verdict(runs, 1e6), folder),
    }[name]()
    return [path.name for path in getattr(plots, name)(*first, formats=formats)]


def _literature(**given: Any) -> list[str]:
    found = literature.load(**{"workloads": ["cell"], "data": ROOT / "data/xeon/literature", **given})
    return [group.name for group in found.runs]


def taking_several() -> list[str]:
    """Function and parameter of the public API where the annotation is a sequence."""
    found = []
    functions = [(name, getattr(lab, name)) for name in registry.table("API")]
    functions += [(name, getattr(plots, name)) for name in registry.table("PICTURES")]
    functions.append(("literature", literature.load))
    for name, function in functions:
        if callable(function) and not (isinstance(function, type) and issubclass(function, Exception)):
            for parameter in inspect.signature(function).parameters.values():
                annotation = re.sub(r"Mapping\[.*\]|Callable\[.*\]|dict\b.*", "", str(parameter.annotation))
                if re.search(r"\b(Sequence|Iterable|Collection|list|tuple|RunsSource|Readable)\b", annotation):
                    found.append(f"{name}.{parameter.name}")
    return found


def test_every_parameter_that_takes_several_is_tested_here():
    found = [each for each in taking_several() if each not in OTHERS and each.partition(".")[0] not in OTHERS]
    assert len(found) > 30 and sorted(found) == sorted(CASES)


@pytest.mark.parametrize("case", rest_is_heavy(CASES, lambda case: list(CASES).index(case) % 4 == 0))
def test_one_value_is_a_list_of_one(case, place):
    one, call = CASES[case]
    assert call(place, one) == call(place, [one])


#: Function -> what a call of it has besides; its parameters that are numbers are replaced by text.
NUMBERS: dict[str, Callable[[Place], tuple]] = {
    **dict.fromkeys(("Options", "Protocol"), lambda place: ()),
    **dict.fromkeys(
        ("explore", "largest_that_meets", "report", "scaling", "verdict", "replay"), lambda place: (place.runs,)
    ),
    **dict.fromkeys(("heat_map", "precisions", "runtimes", "tails", "arrival_tails"), lambda place: (place.runs,)),
    "compare": lambda place: (place.runs, place.runs),
    "curves": lambda place: (place.runs, "hidden"),
    "load_or_record": lambda place: (place.folder,),
    "LstmShape": lambda place: (),
    "record": lambda place: (SHAPE, "onnxruntime"),
    "rerun_notebooks": lambda place: (NOTEBOOK,),
}
#: Function -> parameters that it must have, or which keep its files in the folder of the tests.
NAMED: dict[str, Callable[[Place], dict[str, Any]]] = {
    **dict.fromkeys(("largest_that_meets", "report", "verdict"), lambda place: {"deadline_us": 1e3}),
    "replay": lambda place: {"period_us": 1e3},
    "heat_map": lambda place: {"value": "bound_us", "deadline_us": 1e3},
    "load_or_record": lambda place: {"workloads": SHAPE, "runtimes": "onnxruntime", "record": True, "out": place.new},
    "LstmShape": lambda place: vars(SHAPE),
    "record": lambda place: {"out": place.new},
    "rerun_notebooks": lambda place: {"out": place.new},
}
#: Of what is recorded with a device, or where any text is right.
NO_NUMBERS = {"device_index", "shapes", "seed"}


def function_of(name: str) -> Callable:
    return getattr(plots if name in registry.table("PICTURES") else lab, name)


def numbers() -> list[tuple[str, str]]:
    found = []
    for name in NUMBERS:
        for parameter in inspect.signature(function_of(name)).parameters.values():
            whole = re.fullmatch(r"(<class ')?(str \| )?(int|float)\b.*", str(parameter.annotation))
            if whole and parameter.name not in NO_NUMBERS:
                found.append((name, parameter.name))
    return found


@pytest.mark.parametrize(("name", "parameter"), numbers())
def test_a_text_where_a_number_belongs_is_one_line_that_names_it(name, parameter, place):
    named = NAMED.get(name, lambda place: {})(place)
    message = refusal(function_of(name), *NUMBERS[name](place), **{**named, parameter: "five"})
    assert ("'five'" in message or name == "Protocol") and "\n" not in message  # some are for other arrivals only
    word = parameter.removesuffix("_us").removesuffix("_s").removesuffix("_ms").split("_")[-1]
    assert word in message.replace("-", " ") or (word == "length" and "bursts" in message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lab.Grid("large", 8, 4), "layers must be a whole number"),
        (
            lambda: lab.load_or_record("nowhere", grids={"layers": 1, "hidden": "large", "sequence": 4}),
            "hidden must be",
        ),
    ],
)
def test_another_kind_of_value_is_an_error_that_names_the_parameter(call, message):
    assert message in refusal(call) and "\n" not in refusal(call)
