"""Jitter: how much the latency changes from one call to the next."""

from dataclasses import dataclass

import numpy as np

from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.read.rounds import Group, NoTrials
from lstm_judge.read.runs import RunsSource
from lstm_judge.statistics.trials import timed_rounds
from lstm_trt.config.fields import JsonFields


@dataclass(frozen=True)
class Jitter(JsonFields):
    """Differences of consecutive latencies of all rounds, in us: their median and the largest."""

    median_us: float
    max_us: float


class Jitters(Answers[Jitter | NoTrials]):
    """The jitter of each configuration."""


def jitter(runs: RunsSource) -> Jitters:
    """The jitter of each configuration; raises `UsageError` for fewer than 2 trials."""
    runs = runs_to_judge(runs)
    return Jitters(runs, tuple(group.failure or jitter_of(group) for group in runs), runs.remarks)


def jitter_of(group: Group) -> Jitter:
    changes = [np.abs(np.diff(each.timed_ns)) for each in timed_rounds(group.rounds)]
    changes_us = np.concatenate(changes) / 1000
    return Jitter(float(np.median(changes_us)), float(changes_us.max()))


def text(jitters: Jitters) -> str:
    """A line for each configuration."""
    return "\n".join(jitters.texts(lambda found, name: f"{name}: at most {found.max_us:.3g} us"))
