"""Values of the answers: verdicts, results of comparisons, steady states, kinds of findings.

They are strings and appear unchanged in JSON, CSV and text.
"""

from enum import StrEnum


class Outcome(StrEnum):
    """Whether a percentile meets a deadline."""

    MET = "MET"
    MISSED = "MISSED"
    NOT_ENOUGH_EVIDENCE = "NOT ENOUGH EVIDENCE"


class Change(StrEnum):
    """B compared with A; FASTER and SLOWER are of times, FEWER and MORE of misses."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    FEWER = "FEWER"
    MORE = "MORE"
    AMBIGUOUS = "AMBIGUOUS"


class SteadyState(StrEnum):
    """Course of the level over the trials of one process, from best to worst."""

    FLAT = "flat"
    WARM_UP = "warm-up"
    SLOWDOWN = "slowdown"
    NONE = "no steady state"


class Doubt(StrEnum):
    """Why trials do not prove that one configuration is faster than another."""

    FEW_ROUNDS = "fewer than 5 rounds"
    LEVEL_CHANGES = "level changes within a recording"
    NOT_SEPARATED = "difference not significant"


class CountedBy(StrEnum):
    """Unit of the test of a cause: trials, blocks of trials, or stalls of the control run."""

    TRIAL = "trial"
    BLOCK = "block"
    CONTROL = "control"


class TimesBy(StrEnum):
    """Source of the start times in which a period is searched."""

    TIMESTAMPS = "timestamps"
    SUMMED_LATENCIES = "summed latencies"
