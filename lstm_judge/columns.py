"""Where a column of CSV and of frames is in the JSON values of an answer.

Each table has the columns whose value is nested, or has another name there: column -> path, with
the names of the levels separated by dots. What a table does not name is under its own name. These
are also the keys that JSON had before 0.3.0, when answers were flat (docs/file-format.md).
"""

from collections.abc import Iterable, Mapping
from typing import Any

SUMMARY: dict[str, str] = {}

VERDICT: dict[str, str] = {}

OUTLIERS: dict[str, str] = {
    "period_by": "events.period_by",
    "causes_counted": "events.counted",
    "slowest": "events.slowest",
    "control": "events.control",
    "switches": "events.switches",
    "unexplained": "events.unexplained",
}

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
