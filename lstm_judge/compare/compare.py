"""Compare two recordings: is B faster than A, slower, or the same, by median, tail and misses of a
deadline."""

from typing import overload

from lstm_judge.answers import runs_to_judge
from lstm_judge.compare.answer import (
    Comparison,
    Comparisons,
    ComparisonSeries,
    MissRates,
    NotCompared,
    PercentileChange,
    Question,
    Side,
)
from lstm_judge.compare.changes import Sides, miss_rates, percentile_change, tail_change
from lstm_judge.compare.pairing import (
    Pair,
    control_ratio,
    differences,
    on_both_sides,
    pair,
    recorded_first,
)
from lstm_judge.read.labels import can_alternate, record_both_command
from lstm_judge.read.rounds import Group
from lstm_judge.read.runs import Runs, RunsSource
from lstm_judge.statistics import quantiles
from lstm_judge.statistics.trials import Trials, trials_of
from lstm_trt.config.errors import UsageError


@overload
def compare(
    a: RunsSource,
    b: RunsSource,
    /,
    *,
    effect: float = ...,
    confidence: float = ...,
    deadline_us: float | None = ...,
    percentile: str | float | None = ...,
) -> Comparisons: ...


@overload
def compare(
    a: RunsSource,
    b: RunsSource,
    c: RunsSource,
    /,
    *others: RunsSource,
    effect: float = ...,
    confidence: float = ...,
    deadline_us: float | None = ...,
    percentile: str | float | None = ...,
) -> ComparisonSeries: ...


def compare(
    a: RunsSource,
    b: RunsSource,
    /,
    *others: RunsSource,
    effect: float = quantiles.EFFECT,
    confidence: float = quantiles.DEFAULT_CONFIDENCE,
    deadline_us: float | None = None,
    percentile: str | float | None = None,
) -> Comparisons | ComparisonSeries:
    """`Comparisons` of each configuration of B with the matching one of A (see `pairing.py`).

    Of several others each is compared with A; the result is then a `ComparisonSeries`.

    `a`, `b` and `others`: results of `load`, or paths, recordings or groups. `effect` is the
    smallest relative difference that is relevant. With `deadline_us` their miss rates at this
    deadline are compared too; `percentile` is that of the tail, by default the highest that has an
    exact upper bound. Raises `UsageError` if an argument is out of range, a configuration has fewer
    than 2 trials after warm-up, or no configurations match.
    """
    question = Question(effect, confidence, deadline_us, percentile)
    of_a = runs_to_judge(a)
    compared = [_compare_runs(of_a, runs_to_judge(other), question) for other in (b, *others)]
    return ComparisonSeries(compared) if others else compared[0]


def _compare_runs(a: Runs, b: Runs, question: Question) -> Comparisons:
    pairs = pair(a, b)
    return Comparisons(
        a,
        tuple(_compare_pair(both, a.source, b.source, question) for both in pairs.pairs),
        (*a.remarks, *b.remarks),
        other=b,
        pairs=pairs,
    )


def _compare_pair(
    both: Pair, source_a: str, source_b: str, question: Question
) -> Comparison | NotCompared:
    a, b = both.a, both.b
    if a is None or b is None:
        return NotCompared(both.name, f"only in {source_a if b is None else source_b}")
    for source, group in ((source_a, a), (source_b, b)):
        if group.failure is not None:
            return NotCompared(f"{a.name}: not compared", f"{source}: {group.failure}")
    return compare_groups(a, b, question)


def compare_groups(a: Group, b: Group, question: Question) -> Comparison:
    """Compare B with A; the unit of replication is the process.

    With at least 5 rounds per side: FASTER or SLOWER if the interval of the ratio over rounds is
    entirely outside the range from 1 / (1 + effect) to 1 + effect, SAME if it is entirely inside,
    else AMBIGUOUS. The interval is exact (Hodges-Lehmann interval of the Mann-Whitney test). The
    intervals of median, tail and miss rates have `confidence` jointly (`Question.each`). Processes
    are assumed to be independent; nothing is assumed within a process.

    With fewer rounds the result is AMBIGUOUS, unless two conditions hold. The ratio exceeds 1.10,
    the ratio of any two rounds of one side, and the uncertainty of the percentile. And the
    order-statistic intervals (at the effective sample size) of all processes of one side are
    disjoint from those of the other. This assumes that two processes of one configuration differ
    by less than 10 %; on a machine where they differ by more, record 5 rounds. Miss rates are then
    AMBIGUOUS.

    Both sides have trials. Raises `UsageError` if a latency is not positive.
    """
    sides = (_timed(a), _timed(b))
    machine = control_ratio(a, b)
    median = percentile_change(sides, "median", quantiles.MEDIAN, question, machine)
    tail = tail_change(sides, question, machine)
    results: list[PercentileChange | MissRates] = [median, tail]
    misses = None
    if question.deadline_us is not None:
        misses = miss_rates(sides, float(question.deadline_us), question)
        results.append(misses)
    rounds_needed = max(result.rounds_needed for result in results)
    return Comparison(
        median=median,
        tail=tail,
        misses=misses,
        a=_side(sides[0]),
        b=_side(sides[1]),
        reasons=(*on_both_sides(a, b), *(result.reason for result in results)),
        differences=tuple(differences(a, b)),
        command=_command(a, b, sides, question, rounds_needed),
        rounds_needed=rounds_needed,
        one_configuration=a.configuration is not None and a.configuration == b.configuration,
        effect=question.effect,
        confidence=question.confidence,
    )


def _timed(group: Group) -> tuple[Trials, ...]:
    timed = trials_of(group)
    if not all(process.latency_ns.min() > 0 for process in timed):
        raise UsageError(f"{group.name} has latencies that are not positive")
    return timed


def _side(processes: tuple[Trials, ...]) -> Side:
    return Side(
        rounds=len(processes),
        n=sum(process.n for process in processes),
        max_us=max(process.max_us for process in processes),
    )


def _command(
    a: Group, b: Group, sides: Sides, question: Question, rounds_needed: int
) -> str | None:
    """The commands that record rounds of both sides and compare them, if any are needed."""
    if a.configuration is None or b.configuration is None:
        return None
    rounds = rounds_needed
    configurations = (a.configuration, b.configuration)
    if not rounds and recorded_first(a, b) and can_alternate(*configurations):
        rounds = max(quantiles.ROUNDS, *map(len, sides))
    command = record_both_command(*configurations, "rounds", rounds) if rounds else None
    return None if command is None else command + question.flags
