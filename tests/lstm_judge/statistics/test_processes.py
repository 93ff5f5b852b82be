"""Statements on another process than those that were recorded."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from lstm_judge.read.rounds import Round
from lstm_judge.statistics.processes import SHARE, processes_of, tolerance_factor
from lstm_judge.statistics.trials import Trials
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.text import sentence, verdict_line, verdict_text
from lstm_judge.verdict.verdict import judge
from tests.support.planted_latencies import check_rate, even
from tests.support.planted_misses import process_latencies
from tests.support.said import said

P99 = Fraction(99, 100)


@pytest.mark.parametrize(("number", "factor"), [(3, 7.66), (4, 5.14), (5, 4.20), (10, 2.91)])
def test_tolerance_factors_are_those_of_the_standard(number, factor):
    assert tolerance_factor(number, 0.95) == pytest.approx(factor, abs=0.005)


@pytest.mark.random(tail=3e-6, why="rates, 1 check of 1/6 and 2 of 0.05")
def test_each_statement_on_another_process_holds_in_its_share(rng):
    """Of processes whose medians differ by 3 %; in 200 recordings of five, whose calls vary by 1 %."""
    runs, number = 200, 5
    recordings = process_latencies(rng, (runs, number, 1000))
    timed = [[Trials(latency_ns) for latency_ns in processes] for processes in recordings]
    late_ns = np.quantile(recordings, 0.999)
    misses = [[process.above(late_ns)[0] for process in processes] for processes in timed]
    found = [processes_of(*each, P99, 0.95) for each in zip(timed, misses, strict=True)]
    # The first process of the next recording is another one.
    larger = sum(after[0].max() > each.max() for each, after in zip(recordings[::2], recordings[1::2], strict=True))
    check_rate(larger, runs // 2, found[0].larger_max_chance)
    counts = np.array([len(late) for late in itertools.chain(*misses)])
    shares = np.array([np.mean(counts <= each.worst_misses) for each in found])
    check_rate(np.count_nonzero(shares < found[0].no_more_misses_share), runs, 0.05)
    logs = np.log([process.percentile(P99).us for process in itertools.chain(*timed)])
    below = ndtr((np.log([each.percentile_bound_us for each in found]) - logs.mean()) / logs.std())
    check_rate(np.count_nonzero(below < SHARE), runs, 0.05)


def test_what_is_said_of_several_processes():
    levels = (0.97, 1.0, 1.03, 1.01, 0.99)
    rounds = [Round.of(level * even(3000), round=place) for place, level in enumerate(levels)]
    found = judge(rounds, Question(1000, 99))
    of_each = [np.sort(round_.latency_ns)[2969] / 1e3 for round_ in rounds]
    processes = found.processes
    assert (processes.count, processes.trials, processes.worst_misses) == (5, 3000, 0)
    assert (processes.percentile_low_us, processes.percentile_high_us) == (min(of_each), max(of_each))
    assert processes.larger_max_chance == 1 / 6 and processes.no_more_misses_share == pytest.approx(0.549, abs=5e-4)
    logs = np.log(of_each)
    assert processes.percentile_bound_us == pytest.approx(np.exp(logs.mean() + 4.203 * logs.std(ddof=1)), rel=1e-4)
    assert found.as_dict()["processes"] == dataclasses.asdict(processes)
    # Nothing is said of one process, of unequal ones, and where a process was recorded until it was decided.
    uneven = judge([*rounds, Round.of(even(2000), round=5)], Question(1000, 99))
    for nothing in (uneven, judge(rounds[:1], Question(1000, 99)), judge(rounds, Question(1000, 99), 1.0)):
        assert nothing.processes is None
    said(verdict_text(found), sentence(found), verdict_line(found), verdict_text(uneven))
    # For p99.9 three calls are above the percentile, and two processes are too few.
    for some, percentile in ((rounds, 99.9), (rounds[:2], 99)):
        assert judge(some, Question(1000, percentile)).processes.percentile_bound_us is None
