"""Replay a closed-loop recording at a fixed rate.

In a closed loop each call starts when the previous one returns, so a slow call does not affect the
latency of the next ones. At a fixed rate calls are due whether the previous one has returned or
not, and latency is measured from the due time. A slow call then delays the next ones.

Each call is assumed to take as long as it did in the closed loop. The replay cannot show that some
runtimes are slower after a pause; a recording with periodic arrivals can.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from lstm_judge import columns
from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.read.numbers import rate, table
from lstm_judge.read.rounds import Group, NoTrials
from lstm_judge.read.runs import RunsSource
from lstm_judge.statistics.quantiles import Percentile, check_time, shares_of
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.statistics.trials import Trials
from lstm_judge.verdict.firm import longest_run
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import count, microseconds, percent


@dataclass(frozen=True)
class ReplayedLatencies(JsonFields):
    """Order statistics of the latency in us, and misses of the deadline.

    `percentiles`: those that were asked for, by key (`p9995`), the highest first.
    """

    median_us: float
    p99_us: float
    p999_us: float
    max_us: float
    misses: int
    longest_run: int
    percentiles: Mapping[str, Percentile] = field(default_factory=dict)


@dataclass(frozen=True)
class Replay(JsonFields):
    """Latencies of the `closed` loop, and `replayed` with a call due every `period_us`.

    `utilisation`: mean latency over the period. `queued`: number of calls that started late because
    an earlier call was still running; `queued_share`: the same as a share of n. `worst_wait_us`:
    longest time that a call waited to start. `longest_queue`: largest number of unfinished earlier
    calls when a call was due.
    """

    n: int
    period_us: float
    deadline_us: float
    rounds: int
    mean_us: float
    utilisation: float
    queued: int
    queued_share: float
    worst_wait_us: float
    longest_queue: int
    closed: ReplayedLatencies
    replayed: ReplayedLatencies


class Replays(Answers[Replay | NoTrials]):
    """Replays of configurations, a `NoTrials` with the reason for each that cannot be replayed."""

    def _row(self, answer: Replay) -> dict[str, Any]:
        """Latencies in columns with the prefixes `closed_` and `replayed_`."""
        row = answer.as_dict()
        for side in ("closed", "replayed"):
            latencies = row.pop(side)
            paths = {name: name for name in latencies if name != "percentiles"}
            for key in latencies["percentiles"]:
                paths |= columns.percentile_columns(key)
            found = columns.row(latencies, paths)
            row |= {f"{side}_{name}": value for name, value in found.items()}
        return row


def replay(
    runs: RunsSource,
    period_us: float,
    deadline_us: float | None = None,
    percentiles: Iterable[str | float] = (),
) -> Replays:
    """Replay each configuration with a call due every `period_us`; see `replay_group`.

    `runs`: the result of `load`, or a path, recordings or groups. `percentiles`: as for
    `summarize`. Raises `UsageError` if a configuration has fewer than 2 trials after warm-up, or
    none can be replayed.
    """
    shares = shares_of(percentiles)
    runs = runs_to_judge(runs)
    answers: list[Replay | NoTrials] = []
    for group in runs:
        try:
            answers.append(group.failure or replay_group(group, period_us, deadline_us, shares))
        except UsageError as error:
            answers.append(NoTrials(None, str(error)))
    if all(isinstance(answer, NoTrials) for answer in answers):
        raise UsageError(f"{runs[0].name}: {answers[0]}")
    return Replays(runs, tuple(answers), runs.remarks)


def replay_group(
    group: Group,
    period_us: float,
    deadline_us: float | None = None,
    shares: Sequence[Fraction] = (),
) -> Replay:
    """Replay the timed trials of each process separately, with a call due every `period_us`.

    The deadline counts from the due time; by default it is the period. Warm-up trials are left out.
    Raises `UsageError` if there are no trials, if the group was not recorded in a closed loop, or
    if the period is not above the mean latency of every process (the backlog would keep growing).
    """
    timed = _timed(group)
    if deadline_us is None:
        deadline_us = period_us
    check_time("period", period_us)
    check_time("deadline", deadline_us)
    period_ns = float(Fraction(str(period_us)) * 1000)  # 100.1 us are 100100 ns
    mean_ns = max(float(latency_ns.mean()) for latency_ns in timed)
    if period_ns <= mean_ns:
        raise UsageError(
            f"cannot keep up with a call every {period_us:g} us, as the mean latency is"
            f" {mean_ns / 1e3:.6g} us: use a period of at least {_smallest_us(mean_ns)} us"
        )
    late_ns = limit_ns(float(deadline_us))
    waits = [waiting_ns(latency_ns, period_ns) for latency_ns in timed]
    responses = [latency_ns + wait for latency_ns, wait in zip(timed, waits, strict=True)]
    all_ns = np.concatenate(timed)
    queued = sum(int(np.count_nonzero(wait)) for wait in waits)
    return Replay(
        n=len(all_ns),
        period_us=float(period_us),
        deadline_us=float(deadline_us),
        rounds=len(timed),
        mean_us=float(all_ns.mean()) / 1e3,
        utilisation=float(all_ns.mean()) / period_ns,
        queued=queued,
        queued_share=queued / len(all_ns),
        worst_wait_us=max(float(wait.max()) for wait in waits) / 1e3,
        longest_queue=max(longest_queue(response_ns, period_ns) for response_ns in responses),
        closed=_latencies(timed, late_ns, shares),
        replayed=_latencies(responses, late_ns, shares),
    )


def _timed(group: Group) -> list[np.ndarray]:
    """The timed latencies of each round; raises `UsageError` if they cannot be replayed."""
    if group.failure is not None:
        raise UsageError(f"no trials to replay: {group.failure}")
    arrival = "closed" if group.configuration is None else group.configuration.protocol.arrival
    if arrival != "closed":
        raise UsageError(
            f"recorded with {arrival} arrivals: replay needs a recording with --arrival closed"
        )
    if any(round_.whole for round_ in group.rounds):
        raise UsageError(
            f"{group.n} trials are too many to replay, which needs all of them in order:"
            " replay a part's file"
        )
    timed = [round_.timed_ns for round_ in group.rounds if len(round_.timed_ns)]
    if not timed:
        raise UsageError("no trials after warm-up to replay")
    return timed


def waiting_ns(latency_ns: np.ndarray, period_ns: float) -> np.ndarray:
    """Waiting time of each call in ns: call i is due after i periods, and starts when call i - 1
    has ended.

    Lindley's recursion, W[i] = max(0, W[i-1] + latency[i-1] - period) (Proc. Cambridge Phil. Soc.
    48, 1952), by its solution: the cumulative sum of latency - period, minus its running minimum.
    Exact for whole ns as long as the sum stays below 2**53.
    """
    walk = np.r_[0.0, np.cumsum(latency_ns[:-1] - period_ns)]
    return walk - np.minimum.accumulate(walk)


def longest_queue(response_ns: np.ndarray, period_ns: float) -> int:
    """Largest number of unfinished earlier calls when a call was due; `response_ns` is from due
    time to end."""
    due = np.arange(len(response_ns)) * period_ns
    ended = np.searchsorted(due + response_ns, due, side="right")  # ascending: one call at a time
    return max(0, int((np.arange(len(response_ns)) - ended).max()))


def _latencies(
    rounds: Sequence[np.ndarray], late_ns: float, shares: Sequence[Fraction]
) -> ReplayedLatencies:
    pooled = Trials(np.concatenate(rounds))
    return ReplayedLatencies(
        *(pooled.statistic(name) for name in ("median_us", "p99_us", "p999_us", "max_us")),
        misses=int(np.count_nonzero(pooled.latency_ns > late_ns)),
        longest_run=max(longest_run(np.flatnonzero(each > late_ns)) for each in rounds),
        percentiles={asked.key: asked for asked in map(pooled.percentile, shares)},
    )


def _smallest_us(mean_ns: float) -> str:
    """The smallest period above the mean with a few digits, in us."""
    digits = max(0, 3 - math.floor(math.log10(mean_ns / 1e3)))
    step = 10.0**-digits
    return f"{(math.floor(mean_ns / 1e3 / step) + 1) * step:.{digits}f}"


# The text


def text(replays: Replays) -> str:
    """A table for each configuration, and what a replay does not include."""
    not_included = (
        "runtimes can be slower after a pause, which a replay does not include: "
        "--arrival periodic records it"
    )
    return "\n\n".join([*replays.texts(replay_text), not_included])


def headline(replays: Replays) -> str:
    """The answer in one line: what was replayed."""
    done = [replay for replay in replays if isinstance(replay, Replay)]
    if len(replays) == 1 or not done:
        return str(replays).partition("\n")[0]
    return f"{count(len(done), 'configuration')} {_due(done[0])}"


def least(replays: Replays) -> Sequence[str]:
    """Columns of the table that a notebook can do without, the first one first."""
    return (
        "closed_longest_run", "closed_p99_us", "replayed_p99_us", "mean_us", "rounds",
        "closed_median_us", "replayed_median_us", "longest_queue", "queued", "deadline_us",
        "closed_p999_us", "replayed_p999_us", "replayed_longest_run", "period_us", "n",
    )  # fmt: skip


def _due(replay: Replay) -> str:
    return f"replayed with a call due every {replay.period_us:g} us ({rate(replay.period_us)})"


def replay_text(replay: Replay, name: str = "") -> str:
    """A table of the closed loop and the fixed rate, and the delayed calls."""
    trials = count(replay.n, "trial")
    if replay.rounds > 1:
        trials += f" of {replay.rounds} processes, each separately"
    if name:
        trials = f"{name}: {trials}"
    sides = (replay.closed, replay.replayed)

    def row(heading: str, name: str) -> tuple[str, ...]:
        return heading, *(microseconds(getattr(side, name)) for side in sides)

    rows = [row("max", "max_us")]
    for key, asked in replay.closed.percentiles.items():
        rows.append((asked.heading, *(microseconds(side.percentiles[key].us) for side in sides)))
    if not replay.closed.percentiles:
        rows += [row("p99.9", "p999_us"), row("p99", "p99_us"), row("median", "median_us")]
    limit = "the period" if replay.deadline_us == replay.period_us else f"{replay.deadline_us:g} us"
    rows += [
        (f"above {limit}", *(str(side.misses) for side in sides)),
        ("longest run above", *(str(side.longest_run) for side in sides)),
    ]
    return (
        f"{trials}, {_due(replay)}\n"
        f"{table(('us', 'closed', 'at a fixed rate'), rows, indent=2)}\n"
        f"utilization {percent(replay.utilisation)} (mean latency / period); {_queued(replay)}"
    )


def _queued(replay: Replay) -> str:
    if not replay.queued:
        return "no call waited for an earlier one"
    return (
        f"{count(replay.queued, 'call')} ({percent(replay.queued_share)}) started up to"
        f" {microseconds(replay.worst_wait_us)} us late, waiting for up to"
        f" {count(replay.longest_queue, 'earlier call')}"
    )
