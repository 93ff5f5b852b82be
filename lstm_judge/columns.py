"""Where a column of CSV and of frames is in the JSON values of an answer.

Each table has the columns of an answer: column -> path, with the names of the levels separated by
dots. These are also the keys that JSON had before 0.3.0, when answers were flat
(docs/file-format.md).
"""

from collections.abc import Mapping
from typing import Any

from lstm_trt.store import provenance


def within(level: str, *names: str) -> dict[str, str]:
    """Columns that are at a level of the JSON under their own names."""
    return {name: f"{level}.{name}" for name in names}


def percentile_columns(key: str) -> dict[str, str]:
    """The columns of a percentile of the summary, such as `p999`, and of its interval."""
    column = f"{key}_us"
    place = f"percentiles.{key}"
    return {
        column: f"{place}.us",
        f"{column}_low": f"{place}.low_us",
        f"{column}_high": f"{place}.high_us",
    }


#: All columns of the summary, in their order. Those at `statistics` are properties of `Trials`.
SUMMARY: dict[str, str] = {
    **within("configuration", "layers", "hidden", "sequence", "batch", "features", "directions"),
    **within("configuration", "runtime", "runtime_version", "device_name", "precision"),
    **within("configuration", "threads", "mode"),
    "status": "status",
    "n": "n",
    **within("statistics", "min_us", "mean_us", "std_us"),
    **percentile_columns("median"),
    **percentile_columns("p90"),
    **percentile_columns("p99"),
    **percentile_columns("p999"),
    **within("statistics", "max_us", "outliers"),
    **within("facts", "not_alone"),
    "clusters": "clusters",
    "steady_state": "steady_state",
    "max_with_warmup_us": "max_with_warmup_us",
    **within("facts", "parity_error", "not_checked"),
    "floor_us": "floor.us",
    "below_floor": "floor.below",
    **within("configuration", "graph"),
    **within("facts", "graph_captured"),
    **within("configuration", "device_clocks", "arrival", "wait", "period_us", "pause_ms"),
    **within("configuration", "for_s", "trials", "warmup", "seed"),
    "rounds": "rounds.count",
    "round": "round",
    "median_us_rounds": "rounds.median_us",
    "max_us_rounds": "rounds.max_us",
    **within("failure", "stage", "reason"),
    "machine": "machine",
    "config_id": "configuration.config_id",
    "group": "group",
    **within("facts", *(fact.column for fact in provenance.columns().values())),
}


def ratio_columns(column: str, place: str) -> dict[str, str]:
    """The columns of a ratio of a comparison, and of its interval."""
    return {
        column: f"{place}.estimate",
        f"{column}_low": f"{place}.low",
        f"{column}_high": f"{place}.high",
    }


#: The columns of a comparison of two versions, those of other sides, and those of miss rates.
CHANGES = {
    "median": "median.change",
    **ratio_columns("median_ratio", "median.ratio"),
    "tail": "tail.change",
    "tail_percentile": "tail.percentile",
    **ratio_columns("tail_ratio", "tail.ratio"),
}
COMPARISON = {**CHANGES, "rounds_a": "a.rounds", "rounds_b": "b.rounds"}
MISS_RATES = {
    "misses": "misses.change",
    "deadline_us": "misses.deadline_us",
    **ratio_columns("miss_rate_ratio", "misses.ratio"),
}


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


def row(values: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """The columns of the JSON values of one answer; `paths`: the tables above, or parts of them."""
    return {name: value_at(values, path) for name, path in paths.items()}
