"""What a comparison asks and answers: the change of the median, of the tail, and of the misses of
a deadline."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lstm_judge import columns
from lstm_judge.answers import Answers
from lstm_judge.compare.pairing import Pair, Pairs
from lstm_judge.outcomes import Change
from lstm_judge.read.runs import Runs
from lstm_judge.statistics import quantiles
from lstm_trt.config.errors import check_number
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.libraries import pd

#: The tail is compared at the highest of these percentiles that has an exact upper bound in every
#: process.
TAILS = {percentile: quantiles.share_of(percentile) for percentile in (99.99, 99.9, 99.0, 90.0)}


@dataclass(frozen=True)
class Question:
    """What is compared, and what counts as a difference.

    `effect`: the smallest relative difference that is relevant; of miss rates at least
    `changes.RATE_EFFECT`. `confidence`: of all comparisons of a pair jointly. `deadline_us`: the
    miss rates at this deadline are compared too. `percentile`: that of the tail; None for the
    highest of `TAILS` that the trials can bound. Raises `UsageError` if one is out of range.
    """

    effect: float = quantiles.EFFECT
    confidence: float = quantiles.DEFAULT_CONFIDENCE
    deadline_us: float | None = None
    percentile: str | float | None = None

    def __post_init__(self) -> None:
        quantiles.check_confidence(self.confidence)
        check_number(
            "the effect must be a share such as 0.02, at least 0 and below 1",
            self.effect,
            lambda share: 0 <= share < 1,
        )
        if self.deadline_us is not None:
            quantiles.check_time("deadline", self.deadline_us)
        if self.percentile is not None:
            quantiles.share_of(self.percentile)

    @property
    def each(self) -> float:
        """The confidence of each comparison over rounds: all of a pair hold jointly at `confidence`
        (Bonferroni)."""
        return 1 - (1 - self.confidence) / (2 if self.deadline_us is None else 3)

    @property
    def tails(self) -> dict[float, Fraction]:
        """Percentiles at which the tail may be compared, the preferred one first."""
        if self.percentile is None:
            return TAILS
        share = quantiles.share_of(self.percentile)
        return {float(100 * share): share}

    @property
    def flags(self) -> str:
        """What a command `compare` needs for this deadline and percentile."""
        text = ""
        if self.deadline_us is not None:
            text += f" --deadline-us {self.deadline_us:.15g}"
        if self.percentile is not None:
            text += f" --percentile {self.percentile}"
        return text


@dataclass(frozen=True)
class Ratio(JsonFields):
    """B / A, below 1 if B is less.

    `estimate`: the Hodges-Lehmann estimate, the median of the ratios of all rounds of B to all
    rounds of A; `low` and `high`: its exact interval over rounds. None if there are too few rounds,
    if there is no bound, or if it is not known because of 0 / 0.
    """

    estimate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PercentileChange(JsonFields):
    """A percentile of B compared with that of A: SAME, FASTER, SLOWER or AMBIGUOUS.

    `percentile`: None for a tail if the processes are too short for an upper bound. `a_us` and
    `b_us`: the percentile of each process. `rounds_needed`: rounds per side that may decide an
    AMBIGUOUS result; 0 if it is decided, or if more rounds do not help.
    """

    change: Change
    percentile: float | None
    ratio: Ratio
    a_us: tuple[float, ...]
    b_us: tuple[float, ...]
    reason: str
    rounds_needed: int


@dataclass(frozen=True)
class MissRates(JsonFields):
    """The miss rates of B compared with those of A: FEWER, MORE, SAME or AMBIGUOUS.

    `calls`: the trials of the shortest process. The rate of a process, in `a` and `b`, is that of
    its first `calls`, because the rates of shorter and longer processes do not have the same
    distribution.
    """

    change: Change
    deadline_us: float
    calls: int
    ratio: Ratio
    a: tuple[float, ...]
    b: tuple[float, ...]
    reason: str
    rounds_needed: int


@dataclass(frozen=True)
class Side(JsonFields):
    """The processes of A, or of B, and their trials."""

    rounds: int
    n: int
    max_us: float


@dataclass(frozen=True)
class Comparison(JsonFields):
    """Comparison of B with A.

    `misses`: None if no deadline was given. `command`: shell commands, on several lines, that
    record these rounds and compare them; also if nothing is ambiguous, but all of one side was
    recorded before the other and both can be recorded alternately. None if none are needed, or if
    it is not known how the sides were recorded.
    """

    median: PercentileChange
    tail: PercentileChange
    misses: MissRates | None
    a: Side
    b: Side
    reasons: tuple[str, ...]
    differences: tuple[str, ...]
    command: str | None
    rounds_needed: int
    one_configuration: bool
    effect: float
    confidence: float

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(self.changes)}>"

    @property
    def changes(self) -> tuple[Change, ...]:
        """The results: of the median, of the tail, and of the miss rates if they were compared."""
        changes = (self.median.change, self.tail.change)
        return changes if self.misses is None else (*changes, self.misses.change)


@dataclass(frozen=True)
class NotCompared:
    """A configuration that is on one side only, or failed on one side."""

    name: str
    reason: str

    def as_dict(self) -> dict:
        """JSON values."""
        return {**NOTHING, "reasons": [self.reason]}


#: JSON values of what was not compared.
NOTHING: dict[str, Any] = dict.fromkeys(("median", "tail", "misses", "a", "b"))


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Answers[Comparison | NotCompared]):
    """Comparisons of the configurations of A (`runs`) and B (`other`), a `NotCompared` for each
    without one.

    `frame` has a row per configuration: the fields that the sides share, ratios and their
    intervals over rounds, or in `not_compared` why there are none.
    """

    other: Runs = field(kw_only=True)
    pairs: Pairs = field(kw_only=True)

    def items(self) -> Iterator[tuple[Pair, Comparison | NotCompared]]:
        """Pairs of configurations, and their comparisons."""
        return zip(self.pairs.pairs, self.answers, strict=True)

    @property
    def changes(self) -> set[Change]:
        """The results of the configurations on both sides; AMBIGUOUS for those that failed."""
        found = set()
        for both, answer in self.items():
            if isinstance(answer, Comparison):
                found.update(answer.changes)
            elif both.on_both_sides:
                found.add(Change.AMBIGUOUS)
        return found

    @property
    def exit_status(self) -> int:
        """1 if any is SLOWER or has MORE misses, else 3 if any is AMBIGUOUS or a side failed, else
        0."""
        return _exit_status(self.changes)

    def as_dict(self) -> dict | list:
        objects = []
        for both, answer in self.items():
            found = answer.as_dict()
            for side, runs in (("a", self.runs), ("b", self.other)):
                found[side] = {"source": runs.source, **runs.how, **(found[side] or {})}
            objects.append({"group": both.fields, "warnings": list(self.warnings), **found})
        if self.pairs.several:
            return objects
        return {**objects[0], "group": {}}

    def _rows(self) -> Iterator[dict]:
        for both, answer in self.items():
            found = answer.as_dict()
            row = both.fields | columns.row(found, columns.COMPARISON)
            if found["misses"] is not None:
                row |= columns.row(found, columns.MISS_RATES)
            if isinstance(answer, NotCompared):
                row["not_compared"] = answer.reason
            yield row


class ComparisonSeries(tuple[Comparisons, ...]):
    """Comparisons of several sources with one: text, JSON and rows of all, and the worst exit
    status."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(itertools.chain(*(each.warnings for each in self))))

    @property
    def exit_status(self) -> int:
        return _exit_status(itertools.chain(*(each.changes for each in self)))

    @property
    def frame(self) -> pd.DataFrame:
        return pd.concat([each.frame.assign(source=each.other.source) for each in self])

    def as_dict(self) -> list:
        return [each.as_dict() for each in self]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def _exit_status(changes: Iterable[Change]) -> int:
    found = set(changes)
    if found & {Change.SLOWER, Change.MORE}:
        return 1
    return 3 if Change.AMBIGUOUS in found else 0
