"""A recording that is too long for memory has the same statistics as one that is loaded whole."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import lstm_trt as lab
from lstm_judge import columns
from lstm_judge.plots.box import box_plots, violins
from lstm_judge.plots.style import Picture, whole
from lstm_judge.plots.tail import exceedance
from lstm_judge.read import runs
from lstm_judge.read.whole import AllTrials
from lstm_judge.statistics.trials import Trials
from lstm_trt.store import files, folders
from lstm_trt.store.whole import counted, one_of_each
from tests.conftest import ROOT
from tests.support.golden import differences
from tests.support.pictures import text_of

#: Columns of a summary that are of the trials in memory, of which a long recording has fewer.
OF_KEPT = {"clusters", "steady_state"}
INTERVALS = ("_low", "_high")

#: Fields of a verdict that need no local level, which is that of the trials in memory.
OF_ALL = (
    *("n", "misses", "max_us", "max_with_warmup_us", "percentile_us", "bounds.miss_rate_low", "bursts.tau"),
    *("bursts.slow.length", "bursts.slow.length_low", "effective.outcome_if_independent"),
    *("new_recording.trials_if_independent", "firm_statistics"),
)


@pytest.fixture
def soak(rng, tmp_path):
    """A folder with a recording in six parts of unequal length, whose slow trials come in bursts."""
    write_soak(next(folders.read_many(ROOT / "data" / "epyc" / "grid")), rng, tmp_path)
    return tmp_path


def write_soak(first, rng, folder):
    sizes, start_ns = rng.integers(900, 3000, 6).tolist(), 0
    for number, n in enumerate(sizes):
        slow = np.convolve(rng.random(n) < 0.002, np.ones(4))[:n] > 0
        latency_ns = (1e5 * rng.lognormal(0, 0.02, n) * np.where(slow, 2, 1)).astype(np.int64)
        ends_ns = start_ns + np.cumsum(latency_ns + 700)
        columns = {"trial": np.arange(n), "warmup": (np.arange(n) < 50) & (number == 0), "latency_ns": latency_ns}
        columns["start_ns"], start_ns = ends_ns - latency_ns - 700, int(ends_ns[-1])
        state = {"asked_s": 6, "elapsed_s": number + 1, "part": number, "last": number == 5}
        provenance = first.provenance | {"soak": state}
        provenance["blocks"] = [provenance["blocks"][0] | {"rows": n}]
        provenance["seconds"] = provenance["seconds"] | {"control": 0.0}
        files.write(replace(first, columns=columns, provenance=provenance, part=number), folder)


def without(answer: dict) -> dict:
    return {name: value for name, value in answer.items() if name not in OF_KEPT and not name.endswith(INTERVALS)}


@pytest.mark.random(tail=0, why="identity")
def test_statistics_and_verdicts_are_of_all_trials(soak, monkeypatch):
    known = lab.load(soak)
    monkeypatch.setattr(runs, "KEPT", 1000)
    found = lab.load(soak)
    (group,), (long,) = known, found
    assert found[0].n == known[0].n and len(long.rounds[0].latency_ns) <= 1000
    assert any(f"of its {known[0].n} trials" in warning for warning in found.warnings)
    (row,), (expected,) = lab.summarize(found), lab.summarize(known)
    assert not differences(without(expected.flat), without(row.flat))
    middle = Trials.of(*group.rounds).statistic("median_us")
    for deadline_us, percentile in ((1.5 * middle, "99"), (1.5 * middle, "99.9"), (middle, "90"), (3 * middle, "99")):
        (verdict,), (expected,) = (lab.verdict(each, deadline_us, percentile) for each in (found, known))
        paths = {path: path for path in OF_ALL}
        assert not differences(*(columns.row(each.as_dict(), paths) for each in (expected, verdict)))


@pytest.mark.random(tail=0, why="identity")
def test_what_needs_the_order_of_all_trials_says_so(soak, monkeypatch):
    monkeypatch.setattr(runs, "KEPT", 1000)
    found = lab.load(soak)
    (answer,) = lab.outliers(found)
    assert answer.n == int((~found[0].rounds[0].warmup).sum())
    with pytest.raises(lab.UsageError, match="too many to replay"):
        lab.replay(found, 1000)
    assert f"trial, one of every {found[0].rounds[0].whole.step}" in text_of(lab.plots.trials_in_order(found))
    assert f"of {whole(found[0].n)} (" in text_of(lab.plots.tails(found, deadline_us=150))  # misses of all trials


@pytest.mark.random(tail=0, why="identity")
def test_places_and_ranks_are_those_of_the_trials(rng):
    latency_ns = rng.integers(100, 300, 5000)
    parts = np.split(latency_ns, [700, 1900, 1901])
    every = AllTrials(*counted((part, 1) for part in parts), parts=lambda: iter(parts))
    ordered = np.sort(latency_ns)
    assert len(every) == 5000 and every[np.arange(5000)].tolist() == ordered.tolist() and every[-1] == ordered[-1]
    for limit_ns in (0, 150, ordered[-60], ordered[-1]):
        places, values = every.above(limit_ns)
        assert places.tolist() == np.flatnonzero(latency_ns > limit_ns).tolist()
        assert values.tolist() == latency_ns[places].tolist()
    assert np.array_equal(exceedance(every), exceedance(ordered))
    spread = np.r_[rng.integers(1, 2**40, 400), 1.5]
    assert np.array_equal(counted([(spread, 1)]), np.unique(spread, return_counts=True))


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_events_that_come_back_after_as_many_trials_as_one_is_kept_of_keep_their_share(step):
    n = 60_007
    chosen = one_of_each(n, step)
    assert (chosen // step).tolist() == list(range(-(-n // step)))
    for period in (step, 2 * step, 3):
        share = np.mean(chosen % period == 0)
        assert abs(share - 1 / period) <= 6 * (1 / period / len(chosen)) ** 0.5 + 1 / len(chosen)


@pytest.mark.random(tail=0, why="identity")
def test_boxes_and_violins_of_trials_in_memory_have_the_maximum_of_all(rng, tmp_path, monkeypatch):
    for recording in itertools.islice(folders.read_many(ROOT / "data" / "epyc" / "near"), 4):
        write_soak(recording, rng, tmp_path)

    def drawn() -> Picture:
        found = lab.load(tmp_path)
        found = found.where(runtime=found[0].configuration.runtime)
        violins(found, "hidden", tuple(sorted({group.configuration.workload.hidden for group in found})[:2]))
        return box_plots(found, "hidden")

    def maxima(picture: Picture) -> list:
        return [line.get_ydata() for ax in picture.axes for line in ax.lines if line.get_marker() == "^"]

    known = drawn()
    monkeypatch.setattr(runs, "KEPT", 1000)
    boxes = drawn()
    assert len(maxima(known)) > 1 and np.array_equal(maxima(known), maxima(boxes))
    assert "Some trials of these are shown" in text_of(boxes) and "All trials" in text_of(known)
