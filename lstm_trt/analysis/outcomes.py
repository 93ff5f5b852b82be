"""The words of the answers, each at one place: verdicts, comparisons, steady states, and the kinds of what is found.

They are strings, so that JSON, CSV and text show them as they stand here.
"""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Whether a percentile meets a deadline."""

    MET = "MET"
    MISSED = "MISSED"
    NOT_ENOUGH_EVIDENCE = "NOT ENOUGH EVIDENCE"


class Change(StrEnum):
    """B against A."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    AMBIGUOUS = "AMBIGUOUS"


class SteadyState(StrEnum):
    """The course of the level over the trials of one process, from good to bad."""

    FLAT = "flat"
    WARM_UP = "warm-up"
    SLOWDOWN = "slowdown"
    NONE = "no steady state"


class ClusterChange(StrEnum):
    """What became of a cluster from A to B; unclear: one side alone has it, but chance may explain that."""

    GONE = "gone"
    NEW = "new"
    KEPT = "kept"
    UNCLEAR = "unclear"


class CountedBy(StrEnum):
    """What the test of a cause counted: trials, blocks of trials, or stalls of the control run."""

    TRIAL = "trial"
    BLOCK = "block"
    CONTROL = "control"


class TimesBy(StrEnum):
    """Where the times of trials come from in which a period is sought."""

    TIMESTAMPS = "timestamps"
    SUMMED_LATENCIES = "summed latencies"
