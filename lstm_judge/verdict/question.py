"""What a verdict tests: a percentile, a deadline and a confidence."""

from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from lstm_judge.statistics import quantiles
from lstm_trt.config.errors import UsageError, check_number


@dataclass(frozen=True)
class Question:
    """What is tested; raises `UsageError` if a field is out of range.

    `percentile`: as a number or as text, which becomes a number. `burst_length`: MET must hold for
    bursts of misses of up to this length in calls, averaged over misses (see `bursts.py`); or
    `burst_ms`, their duration, which is divided by the mean time from call to call.
    """

    deadline_us: float
    percentile: Any = "99.9"
    confidence: float = quantiles.DEFAULT_CONFIDENCE
    burst_length: float = 1.0
    burst_ms: float | None = None

    def __post_init__(self) -> None:
        with suppress(TypeError, ValueError):
            object.__setattr__(self, "deadline_us", float(self.deadline_us))
        quantiles.check_time("deadline", self.deadline_us)
        object.__setattr__(self, "percentile", float(100 * quantiles.share_of(self.percentile)))
        quantiles.check_confidence(self.confidence)
        check_number(
            "the length of bursts must be at least 1 call",
            self.burst_length,
            lambda calls: calls >= 1,
        )
        if self.burst_ms is None:
            return
        check_number(
            "the length of bursts must be a positive time in ms", self.burst_ms, lambda ms: ms > 0
        )
        if self.burst_length != 1:
            raise UsageError("give the length of bursts in calls or in ms, not both")

    @cached_property
    def share(self) -> Fraction:
        """The percentile as an exact share."""
        return quantiles.share_of(self.percentile)

    @property
    def allowed(self) -> Fraction:
        """The allowed miss rate."""
        return 1 - self.share

    def as_dict(self) -> dict[str, Any]:
        """JSON values; the length of bursts is in calls."""
        names = ("deadline_us", "percentile", "confidence", "burst_length")
        return {name: getattr(self, name) for name in names}
