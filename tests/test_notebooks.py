"""Every notebook runs: with small parameters on new recordings, and unchanged on the recordings that ship.

Most run in this process, since a kernel with all that it loads takes longer than the cells; some, which the seed
chooses, in a kernel as users run them. `make test` runs one unchanged and some with planted data, the heavy tests the
others.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import warnings
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import lstm_trt as lab_module
from lstm_literature.preparer import LiteraturePreparer
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid
from tests.conftest import ROOT, ran, sampled
from tests.lstm_judge.read.test_rounds import put
from tests.lstm_trt.store.test_store import planted
from tests.support import screens
from tests.support.planted_latencies import even

pytest.importorskip("papermill")
DisplayFormatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
#: Those from 10 on draw the literature's workloads and have other parameters.
LITERATURE = [name for name in NAMES if name >= "10"]
#: Run unchanged by `make test`.
UNCHANGED = ("10_cell_layer_stack",)
#: Records ONNX files and has other parameters.
OWN = "07_your_network"
SMALL = {
    "layers": "[1, 2]",
    "hidden": "[8, 16]",
    "sequence": "[4, 8]",
    "batch": "[1, 2]",
}
DEEP = '{"layers": [3, 4], "hidden": [8, 16], "sequence": [4, 8]}'
MORE = {
    "01_hidden_size": {
        "near": "[8, 9]",
        "deep": DEEP,
        "rounds": "1",
        "pair": "[8, 16]",
        "kink": '{"layers": [3], "hidden": [8, 16, 24], "sequence": [4]}',
        "kink_runtimes": "[onnxruntime]",
    },
    "02_sequence_length": {"deep": DEEP, "rounds": "1"},
    "03_layers": {"rounds": "1"},
    "04_batch_size": {
        "rounds": "1",
        "others": '{"layers": [1, 2], "hidden": [8, 16]}',
        "base": '{"layers": 2, "hidden": 8, "sequence": 4, "batch": 1}',
        "large": '{"layers": [1], "hidden": [8], "sequence": [4], "batch": [1, 2]}',
        "large_trials": "5",
    },
    "05_outliers": {"show": "8", "pause_ms": "1"},
    "06_deadline": {"show": "8", "show_sequence": "4", "percentile": "50"},
    "08_explore": {"percentile": "50"},
}


def outputs_of(notebook) -> list[dict]:
    """What a notebook shows, by its kinds: of a stream its name and text."""
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return [output.get("data", {output.get("name"): output.get("text")}) for output in outputs]


def pictures(notebook) -> int:
    """The number of figures; a page to explore is none, though its HTML has one."""
    found = outputs_of(notebook)
    assert all(is_picture(data) == ("image/png" in data) for data in found)  # for pages and for LaTeX
    return sum(map(is_picture, found))


def is_picture(data: dict) -> bool:
    return data.get("text/html", "").startswith('<img src="data:image/png;')


def texts(notebook, kind: str) -> list[str]:
    """Outputs of this kind: `text/plain` of displayed results, `stdout`, or `stderr`, which JupyterLab shows in red."""
    return [data[kind] for data in outputs_of(notebook) if kind in data and not is_picture(data)]


def stored_notebook(name: str):
    return nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)


def code(notebook) -> list:
    """The cells of code of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cells_of(name: str) -> list:
    return code(stored_notebook(name))


def are_parameters(cell) -> bool:
    return "parameters" in cell.metadata.get("tags", ())


def test_the_overview_names_all_notebooks():
    """A table in its Markdown, in order; other links to notebooks may stand beside it."""
    cells = [cell.source for cell in stored_notebook("00_overview").cells if cell.cell_type == "markdown"]
    named = re.findall(r"^\| \[(\w+)\]\(\1\.ipynb\) \|", "\n".join(cells), re.MULTILINE)
    assert ["00_overview", *named] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_stored_as_jupyterlab_writes_them(path):
    """Else the first commit of a notebook that was run would change lines that nobody edited."""
    assert path.read_text(encoding="utf-8") == nbformat.writes(nbformat.read(path, as_version=4)) + "\n"


class Shown(io.StringIO):
    """What a cell shows, in order, as a kernel stores it; stands for its standard output."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list = []

    def write(self, text: str) -> int:
        if not self.outputs or self.outputs[-1].output_type != "stream":
            self.outputs.append(nbformat.v4.new_output("stream", name="stdout"))
        self.outputs[-1].text += text
        return len(text)

    def display(self, value: object) -> None:
        data, _ = DisplayFormatter().format(value)
        self.outputs.append(nbformat.v4.new_output("display_data", data=data))


def run_cells(name: str, parameters: dict[str, object]):
    """Run all cells of a notebook in this process; returns it with their outputs.

    As in a kernel, a cell shows its last expression. Fails if anything is written to standard error, or warned of as
    Python warns there.
    """
    notebook = stored_notebook(name)
    names: dict[str, object] = {}
    errors = io.StringIO()
    width = "display.max_colwidth", pd.get_option("display.max_colwidth")  # which some set
    with chdir(ROOT / "notebooks"), redirect_stderr(errors), pd.option_context(*width), warned() as warnings_seen:
        for cell in code(notebook):
            now = Shown()
            names["display"] = now.display
            with redirect_stdout(now):
                run_cell(cell.source, names, name)
            cell.outputs = now.outputs
            if are_parameters(cell):
                names |= parameters
    progress = re.compile(r"\d+/\d+  ")  # as outside notebooks
    assert [line for line in errors.getvalue().splitlines() if not progress.match(line)] == [], name
    assert [str(each.message) for each in warnings_seen] == [], name
    return notebook


def run_cell(source: str, names: dict, name: str) -> None:
    *lines, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(compile(source, name, "exec"), names)
        return
    exec(compile(ast.Module(lines, []), name, "exec"), names)
    value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    if value is not None:
        names["display"](value)


@contextmanager
def warned():
    """The warnings that Python shows, which pytest keeps to itself."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for quiet in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", quiet)
        yield seen


@pytest.mark.parametrize(
    "name", [name if name in UNCHANGED else pytest.param(name, marks=pytest.mark.heavy) for name in NAMES]
)
def test_unchanged_on_the_recordings_that_ship(name, tmp_path):
    notebook = run_cells(name, {})
    assert pictures(notebook) >= 3
    begins_with_its_answer(notebook, tmp_path)


@pytest.mark.heavy
def test_what_a_reader_should_not_meet_is_found(tmp_path):
    def cell(name: str, *pages: str):
        outputs = [nbformat.v4.new_output("display_data", data={"text/html": page}) for page in pages]
        return nbformat.v4.new_code_cell("", id=name, outputs=outputs)

    notebook = nbformat.v4.new_notebook()
    row = "<tr><td colspan=2>many" + 6 * "<td>"
    image = "<img alt='' width=9 height=9>"
    notebook.cells = [
        cell("good", f"<table>{row}</table>", image, "<p hidden>warning: hidden</p>"),
        cell("bad", f"<table>{row}<td></table>", "<p style='width: 2000px'>wide</p>", "<p>warning: x</p>"),
        cell("answer", f"<p style='height: 1500px'>1 of 2</p>{image}", image),
    ]
    found = [re.sub(r"\d{3,4} px", "N px", fault) for fault in screens.faults(screens.look(notebook, tmp_path))]
    assert found == [
        "the first cells with an output are good, bad, answer: answer is not the first",
        "answer has 2 figures, not one",
        "the figure of answer begins at N px, below two screens (N px)",
        "output 1 of cell bad ('many'): a table of 9 columns, at most 8",
        "output 2 of cell bad ('wide'): N px wider than its place",
        "output 3 of cell bad ('warning: x'): begins with a warning",
    ]


def begins_with_its_answer(notebook, folder: Path) -> None:
    """As a reader sees it in a browser: skips, at the end of its test, where there is none."""
    faults = screens.faults(screens.look(notebook, folder))
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def run_in_a_kernel(lab, folder: Path, name: str, *options: object, least: int):
    """Run a notebook as users do; it shows at least so many figures and writes nothing to standard error."""
    result = lab("rerun", ROOT / f"notebooks/{name}.ipynb", *options, "--out", folder)
    assert result.returncode == 0, (name, result.stderr)
    (output,) = folder.glob("*.ipynb")
    notebook = nbformat.read(output, as_version=4)
    assert pictures(notebook) >= least and texts(notebook, "stderr") == []
    return notebook


def as_options(parameters: dict[str, str]) -> list[str]:
    return [text for name, value in parameters.items() for text in ("-y", f"{name}: {value}")]


@pytest.mark.heavy
@sampled(13)
@pytest.mark.parametrize("name", NAMES)
def test_unchanged_in_a_kernel(name, lab, tmp_path):
    begins_with_its_answer(run_in_a_kernel(lab, tmp_path, name, least=3), tmp_path)


@pytest.fixture
def table(tmp_path):
    """A CSV of two configurations: one with a slow and a fast cluster, one without."""
    latency_ms = (5e-6 * even(600)).round(6)
    latency_ms[:300:20] *= 2
    latency_ms[10:300:20] *= 0.8
    return put(tmp_path / "times.csv", {"model": ["a"] * 300 + ["b"] * 300, "took": latency_ms})


OF_TABLES = {"column": "took", "unit": "ms", "group_by": ["model"]}
#: What a table has no figure of, as the notebooks print it.
LEFT_OUT = {
    "05_outliers": ("No box plots by hidden size:", "No comparison of arrivals:"),
    "06_deadline": ("No heat map:", "No largest network:"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_table_as_data(name, table, capsys, monkeypatch):
    """All cells, run in this process: a kernel takes longer to start than they take."""
    monkeypatch.chdir(ROOT / "notebooks")
    shown = []
    names = {"display": shown.append}
    for cell in cells_of(name):
        exec(cell.source, names)
        if are_parameters(cell):
            names |= {"data": str(table), **OF_TABLES}
    printed = " ".join(capsys.readouterr().out.split())
    assert f"2 configurations, 600 trials, {table}; took in ms" in printed and len(shown) >= 1
    assert all(text in printed for text in LEFT_OUT[name])
    assert [group.name for group in names["selected" if name == "05_outliers" else "shown"]] == ["model=a"]


@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_table_as_data_in_a_kernel(name, table, lab, tmp_path):
    of_table = ("-p", "data", table, *as_options(OF_TABLES))
    begins_with_its_answer(run_in_a_kernel(lab, tmp_path / "runs", name, *of_table, least=1), tmp_path)


#: Network -> its sizes, and whether it has a stream.
NETWORKS = {
    "conv_lstm_dense": ("{batch: 1, time: 16}", False),
    "streaming_gru": ("{time: 16}", True),
    "keras_lstm": ("{unk__135: 1, unk__136: 16}", True),
}


def own(network: str) -> dict[str, str]:
    """Parameters, as YAML, of the notebook that records ONNX files."""
    sizes, _ = NETWORKS[network]
    asked = {"network": f"data/networks/{network}.onnx", "sizes": sizes, "lengths": "[4, 16]", "record": "true"}
    return asked | {"trials": "30", "deadline_us": "1000000", "percentile": "50"}


ON_THE_LAB = [name for name in NAMES if name not in (*LITERATURE, OWN)]


def few(name: str) -> dict[str, str]:
    """Parameters, as YAML, with which a notebook records little."""
    if name in LITERATURE:
        scale = "1/50" if name == "13_speech" else "1/32"
        common = {"implementations": "[pytorch-one-call-eager]", "record": "true", "batches": "2"}
        return common | {"most": "1", "scale": f'"{scale}"'}
    if name == OWN:
        return own("conv_lstm_dense") | {"runtimes": "[onnxruntime]"}
    return {**SMALL, "runtimes": "[onnxruntime]", "record": "true", "trials": "30"} | MORE.get(name, {})


def given(parameters: dict[str, str]) -> dict[str, object]:
    """Parameters of YAML as values."""
    return {name: yaml.safe_load(value) for name, value in parameters.items()}


def run_small(names: list[str], folder: Path) -> None:
    """Run the cells of notebooks, which share one folder of recordings."""
    for name in names:
        assert pictures(run_cells(name, given(few(name)) | {"out": str(folder)})) >= 2, name


# Records some 100 networks and draws some 40 pictures.
@pytest.mark.heavy
def test_small_on_new_recordings(tmp_path):
    run_small(ON_THE_LAB, tmp_path)


# Records training with PyTorch, in each notebook in a process that loads it; the seed chooses every other one.
@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize("name", LITERATURE)
def test_the_literature_small_on_new_recordings(name, tmp_path, monkeypatch):
    monkeypatch.setattr(LiteraturePreparer, "FRESH_PROCESS", False)  # one process for the workloads of a notebook
    run_small([name], tmp_path)


@pytest.mark.heavy
@sampled(13)
@pytest.mark.parametrize("name", NAMES)
def test_small_on_new_recordings_in_a_kernel(name, lab, tmp_path):
    small = ("-p", "out", tmp_path / "data", *as_options(few(name)))
    notebook = run_in_a_kernel(lab, tmp_path / "runs", name, *small, least=2)
    bars = [text for text in texts(notebook, "text/plain") if "█" in text]
    assert len(bars) <= 3 and all(re.fullmatch(r"(\d+)/\1 \|█+\| [\d:]+", bar) for bar in bars)
    # What papermill and the kernel wrote is stripped: committing a notebook that was run changes nothing.
    (output,) = (tmp_path / "runs").glob("*.ipynb")
    ran(sys.executable, ROOT / ".githooks/strip_staged.py", output)
    assert output.read_bytes() == (ROOT / f"notebooks/{name}.ipynb").read_bytes()
    begins_with_its_answer(notebook, tmp_path)


@pytest.mark.heavy
@sampled(3)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_of_a_file(network, tmp_path):
    _, stream = NETWORKS[network]
    notebook = run_cells(OWN, given(own(network)) | {"out": str(tmp_path / "data")})
    text = "\n".join([*texts(notebook, "stdout"), *texts(notebook, "text/plain")])
    assert ("stream / window per sample" in text) == stream and ("No stream:" in text) != stream
    met = "The longest sequence: " in text  # a disturbed machine leaves few independent trials of the 30
    assert met or "No length meets" in text
    assert pictures(notebook) == 3 + met
    assert not met or re.search(r"\n(Confirmed|NOT confirmed) by a recording", text)
    installed = find_spec("silero_vad") is not None  # a package whose file is recorded, too
    assert ("Fastest: " if installed else "Silero VAD is not installed; to see it here: pip install --no-deps") in text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"network": "data/networks/nothing.onnx"}, "data/networks/nothing.onnx is not in the working folder"),
        ({"network": "data/README.md"}, "is not an ONNX file"),
        ({"sizes": {"tiem": 64}}, "no symbolic size 'tiem': its symbolic sizes are time"),
        ({"states": {"h0": "outputs"}}, "a state has the same type and shape on both sides"),
    ],
)
def test_a_network_that_cannot_be_read(parameters, message, monkeypatch):
    """The cell after the parameters raises one line of text."""
    monkeypatch.chdir(ROOT / "notebooks")
    names = {}
    setup, read, *_ = cells_of(OWN)
    exec(setup.source, names)
    with pytest.raises(UsageError) as caught:
        exec(read.source, names | parameters)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in NAMES if name < "05"])
def test_recordings_of_a_gpu_are_laid_beside_the_others(name, tmp_path, stored, monkeypatch, capsys):
    """Planted ones of a card, as `make gpu-session` leaves them; and without them a line instead."""
    cells = [cell.source for cell in cells_of(name) if "gpu_runs" in cell.source]
    (parameters,) = (cell.source for cell in cells_of(name) if are_parameters(cell))
    shown = []
    values = {"lab": lab_module, "display": shown.append}
    exec(parameters, values)
    sizes = {"layers": values["layers"][:2], "hidden": values["hidden"][:2], "sequence": values["sequence"][:2]}
    shapes = Grid(**{axis: tuple(several) for axis, several in sizes.items()}, batch=tuple(values["batch"][:2]))
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)

    def written(into, **changed):
        item = planted(rows=120)
        changes = [replace(item.configuration, workload=shape, **changed) for shape in shapes]
        return stored(*(replace(item, configuration=configuration) for configuration in changes), into=into)

    written("cpu")
    values |= dict.fromkeys(("runs", "wide", "batches"), lab_module.load(tmp_path / "cpu"))
    for cell in cells:
        exec(cell, values)
    assert not shown and capsys.readouterr().out.count("make gpu-session") == len(cells)
    card = {"runtime": "pytorch-cudagraph", "device_name": "NVIDIA Card", "options": Options(device="cuda")}
    for topic in ("grid", "edge", "batch"):
        lab_module.consolidate(written(topic, **card), tmp_path / "data/card" / topic)
    lab_module.consolidate(tmp_path / "cpu", tmp_path / "data/cpu/grid")  # not of a GPU
    for cell in cells:
        exec(cell, values)
    text = capsys.readouterr().out
    assert len(shown) == len(cells) and "make gpu-session" not in text
    assert {group.configuration.device_name for group in values["gpu"]} == {"NVIDIA Card"}
    pictured = [picture.alt for picture in shown]
    assert all("NVIDIA Card" in alt or "pytorch-cudagraph" in alt for alt in pictured), pictured


@pytest.mark.parametrize("factor", [1.0, 0.85])
def test_a_kink_at_256_units_is_found_and_only_there(factor, tmp_path, stored, monkeypatch, capsys):
    """Planted: time grows with the square of the size; with 256 units and 256 steps it is multiplied by `factor`."""
    cells = {cell.id: cell.source for cell in cells_of("01_hidden_size")}
    shown = []
    values = {"lab": lab_module, "display": shown.append}
    exec(cells["01-01"], values)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    exec(cells["kink-run"], values)
    assert "No small steps to draw: data/xeon/kink is not in" in capsys.readouterr().out and not shown
    rows = 203
    for shape in Grid((3,), (240, 248, 256, 264), (128, 256)):
        kinked = factor if (shape.hidden, shape.sequence) == (256, 256) else 1.0
        for number in range(5):
            item = planted(shape.hidden, number, rows)
            latency_ns = (
                shape.sequence * shape.hidden**2 * kinked * (1 + 1e-3 * np.random.default_rng(number).random(rows))
            )
            columns = item.columns | {"latency_ns": latency_ns.astype(np.int64), "start_ns": np.arange(rows) * 10**8}
            configuration = replace(item.configuration, workload=shape)
            stored(replace(item, configuration=configuration, columns=columns), into="in")
    lab_module.consolidate(tmp_path / "in", tmp_path / "empty/data/xeon/kink")
    exec(cells["kink-run"], values)
    text = capsys.readouterr().out
    assert len(shown) == 2 and {*shown[1]["sequence"]} == {128, 256}
    inverted = [
        (pair.smaller["hidden"], pair.larger, pair.certain) for pair in values["kink_growth"].findings.inversions
    ]
    breaks = shown[1].set_index("sequence").breaks_at
    if factor == 1:
        assert inverted == [] and breaks.isna().all()
    else:
        assert inverted == [(248, {"layers": 3, "hidden": 256, "sequence": 256, "batch": 1}, True)]
        assert breaks[256] == 256 and breaks.isna()[128]
        assert "certain: hidden 248 -> 256" in " ".join(text.split())
