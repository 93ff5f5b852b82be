"""What the pictures need to know about their tables; draws nothing.

A summary has one row a configuration and round. What a row was measured on (runtime,
version, device, precision, threads) is its *system*: rows of two systems are never put
into one number, and what a picture holds fixed is chosen here and told in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import AXES, LstmShape

SYSTEM = ("runtime", "runtime_version", "device_name", "precision", "threads")

#: Further columns that tell systems apart where the table has them.
TELLING = (
    *("mode", "graph", "device_clocks", "arrival", "wait", "period_us", "pause_ms", "for_s"),
    *("trials", "warmup", "seed"),
)

#: What these say of a system, and what their values are; nothing where they do not apply.
ARRIVAL_WORDS = {
    "wait": ("{}", str),
    "period_us": ("every {:g} µs", float),
    "pause_ms": ("pauses of {:g} ms", float),
    "for_s": ("for {:g} s", float),
}

TRIAL_COLUMNS = ("config_id", "round", "trial", "warmup", "latency_ns")

REQUIRED = ("config_id", "round", "status", *SYSTEM, *AXES)

AXIS_NAMES = {
    "layers": "layers",
    "hidden": "hidden size",
    "sequence": "sequence length",
    "batch": "batch size",
    "features": "input features",
    "directions": "directions",
}

STATISTIC_NAMES = {
    "min_us": "minimum",
    "mean_us": "mean",
    "median_us": "median",
    "p90_us": "90th percentile",
    "p99_us": "99th percentile",
    "p999_us": "99.9th percentile",
    "max_us": "maximum",
}


def prepare(summary: pd.DataFrame) -> pd.DataFrame:
    """A copy with the column `system`, a short label that says what tells the systems apart.

    Raises `UsageError` where a column is missing, the table is empty, or two configurations
    differ in something that the table does not tell: a line through both would join strangers.
    """
    missing = [column for column in REQUIRED if column not in summary]
    if missing:
        raise UsageError(f"the summary lacks the columns {', '.join(missing)}")
    if summary.empty:
        raise UsageError("the summary has no rows: nothing to draw")
    table = summary.reset_index(drop=True).copy()
    table["config_id"] = table["config_id"].astype(str)
    columns = [*SYSTEM, *(column for column in TELLING if column in table)]
    told = table[columns].astype(object).where(table[columns].notna(), "unknown").astype(str)
    keys = list(told.itertuples(index=False, name=None))
    labels = _system_labels(sorted(set(keys)), columns)
    table["system"] = pd.Categorical([labels[key] for key in keys], categories=list(labels.values()), ordered=True)
    doubles = table.groupby(["system", *AXES], observed=True)["config_id"].nunique()
    if (doubles > 1).any():
        shape = LstmShape(*(int(size) for size in doubles.idxmax()[1:])).name
        raise UsageError(
            f"the summary holds {doubles.max()} configurations of {shape} on {doubles.idxmax()[0]} that its columns "
            f"do not tell apart: choose among them by config_id, or add one of the columns {', '.join(TELLING)}"
        )
    return table


def _system_labels(keys: list[tuple[str, ...]], columns: list[str]) -> dict[tuple[str, ...], str]:
    """Runtime, and of the rest what differs; a version only where one runtime has several."""
    frame = pd.DataFrame(keys, columns=columns)
    shown = [column for column in columns if column != "runtime" and frame[column].nunique() > 1]
    if "runtime_version" in shown and frame.groupby("runtime")["runtime_version"].nunique().max() == 1:
        shown.remove("runtime_version")
    labels = {}
    for key in keys:
        row = dict(zip(columns, key, strict=True))
        version = f" {row['runtime_version']}" if "runtime_version" in shown else ""
        rest = [_word(column, row[column]) for column in shown if column not in ("runtime_version", "device_name")]
        device = f" on {row['device_name']}" if "device_name" in shown else ""
        labels[key] = ", ".join(filter(None, [row["runtime"] + version, *rest])) + device
    return labels


def _word(column: str, value: str) -> str:
    if column == "threads":
        return "1 thread" if value == "1" else f"{value} threads"
    if column in ARRIVAL_WORDS:
        words, kind = ARRIVAL_WORDS[column]
        return "" if value in ("unknown", "nan", "None", "none") else words.format(kind(value))
    return value if column in ("precision", "mode", "arrival") else f"{column.replace('_', ' ')} {value}"


def systems(table: pd.DataFrame) -> list[str]:
    """Labels of the systems that have rows, in order."""
    present = set(table["system"])
    return [label for label in table["system"].cat.categories if label in present]


def describe_systems(table: pd.DataFrame) -> str:
    """Runtimes with version and options, a device at a time; runtimes of equal options together."""
    options: dict[tuple[str, str], list[str]] = {}
    telling = [column for column in TELLING if column in table and table[column].nunique() > 1]
    for row in table.drop_duplicates("system").sort_values("system").itertuples():
        words = [_word(column, str(getattr(row, column))) for column in ("precision", "threads", *telling)]
        options.setdefault((str(row.device_name), f"{row.runtime} {row.runtime_version}"), []).append(
            ", ".join(filter(None, words))
        )
    alike: dict[str, dict[str, list[str]]] = {}
    for (device, runtime), words in options.items():
        alike.setdefault(device, {}).setdefault(" and ".join(words), []).append(runtime)
    return " · ".join(
        "; ".join(f"{', '.join(runtimes)} ({words})" for words, runtimes in groups.items()) + f" on {device}"
        for device, groups in alike.items()
    )


def describe_counts(table: pd.DataFrame) -> str:
    """How many trials and rounds stand behind each configuration."""
    good = succeeded(table)
    if good.empty:
        return "no configuration succeeded"
    least, most = int(good["n"].min()), int(good["n"].max())
    count = f"{least}" if least == most else f"{least} to {most}"
    rounds = good["round"].nunique()
    rest = f" in each of {rounds} rounds" if rounds > 1 else ""
    return f"n = {count} trial{'s' if most != 1 else ''} a configuration after warm-up{rest}"


def describe_fixed(table: pd.DataFrame, drawn: Sequence[str]) -> str:
    """The sizes that a picture does not vary, as a sentence; the table has one value of each."""
    words = [axis_value(axis, int(table[axis].iloc[0])) for axis in AXES if axis not in drawn]
    return f"Fixed: {', '.join(words)}." if words else ""


def describe_rounds(table: pd.DataFrame) -> str:
    """How the rounds are shown, where there are several."""
    if table["round"].nunique() < 2:
        return ""
    return "Of several rounds: the middle one, and the largest maximum of all; each round is a small mark of its own."


def axis_value(axis: str, value: int) -> str:
    """A size in words: 2 layers, batch 4."""
    if axis == "directions":
        return "unidirectional" if value == 1 else "bidirectional"
    if axis in ("layers", "features"):
        return f"{value} {AXIS_NAMES[axis][:-1] if value == 1 else AXIS_NAMES[axis]}"
    return f"{axis} {value}"


def succeeded(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["status"] == "ok"]


def failed(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["status"] != "ok"]


def stage_of(row) -> str:
    """Where a failed row failed; "failed" where the table does not say."""
    stage = getattr(row, "stage", None)
    return stage if isinstance(stage, str) and stage else "failed"


def values(table: pd.DataFrame, axis: str) -> list[int]:
    """Sizes of an axis that the table has, ascending."""
    if axis not in AXES:
        raise UsageError(f"unknown axis {axis!r}: choose from {', '.join(AXES)}")
    return sorted(int(value) for value in table[axis].unique())


def varied(table: pd.DataFrame) -> list[str]:
    """Axes with more than one value."""
    return [axis for axis in AXES if len(values(table, axis)) > 1]


def shape_name(row) -> str:
    return LstmShape(*(int(getattr(row, axis)) for axis in AXES)).name


def hold_fixed(table: pd.DataFrame, free: Sequence[str], wanted: dict[str, int] | None = None) -> pd.DataFrame:
    """The rows at one value of every axis that is not `free`.

    What is not `wanted` is chosen: the value with the most points to draw; among equals the
    smallest batch, features and directions, and the middle of the rest. Raises `UsageError`
    where nothing was measured at what is wanted.
    """
    wanted = wanted or {}
    for axis in free:
        values(table, axis)  # refuses what is no axis
    for axis, value in wanted.items():
        if axis in free:
            raise UsageError(f"{axis} is drawn and cannot be fixed")
        rows = table[table[axis] == value] if axis in AXES else table.iloc[:0]
        if rows.empty:
            raise UsageError(f"nothing was measured at {axis} = {value}: there is {values(table, axis)}")
        table = rows
    for axis in ("batch", "features", "directions", "layers", "sequence", "hidden"):
        if axis in free or axis in wanted:
            continue
        some_good = succeeded(table)
        candidates = values(some_good if len(some_good) else table, axis)
        points = [len(table[table[axis] == value].drop_duplicates([*free, "system"])) for value in candidates]
        best = [value for value, count in zip(candidates, points, strict=True) if count == max(points)]
        small = axis in ("batch", "features", "directions")
        table = table[table[axis] == (best[0] if small else middle(best))]
    return table


def middle(numbers: Sequence[float]) -> float:
    """The lower of the middle ones: a number that was measured, no average of two."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def over_rounds(table: pd.DataFrame, statistic: str) -> float:
    """One number for the rounds of one configuration: the largest maximum, the middle of anything else; or NaN."""
    numbers = succeeded(table)[statistic].dropna().tolist() if statistic in table else []
    if not numbers:
        return float("nan")
    return max(numbers) if statistic == "max_us" else middle(numbers)


@dataclass(frozen=True)
class Spread:
    """Trials of one round after warm-up, and which of them are outliers.

    `quartiles_us` are numpy's linear ones and serve the 1.5 x IQR rule and the box only;
    the median is an order statistic.
    """

    latency_us: np.ndarray
    median_us: float
    quartiles_us: tuple[float, float]
    is_outlier: np.ndarray

    @property
    def n(self) -> int:
        return len(self.latency_us)

    @property
    def iqr_us(self) -> float:
        return self.quartiles_us[1] - self.quartiles_us[0]

    @property
    def outliers(self) -> int:
        return int(self.is_outlier.sum())

    @property
    def max_us(self) -> float:
        return float(self.latency_us.max())


def spread(latency_us: np.ndarray) -> Spread:
    """Outliers lie outside 1.5 x IQR on both sides, as the founding document counts them."""
    low, high = np.quantile(latency_us, (0.25, 0.75))
    reach = 1.5 * (high - low)
    outside = (latency_us < low - reach) | (latency_us > high + reach)
    median = float(np.quantile(latency_us, 0.5, method="inverted_cdf"))
    return Spread(latency_us, median, (float(low), float(high)), outside)


def recorded(trials: pd.DataFrame) -> set[str]:
    """config_ids with trials after warm-up; raises `UsageError` where a column is missing."""
    missing = [column for column in TRIAL_COLUMNS if column not in trials]
    if missing:
        raise UsageError(f"the trials lack the columns {', '.join(missing)}")
    return {str(config) for config in trials[~trials["warmup"].astype(bool)]["config_id"].unique()}


def check_deadline(deadline_us: float | None) -> None:
    if deadline_us is not None and not (np.isfinite(deadline_us) and deadline_us > 0):
        raise UsageError(f"a deadline must be a number above 0, in microseconds, not {deadline_us}")


def rounds_of(trials: pd.DataFrame, config_id: str) -> dict[int, pd.DataFrame]:
    """The trials of a configuration, a round at a time, in order; only rounds with timed trials.

    Raises `UsageError` where there are none.
    """
    rows = trials[trials["config_id"] == config_id]
    rounds = {
        int(number): part.sort_values("trial")
        for number, part in rows.groupby("round", sort=True)
        if not part["warmup"].all()
    }
    if not rounds:
        raise UsageError(f"no trials of configuration {str(config_id)[:12]} after warm-up")
    return rounds


def timed_us(rows: pd.DataFrame) -> np.ndarray:
    """Latencies in microseconds of the trials after warm-up, in order."""
    rows = rows[~rows["warmup"].astype(bool)]
    return rows["latency_ns"].to_numpy(dtype=float) / 1000
