"""evidence.toml lists every measured statement; what rests on shipped data is computed from it again."""

from __future__ import annotations

import itertools
import json
import platform
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import binom

import lstm_literature as literature
import lstm_trt as lab
from lstm_judge.statistics.quantiles import MEDIAN
from lstm_judge.statistics.trials import Trials
from lstm_literature import published, schedule
from lstm_trt.config.configuration import Configuration
from tests.conftest import ROOT
from tests.support import inference_times, measured

EVIDENCE = Path(__file__).with_name("evidence.toml")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "data/README.md"]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
#: docs/evidence.md is about rates of simulations, each with the command that repeats it.
PAGES.remove(ROOT / "docs/evidence.md")
PAGES.remove(ROOT / "docs/glossary.md")  # its numbers are examples

#: A number with a unit, a percentile, or a ratio in words.
MEASURED = re.compile(
    r"(?<![\w.])\d[\d.,]*(?:(?: to |, | and | or )\d[\d.,]*)*"
    r"(?: ?%|th\b| ?(?:ns|us|µs|ms|s|min|h|x|MB|GB|GFLOP/s|seconds?|minutes?|hours?|times|kernels|launches)\b)"
    r"|\b(?:half|twice|double|times as)\b"
)
#: Deadlines, parameters, definitions and examples: these were not measured.
NO_MEASUREMENT = (
    "calls of at most 560 s each",
    # Deadlines and arrivals.
    *(
        "deadline of 1 ms",
        "my LSTM meet 1 ms",
        "control cycle of 1 ms",
        "99.9 % of calls within 1000 us",
        "every 1000 us",
        "every 1 ms",
    ),
    *(
        "every 32 ms",
        "of the 32 ms",
        "after pauses of 10 ms",
        "100 ms after the previous",
        "last 200 us",
        "a timer every 4 ms",
    ),
    # Confidence and allowed misses.
    *(
        "95 % interval",
        "95 % confidence",
        "probability of at most 50 %",
        "more than half way from the median",
        "at most 0.1 %",
        "0.1 % or higher",
        "above 0.1 %",
    ),
    "miss rate of 0.1 %",
    # What delays calls: durations to look for.
    *("3 to 4 ms", "1 to 50 ms", "up to 100 ms"),
    # Rules of the recorder and the analyses.
    *("1.5 x IQR", "by less than 10 %", "more than 10 % off the line", "a difference under 10 %", "to 0.1 %"),
    *("1000 trials or half second", "core for 200 us every 50 ms", "core every 50 ms", "at least 10 % higher"),
    *("in the last half of the recording", "more than 2 % of the pinned", "more than half"),
    "1e-5, or 8 times the difference",
)


@dataclass(frozen=True)
class Statement:
    """A row of evidence.toml, which explains its keys."""

    quote: str
    pages: list[str]
    checked_by: str
    rests_on: list[str] = field(default_factory=list)
    cites: list[dict[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{', '.join(self.pages)}: {self.quote}"

    @property
    def numbers(self) -> list[float]:
        return [float(number.replace(" ", "")) for number in re.findall(r"\d+(?: \d{3})*(?:\.\d+)?", self.quote)]


STATEMENTS = [Statement(**row) for row in tomllib.loads(EVIDENCE.read_text())["statement"]]


def prose(page: Path) -> str:
    """The text of a page without blocks of code, or of a notebook's Markdown cells."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


# --- The checks: each gets its statement ------------------------------------------


def configs(path: str) -> list[dict]:
    return pq.read_table(ROOT / path).to_pylist()


def machine(statement: Statement) -> None:
    versions, cpu = {}, "AMD EPYC" if "EPYC" in statement.quote else "Intel(R) Xeon(R) Processor"
    for name in statement.rests_on:
        for row in configs(name):
            provenance = json.loads(row["provenance"])
            recorded, threads = provenance["machine"], provenance["threads"]
            assert (recorded["cpu"], recorded["logical_cores"]) == (cpu, 2) and recorded["hypervisor"]
            assert threads["asked"] == len(threads["pinned_to"]) <= (1 if "one core" in statement.quote else 2)
            versions[row["runtime"]] = row["runtime_version"].split("+")[0].split(", ")[-1]
    names = {"ONNX Runtime": "onnxruntime", "PyTorch": "pytorch", "OpenVINO": "openvino", "compiled by": "c"}
    for name, runtime in names.items():
        assert name not in statement.quote or f"{name} {versions[runtime]}" in statement.quote


def trials_needed(statement: Statement) -> None:
    for percentile, stated in re.findall(r"p([\d.]+) needs (\d+ \d+)", statement.quote):
        allowed, n = 1 - float(percentile) / 100, int(stated.replace(" ", ""))
        assert binom.cdf(0, n, allowed) <= 0.05 < binom.cdf(0, n - 1, allowed)


def percentile_proven(statement: Statement) -> None:
    """Of 1000 trials without a miss unless the statement has another number, to the digits that it prints."""
    (percentile,) = re.findall(r"([\d.]+)th", statement.quote)
    n = int((re.findall(r"--trials (\d+)", statement.quote) or ["1000"])[0])
    next_one = float(percentile) + 10.0 ** -len(percentile.split(".")[1])
    assert binom.cdf(0, n, 1 - float(percentile) / 100) <= 0.05 < binom.cdf(0, n, 1 - next_one / 100)


def three_recordings(statement: Statement) -> None:
    medians, widths = [], []
    for name in statement.rests_on:
        runs = lab.load(ROOT / name, runtime="onnxruntime", layers=[2], hidden=[64], sequence=[64], batch=[1])
        median = Trials.of(*runs[0].rounds).percentile(MEDIAN)  # of independent trials
        medians.append(round(median.us, 1))
        widths.append(100 * (median.high_us - median.low_us) / median.us)
    assert [*medians, 1.0] == statement.numbers and max(widths) < 1


def roofline_bound(statement: Statement) -> None:
    for name in statement.rests_on:
        for group in lab.load(ROOT / name):
            assert all(round_.timed_ns.min() > 1e3 * round_.floor_us for round_ in group.rounds)


def c_is_fastest(statement: Statement) -> None:
    """The runtime `c` has the lowest median in every network and mode, and not in all the lowest maximum."""
    names = statement.rests_on
    frames = [lab.summarize(lab.load(ROOT / name), clusters=False).frame.assign(name=name) for name in names]
    rows = pd.concat(frames)
    assert set(rows["runtime"]) == {"c", "onnxruntime", "pytorch"} and set(rows["status"]) == {"ok"}

    def fastest(rows: pd.DataFrame, statistic: str) -> pd.Series:
        return rows.sort_values(statistic).groupby(["name", "mode", "layers", "hidden", "sequence"])["runtime"].first()

    assert set(fastest(rows, "median_us")) == {"c"} != set(fastest(rows, "max_us"))
    each = [fastest(rows[rows["threads"] == threads], "median_us") == "c" for threads in (1, 2)]
    assert re.findall(r"(\d+) of (\d+)", statement.quote) == [(str(found.sum()), str(len(found))) for found in each]


def libraries(statement: Statement) -> None:
    rows = configs(*statement.rests_on)
    tensorflow = [row for row in rows if row["runtime"].startswith("tensorflow") and row["status"] == "ok"]
    assert tensorflow and all(json.loads(row["provenance"])["runtime"]["onednn"] for row in tensorflow)
    assert "BLAS_INFO=mkl" in torch.__config__.show() or platform.machine() != "x86_64"


def time_of_the_set(statement: Statement) -> None:
    """From the first preparation to the last batch of the rows of the plan that were recorded one after another.

    Rows that were added later were recorded in a session of their own: a pause of two minutes ends one.
    """
    rows = schedule.plan().entries
    keys = {(row.workload, row.implementation, row.mode, row.batches, row.warmup) for row in rows}
    spans = []
    (name,) = statement.rests_on
    for row in configs(f"{name}/configs.parquet"):
        made, provenance = Configuration.from_dict(json.loads(row["configuration"])), json.loads(row["provenance"])
        key = (made.workload, made.runtime, made.mode, made.protocol.trials, made.protocol.warmup)
        if row["status"] == "ok" and key in keys:
            seconds, began_s = provenance["seconds"], provenance["started_unix_ns"] / 1e9
            spans.append((began_s - seconds["build"] - seconds["parity"], began_s + seconds["timing"]))
    taken_s, until = 0.0, 0.0
    for began, end in sorted(spans):
        taken_s += end - (until if began < until + 120 else began)
        until = end
    assert statement.numbers[:2] == [len(spans), round(taken_s / 60)]


def implementations(statement: Statement) -> None:
    (name,) = statement.rests_on
    found = literature.load(["ptb-lm"], data=ROOT / name)
    (side,) = literature.today(found.rows, found.variants[0], "forward")
    assert [len(side.ranked)] == statement.numbers


def no_kinks(statement: Statement) -> None:
    """256 units take longer than 200 in each network that differs in nothing else, from 1 to 6 layers."""
    rows = kinks_table(statement, "hidden")
    assert {layers for _, layers, _ in rows.index} == {1, 2, 3, 4, 6} and len(rows) == 30
    assert (rows[256] > rows[200]).all()


@cache
def small_steps(name: str):
    """The recordings in small steps of the hidden size, which several statements rest on."""
    runs = lab.load(ROOT / name)
    assert {group.configuration.runtime for group in runs} == {"c", "onnxruntime", "pytorch"} and len(runs) == 144
    return runs


def steps_down(statement: Statement) -> list:
    """The larger networks that are faster than their neighbour."""
    return lab.scaling(small_steps(*statement.rests_on)).findings.inversions


def only_pytorch_has_steps_down(statement: Statement) -> None:
    assert {each.system.split(",")[0] for each in steps_down(statement)} == {"pytorch"}


def steps_to_multiples_of_32(statement: Statement) -> None:
    """With 128 steps as with 256."""
    every = steps_down(statement)
    there = [each for each in every if each.larger["hidden"] % 32 == 0]
    hidden = sorted({each.larger["hidden"] for each in there})
    percents = [100 * (1 - each.ratio) for each in there]
    assert statement.numbers == [len(every), 8, len(there), *hidden, round(min(percents)), round(max(percents))]
    places = [(each.larger["layers"], each.larger["hidden"], each.larger["sequence"]) for each in there]
    assert sorted(places) == sorted(itertools.product((3, 4), hidden, (128, 256)))


def certain_steps(statement: Statement) -> None:
    certain = [each.larger for each in steps_down(statement) if each.certain]
    assert statement.numbers == [192, 4]
    assert {(each["hidden"], each["layers"]) for each in certain} == {(192, 4)} and len(certain) == 2


def page_faults_at_264(statement: Statement) -> None:
    """In 3 layers and 256 steps, where the larger network is faster."""
    larger, smaller = map(int, statement.numbers)
    (step,) = (each for each in steps_down(statement) if each.larger["hidden"] == larger)
    assert (step.larger["layers"], step.larger["sequence"]) == (3, 256)
    faulty = {}
    for hidden in (smaller, larger):
        where = {"runtime": "pytorch", "layers": 3, "sequence": 256, "hidden": hidden}
        (group,) = small_steps(*statement.rests_on).where(**where)
        faulty[hidden] = sum(np.median(round_.timed(round_.causes["minor_faults"])) > 1000 for round_ in group.rounds)
    assert faulty[smaller] > faulty[larger]


def proportional_to_sequence(statement: Statement) -> None:
    """Between 200 and 256 steps, within the stated percentage, except for PyTorch with the most layers and units."""
    (percent, layers, hidden) = statement.numbers
    rows = kinks_table(statement, "sequence")
    apart = rows[256] / rows[200] / (256 / 200) - 1
    exception = ("pytorch", layers, hidden)
    assert apart[exception] > percent / 100 and len(rows) == 20
    assert (apart.drop(exception).abs() <= percent / 100).all()


def page_faults(statement: Statement) -> None:
    """PyTorch's rounds that take 10 % longer than the fastest one of their network have them, and no other round."""
    (name,) = statement.rests_on
    slow, fast = [], []
    for group in lab.load(ROOT / name, runtime="pytorch"):
        medians = [np.median(round_.timed_ns) for round_ in group.rounds]
        for round_, median in zip(group.rounds, medians, strict=True):
            kind = slow if median > 1.1 * min(medians) else fast
            kind.append(round_.timed(round_.causes["minor_faults"]))
    assert len(slow) > 5 and len(fast) > 50
    assert min(faults.min() for faults in slow) > 1000 and max(np.median(faults) for faults in fast) == 0


def kinks_table(statement: Statement, column: str):
    names = statement.rests_on
    kinks = lab.load([ROOT / name for name in names]).where(hidden=[200, 256], sequence=[128, 200, 256])
    rows = lab.summarize(kinks, clusters=False).frame
    others = [axis for axis in ("layers", "hidden", "sequence") if axis != column]
    return rows.pivot_table(index=["runtime", *others], columns=column, values="median_us")


def of_the_published_times(compute: Callable) -> Callable[[Statement], None]:
    """A check of a sentence about document 003's times, see `inference_times`."""

    def check(statement: Statement) -> None:
        assert statement.numbers == compute(published.points("003-times"))

    check.__name__ = compute.__name__
    return check


def not_carried_out(statement: Statement) -> None:
    (row,) = (row for row in published.read_document("004").itertuples() if row.status == "failed")
    assert (row.workload, row.reason) == ("speech-ctc-long", "not carried out")
    assert statement.quote.endswith(f"CTC on PyTorch {row.framework_version}")


def parts_at(statement: Statement) -> dict[str, float]:
    """The shares of the excess of the cluster that the statement names."""
    (name,), (multiplier,) = statement.rests_on, statement.numbers
    (found,) = lab.outliers(ROOT / name)
    cluster = min(found.clusters, key=lambda each: abs(each.multiplier - multiplier))
    assert round(cluster.multiplier, 2) == multiplier
    return {part: time_us / cluster.excess.excess_us for part, time_us in cluster.excess.parts_us.items()}


def planted_program(statement: Statement) -> None:
    assert parts_at(statement)["preempted"] > 0.75
    (name,) = statement.rests_on
    (found,) = lab.outliers(ROOT / name)
    turns = {name: each["total_ns"] for name, each in found.events.switches[0]["ran"].items()}
    assert max(turns, key=turns.get) == "sleeper" and turns["sleeper"] > 0.9 * sum(turns.values())


@cache
def beside_loads(name: str):
    """Network and runtime -> load -> its group; the load of a quiet one is None."""
    found = {}
    for group in lab.load(ROOT / name):
        title = group.configuration.title
        found.setdefault(title, {})[group.configuration.protocol.beside_text] = group
    assert len(found) == 4 and all(len(by_load) == 5 and None in by_load for by_load in found.values())
    return found


def maxima_beside_loads(statement: Statement) -> None:
    """The table's maxima are those of the recordings."""
    data, table = statement.rests_on
    rows = [row for row in measured.read(ROOT / table) if row["statistic"] == "max_us"]
    of_network = beside_loads(data)
    columns = {"quiet": None, "COPIES": "a copy of itself", "stream": "stream", "compute": "compute", "disk": "disk"}
    for row in rows:
        if row["what"] == "cyclictest":
            continue
        for column, load in columns.items():
            group = of_network[row["what"]][load]
            latency_ns = np.concatenate([each.timed_ns for each in group.rounds])
            assert len(latency_ns) == 30_000 and len(group.rounds) == 5
            assert float(row[column]) == round(latency_ns.max() / 1e3, 1)
    assert {row["what"] for row in rows} == {*of_network, "cyclictest"}


def verdicts_beside_loads(statement: Statement) -> None:
    (data,) = statement.rests_on
    outcomes = {"quiet": [], "disk": []}
    ratios = []
    for by_load in beside_loads(data).values():
        judged = {load: lab.verdict([group], 1000, 99.9)[0] for load, group in by_load.items()}
        outcomes["quiet"].append(judged[None].outcome)
        outcomes["disk"].append(judged["disk"].outcome)
        assert all(each.max_us > 1000 for load, each in judged.items() if load)
        medians = {
            load: np.median(np.concatenate([each.timed_ns for each in group.rounds])) for load, group in by_load.items()
        }
        ratios += [medians[load] / medians[None] for load in by_load]
    assert outcomes["quiet"] == ["MET"] * 4 and outcomes["disk"].count("MISSED") == 3
    assert 1.03 < max(ratios) <= 1.04


def one_call_is_fastest(statement: Statement) -> None:
    times = {}
    for row in published.read_document("004-times").itertuples():
        if row.statistic == "mean" and row.device == "gpu":
            times.setdefault((row.workload, row.framework_version), {})[row.implementation] = row.value
    found = [values for values in times.values() if len(values) == 3]
    assert len(found) == 8 and all(min(values, key=values.get) == "pytorch-one-call-eager" for values in found)


def citation(statement: Statement) -> None:
    assert statement.cites
    assert all(each["name"] and each["url"].startswith("https://") for each in statement.cites)


CHECKS = {
    check.__name__: check
    for check in (
        machine, trials_needed, percentile_proven, three_recordings, roofline_bound, libraries, implementations,
        no_kinks, proportional_to_sequence, not_carried_out, citation, c_is_fastest,
        one_call_is_fastest, time_of_the_set, planted_program, maxima_beside_loads, verdicts_beside_loads,
        page_faults, only_pytorch_has_steps_down, steps_to_multiples_of_32, certain_steps, page_faults_at_264,
        *map(of_the_published_times, inference_times.SENTENCES),
    )
}  # fmt: skip


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.name)
def test_the_statement_is_there_and_follows_from_its_evidence(statement):
    for page in statement.pages:
        assert statement.quote in prose(ROOT / page), f"{page} does not say: {statement.quote}"
    for path in statement.rests_on:
        assert (ROOT / path).exists(), f"{statement.name} rests on {path}, which does not exist"
    if statement.checked_by.startswith("test_"):
        (path,) = statement.rests_on
        assert f"\ndef {statement.checked_by}(" in (ROOT / path).read_text(), statement.name
    else:
        CHECKS[statement.checked_by](statement)


def test_every_check_has_a_statement():
    used = {statement.checked_by for statement in STATEMENTS}
    assert {name for name in used if not name.startswith("test_")} == set(CHECKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_measured_number_lacks_evidence(page):
    text = prose(page)
    name = page.relative_to(ROOT).as_posix()
    known = [statement.quote for statement in STATEMENTS if name in statement.pages]
    patterns = [*map(re.escape, (*known, *NO_MEASUREMENT)), r"`[^`\n]*`"]  # code is no statement
    spans = [match.span() for pattern in patterns for match in re.finditer(pattern, text)]
    missing = [
        match for match in MEASURED.finditer(text) if not any(a <= match.start() and match.end() <= b for a, b in spans)
    ]
    said = [text[max(0, match.start() - 40) : match.end() + 20] for match in missing]
    assert said == [], f"{name} says what {EVIDENCE.name} does not list"


def test_pages_show_what_the_measured_tables_have():
    shown = 0
    for page in measured.PAGES:
        text = page.read_text()
        assert measured.with_tables(text) == text, f"{page.name}: python -m tests.support.measured writes its tables"
        tables = list(measured.TABLE.finditer(text))
        assert len(tables) == text.count("<!-- data/measured/"), page.name
        for table in tables:
            _, head, *rows = table[0].replace("-->\n\n", "-->\n").splitlines()
            assert {row.count("|") for row in rows} == {head.count("|")}, head
        shown += len(tables)
    assert shown >= 1


def test_the_readme_of_the_data_names_every_measured_table():
    files = {path.name for path in measured.FOLDER.glob("*.csv")}
    section = (ROOT / "data/README.md").read_text().split("## Tables that were measured")[1]
    named = re.findall(r"^\| `([\w-]+\.csv)` \|", section, re.MULTILINE)
    assert sorted(named) == sorted(files)
    assert {path.name for path in (measured.FOLDER / "before").iterdir()} < files


def test_the_table_of_recordings_states_their_trials():
    for name, described in re.findall(
        r"^\| `((?:epyc|xeon)/[\w-]+)` \| (.*) \|$", (ROOT / "data/README.md").read_text(), re.M
    ):
        stated = {int(n.replace(" ", "")) for n in re.findall(r"(\d+(?: 000)?)(?= trials|\))", described)}
        rows = configs(f"data/{name}/configs.parquet")
        trials = {json.loads(row["configuration"])["protocol"]["trials"] for row in rows}
        assert not stated or stated == trials, name
