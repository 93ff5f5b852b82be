"""Every kind of picture: it says what its golden text says, nothing is cut off or covered, own axes hold the same.

`python -m tests.lstm_judge.plots.test_pictures` rewrites the golden texts in `golden/`; use it after an intended
change, and review the differences. What is planted is read back in `test_plots` and `test_pages`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes

from lstm_judge import plots
from lstm_judge.read.rounds import Group, Round
from lstm_judge.read.runs import Runs
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid, LstmShape
from tests.conftest import rest_is_heavy
from tests.lstm_judge.planted_loads import of_one_network
from tests.lstm_judge.plots.planted import (
    EPYC,
    ERRORS,
    OLDER,
    ONE,
    TORCH,
    TWO,
    XEON,
    all_fail,
    clustered,
    control,
    dense,
    explain,
    explained,
    faster,
    findings,
    group,
    in_precisions,
    make_runs,
    margins,
    of_lengths,
    of_runtimes,
    of_versions,
    round_,
    steps,
    table_beside,
    torch_fails_at_128,
    watched,
)
from tests.support.pictures import assert_readable, table_texts, told
from tests.support.planted_latencies import judge
from tests.support.said import refusal

GOLDEN = Path(__file__).parent / "golden"


def verdict_page(recorded: Group, deadline_us: float, percentile: str = "99", outliers=None):
    return plots.verdict_page(recorded, judge(recorded.rounds, deadline_us, percentile), outliers)


def outliers_page(**more):
    return plots.outliers_page(*explained(**more))


def one_fails(system, shape, number):
    """One network on one system has no memory, and one has only its first round."""
    if (shape.hidden, shape.sequence, system) == (128, 64, EPYC):
        return "memory"
    return "run" if (shape.hidden, shape.sequence, number) == (64, 64, 1) else None


def in_rounds() -> Runs:
    return make_runs(Grid((1,), (64, 128), (32, 64)), (EPYC, TORCH), rounds=4, failing=one_fails)


def in_bursts() -> Group:
    """Misses in runs of four: fewer effective trials than trials."""
    latency = np.full(3000, 1e5) * np.random.default_rng(5).uniform(0.99, 1.01, 3000)
    for start in (400, 1400, 2400):
        latency[start : start + 4] = 2e5
    return group(Round.of(latency))


def settling() -> Group:
    """Trials of which three in the middle are warm-up as well."""
    (recorded,) = make_runs(ONE)
    warmup = recorded.rounds[0].warmup.copy()
    warmup[200:203] = True
    return replace(recorded, rounds=(replace(recorded.rounds[0], warmup=warmup),))


def with_control(runs: Runs) -> list[Group]:
    """The first with a control run that has one long step."""
    noise_ns = np.full(200, 300.0)
    noise_ns[7] = 70_300.0
    return [replace(runs[0], rounds=(replace(runs[0].rounds[0], control_ns=noise_ns),)), *runs[1:]]


def after_empty_rounds():
    """Findings of rounds of which the first had no timed trials."""
    empty = Round(np.array([1e5]), np.array([True]), round=0)
    recorded = group(empty, clustered(seed=1, round=1), clustered(seed=2, round=2))
    return verdict_page(recorded, 250, outliers=explain(recorded.rounds))


def arrivals() -> list[Group]:
    spin = group(round_(500, 9, control_ns=control(400)), arrival="periodic", period_us=1000.0)
    return [group(round_(500), arrival="paused", pause_ms=10.0), spin, group(round_(500, 3, control_ns=control(500)))]


def replayed() -> Group:
    """One call of 2 ms, after which calls wait that are due every 200 us."""
    latency = np.full(100, 100_000.0)
    latency[10] = 2_000_000.0
    return group(Round.of(latency))


#: The third and the fifth have a batch and a number of layers of no recording, the fourth a hidden size.
OLD_US = {(1, 64, 32, 1): 7.0, (1, 64, 512, 1): 70.0, (1, 64, 32, 4): 1.0, (1, 400, 32, 1): 3.0, (4, 64, 32, 1): 2.0}
BESIDE = table_beside({"Old machine": OLD_US, "New": {(2, 128, 64, 1): 9.0}})
HALVES = Grid((1,), (64, 128), (32,))
GROWN = {"layers": 2, "hidden": 64, "sequence": 32, "batch": 1}
FASTER = {"hidden": (64, 128), "sequence": (16, 32, 64), "batch": (1, 2), "make": faster}
#: Those of one panel, which axes of one's own can hold.
OF_ONE_PANEL = {
    "boxes": lambda **how: plots.box_plots(make_runs(HALVES), "hidden", **how),
    "violins": lambda **how: plots.violins(
        make_runs(HALVES, (EPYC, XEON, TORCH), failing=torch_fails_at_128), "hidden", (128, 64), **how
    ),
    "runtimes": lambda **how: plots.runtimes(in_rounds(), deadline_us=70, **how),
    "versions": lambda **how: plots.versions(of_versions("1.27.0", "1.9.0", "1.26.1"), **how),
    "map of misses and failures": lambda **how: plots.heat_map(
        make_runs(Grid((1,), (64, 128, 200), (32, 64)), failing=one_fails)[:-1], deadline_us=150, **how
    ),
    "curves of rounds": lambda **how: plots.curves(in_rounds(), "sequence", deadline_us=70, **how),
    "tails": lambda **how: plots.tails(make_runs(HALVES), relative=False, deadline_us=100, **how),
    "fits": lambda **how: plots.fits(findings(**FASTER), "sequence", **how),
    "batching": lambda **how: plots.batching(findings(**FASTER), **how),
    "growth": lambda **how: plots.growth(
        findings(layers=(1, 2, 4), hidden=(32, 64, 400), sequence=(32, 64, 128), batch=(1, 64)), GROWN, **how
    ),
    "inversions": lambda **how: plots.inversions(findings(**FASTER), "hidden", **how),
    "precisions": lambda **how: plots.precisions(in_precisions(make_runs(ONE, rounds=2), "fp32", "bf16"), **how),
}
KINDS = OF_ONE_PANEL | {
    "curves of a statistic": lambda: plots.curves(
        make_runs([LstmShape(2, 64, 32, batch) for batch in (1, 4, 32)], floor=False),
        "batch",
        statistic="max_us",
        deadline_us=333,
    ),
    "curves beside": lambda: plots.curves(
        make_runs(Grid((1, 2), (64, 128), (32, 64)), (EPYC, TORCH), floor=False), "sequence", beside=BESIDE
    ),
    "curves beside, panels of their own": lambda: plots.curves(
        make_runs(Grid((1, 2), steps(5), (32, 64)), (EPYC, TORCH)), "sequence", beside=BESIDE
    ),
    "curves of many systems": lambda: plots.curves(
        of_runtimes(make_runs(ONE), [f"r{n:03}" for n in range(51)]), "hidden"
    ),
    "curves of machines and versions": lambda: plots.curves(make_runs(TWO, (EPYC, XEON, OLDER)), "sequence"),
    "curves of arrivals": lambda: plots.curves(
        [*make_runs(TWO), *make_runs(TWO, arrival="periodic", period_us=1000.0), *make_runs(TWO, trials=5000)],
        "sequence",
    ),
    "curves over a wide range": lambda: plots.curves(make_runs(Grid((1,), (64,), (1, 4096)), floor=False), "sequence"),
    "boxes of rounds": lambda: plots.box_plots(in_rounds(), "sequence"),
    "boxes of many sizes": lambda: plots.box_plots(dense(hidden=steps(32), sequence=(64,)), "hidden"),
    "tails beside a control run": lambda: plots.tails(with_control(make_runs(HALVES)), deadline_us=100),
    "tail of rounds": lambda: plots.tails(in_rounds()[4], deadline_us=100),
    "trials of rounds": lambda: plots.trials_in_order(in_rounds()[4]),
    "trials that settle, deadline far away": lambda: plots.trials_in_order(settling(), deadline_us=1e6),
    "maps of layers": lambda: plots.heat_map(make_runs(Grid((1, 2, 3, 4, 6), (64, 128), (32, 64), (1, 2, 4)))),
    "runtimes in ten of many networks": lambda: plots.runtimes(
        make_runs(Grid((1, 2), (64, 128), (32, 64, 128)), (EPYC, TORCH))
    ),
    "precisions of some": lambda: plots.precisions(
        [*in_precisions(make_runs(TWO, (EPYC, TORCH)), *ERRORS), *make_runs(TWO)], deadline_us=1000
    ),
    "margins": lambda: plots.heat_map(margins(), value="bound_us", deadline_us=150, percentile="99"),
    "margins that are not proven": lambda: plots.heat_map(
        margins(), value="bound_us", deadline_us=150, percentile="99.9"
    ),
    "margins of other lengths": lambda: plots.heat_map(of_lengths(298, 1000, 3000), value="bound_us", deadline_us=150),
    "margins of machines": lambda: plots.heat_map(
        [group(round_(1000, machine=name)) for name in ("one", "other")], value="bound_us", deadline_us=150
    ),
    "timeline": lambda: plots.timeline(group(watched())),
    "timeline without times off the core": lambda: plots.timeline(group(watched("no permission"))),
    "arrivals": lambda: plots.arrival_tails(arrivals(), deadline_us=150),
    "loads": lambda: plots.loads(of_one_network(), deadline_us=650),
    "replay": lambda: plots.replay_tails(replayed(), 200, deadline_us=250),
}
PAGES = {
    "met": lambda: verdict_page(group(round_(1000)), 150),
    "undecided": lambda: verdict_page(group(round_(1000, 5, control_ns=control(1000))), 150),
    "missed": lambda: verdict_page(group(*(round_(700, 60, seed=n, round=n) for n in range(3))), 150),
    "bursts": lambda: verdict_page(in_bursts(), 150),
    "empty rounds": after_empty_rounds,
    "one trial": lambda: verdict_page(group(round_(1, warmup=0)), 150),
    "one trial, deadline far": lambda: verdict_page(group(round_(1)), 1e6, "99.99"),
    "all equal": lambda: verdict_page(group(Round.of(np.full(50, 1e5))), 150),
    "deadline far below": lambda: verdict_page(group(round_(1000, 3)), 0.5),
    "deadline just above": lambda: verdict_page(group(round_(1000)), 101.5),
    "a dozen rounds": lambda: verdict_page(group(*(round_(60, 2, seed=n, round=n) for n in range(12))), 150, "90"),
    "long tail": lambda: verdict_page(group(round_(10_000, 30, far=300)), 1000, "99.99"),
    "numbers from elsewhere": lambda: verdict_page(Group("", (Round.of([3e6, 5e6, 4e6]),), {"batch": 3}), 4500, "50"),
    "a long name": lambda: verdict_page(Group("a recording with a very long name " * 4, (round_(100),)), 150),
    "no clusters": lambda: outliers_page(counts=(), control_ns=control(500)),
    "a level that moves": lambda: outliers_page(step=1.05),
    "fast and slow clusters": lambda: outliers_page(counts=((0.8, 80), (1.5, 60)), control_ns=control(500)),
    "four clusters": lambda: outliers_page(
        counts=((1.25, 60), (1.6, 50), (2.2, 40), (3.5, 30)), control_ns=control(500)
    ),
}
#: What is dense.
DENSE = {
    "map of 32": lambda: plots.heat_map(dense(hidden=steps(32)), deadline_us=40),
    "margins of 32": lambda: plots.heat_map(dense(hidden=steps(32), sequence=(32,)), value="bound_us", deadline_us=60),
    "map of 200": lambda: plots.heat_map(dense(hidden=(32,), sequence=steps(200))),
    "boxes of 200": lambda: plots.box_plots(dense(hidden=steps(200), sequence=(32,)), "hidden"),
    "curves of 200": lambda: plots.curves(dense(hidden=steps(200), sequence=(64,)), "hidden", deadline_us=40),
    "80 curves": lambda: plots.curves(dense(hidden=steps(80)), "sequence"),
    "32 panels": lambda: plots.curves(dense(layers=steps(32), hidden=(32,), sequence=(2, 4)), "sequence"),
    "precisions of 8": lambda: plots.precisions(
        in_precisions(dense(hidden=steps(8), systems=(EPYC, TORCH, OLDER)), *ERRORS)
    ),
    "tails of 8": lambda: plots.tails(dense(hidden=steps(8), sequence=(32,)), deadline_us=40),
    "80 rounds": lambda: plots.trials_in_order(dense(hidden=(32,), sequence=(32,), rounds=80), deadline_us=80),
    "fits of 80": lambda: plots.fits(findings(sequence=steps(80), hidden=(32,)), "sequence"),
    "80 inversions": lambda: plots.inversions(
        findings(hidden=steps(80), sequence=(32,), layers=(1, 2), make=faster), "layers"
    ),
}
SAID = KINDS | PAGES
EVERY = SAID | DENSE


SWEEP = make_runs(Grid((1, 2), (64, 128), (32, 64)))
OLD = {"Old machine": {(1, 64, 32, 1): 7.0}}
REFUSED = [
    lambda: plots.curves([Group("numbers", (Round.of([1e5, 2e5]),))], "sequence"),
    lambda: plots.curves([], "sequence"),
    lambda: plots.curves(SWEEP, "width"),
    lambda: plots.curves(SWEEP, "sequence", statistic="p42_us"),
    lambda: plots.curves(SWEEP, "sequence", line="layers"),
    lambda: plots.curves(SWEEP, "sequence", deadline_us=-1),
    lambda: plots.curves(SWEEP, "batch", line="width"),
    lambda: plots.curves(SWEEP, "hidden", beside=table_beside(OLD).drop(columns=["hidden", "latency_us"])),
    lambda: plots.curves(SWEEP, "hidden", beside=pd.concat([table_beside(OLD)] * 2)),
    lambda: plots.curves(SWEEP, "hidden", beside=table_beside({"onnxruntime": OLD["Old machine"]})),
    lambda: plots.box_plots(SWEEP, "sequence", fixed={"batch": 5}),
    lambda: plots.box_plots(SWEEP, "sequence", fixed={"sequence": 32}),
    lambda: plots.box_plots(SWEEP, "width"),
    lambda: plots.box_plots(make_runs(TWO, failing=all_fail), "batch"),
    lambda: plots.violins(make_runs(HALVES, (TORCH,), failing=torch_fails_at_128), "hidden", (128, 64)),
    lambda: plots.heat_map(SWEEP, "hidden", "hidden"),
    lambda: plots.heat_map(SWEEP, "width"),
    lambda: plots.heat_map(SWEEP, value="bound_us"),
    lambda: plots.tails([]),
    lambda: plots.trials_in_order(SWEEP),
    lambda: plots.trials_in_order(replace(SWEEP[0], rounds=())),
    lambda: plots.precisions(SWEEP),
    lambda: plots.versions(of_versions("1.27.0")),
    lambda: plots.growth(findings(), {"layers": 2, "hidden": 65, "sequence": 32, "batch": 1}),
    lambda: plots.arrival_tails([group()]),
    lambda: plots.outliers_page(group(), explained()[1]),
    lambda: plots.outliers_page(group(clustered(n=1990)), explained()[1]),
    lambda: plots.outliers_page(group(clustered(), clustered(round=1)), explained()[1]),
    lambda: plots.replay_tails(group(Round.of(np.full(100, 1e5))), 100),
    lambda: plots.timeline(group(round_(300))),
    lambda: plots.draw_sweep(SWEEP, "/dev/null/figures", formats=("png", "gif")),
    lambda: plots.draw_sweep(SWEEP, "/dev/null/figures"),
]


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name.replace(' ', '-').replace(',', '')}.txt"


@pytest.mark.parametrize("name", SAID)
@pytest.mark.filterwarnings("error")
def test_a_picture_says_what_it_did(name):
    assert told(SAID[name]()) == golden_file(name).read_text()


#: `make test` lays these out, and the heavy part the others.
QUICK = {
    "maps of layers",
    "map of 200",
    "boxes of many sizes",
    "80 curves",
    "runtimes in ten of many networks",
    "growth",
}
QUICK |= {"tails of 8", "batching", "one trial", "numbers from elsewhere", "four clusters"}


@pytest.mark.parametrize("name", rest_is_heavy(EVERY, QUICK.__contains__))
@pytest.mark.filterwarnings("error")
def test_a_picture_can_be_read(name):
    """No text is cut off or overlaps, no data are covered, and panels are large; a page has its table beside."""
    figure = EVERY[name]()
    assert_readable(figure)
    table = [text.get_window_extent() for row in table_texts(figure) for text in row if text.get_text().strip()]
    assert all(box.x0 >= figure.axes[0].get_tightbbox().x1 for box in table)


def contents(ax: Axes) -> tuple:
    """What is drawn in axes: lines, outlines, texts, and the limits and names of the axes."""
    outlines = [path.vertices.tolist() for each in ax.collections for path in each.get_paths()]
    texts = [(text.get_text(), text.get_position()) for text in ax.texts]
    drawn = [line.get_xydata().tolist() for line in ax.lines]
    return drawn, outlines, texts, ax.axis(), ax.get_xlabel(), ax.get_ylabel()


@pytest.mark.parametrize("name", OF_ONE_PANEL)
def test_a_figure_of_one_panel_is_drawn_into_axes_of_ones_own(name):
    own, (ax, other) = pyplot.subplots(1, 2, figsize=(18, 5))
    assert OF_ONE_PANEL[name](ax=ax) is own and own.axes[:2] == [ax, other]  # a map has a colour bar
    assert not other.has_data() and not other.texts and not other.get_xlabel()
    assert contents(ax) == contents(OF_ONE_PANEL[name]().axes[0]) and ax.has_data()
    pyplot.close(own)


def test_several_panels_do_not_fit_into_axes_of_ones_own():
    own, ax = pyplot.subplots()
    with pytest.raises(UsageError, match="has 2"):
        plots.box_plots(make_runs(HALVES, (EPYC, TORCH)), "hidden", ax=ax)
    assert not ax.has_data()
    pyplot.close(own)


def test_what_cannot_be_drawn_is_refused():
    assert [refusal(call) for call in REFUSED] == golden_file("refusals").read_text().splitlines()


if __name__ == "__main__":
    golden_file("refusals").write_text("".join(f"{refusal(call)}\n" for call in REFUSED))
    for kind, draw in SAID.items():
        golden_file(kind).write_text(told(draw()))
