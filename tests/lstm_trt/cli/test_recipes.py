"""Recipes of docs/contributing.md: followed with their examples in a copy of the packages, they make what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.packages import copy_packages

EXAMPLES = ROOT / "docs/examples/recipes"

DOCTOR = """
import json
from pathlib import Path
from lstm_trt.machine.checks import host_checks
from lstm_trt.recorder.doctor import DoctorReport, examine, render

page = render(examine([]))
answers = []
for folder in ("merges", "merges-nothing", "empty"):
    (check,) = [check for check in host_checks(Path(folder)) if check.name == "same-page merging"]
    answers.append([check.verdict, check.value, check.remedy])
print(json.dumps([page, answers]))
"""

#: Says how long the process rested, by what was asked for.
RECORD = """
import contextlib, io, json, sys, time
import lstm_trt as lab
from lstm_trt.cli.main import main

rests, sleep = [], time.sleep
time.sleep = lambda seconds: rests.append(seconds) if seconds == 0.0123 else sleep(seconds)
texts = []
for line in (
    "record --layers 1 --hidden 8 --sequence 4 --trials 20 --no-control --out out --rest 0.0123",
    "sweep --layers 1 --hidden 8 9 --sequence 4 --trials 20 --out out --quiet --rest 0.0123",
    "record --layers 1 --hidden 8 --sequence 4 --trials 20 --no-control --out again",
    "record --help",
    "sweep --help",
):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        texts.append(main(line.split()))
    texts.append(text.getvalue())
    rests.append("end")
lab.sweep([lab.LstmShape(1, 8, 4)], out="again", rounds=1, rest_s=0.0123, show_progress=False)
print(json.dumps([rests, texts]))
"""


#: Records with random arrivals, and prints when calls were due, and what is said of the recording.
RANDOM = """
import json
import lstm_trt as lab
from lstm_trt.cli.main import main

line = "record --layers 1 --hidden 8 --sequence 4 --trials 200 --arrival random --mean-gap-us 400 --out out"
status = main(line.split())
(recording,) = lab.load("out")[0].rounds
closed = lab.Protocol()
protocol = lab.Protocol(arrival="random", mean_gap_us=400)
gaps_ns = [int(gap) for gap in recording.start_ns[1:] - recording.start_ns[:-1]]
has_control = recording.control_ns is not None
print(json.dumps([status, gaps_ns, protocol.arrival_text, "mean_gap_us" in closed.as_dict(), has_control]))
"""


def answer(script: str, folder: Path):
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def edit(file: Path, pattern: str, replacement: str) -> None:
    """Replace the one place in a file where the pattern is found."""
    source, places = re.subn(pattern, replacement, file.read_text(), flags=re.DOTALL)
    assert places == 1, (file, pattern, places)
    file.write_text(source)


def added(example: str) -> str:
    """What an example adds to a module, as a replacement: all from its first class or function on."""
    source = (EXAMPLES / example).read_text()
    return source[re.search(r"^(@|class |def )", source, re.MULTILINE).start() :].replace("\\", r"\\")


def test_the_page_links_every_example():
    links = re.findall(r"\(examples/recipes/(.*?)\)", (ROOT / "docs/contributing.md").read_text())
    assert sorted(links) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_file())


def test_a_check_of_doctor(tmp_path):
    copy_packages(tmp_path, "__pycache__")
    checks = tmp_path / "lstm_trt/machine/checks.py"
    edit(checks, r'(?=@check\("real-time priority")', f"{added('same_page_merging.py')}\n\n")
    for folder, text in (("merges", "1\n"), ("merges-nothing", "0\n"), ("empty", None)):
        file = tmp_path / folder / "sys/kernel/mm/ksm/run"
        file.parent.mkdir(parents=True)
        if text is not None:
            file.write_text(text)
    page, answers = answer(DOCTOR, tmp_path)
    assert "same-page merging: " in " ".join(page.split())
    remedy = "echo 0 | sudo tee /sys/kernel/mm/ksm/run"
    assert answers == [["attention", "on", remedy], ["good", "off", ""], ["unknown", "not visible", ""]]


@pytest.mark.heavy
def test_a_flag_of_record_and_sweep(tmp_path):
    """`--rest S`: seconds before each recording."""
    copy_packages(tmp_path, "__pycache__")
    recorder, cli = tmp_path / "lstm_trt/recorder", tmp_path / "lstm_trt/cli"

    def keyword(file: Path, function: str) -> None:
        """Add the keyword to a function's signature."""
        edit(file, rf"({function}\([^()]*(?:\([^()]*\)[^()]*)*?)(\n *\) ->)", r"\1\n    rest_s: float = 0.0,\2")

    # 1. The flag of both commands.
    flag = (
        '    parser.add_argument("--rest", type=float, default=0.0, metavar="S", help="rest before each recording")\n'
    )
    edit(cli / "common.py", r"(def recording_arguments\(.*?\"\"\".*?\"\"\"\n)", rf"\1{flag}")
    # 2. Where it takes effect, and the functions that lead there.
    keyword(recorder / "pool.py", r"class WorkerPool:(?:(?!def ).)*def __init__")
    edit(recorder / "pool.py", r"(class WorkerPool:.*?\) -> None:\n)", r"\1        self.rest_s = rest_s\n")
    edit(
        recorder / "pool.py",
        r"(def record_configuration\(.*?\"\"\".*?\"\"\"\n)",
        r"\1        time.sleep(self.rest_s)\n",
    )
    keyword(recorder / "pool.py", r"\ndef record")
    edit(recorder / "pool.py", r"single=True\)", "single=True, rest_s=rest_s)")
    for function in ("sweep", "run_sweep"):
        keyword(recorder / "sweep.py", rf"\ndef {function}")
    edit(recorder / "sweep.py", r"(return run_sweep\(\n)(.*?)(    \)\n)", r"\1\2        rest_s=rest_s,\n\3")
    edit(recorder / "sweep.py", r"interpreters, wait\)\)", "interpreters, wait, rest_s=rest_s))")
    # 3. The commands pass it on.
    edit(cli / "record.py", r"(time_limit_s=arguments\.time_limit,)", r"\1 rest_s=arguments.rest,")
    edit(cli / "sweep.py", r"(\"time_limit_s\": arguments\.time_limit,)", r'\1 "rest_s": arguments.rest,')

    rests, texts = answer(RECORD, tmp_path)
    assert rests == [0.0123, "end", 0.0123, "end", "end", "end", "end", 0.0123]
    assert all("rest before each recording" in text for text in (texts[-1], texts[-2]))


#: Prints the signs of some numbers as generated code computes them, or why there is none.
SIGN = """
import json
import numpy as np, onnx
from onnx import helper
from lstm_onnx.c.compile import LoadedNetwork, find_compiler
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import native_target

sides = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [5]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Sign", ["x"], ["y"])], "signs", sides[:1], sides[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
file = c_file({"run": model.SerializeToString()}, native_target(), "network", include_weights=False)
x, y = np.array([-2, 0, 3, np.nan, -np.inf], np.float32), np.zeros(5, np.float32)
compiled = LoadedNetwork(file, find_compiler())  # keeps its memory
compiled.bound("run", x, y)()
print(json.dumps([str(number) for number in y]))
"""


@pytest.mark.heavy
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_an_operator_in_c(tmp_path):
    copy_packages(tmp_path, "__pycache__")
    c = tmp_path / "lstm_onnx/c"
    edit(c / "kernel.c", r"(?=#define POINTWISE\(function)", f"{(EXAMPLES / 'sign.c').read_text()}\n")
    edit(c / "operators.py", r"(?=    \"Erf\": )", '    "Sign": "sign",\n')
    assert answer(SIGN, tmp_path) == ["-1.0", "0.0", "1.0", "nan", "-1.0"]


@pytest.mark.heavy
def test_a_kind_of_arrival(tmp_path):
    copy_packages(tmp_path, "__pycache__")
    arrivals = tmp_path / "lstm_trt/config/arrivals.py"
    edit(arrivals, r"(?=class Spaced\(Timed\))", f"{added('random_arrival.py')}\n\n")
    edit(arrivals, r"\(Closed, Periodic, Paused\)", "(Closed, Periodic, Paused, Random)")
    edit(arrivals, r"\nimport time\n", r"\nimport random\nimport time\n")
    field = 'mean_gap_us: float | None = described(None, help="mean gap", unit="us", added=True)'
    edit(tmp_path / "lstm_trt/config/configuration.py", r"(    pause_ms: float \| None = )", rf"    {field}\n\1")
    status, gaps_ns, text, is_in_others, has_control = answer(RANDOM, tmp_path)
    assert status == 0 and text == "random every 400 us on average (spin)"
    assert not is_in_others and has_control and len(gaps_ns) > 190
    # Of an exponential law the mean is 400 us with a standard error of 28, and a third of the gaps are below 0.4 of it.
    mean_ns = sum(gaps_ns) / len(gaps_ns)
    assert mean_ns > 200_000 and 0.1 < sum(gap < 0.4 * mean_ns for gap in gaps_ns) / len(gaps_ns) < 0.7


#: A column of the summary.
IQR = '''    @property
    def iqr_us(self) -> float:
        """Interquartile range, of interpolated quartiles."""
        low_us, high_us = self.quartiles_us
        return high_us - low_us
'''

#: Uses what the recipes of the judge add.
JUDGED = """
import json
import matplotlib.pyplot as plt
import numpy as np
import lstm_trt as lab

latencies_us = np.array([100.0, 101.0, 105.0, 104.0, 103.0] * 40)
runs = lab.load(latencies_us, unit="us")
summary = lab.summarize(runs, clusters=False)
row = summary.as_dict()[0]
jitters = lab.jitter(runs)
figure, (left, right) = plt.subplots(1, 2)
lab.plots.changes(runs, ax=right)
picture = lab.plots.changes(runs)
print(json.dumps({
    "iqr": [row["statistics"]["iqr_us"], float(summary.frame["iqr_us"][0]), "iqr" in str(summary)],
    "csv": summary.csv_text().splitlines()[0].split(","),
    "jitter": [jitters[0].max_us, str(jitters), jitters.as_dict()["median_us"], float(jitters.frame["max_us"][0])],
    "html": jitters._repr_html_(),
    "drawn": [len(left.lines), right.lines[0].get_ydata().tolist() == np.diff(latencies_us).tolist()],
    "title": picture.title,
    "warnings": summary.warnings,
}))
"""


def test_what_the_judge_says(tmp_path):
    """A column of the summary, a statistical answer, a figure and a message."""
    copy_packages(tmp_path, "__pycache__")
    judge = tmp_path / "lstm_judge"
    edit(judge / "statistics/trials.py", r"(?=    @cached_property\n    def is_outlier)", f"{IQR}\n")
    edit(judge / "columns.py", r'(    "rounds": "rounds.count",)', r'    **within("statistics", "iqr_us"),\n\1')
    edit(judge / "summarize/text.py", r'(    Column\("std",)', r'    Column("iqr", _us("iqr_us"), drop=1),\n\1')
    shutil.copy(EXAMPLES / "jitter.py", judge)
    shutil.copy(EXAMPLES / "change.py", judge / "plots")
    edit(judge / "registry.py", r"(TEXTS = \{)", r'\1\n    "Jitters": "lstm_judge.jitter",')
    edit(judge / "registry.py", r'(        "replay": \("replay",\),)', r'\1\n        "jitter": ("jitter",),')
    edit(judge / "registry.py", r'(        "curve": )', r'        "change": ("changes",),\n\1')
    edit(judge / "read/rounds.py", r"(?=def below_floor)", f"{added('one_process.py')}\n\n")
    edit(judge / "read/runs.py", r"\(\*self\.warnings, ", "(*self.warnings, *one_process(self.groups), ")
    edit(judge / "read/runs.py", r"(    below_floor,\n)", r"\1    one_process,\n")
    found = answer(JUDGED, tmp_path)
    assert found["iqr"] == [3.0, 3.0, True] and found["csv"].count("iqr_us") == 1
    assert found["jitter"][0] == 4.0 and found["jitter"][2:] == [1.0, 4.0] and "at most 4 us" in found["jitter"][1]
    assert "at most 4 us" in found["html"] and "<table" in found["html"]
    assert found["drawn"] == [0, True] and found["title"].startswith("Changes")
    (warning,) = found["warnings"]
    assert "1 configuration" in warning and "--rounds 5" in warning
