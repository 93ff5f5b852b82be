"""Published figures: complete, without repetitions, consistent, with marked corrections and failures."""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest

from lstm_literature import implementations, published, workloads
from lstm_trt.config.errors import UsageError
from tests.conftest import ROOT
from tests.support.packages import loaded

#: Sources of further figures of the documents' authors.
LATER = "lcy-seso/Carrot e8aebd8 (later revision of 001)"
NEWEST = "lcy-seso/Carrot 0824b06 (newest revision of 001)"
EARLIER = "lcy-seso/Carrot c04ef3c (earlier revision of 001)"
TIMES = "stefbraun/rnn_benchmarks 9d80fc8 (times of the pictures in 004)"
A100_TIMES = "felker/plot-inference-results bdb3016 (times of 003)"
GROQ = "felker/plot-inference-results bdb3016 (projection of 003's author)"
STAC = "STAC report {} (stacresearch.com/news/{})"
A100, FPGA = (STAC.format(f"{name} of {day}", name)
              for name, day in (("NVDA221118", "2023-02-02"), ("MRTL230426", "2023-05-04")))  # fmt: skip
GH200 = (
    "NVIDIA developer blog of 2026-04-02"
    " (developer.nvidia.com/blog/achieving-single-digit-microsecond-latency-inference-for-capital-markets)"
)
RTNEURAL = "jatinchowdhury18/RTNeural-compare 4439e7d (results/bench_eigen.txt)"
VOLLO = "VOLLO SDK 25.1.2 (vollo.myrtle.ai/25.1.2/benchmark-lstm.html)"
FLASHRNN = "FlashRNN (arxiv.org/abs/2412.07752v2)"
TITAN, V100 = (f"baidu-research/DeepBench da81ba7 (results/{name}.xlsx)"
               for name in ("inference/server/DeepBench_NV_TitanXp", "train/DeepBench_NV_V100"))  # fmt: skip
PICTURE = "1x320-LSTM_cross-entropy_100.png"

#: Valid values of these columns; "no figure" is a printed dash, "empty" an empty cell.
KEYWORDS = {
    "statistic": (
        *published.POINTS,
        *("median", "max", "min", "std", "elapsed", "sequences_per_s", "schedule", "tuning", "build"),
        *("p99", "p99_low", "p99_high", "max_over_median", "time_per_step", "parameters"),
    ),
    "unit": (*published.SECONDS, "sequences/s", "count", "ratio"),
    "status": ("ok", "failed", "no figure", "empty"),
    "corrected": (False, True),
}

COLUMNS = tuple(published.read_document("000").columns.drop(["seconds", *published.OPTIONAL]))

#: SHA-256 of all rows of a table without their texts (`note`, `doubt`), taken when every cell was compared with its
#: document. After a wanted change, compare again.
DIGESTS = {
    "000": "d7ffb171e082b9e3",
    "001": "b80588e3feecb5a0",
    "001-later": "7a0d80716dc2d595",
    "001-newest": "9de56cfbc6d9fe8c",
    "002": "cdbce9d9afc9526e",
    "003-times": "52578c43153ea7b8",
    "003-projection": "c60b20ed1582f7d8",
    "004": "c3eef7b8b0951156",
    "004-times": "43d621ef2b0b826d",
    "further": "b921b6fb6a5f3065",
}

#: Read in the documents, by hand: value as carried, and what names the row.
SPOTS = [
    (0.8607, dict(source="000", workload="cell", implementation="tvm", unit="ms")),
    (0.4493, dict(workload="layer", batch=32, sequence=8, hidden=32, implementation="tvm-untuned", unit="ms")),
    (0.182, dict(workload="layer", batch=32, sequence=8, features=32, statistic="mean", unit="ms")),
    (59.7667, dict(table="stack", layers=20, statistic="max")),
    (0.9444, dict(table="stack summary", batch=32, sequence=32, hidden=32, statistic="min")),
    (0.5243, dict(source="001", table="fine-grained operators CPU", mode="forward",
                  implementation="tensorflow-while-graph", statistic="wall")),
    (0.0435, dict(source="001", table="fine-grained operators GPU", mode="forward",
                  implementation="tensorflow-fine-grained-graph", statistic="wall")),
    (3236.9244, dict(source="001", table="static GPU", mode="forward", implementation="tensorflow-static-graph",
                     unit="sequences/s")),
    (1.6069, dict(source="001", table="cuDNN", mode="training", implementation="tensorflow-one-call-graph",
                  statistic="elapsed")),
    (27.1, dict(source="002", implementation="theano", hidden=128, unit="ms")),
    (443.3, dict(source="002", implementation="keras-tensorflow", hidden=1024, unit="ms")),
    (640, dict(source=A100, workload="stac-ml-lstm-c", hardware="A100", statistic="p99", unit="us")),
    (4.4, dict(source=VOLLO, layers=3, hidden=480, statistic="p99", unit="us")),
    (0.441, dict(source=V100, hardware="V100", batch=16, precision="fp16", unit="ms")),
    (1.5050, dict(source=LATER, table="fine-grained operators CPU", mode="forward",
                  implementation="tensorflow-fine-grained-eager", statistic="wall")),
    (0.0707, dict(source=LATER, table="static GPU", mode="training", implementation="tensorflow-static-graph",
                  statistic="wall")),
    (0.0085, dict(source=LATER, table="cuDNN", mode="forward", implementation="pytorch-one-call-eager",
                  statistic="wall")),
    (0.1850, dict(source=NEWEST, table="fine-grained operators CPU", mode="training",
                  implementation="tensorflow-while-graph", statistic="wall")),
    (805.9623, dict(source=NEWEST, table="static GPU", mode="training", implementation="pytorch-fused-eager",
                    unit="sequences/s")),
    (145.518, dict(source=TIMES, workload="speech-ce-long", implementation="pytorch-one-call-eager",
                   framework_version="0.1.12_2", statistic="mean")),
    (2503.651, dict(source=TIMES, workload="speech-ctc-long", framework_version="0.2.0_4", statistic="median")),
    (63, dict(source=TIMES, workload="speech-ce-short", implementation="pytorch-basic-eager",
              framework_version="0.2.0_4")),
    (0.00108962, dict(table="results.csv", layers=1, sequence=128, hidden=100, batch=2, unit="s")),
    (0.00577095, dict(table="results-bs1.csv", layers=4, sequence=128, hidden=256, unit="s")),
    (5.86e-4, dict(source=GROQ, layers=4, sequence=256, hidden=300, unit="s")),
]  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> tuple:
    return tuple(
        row for document in published.DOCUMENTS for row in published.read_document(document).itertuples(index=False)
    )


def select(rows, **columns) -> list:
    return [row for row in rows if all(getattr(row, name) == value for name, value in columns.items())]


def only(rows, **columns):
    found = select(rows, **columns)
    assert len(found) == 1, (columns, found)
    return found[0]


def key(row) -> tuple[str, ...]:
    """Fields that identify a row of the documents."""
    configuration = (row.source, row.table, row.workload, row.shape, row.mode)
    version = (row.implementation, row.framework_version)
    return (*configuration, *version, row.device, row.hardware, row.precision, row.statistic)


def as_printed(row):
    return row._replace(value=float(row.published_value)) if row.corrected else row


@pytest.mark.parametrize("document", DIGESTS)
def test_no_figure_changed(document):
    rows = published.read_document(document).drop(columns=["note", "doubt"]).itertuples(index=False, name=None)
    assert hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()[:16] == DIGESTS[document]


def test_each_document_has_a_digest():
    assert DIGESTS.keys() == published.DOCUMENTS.keys()


@pytest.mark.parametrize(("value", "columns"), SPOTS)
def test_spot_values(rows, value, columns):
    assert only(rows, **columns).value == value


def test_no_figure_is_repeated(rows):
    assert max(Counter(key(row) for row in rows).values()) == 1
    # Each configuration has one typical time, so a figure needs no choice.
    assert max(Counter(key(row)[:-1] for row in rows if row.statistic in published.TYPICAL).values()) == 1


# 001 and its later revision: elapsed time of 50 batches, time per batch, sequences per second


def triples(rows, source: str = "001") -> dict[tuple, dict[str, tuple]]:
    found = defaultdict(dict)
    for row in select(rows, source=source):
        if row.status == "ok":
            found[row.table, row.mode, row.implementation][row.statistic] = row
    return found


def disagreement(triple: dict[str, tuple]) -> bool:
    wall, elapsed, rate = (triple[name].value for name in ("wall", "elapsed", "sequences_per_s"))
    digit = 1.0001e-4  # the last printed digit of the wall time, which is truncated in places
    return not (
        abs(elapsed / 50 - wall) <= digit
        and abs(rate * wall / 128 - 1) <= digit / wall
        and abs(rate * elapsed / (50 * 128) - 1) <= digit / elapsed + digit / rate
    )


@pytest.mark.parametrize(("source", "configurations"), [("001", 24), (LATER, 42), (NEWEST, 42)])
def test_wall_time_elapsed_time_and_throughput_agree(rows, source, configurations):
    found = triples(rows, source)
    assert len(found) == configurations and all(len(triple) == 3 for triple in found.values())
    assert [name for name, triple in found.items() if disagreement(triple)] == []


def test_the_while_loop_of_the_last_tables_trains_faster_than_it_runs_forward(rows):
    """Its program times the forward pass under both names."""
    wall = {(row.source, row.table, row.device, row.implementation, row.mode): row.value
            for row in select(rows, statistic="wall", status="ok")}  # fmt: skip
    faster = [key for *key, mode in wall if mode == "training" and wall[*key, mode] < wall.get((*key, "forward"), 0)]
    assert {(source, device) for source, _, device, _ in faster} == {(NEWEST, "cpu"), (NEWEST, "gpu")}
    assert {implementation for *_, implementation in faster} == {"tensorflow-while-graph"}


def test_doubtful_figures_are_marked_with_the_reason(rows):
    doubts = {(row.source, row.implementation, row.mode) for row in rows if row.doubt}
    sources, scripted = ("001", LATER, NEWEST), ("pytorch-fine-grained-scripted", "pytorch-fused-scripted")
    assert doubts == (
        {(source, "tensorflow-while-graph", "training") for source in sources}
        | {(NEWEST, name, mode) for name in scripted for mode in ("forward", "training")}
        | {("002", name, "training") for name in ("theano", "torch7", "mxnet", "keras-theano", "keras-tensorflow")}
    )


def test_the_threads_of_document_001_are_those_of_its_processor(rows):
    with_threads = {(row.source, row.device, row.threads) for row in rows if row.threads is not None}
    assert with_threads == {(source, "cpu", 12) for source in ("001", LATER, NEWEST, EARLIER)}
    assert all("12 threads" in row.hardware for row in rows if row.threads is not None)


def test_the_printed_figures_of_the_corrected_rows_do_not_agree(rows):
    found = {source: triples(map(as_printed, select(rows, source=source)), source) for source in ("001", LATER)}
    differing = {source: {name for name, row in found[source].items() if disagreement(row)} for source in found}
    assert differing["001"] == {
        ("static CPU", "training", "tensorflow-static-eager"),
        ("static CPU", "training", "tensorflow-static-graph"),
        ("static GPU", "forward", "tensorflow-static-eager"),
        ("fine-grained operators CPU", "training", "tensorflow-while-graph"),
    }
    assert differing[LATER] == {
        ("fine-grained operators CPU", "forward", "tensorflow-fine-grained-eager"),
        ("fine-grained operators GPU", "forward", "tensorflow-fine-grained-eager"),
        ("fine-grained operators CPU", "forward", "tensorflow-fine-grained-graph"),
    }


FINE_EAGER = "tensorflow-fine-grained-eager"


def test_other_revisions_confirm_corrections(rows):
    """The later one kept one old figure; the earlier one has the figures that are correct."""
    kept = ("fine-grained operators CPU", "forward", "tensorflow-fine-grained-graph")
    assert float(triples(rows, LATER)[kept]["elapsed"].published_value) == triples(rows)[kept]["elapsed"].value
    elapsed, rate = (only(rows, source=EARLIER, statistic=name) for name in ("elapsed", "sequences_per_s"))
    corrected = triples(rows)[elapsed.table, elapsed.mode, elapsed.implementation]
    assert round(elapsed.value / 50, 4) == round(128 / rate.value, 4) == corrected["wall"].value
    assert elapsed.value == pytest.approx(corrected["elapsed"].value, abs=50 * 0.5e-4)  # of a rounded wall time


def test_corrected_figures_are_marked_and_keep_the_printed_value(rows):
    found = {
        (row.source, row.table, row.implementation or row.workload, row.statistic): (row.published_value, row.value)
        for row in rows
        if row.corrected
    }
    cpu, gpu, loop, fine_gpu = "static CPU", "static GPU", "fine-grained operators CPU", "fine-grained operators GPU"
    expected = {
        ("001", cpu, "tensorflow-static-eager", "elapsed"): ("161.7546", 50 * 3.0750),
        ("001", cpu, "tensorflow-static-eager", "sequences_per_s"): ("39.5661", round(128 / 3.0750, 4)),
        ("001", cpu, "tensorflow-static-graph", "elapsed"): ("2.6479", 50 * 1.6191),
        ("001", cpu, "tensorflow-static-graph", "sequences_per_s"): ("2417.0494", round(128 / 1.6191, 4)),
        ("001", gpu, "tensorflow-static-eager", "sequences_per_s"): ("9.6939", round(6400 / 64.1965, 4)),
        ("001", loop, "tensorflow-while-graph", "wall"): ("0.9210", 46.4985 / 50),
        ("002", "framework x hidden size", "mxnet", "mean"): ("90.2", 490.2),
        ("004", "results", "speech-ce-short", "parameters"): ("433k", 572_800),
        ("004", "results", "speech-ce-long", "parameters"): ("576k", 572_800),
        (LATER, loop, FINE_EAGER, "elapsed"): ("85.0492", 75.2506),
        (LATER, loop, FINE_EAGER, "sequences_per_s"): ("75.2506", 85.0492),
        (LATER, fine_gpu, FINE_EAGER, "elapsed"): ("79.4576", 80.5460),
        (LATER, fine_gpu, FINE_EAGER, "sequences_per_s"): ("80.5460", 79.4576),
        (LATER, loop, "tensorflow-fine-grained-graph", "elapsed"): ("32.2603", round(6400 / 476.3282, 4)),
    }
    assert found == {name: (text, pytest.approx(value, rel=1e-12)) for name, (text, value) in expected.items()}
    assert all(row.note for row in rows if row.corrected)


# 000, 002, 004 and further: consistency of the figures


def test_the_stack_is_linear_in_depth(rows):
    stack = select(rows, table="stack", statistic="mean")
    depth = np.array([row.layers for row in stack])
    mean_ms = np.array([row.value for row in stack])
    assert depth.tolist() == [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    slope, intercept = np.polyfit(depth, mean_ms, 1)
    residual = mean_ms - (slope * depth + intercept)
    assert 1 - residual.var() / mean_ms.var() > 0.9999
    assert 2.70 < slope < 2.80 and abs(intercept) < 0.3


def test_statistics_of_one_configuration_are_in_order(rows):
    configurations = defaultdict(dict)
    for row in select(rows, workload="stack"):
        configurations[key(row)[:-1]][row.statistic] = row.value
    assert len(configurations) == 12
    for values in configurations.values():
        assert values["min"] <= values["median"] <= values["max"]
        assert values["min"] <= values["mean"] <= values["max"]
        assert values["std"] < values["max"] - values["min"]


def test_tuning_made_every_layer_faster(rows):
    untuned = {row.shape: row.value for row in select(rows, implementation="tvm-untuned", status="ok")}
    tuned = {row.shape: row.value for row in select(rows, implementation="tvm-tuned", statistic="mean", status="ok")}
    assert len(untuned) == 8 and len(tuned) == 25
    assert all(tuned[shape] < untuned[shape] for shape in untuned)


def test_wider_text_classifiers_take_longer_once_corrected(rows):
    def grows(rows) -> dict[str, bool]:
        times = defaultdict(list)
        for row in sorted(select(rows, source="002", status="ok"), key=lambda row: row.hidden):
            times[row.implementation].append(row.value)
        return {name: values == sorted(values) for name, values in times.items()}

    assert list(grows(rows).values()) == [True] * 6
    assert [name for name, does in grows(map(as_printed, select(rows, source="002"))).items() if not does] == ["mxnet"]


def test_parameters_are_those_of_the_networks(rows):
    found = select(rows, statistic="parameters")
    assert [row.value for row in found] == [572_800, 572_800, 8_533_760, 8_565_120]
    for row in found:
        directions, outputs = 2 if "bidirectional" in row.shape else 1, int(re.search(r"outputs (\d+)", row.shape)[1])
        widths = [row.features] + [directions * row.hidden] * (row.layers - 1)
        lstm = directions * sum(4 * row.hidden * (width + row.hidden + 2) for width in widths)
        assert row.value == lstm + outputs * directions * row.hidden == workloads.find(row.workload).parameters


def test_the_times_behind_004s_pictures_are_of_every_run_that_it_carried_out(rows):
    runs = defaultdict(dict)
    for row in select(rows, source=TIMES, table="results.csv"):
        runs[row.workload, row.implementation, row.framework_version][row.statistic] = row.value
    assert len(runs) == 19
    for values in runs.values():  # no distribution has mean and median further apart than the standard deviation
        assert abs(values["mean"] - values["median"]) <= values["std"]
    versions = {version for _, _, version in runs}
    assert {row.framework_version for row in select(rows, source=TIMES, table=PICTURE)} == versions
    ctc = {version for workload, _, version in runs if workload == "speech-ctc-long"}
    assert versions - ctc == {only(rows, source="004", status="failed").framework_version}


def test_flashrnns_time_per_step_is_its_time_divided_by_the_steps(rows):
    row = only(rows, source=FLASHRNN, implementation="cudnn", statistic="time")
    step = only(rows, source=FLASHRNN, statistic="time_per_step")
    assert round(row.seconds / row.sequence * 1e6, 2) == step.value == round(step.seconds * 1e6, 2)


# Cells without a figure


def test_failures_dashes_and_empty_cells_are_distinguished(rows):
    assert Counter((row.source, row.status, row.reason) for row in rows if row.value is None) == {
        ("000", "failed", "stack overflow"): 2,
        ("000", "no figure", "stack overflow"): 3,
        ("000", "empty", ""): 22,
        ("001", "empty", ""): 54,
        ("002", "failed", "out of mem"): 3,
        ("002", "failed", "didn't run"): 3,
        ("002", "failed", "recursion depth"): 1,
        (A100_TIMES, "empty", ""): 23,
        ("004", "failed", "not carried out"): 1,
    }


# Names of this package


def test_every_row_belongs_to_one_workload_and_every_workload_has_rows(rows):
    variants = [variant for family in workloads.VARIANTS.values() for variant in family]
    documents = [row for row in rows if row.source.isdigit()]
    for document in published.DOCUMENTS:
        for row in published.read_document(document).itertuples():
            matching = {variant.name: variant.document for variant in variants if published.matches(row, variant)}
            own = () if document[:3] in ("003", "fur") else {row.workload, published.as_there(row)}
            assert matching == dict.fromkeys(own, document[:3])
            assert sum(published.matches(row, variant) for variant in variants) == len(own)
            assert row.source == document or not document.isdigit()
    for variant in variants:
        assert any(published.matches(row, variant) for row in documents), variant.label
    assert not any(published.matches(row, workloads.find("ptb-lm").scaled("1/2")) for row in documents)


def test_the_language_models_implementations_have_the_names_of_the_registry(rows):
    names = {row.implementation for row in published.of("001").itertuples()}
    registered = {name.split("-")[0] for name in implementations.IMPLEMENTATIONS}
    here = {name for name in names if name.split("-")[0] in registered}
    assert here and here <= implementations.IMPLEMENTATIONS.keys()
    assert {name.split("-")[0] for name in names} == {"pytorch", "tensorflow"}


# Reading


def test_further_sources_follow_the_documents_own_rows():
    for names in (("001", "001-later", "001-newest"), ("004", "004-times")):
        every = pd.concat([published.read_document(name) for name in names], ignore_index=True)
        assert published.of(names[0]).equals(every)
    assert published.of("000").equals(published.read_document("000"))


def test_a_document_is_found_from_anywhere(monkeypatch, tmp_path):
    for folder in (ROOT, ROOT / "notebooks", tmp_path):
        monkeypatch.chdir(folder)
        assert len(published.read_document("000")) == 222
    # If the package is installed elsewhere, the tables are found only in a checkout.
    monkeypatch.setattr(published, "__file__", str(tmp_path / "site-packages/lstm_literature/published.py"))
    monkeypatch.chdir(ROOT / "notebooks")
    assert len(published.read_document("000")) == 222
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"data/published/tvm-cudnn\.csv"):
        published.read_document("000")


def test_every_cell_has_a_valid_value(rows):
    for row in rows:
        for column, keywords in KEYWORDS.items():
            assert getattr(row, column) in keywords, (column, row)
        numbers = [getattr(row, name) for name in (*published.SIZES, "value", "threads")]
        assert all(number is None or (np.isfinite(number) and number > 0) for number in numbers), row
        assert (row.value is not None) == (row.status == "ok"), row
        assert row.reason or row.status != "failed", row
        assert row.published_value or not row.corrected, row
    for document, name in published.DOCUMENTS.items():
        with (ROOT / published.FOLDER / f"{name}.csv").open(newline="") as file:
            header, *lines = csv.reader(file)
        assert tuple(header) in (COLUMNS, COLUMNS + published.OPTIONAL), document
        assert {len(cells) for cells in lines} == {len(header)}, document
        assert {cells[COLUMNS.index("corrected")] for cells in lines} <= {"true", "false"}


def test_importing_it_loads_no_heavy_package():
    assert loaded("import lstm_literature.published", ["numpy", "pandas", "torch", "pyarrow"], "numpy") == []


def test_the_readme_has_the_tables_counts(rows):
    text = (ROOT / "data/published/README.md").read_text()
    for document, name in published.DOCUMENTS.items():
        status = Counter(published.read_document(document)["status"])
        counts = (status.total(), *(status[keyword] for keyword in KEYWORDS["status"]))
        (line,) = re.findall(rf"^\| `{name}\.csv` \|[^|]*\|(.*)\|$", text, re.MULTILINE)
        assert tuple(int(cell.strip() or 0) for cell in line.split("|")) == counts, name
    columns = COLUMNS + published.OPTIONAL
    assert not [column for column in columns if f"`{column}`" not in text and column != "framework_version"]
    assert not [keyword for keyword in KEYWORDS["statistic"] if f"`{keyword}`" not in text]
    corrected = [row for row in rows if row.corrected]
    section = text.split("## Corrections")[1].split("##")[0]
    assert [row.published_value for row in corrected if row.published_value not in section] == []
    assert {path.stem for path in (ROOT / published.FOLDER).glob("*.csv")} == set(published.DOCUMENTS.values())
