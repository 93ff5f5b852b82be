"""Scaling: planted slopes, breaks, inversions and penalties are found, and nothing else is."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lstm_judge.cli import scaling as command
from lstm_judge.outcomes import Doubt
from lstm_judge.plots.style import image_bytes
from lstm_judge.read.runs import Runs
from lstm_judge.read.tables import Table
from lstm_judge.scaling.scaling import (
    PAIR_CONFIDENCE,
    ScalingAnswers,
    break_of,
    doubts,
    find_scaling,
    fit,
    power,
)
from lstm_judge.scaling.text import cells
from lstm_judge.scaling.times import AXES, ShapeTime, from_tables, read_times
from lstm_judge.statistics.quantiles import MEDIAN, interval, ratio_rank
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import consolidated, files, folders, schema
from tests.support.pictures import lines
from tests.support.planted_latencies import check_rate
from tests.support.said import refusal, said

LAYERS, HIDDEN, SEQUENCE, BATCH = (1, 2, 3, 4, 6), (32, 64, 128, 200, 256), (32, 64, 128, 200, 256), (1, 2, 4, 8)
RENAMED = [
    "Num LSTM layers=layers",
    "Hidden=hidden",
    "Seq length=sequence",
    "Batch=batch",
    "Average time (s)=latency_s",
]


def linear_us(layers: int, hidden: int, sequence: int, batch: int) -> float:
    """Linear in each of the four sizes, so that slopes are known exactly."""
    return 50 + layers * (hidden / 10 + 2 * sequence + 5 * batch)


def grid(time_us=linear_us, layers=LAYERS, hidden=HIDDEN, sequence=SEQUENCE, batch=BATCH) -> dict[str, list]:
    shapes = list(itertools.product(layers, hidden, sequence, batch))
    columns = {axis: [shape[place] for shape in shapes] for place, axis in enumerate(AXES)}
    return columns | {"latency_us": [time_us(*shape) for shape in shapes]}


def from_columns(columns: dict, rename: dict | None = None):
    """Times of columns as a program has them; blanks are None or text."""

    def array(cells):
        mixed = any(isinstance(cell, str) for cell in cells)
        return pa.array([None if cell in ("", None) else str(cell) for cell in cells] if mixed else cells)

    data = pa.table({name: array(list(cells)) for name, cells in columns.items()})
    return from_tables([Table("the table", data).renamed(rename)])


def stated(text: str) -> str:
    """The text without errors of rounding, which are those of the processor, and the widths of their columns."""
    return re.sub(" {2,}", "  ", re.sub(r"[\d.]+e-1\d %", "0 %", text))


def scaling_text(findings) -> str:
    """What the command prints."""
    return stated(str(ScalingAnswers(Runs(()), (findings,))))


def write_csv(path, columns: dict, separator: str = ","):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def run(*arguments: object) -> tuple[int, argparse.Namespace]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", default="text")
    command.add_arguments(parser)
    return command.run(parser.parse_args(list(map(str, arguments))))


# Lines


def test_the_slope_is_that_of_numpy():
    generator = np.random.default_rng(1)
    for _ in range(50):
        x = np.sort(generator.choice(np.arange(1, 500), 6, replace=False))
        y = generator.uniform(1, 100, 6)
        slope, intercept, r2 = fit(x, y)
        assert (slope, intercept) == pytest.approx(tuple(np.polyfit(x, y, 1)))
        assert r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


@pytest.mark.parametrize("exponent", (0.5, 1.0, 1.2, 2.0))
def test_a_power_of_the_size_is_no_straight_line(exponent):
    """R2 of a straight line is above 0.99 for a power of 1.2 too."""
    sizes = np.array([32, 64, 128, 200, 256])
    found, low, high = power(sizes, 3 * sizes**exponent)
    assert (found, low, high) == pytest.approx((exponent, exponent, exponent))
    assert exponent != 1.2 or fit(sizes, 3 * sizes**exponent)[2] > 0.99
    noise = np.array([1.01, 0.99, 1.0, 1.02, 0.98])
    found, low, high = power(sizes, 3 * sizes**exponent * noise)
    assert low < exponent < high and high - low < 0.1
    x = np.log(sizes)
    fitted, covariance = np.polyfit(x, np.log(3 * sizes**exponent * noise), 1, cov=True)
    reach = 3.182446 * np.sqrt(covariance[0, 0])  # Student's t with 3 degrees of freedom
    assert (low, high) == pytest.approx((fitted[0] - reach, fitted[0] + reach))


@pytest.mark.parametrize("number", range(5))
def test_an_exactly_linear_table_is_linear_and_has_no_break(number):
    rng = random.Random(number)
    a, b = rng.uniform(1, 1000), [rng.uniform(0.01, 50) for _ in AXES]
    found = find_scaling(from_columns(grid(lambda *shape: a + sum(k * n for k, n in zip(b, shape, strict=True)))))
    assert {line.axis for line in found.linearity} == set(AXES)
    assert all(line.r2 == pytest.approx(1) and line.breaks_at is None for line in found.linearity)
    for line in found.linearity:
        assert line.slope_us == pytest.approx(b[AXES.index(line.axis)])
    assert found.inversions == [] and found.batch1_penalties == []


def test_slopes_are_per_unit_of_the_axis_at_the_fixed_sizes():
    found = find_scaling(from_columns(grid()))
    for line in found.linearity:
        layers = line.fixed.get("layers", 1)
        expected = {"hidden": layers / 10, "sequence": 2 * layers, "batch": 5 * layers}
        if line.axis in expected:
            assert line.slope_us == pytest.approx(expected[line.axis])
        assert set(line.fixed) == set(AXES) - {line.axis}
    assert len(found.linearity) == 5 * 5 * 4 * 3 + 5 * 5 * 5


@pytest.mark.parametrize(
    ("place", "factor", "found"),
    [
        *((place, factor, SEQUENCE[place]) for place, factor in ((2, 1.2), (3, 1.11), (4, 1.5), (3, 0.8), (4, 0.89))),
        *((4, factor, None) for factor in (1.10, 0.90, 1.0999, 0.9001)),
    ],
)
def test_a_break_of_more_than_ten_per_cent_is_found_where_it_is(place, factor, found):
    times = [(100.0 + 3 * size) * (factor if at >= place else 1) for at, size in enumerate(SEQUENCE)]
    assert break_of(SEQUENCE, times) == found


def test_a_break_needs_two_points_before_it():
    assert break_of((1, 2), (10, 100)) is None
    assert break_of((1, 2, 4), (100, 50, 10)) == 4  # all is far from it


@pytest.mark.random(tail=2e-6, why="rates, 2 checks of 0.02")
@pytest.mark.parametrize(("rise", "word"), [(1.0, None), (1.6, 200)])
def test_a_break_must_be_larger_than_the_noise_of_processes(rise, word, rng):
    """Processes differ by 5 %: single ones leave a straight line in every second series."""
    wrong = 0
    for _ in range(50):
        times_us = [(100 + 3 * size) * (rise if size >= 200 else 1) for size in SEQUENCE]
        rounds_us = np.multiply.outer(times_us, np.ones(6)) * rng.lognormal(0, 0.05, (5, 6))
        wrong += break_of(SEQUENCE, rounds_us[:, 0], rounds_us) != word
    check_rate(wrong, 50, 0.02)


def test_breaks_of_few_rounds_are_said_to_be_untested():
    texts = []
    for rounds, tested in ((1, False), (4, False), (5, True)):
        cells = {}
        for size in HIDDEN:
            time_us = (100 + 3 * size) * (1.6 if size == 256 else 1)
            same = Trials(1e3 * np.array([time_us - 0.1, time_us, time_us + 0.1]))
            cells[1, size, 1, 1] = ShapeTime(time_us, (same,) * rounds)
        found = find_scaling(replace(from_columns(grid()), cells={"all": cells}))
        (line,) = (line for line in found.linearity if line.axis == "hidden")
        assert (line.breaks_at, line.breaks_tested, line.untested_break) == (256, tested, not tested)
        texts.append(scaling_text(found))
    said(*texts)


def test_flat_times_are_a_line():
    assert fit((1, 2, 4), (7.1, 7.1, 7.1)) == (0, pytest.approx(7.1), 1)
    assert fit((1, 2, 4, 8), [0.1 + 0.2] * 3 + [0.3])[2] == 1


@pytest.mark.parametrize("columns", [{"layers": [1, 2], "latency_us": [3, 4]}, {"batch": [1], "latency_us": [3]}])
def test_two_points_and_one_row_are_no_line(columns):
    found = find_scaling(from_columns(columns)).as_dict()
    assert not any(found[name] for name in ("linearity", "inversions", "batch1_penalties", "batching"))


# Inversions and penalties


def brute_force(columns: dict, min_ratio: float = 1.0) -> tuple[set, set]:
    """Inversions and penalties by trying all pairs of rows."""
    rows = {
        tuple(shape): us for *shape, us in zip(*(columns[name] for name in (*AXES, "latency_us")), strict=True) if us
    }
    inversions, penalties = set(), set()
    for place, axis in enumerate(AXES):
        for small, large in itertools.permutations(rows, 2):
            on_line = [row for row in rows if row[:place] + row[place + 1 :] == small[:place] + small[place + 1 :]]
            between = [row for row in on_line if small[place] < row[place] <= large[place]]
            ratio = rows[small] / rows[large]
            if between == [large] and ratio > 1 and ratio >= min_ratio:
                inversions.add((axis, small, large, round(1 / ratio, 9)))
                if axis == "batch" and (small[3], large[3]) == (1, 2):
                    penalties.add((small, round(ratio, 9)))
    return inversions, penalties


@pytest.mark.parametrize(("number", "min_ratio"), [(0, 1.0), (1, 1.0), (2, 1.3), (3, 1.05), (4, 1.0), (5, 2.0)])
def test_exactly_the_planted_inversions_are_found(number, min_ratio):
    rng = random.Random(number)
    columns = grid(lambda *_: rng.uniform(1, 3), (1, 2, 4), (8, 16, 32), (1, 5, 9), (1, 2, 3))
    keep = [row for row in range(81) if rng.random() < 0.8]  # holes
    columns = {name: [values[row] for row in keep] for name, values in columns.items()}
    columns["latency_us"] = [None if rng.random() < 0.05 else time for time in columns["latency_us"]]
    found = find_scaling(from_columns(columns), min_ratio).as_dict()
    inversions, penalties = brute_force(columns, min_ratio)
    pairs = [
        (pair["axis"], tuple(pair["smaller"].values()), tuple(pair["larger"].values()), round(pair["ratio"], 9))
        for pair in found["inversions"]
    ]
    assert len(pairs) == len(set(pairs)) and set(pairs) == inversions
    assert {(tuple(pair["shape"].values()), round(pair["ratio"], 9)) for pair in found["batch1_penalties"]} == penalties
    assert found["counts"]["blank"] == columns["latency_us"].count(None)


def test_inversions_between_hidden_200_and_256():
    def time_us(layers, hidden, sequence, batch):
        slow = layers >= 3 and (hidden, sequence, batch) == (200, 256, 1)
        return linear_us(layers, hidden, sequence, batch) * (1.25 if slow else 1)

    found = find_scaling(from_columns(grid(time_us)))
    assert {pair.smaller["layers"] for pair in found.inversions if pair.axis == "hidden"} == {3, 4, 6}
    for pair in (pair for pair in found.inversions if pair.axis == "hidden"):
        assert (pair.smaller["hidden"], pair.larger["hidden"]) == (200, 256)
        assert pair.smaller["sequence"] == pair.larger["sequence"] == 256
        layers = pair.smaller["layers"]
        assert pair.ratio == pytest.approx(linear_us(layers, 256, 256, 1) / 1.25 / linear_us(layers, 200, 256, 1))
    breaks = {(line.fixed["layers"], line.breaks_at) for line in found.linearity if line.axis == "sequence"}
    assert breaks == {(layers, None) for layers in LAYERS} | {(3, 256), (4, 256), (6, 256)}
    # The slow shape is also slower at batch 1 than at batch 2.
    assert {tuple(pair.smaller.values()) for pair in found.batch1_penalties} == {(n, 200, 256, 1) for n in (3, 4, 6)}
    said(scaling_text(found))


def test_neighbours_are_those_present_on_their_line():
    found = find_scaling(from_columns({"hidden": [100, 128, 200], "latency_us": [10, "", 9]}))
    assert [(pair.smaller, pair.larger, pair.ratio) for pair in found.inversions] == [
        ({"hidden": 100}, {"hidden": 200}, 0.9)
    ]
    assert found.pairs == {"hidden": 1, "batch 1 and 2": 0}


def test_batches_1_and_4_are_no_penalty():
    found = find_scaling(from_columns({"batch": [1, 4], "latency_us": [10, 9]}))
    assert len(found.inversions) == 1 and found.batch1_penalties == []


@pytest.mark.parametrize("ratio", [0.9, 0, -1, math.nan, math.inf])
def test_an_invalid_min_ratio_is_refused(ratio):
    said(refusal(find_scaling, from_columns({"batch": [1], "latency_us": [1]}), ratio))


# Batching


@pytest.mark.parametrize(
    ("times", "free", "stops", "cheapest"),
    [
        ([100, 105, 110, 120, 200], 8, 16, 16),
        ([100, 101, 102, 103, 104], 16, None, 16),
        ([100, 200, 400, 800, 1700], 1, 2, 1),
        ([120, 100, 105, 190, 400], 4, 8, 8),  # batch 1 could be run as batch 2
        ([100, 130, 101, 103, 300], 8, 16, 8),  # a slow batch 2 could be run as batch 4
        ([100, 110, 121, 133.1, 146.41], 16, None, 16),
    ],
)
def test_from_where_batching_stops_being_almost_free(times, free, stops, cheapest):
    (found,) = find_scaling(from_columns({"batch": [1, 2, 4, 8, 16], "latency_us": times})).batching
    assert (found.free_up_to, found.stops_at, found.cheapest) == (free, stops, cheapest)
    assert found.cheapest_us_per_sample == pytest.approx(
        min(t / b for t, b in zip(times, (1, 2, 4, 8, 16), strict=True))
    )
    assert found.cheapest_is_largest == (cheapest == 16) and found.smallest_us_per_sample == times[0]


# The command, and tables from elsewhere


def test_the_command_prints_the_documented_fields(tmp_path, capsys):
    columns = grid(layers=(1, 2, 3), hidden=(64,), batch=(1, 2))
    columns["latency_us"][1] *= 0.5  # 1 layer, sequence 32: batch 2 is faster than batch 1
    table = {
        "": range(len(columns["layers"])),
        "Num  LSTM layers ": columns["layers"],
        "Hidden": columns["hidden"],
        "Seq length": columns["sequence"],
        "Batch": columns["batch"],
        "Average time (s)": [time * 1e-6 for time in columns["latency_us"]],
        "Std": [0.1] * len(columns["layers"]),
    }
    path = write_csv(tmp_path / "table.csv", table)
    texts = []
    for options in (["--format", "json"], ["--min-ratio", 5, "--format", "json"], []):
        assert run(path, "--rename", *RENAMED, *options) == 0
        texts.append(capsys.readouterr().out.replace(f"{tmp_path}/", ""))
    found, without, text = json.loads(texts[0]), json.loads(texts[1]), texts[2]
    ratio = linear_us(1, 64, 32, 1) / linear_us(1, 64, 32, 2) / 0.5
    shape = {"layers": 1, "hidden": 64, "sequence": 32, "batch": 1}
    assert found["batch1_penalties"] == [{"shape": shape, "ratio": pytest.approx(ratio)}]
    (pair,) = found["inversions"]
    smaller_and_larger = {"smaller": shape, "larger": {**shape, "batch": 2}}
    assert pair == {"axis": "batch", **smaller_and_larger, "ratio": pytest.approx(1 / ratio)}
    assert without["batch1_penalties"] == [] and found["counts"]["unused_columns"] == ["Std"]
    said(stated(text))


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1e3), ("us", 1), ("ms", 1e-3), ("s", 1e-6)])
def test_units_of_time(unit, scale):
    times = from_columns({"batch": [1, 2], f"latency_{unit}": [20 * scale, 30 * scale]})
    assert [cell.latency_us for cell in times.cells["all"].values()] == pytest.approx([20, 30])


def test_an_axis_that_the_table_lacks_is_constant():
    found = find_scaling(from_columns({"Hidden ": [1, 2, 3], "latency_us": [1, 2, 3]})).as_dict()
    assert [line["fixed"] for line in found["linearity"]] == [{}] and found["linearity"][0]["axis"] == "hidden"


def test_blanks_holes_and_duplicates_are_counted():
    columns = {
        "layers": [1, 1, 2, 2, 2, "", 3],
        "batch": [1, 2, 1, 1, 1, 1, 1],
        "latency_ms": [1, 2, 5, 9, 6, 1, "n/a"],
    }
    times = from_columns(columns)
    assert vars(times.counts) == {
        **{"rows": 7, "used": 5, "blank": 2, "duplicates": 2, "failed": 0, "holes": 1, "shapes": 3},
    }
    assert times.cells["all"][2, 1].latency_us == 6000
    said(scaling_text(find_scaling(times)))


def test_systems_are_never_mixed():
    columns = {"batch": [1, 2, 4] * 2, "latency_us": [10, 11, 12, 20, 19, 25], "Runtime": ["a"] * 3 + ["b"] * 3}
    found = find_scaling(from_columns(columns)).as_dict()
    assert [line["system"] for line in found["linearity"]] == ["a", "b"] and set(found["systems"]) == {"a", "b"}
    assert [(pair["system"], pair["ratio"]) for pair in found["batch1_penalties"]] == [("b", 20 / 19)]
    said(scaling_text(find_scaling(from_columns(columns))))
    columns["GPU"] = columns.pop("Runtime")
    assert from_columns(columns).counts.duplicates == 3
    assert set(from_columns(columns, {"gpu": "device_name"}).systems) == {"a", "b"}


@pytest.mark.parametrize(
    "text",
    [
        "layers,latency_us\n1,\n",
        "layers,time\n1,2\n",
        "depth,latency_us\n1,2\n",
        "layers,latency_us\n1,2\n2,-3\n",
        "layers,latency_us\n\n1.5,2\n",
        "layers,latency_us\n0,2\n",
        "layers,latency_us,latency_ms\n1,2,3\n",
        "layers,Layers,latency_us\n1,2,3\n",
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    said(refusal(read_times, tmp_path / "table.csv", folder=tmp_path))


@pytest.mark.parametrize(
    "rename",
    [
        ["Depth=layers"],
        ["Num layers=depth"],
        ["Num layers"],
        ["=layers"],
        ["Num layers=layers", "Num layers=batch"],
    ],
)
def test_a_wrong_rename_is_refused(tmp_path, rename):
    path = write_csv(tmp_path / "table.csv", {"Num layers": [1], "latency_us": [2]})
    said(refusal(run, path, "--rename", *rename, folder=tmp_path))


def test_a_table_as_spreadsheets_write_it(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes('\ufeff Layers ;"a;b";Latency_MS\r\n\r\n1;x;"1000.5"\r\n2;;\r\n\r\n'.encode())
    times = read_times(path)
    assert times.cells["all"] == {(1,): ShapeTime(1_000_500)} and times.counts.blank == 1 and times.unused == ("a;b",)
    path.write_bytes("layers,latency_us\n1,2\n".encode("utf-16"))
    said(refusal(read_times, path, folder=tmp_path))
    table = write_csv(path, {"layers": [1], "latency_us": [5], "latency_ms": [7]})
    assert read_times(table, {"latency_ms": ""}).cells["all"][1,].latency_us == 5
    assert read_times(write_csv(path, {"layers": [1], "latency_us": [5]}, "\t")).axes == ("layers",)


def test_tables_in_parquet_and_pandas(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"batch": [1, 2, None], "mean_us": [3.0, float("nan"), 4.0], "median_us": [1, 2, 3]})
    frame.to_parquet(tmp_path / "table.parquet")
    times = read_times(tmp_path / "table.parquet")
    assert times.cells["all"] == {(1,): ShapeTime(1), (2,): ShapeTime(2)}  # the median goes first
    assert times.counts.blank == 1
    frame["median_us"] = [1, -2, 3]
    frame.to_parquet(tmp_path / "table.parquet")
    said(refusal(read_times, tmp_path / "table.parquet", folder=tmp_path))


# Recordings


def planted(shape: LstmShape, median_us: float, round: int = 0, spread: float = 0.01, n: int = 200, **options):
    generator = np.random.default_rng([*shape.axes.values(), round])
    latency = (median_us * 1000 * generator.normal(1, spread, n + 3)).astype(np.int64)
    columns = {
        "trial": np.arange(n + 3),
        "warmup": np.arange(n + 3) < 3,
        "start_ns": np.cumsum(latency),
        "latency_ns": latency,
    }
    configuration = Configuration(
        shape, "onnxruntime", "1.0", "a processor", Options(**options), Protocol(trials=n, warmup=3)
    )
    provenance = {"machine_fingerprint": "m", "started_unix_ns": round}
    return schema.Recording(configuration, round, columns, provenance)


def test_recordings_give_medians_and_say_what_is_not_certain(tmp_path, capsys):
    times_us = {32: 100, 64: 130, 128: 128, 200: 110}  # 2 % and 14 % inverted
    for hidden, time_us in times_us.items():
        files.write(planted(LstmShape(2, hidden, 16), time_us), tmp_path)
    files.write_failure(schema.Failure(planted(LstmShape(2, 400, 16), 1).configuration, 0, "memory", "large"), tmp_path)
    assert run(tmp_path, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    inversions = {pair["larger"]["hidden"]: pair for pair in found["inversions"]}
    assert set(inversions) == {128, 200}
    # The intervals of both are disjoint, but one process per side proves nothing.
    for pair in inversions.values():
        assert (pair["certain"], pair["uncertain_because"]) == (False, ["fewer than 5 rounds"])
    recordings = [item for item in folders.read_many(tmp_path) if isinstance(item, schema.Recording)]
    medians = {r.configuration.workload.hidden: np.sort(r.timed_ns)[99] for r in recordings}
    assert inversions[200]["ratio"] == medians[200] / medians[128]
    assert found["counts"]["failed"] == 1 and found["counts"]["used"] == 4
    assert found["linearity"][0]["fixed"] == {"layers": 2, "sequence": 16, "batch": 1}
    assert run(tmp_path) == 0
    text = capsys.readouterr().out.replace(str(tmp_path), "the folder")
    consolidated.consolidate(folders.read_many(tmp_path), tmp_path)
    assert run(tmp_path / consolidated.TRIALS_FILE, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["inversions"] == found["inversions"]
    said(stated(text), refusal(read_times, tmp_path, {"a": "layers"}, folder=tmp_path))


def test_rounds_make_small_differences_certain():
    first, second = LstmShape(1, 8, 4, 1), LstmShape(1, 8, 4, 2)
    drift = (1, 1.005, 0.995, 1.01, 0.99)

    def certain(items):
        found = find_scaling(read_times(items))
        return found.batch1_penalties[0].certain, found.inversions[0].certain

    few = [planted(first, 105 * f, i, 0.001) for i, f in enumerate(drift)]
    few += [planted(second, 100 * f, i, 0.001) for i, f in enumerate(drift[:4])]
    whole = [*few, planted(second, 99, 4, 0.001)]
    assert (certain(few), certain(whole)) == ((False, False), (True, True))
    # The median of the rounds' medians; a recording given twice is one round.
    times = read_times([*whole, whole[0]])
    cell = times.cells["onnxruntime"][1, 8, 4, 1]
    assert (len(cell.rounds), times.counts.duplicates, cell.latency_us) == (5, 1, pytest.approx(105, rel=1e-3))
    assert read_times(few).cells["onnxruntime"][1, 8, 4, 2].latency_us == pytest.approx(
        100, rel=2e-3
    )  # of four the lower
    # One slow round that the second side reaches takes the certainty away.
    assert certain([*whole, planted(second, 106, 5, 0.001)])[0] is False
    # Five rounds and 1 %: significant, but below the smallest relevant difference.
    small = [planted(shape, us, i, 0.0001) for shape, us in ((first, 101), (second, 100)) for i in range(5)]
    assert certain(small)[0] is False


def test_nothing_is_certain_if_the_level_of_a_recording_changes():
    first, second = LstmShape(1, 8, 4, 1), LstmShape(1, 8, 4, 2)
    rounds = [planted(shape, time_us, i, 0.001) for shape, time_us in ((first, 150), (second, 100)) for i in range(5)]
    assert find_scaling(read_times(rounds)).inversions[0].certain is True
    latency = rounds[0].columns["latency_ns"]
    latency[120:] = (latency[120:] * 1.03).astype(np.int64)  # no change of any median exceeds the difference
    times = read_times(rounds)
    (inversion,) = find_scaling(times).inversions
    assert (inversion.certain, inversion.uncertain_because) == (False, (Doubt.LEVEL_CHANGES,))
    assert times.level_changes() == (1, 10) and times.level_changes(0.1) == (0, 10)


def test_recordings_of_several_systems_are_apart():
    items = [planted(LstmShape(1, 8, 4, batch), 100 + batch, threads=k) for batch in (1, 2, 4) for k in (1, 2)]
    items[0].provenance["machine_fingerprint"] = "another"
    found = find_scaling(read_times(items))
    labels = set(found.times.systems)
    assert len(labels) == 3 and all("threads" in label and "machine" in label for label in labels)
    assert len(found.linearity) == 1 and found.as_dict()["linearity"][0]["system"] in labels
    said(refusal(read_times, []))


def test_the_interval_over_rounds_is_that_of_mann_and_whitney():
    assert (ratio_rank(5, 5, 0.95), ratio_rank(6, 7, 0.95), ratio_rank(8, 8, 0.95), ratio_rank(3, 3, 0.95)) == (
        3,
        7,
        14,
        0,
    )
    sides = list(itertools.combinations(range(9), 4))
    us = sorted(sum(rank for rank in ranks) - 6 for ranks in sides)
    assert ratio_rank(4, 5, 0.95) == sum(np.searchsorted(us, k, "right") / len(us) <= 0.025 for k in range(21))


def test_intervals_that_touch_prove_nothing():
    def cell(low, high, rounds=1):
        trials = Trials(1e3 * np.linspace(low, high, 8))  # of 8 trials the interval is the whole range
        found = trials.percentile(MEDIAN, PAIR_CONFIDENCE)
        assert (found.low_us, found.high_us) == (low, high) and interval(np.arange(7), MEDIAN, PAIR_CONFIDENCE)[
            0
        ] is None
        return ShapeTime((low + high) / 2, (trials,) * rounds)

    assert interval(np.arange(7), MEDIAN, PAIR_CONFIDENCE) == (None, None)
    few, apart = (Doubt.FEW_ROUNDS,), (Doubt.NOT_SEPARATED,)
    assert doubts(cell(10, 12), cell(13, 15)) == few
    assert doubts(cell(10, 13, 4), cell(13, 19, 5)) == few + apart
    assert doubts(cell(100, 105, 5), cell(105, 106, 5)) == apart
    assert doubts(cell(100, 101, 5), cell(101.1, 102, 5)) == apart  # below the smallest relevant difference
    assert doubts(cell(100, 101, 5), cell(105, 106, 5)) == ()
    assert doubts(ShapeTime(1), cell(1, 2)) is None


# Pictures


@pytest.mark.heavy
def test_the_pictures_show_what_was_found(tmp_path):
    from lstm_judge.plots import scaling

    def time_us(layers, hidden, sequence, batch):
        slow = layers >= 3 and (hidden, sequence) == (200, 256)
        return linear_us(layers, hidden, sequence, 1) * (1.3 if slow else 1) * (1 + max(0, batch - 4) / 4)

    found = find_scaling(from_columns(grid(time_us)))
    fits = scaling.fits(found, "sequence")
    assert len(lines(fits, marker="", linewidth=1.1)) == 25
    assert len(lines(fits, markersize=scaling.RING["markersize"])) == len(lines(fits, linestyle=":")) == 3
    inverted = [text for ax in scaling.inversions(found, "hidden").axes for text in ax.texts]
    assert len(inverted) == 3
    costs = scaling.batching(found)
    assert len(lines(costs, marker="D")) == len(lines(costs, marker="*")) == len(lines(costs, marker="o")) == 25
    small = find_scaling(from_columns(grid(time_us, (1, 2, 3), (128, 200, 256), (64, 128, 256), (1, 2))))
    paths = scaling.draw_scaling(small, tmp_path / "figures")
    assert {path.name for path in paths} >= {"scaling-by-layers.png", "scaling-inversions-hidden.png"}


def test_pictures_of_small_tables():
    from lstm_judge.plots import scaling

    found = find_scaling(from_columns({"batch": [1, 2, 4], "latency_us": [12, 10, 11], "runtime": ["a", "a", "a"]}))
    for draw in (scaling.fits, scaling.inversions):
        assert image_bytes(draw(found, "batch")).startswith(b"\x89PNG")
    assert image_bytes(scaling.batching(found))
    two = find_scaling(from_columns({"batch": [1, 2] * 2, "latency_us": [1, 2, 3, 4], "runtime": ["a", "a", "b", "b"]}))
    said(refusal(scaling.batching, two), refusal(scaling.fits, two, "batch", "a"))


def test_growth_is_called_linear_only_where_the_interval_of_its_power_has_1():
    found = find_scaling(from_columns(grid(linear_us, layers=(1,), hidden=(64,), batch=(1,))))
    (line,) = found.linearity
    linear = []
    for lows in ((0.5, 0.6), (0.5, 1.1), (1.1, 1.2)):
        series = [replace(line, exponent=low + 0.5, exponent_low=low, exponent_high=low + 0.8) for low in lows]
        _, ((_, _, counted, *_),) = cells(answer(replace(found, linearity=series)))
        linear.append(counted)
    assert linear == ["2 of 2", "1 of 2", "0 of 2"]


# The answer in a sentence


def answer(findings) -> ScalingAnswers:
    return ScalingAnswers(Runs(()), (findings,))


def powers(**exponents: float):
    """Times that grow with these powers of the sizes."""
    return lambda *shape: math.prod(size ** exponents.get(axis, 0) for axis, size in zip(AXES, shape, strict=True))


def test_the_headline_has_the_planted_power_of_each_size():
    found = answer(find_scaling(from_columns(grid(powers(layers=1, hidden=1.9, sequence=1.3, batch=0.5)))))
    for text in ("layers^1.00, straight within ", "hidden^1.90", "sequence^1.30", "batch^0.50"):
        assert f"grows as {text}" in found.sentence
    assert found.sentence.startswith("all: time grows as layers^1.00") and "\n" not in found.sentence
    assert found.sentence.endswith("; no larger network is faster") and found.sentence.count("straight") == 1
    assert found.along("hidden") == "all: time grows as hidden^1.90; no larger network is faster"


def test_the_headline_tells_systems_apart_that_differ():
    sizes = {"hidden": [16, 32, 64] * 2, "runtime": ["a"] * 3 + ["b"] * 3}
    found = answer(find_scaling(from_columns(sizes | {"latency_us": [16, 32, 64, 32, 128, 512]})))
    first, second = found.along("hidden").splitlines()
    assert first.startswith("a: time grows as hidden^1.00, straight") and second.startswith("b: time grows as hidden^2")
    assert found.sentence == f"{first}; {second}"


def test_of_several_series_the_sentence_has_the_lowest_and_the_highest_power():
    found = answer(find_scaling(from_columns(grid(lambda layers, hidden, *_: hidden ** (1 + layers / 10)))))
    assert "hidden^1.30 (1.10 to 1.60)" in found.along("hidden")


@pytest.mark.parametrize(
    ("times_us", "text"),
    [
        ([10, 20, 30, 40], "no larger network is faster"),
        ([10, 9, 30, 40], "the larger network is faster in 1 pair, certain: none"),
        ([10, 9, 30, 29], "the larger network is faster in 2 pairs, certain: none"),
    ],
)
def test_the_sentence_counts_larger_networks_that_are_faster(times_us, text):
    found = answer(find_scaling(from_columns({"layers": [1, 2, 3, 4], "latency_us": times_us})))
    assert found.along("layers").endswith(f"; {text}") and found.sentence.endswith(f"; {text}")


def test_the_sentence_names_the_pairs_that_are_certain_and_the_least_ratio():
    cells_of_sizes = {}
    for size, time_us in zip((1, 2, 3, 4), (100, 80, 120, 110), strict=True):
        rounds = [Trials(1e3 * (time_us + np.linspace(-0.1, 0.1, 200))) for _ in range(5 if size < 3 else 1)]
        cells_of_sizes[(size,)] = ShapeTime(time_us, tuple(rounds))
    times = replace(from_columns({"layers": [1], "latency_us": [1]}), cells={"all": cells_of_sizes})
    found = answer(find_scaling(times))
    assert found.along("layers").endswith("is faster in 2 pairs, certain: layers 1 -> 2")
    assert answer(find_scaling(times, 1.5)).sentence.endswith("; no larger network is faster by a factor of 1.5")


@pytest.mark.parametrize("columns", [{"hidden": [64], "latency_us": [3]}, {"hidden": [64, 128], "latency_us": [3, 4]}])
def test_of_too_few_sizes_the_sentence_says_how_many_a_power_takes(columns):
    found = answer(find_scaling(from_columns(columns)))
    assert found.sentence == "all: growth not fitted: needs at least 3 sizes; no larger network is faster"
    assert found.along("layers") == found.along("hidden") == found.sentence


@pytest.mark.parametrize(
    ("batches", "times_us", "texts"),
    [
        (
            (1, 2, 4),
            (100, 105, 200),
            ("up to batch 2;", "at batch 4 (the largest measured of 1 network);", "1.05 times"),
        ),
        ((1, 2, 4), (100, 150, 700), ("up to batch 1;", "at batch 2;", "batch 2 takes 1.50 times as long as batch 1;")),
        ((1, 2, 4), (120, 100, 700), ("up to batch 2;", "batch 2 takes 0.833 times as long as batch 1;")),
    ],
)
def test_of_the_batch_the_sentence_says_what_batching_costs(batches, times_us, texts):
    found = answer(find_scaling(from_columns({"batch": batches, "latency_us": times_us})))
    sentence = found.along("batch")
    assert sentence.startswith("all: almost free (doubling costs less than 10 %)")
    assert all(text in sentence for text in texts), sentence


def test_without_batch_2_its_cost_is_not_said():
    found = answer(find_scaling(from_columns({"hidden": [8, 8, 9], "batch": [1, 4, 1], "latency_us": [10, 20, 11]})))
    assert "batch 2" not in found.along("batch") and "least time per sample at batch 4" in found.along("batch")
    assert "free" not in found.along("hidden")


def test_a_representation_is_short_and_the_table_narrow():
    columns = grid(powers(layers=1, hidden=1.9, sequence=1.3, batch=0.5))
    rows = len(columns["layers"])
    columns = {name: values * 3 for name, values in columns.items()}
    columns["runtime"] = [name for name in ("first", "second", "third") for _ in range(rows)]
    found = answer(find_scaling(from_columns(columns)))
    assert len(repr(found)) < 300 and repr(found).startswith("<ScalingAnswers: first: time grows as layers^1.00")
    header, lines_of_table = cells(found)
    assert len(header) <= 8 and {len(line) for line in lines_of_table} == {len(header)} and len(lines_of_table) == 12
    assert found.sentence in re.sub(r"<br>", "\n", found._repr_html_())
