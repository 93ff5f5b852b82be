"""Where a column of CSV and of frames is in the JSON values of an answer.

Each table has the columns whose value is nested, or has another name there: column -> path, with
the names of the levels separated by dots. What a table does not name is under its own name. These
are also the keys that JSON had before 0.3.0, when answers were flat (docs/file-format.md).
"""

from collections.abc import Iterable, Mapping
from typing import Any

SUMMARY: dict[str, str] = {}

VERDICT: dict[str, str] = {
    "verdict": "outcome",
    "deadline_us": "question.deadline_us",
    "percentile": "question.percentile",
    "confidence": "question.confidence",
    "burst_length": "question.burst_length",
    "percentile_low_us": "bounds.percentile_low_us",
    "percentile_high_us": "bounds.percentile_high_us",
    "miss_rate_low": "bounds.miss_rate_low",
    "miss_rate_high": "bounds.miss_rate_high",
    "certifies": "bounds.certifies",
    "max_certifies": "bounds.max_certifies",
    "effective_n": "effective.n",
    "effective_misses": "effective.misses",
    "verdict_if_effective": "effective.outcome",
    "verdict_if_independent": "effective.outcome_if_independent",
    "tau": "bursts.tau",
    "independent_misses": "bursts.independent_misses",
    "assumed_burst_length": "bursts.assumed_length",
    "slow_above_us": "bursts.slow.above_us",
    "slow_burst_length": "bursts.slow.length",
    "slow_burst_length_low": "bursts.slow.length_low",
    "slow_longer": "bursts.slow_longer",
    "trials_needed": "new_recording.trials",
    "trials_needed_if_independent": "new_recording.trials_if_independent",
    "trials_needed_chance": "new_recording.chance",
    "trials_for_80_percent": "new_recording.trials_for_80_percent",
    "log_e_met": "evidence.log_met",
    "log_e_missed": "evidence.log_missed",
    "extremal_index": "dependence.extremal_index",
}

OUTLIERS: dict[str, str] = {}

COMPARISON: dict[str, str] = {}

REPLAY: dict[str, str] = {}

SCALING: dict[str, str] = {}


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """The value at a path such as `bounds.percentile_low_us`; None if a level on the way is None.

    Raises `KeyError` if a level is not there.
    """
    found: Any = values
    for name in path.split("."):
        if found is None:
            return None
        found = found[name]
    return found


def row(
    values: Mapping[str, Any], names: Iterable[str], paths: Mapping[str, str]
) -> dict[str, Any]:
    """The columns `names` of the JSON values of one answer; `paths`: one of the tables above."""
    return {name: value_at(values, paths.get(name, name)) for name in names}
