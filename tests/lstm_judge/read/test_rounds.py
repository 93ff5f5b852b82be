"""Reading latencies from tables and recordings: nothing is guessed, and invalid content is refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import os
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lstm_judge.read.rounds import groups_of
from lstm_judge.read.runs import NotATable, load
from lstm_judge.read.tables import read_table, split_unit, time_column
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import LabError, StoreError, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import consolidated, files, schema
from tests.lstm_judge.conftest import put
from tests.lstm_trt.store.test_store import planted
from tests.support import golden


def only_round(source, **options):
    """The only round of a source."""
    (group,) = load(source, **options)
    (round_,) = group.rounds
    return round_


def times_of(source, **options) -> list:
    """Its latencies in ns."""
    return only_round(source, **options).latency_ns.tolist()


def refusal(path, **options) -> str:
    with pytest.raises(LabError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 600
    return text


# Names and units


@pytest.mark.parametrize(
    ("name", "stem", "unit"),
    [
        ("latency_us", "latency", "us"),
        ("requests_per_s", "requests_per_s", None),
        ("time per call (us)", "time_per_call", "us"),
        ("latency_ns", "latency", "ns"),
        ("latency_s", "latency", "s"),
        ("Latency [us]", "latency", "us"),
        ("latency (ms)", "latency", "ms"),
        ("Latency (µs)", "latency", "us"),
        ("latencyMs", "latency", "ms"),
        ("startComputeMs", "startcompute", "ms"),
        ("Average time (s)", "average_time", "s"),
        ("time in ms", "time", "ms"),
        ("elapsed_seconds", "elapsed", "s"),
        ("latency", "latency", None),
        ("ms", "ms", None),
        ("times", "times", None),
        ("focus", "focus", None),
        ("status", "status", None),
        ("bus", "bus", None),
        ("items", "items", None),
        ("TimeS", "times", None),
        ("latencyUs", "latencyus", None),
    ],
)
def test_a_unit_is_recognized_only_as_a_separate_part_of_the_name(name, stem, unit):
    assert split_unit(name) == (stem, unit)


TRTEXEC = ["startInMs", "endInMs", "inMs", "computeMs", "outMs", "latencyMs", "endToEndMs"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (TRTEXEC, ("latencyMs", "ms")),
        (["trial", "temperature", "x_us"], ("x_us", "us")),
        (["time_s", "latency_us"], ("latency_us", "us")),
        (["start_ns", "intended_ns", "took (ms)"], ("took (ms)", "ms")),
        (["timestamp_ms", "images per s", "x_us"], ("x_us", "us")),
        (["Average time (s)", "n"], ("Average time (s)", "s")),
    ],
)
def test_the_column_of_times_is_the_one_that_needs_no_guess(table, names, found):
    assert time_column(read_table(table({name: [1, 2] for name in names})), None, None) == (*found, [])


@pytest.mark.parametrize(
    "names",
    [
        ["trial", "x"],
        ["time_us", "duration_us"],
        ["gpu_latency_us", "cpu_latency_us"],
        ["latency_us", "latency_ms"],
        ["trial", "hidden_size"],
        ["start_ns", "end_ns", "took_ns"],
    ],
)
def test_the_option_is_named_instead_of_guessing(table, names):
    path = table({name: [1, 2] for name in names})
    for options in ({}, {"unit": "us"}):
        message = refusal(path, **options)
        assert "--column" in message and all(name in message for name in names)
    assert load(path, column=names[1], unit="ns").how == {"column": names[1], "unit": "ns"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.txt", "5\n6\n"),
        ("t.json", "[5, 6]"),
        ("t.csv", "latency\n5\n6\n"),
        ("t.csv", "trial,latency\n1,5\n2,6\n"),
        ("t.csv", "took\n5\n6\n"),
    ],
)
def test_a_unit_that_is_not_stated_is_required(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert "--unit" in refusal(tmp_path / name)
    assert times_of(tmp_path / name, unit="ms") == [5e6, 6e6]


def test_columns_are_renamed_before_they_are_read(table):
    path = table({"Size": [8, 16] * 2, "elapsed": [5, 6, 7, 8], "stamp_us": [0, 10, 20, 30], "other_us": [1, 2, 3, 4]})
    names = {"size": "hidden", "elapsed": "latency_ms", "stamp_us": "start_us", "other_us": ""}
    runs = load(path, rename=names, group_by=["hidden"])
    assert [group.group for group in runs] == [{"hidden": 8}, {"hidden": 16}]
    assert runs[1].rounds[0].latency_ns.tolist() == [6e6, 8e6] and runs[1].rounds[0].start_ns.tolist() == [10e3, 30e3]
    assert "no column 'x'" in refusal(path, rename={"x": "latency_us"})
    assert "2 columns named latency_ms" in refusal(path, rename={**names, "other_us": "latency_ms"}, one_group=True)


# Numbers, exactly


@pytest.mark.parametrize(
    ("unit", "digits", "in_ns"), [("us", 3, 1), ("ms", 6, 1), ("s", 9, 1), ("ms", 3, 1000), ("s", 6, 1000)]
)
def test_decimals_become_whole_nanoseconds(table, unit, digits, in_ns):
    """1.1 ms is exactly 1100 us, whatever the unit in the file; plain multiplication gives other values."""
    whole = np.arange(1, 20_000, 7)
    path = table({f"latency_{unit}": [f"{value / 10**digits:.{digits}f}" for value in whole]})
    assert times_of(path) == (whole * in_ns).tolist()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.decimal128(12, 6)])
def test_single_precision_is_read_as_the_decimal_it_was(tmp_path, kind):
    values = [Decimal(k) / 1000 for k in range(900, 1200)]
    column = pa.array(values if pa.types.is_decimal(kind) else [float(value) for value in values], kind)
    pq.write_table(pa.table({"latency_ms": column}), tmp_path / "t.parquet")
    assert times_of(tmp_path / "t.parquet") == [1000 * k for k in range(900, 1200)]


def test_durations_state_their_unit(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"took": pa.array([5, 6, 7], pa.duration("ms"))}), path)
    assert times_of(path) == [5e6, 6e6, 7e6] and load(path).how["unit"] == "ms"
    assert "the unit ms" in load(path, unit="us").warnings[0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_of_text_and_of_numbers_hold_the_same_times(table, separator):
    random = np.random.default_rng(2)
    values = [f"{value:.3f}" for value in random.lognormal(7, 0.5, 500)]
    others = {"trial": range(500), "label": random.permutation(500), "load": [f"{v:.2f}" for v in random.random(500)]}
    for cells in (values, [f'" {value} "' for value in values]):
        path = table({**others, "latency_us": cells}, separator=separator)
        assert times_of(path) == [round(float(value) * 1000) for value in values]


@pytest.mark.parametrize("blank", ["", "  ", "NaN", "NA", "n/a", "null", "-"])
def test_blank_cells(table, blank):
    read = read_table(table({"trial": [1, 2, 3], "time_us": [" 12.5 ", blank, "2e-3"]}))
    np.testing.assert_array_equal(read.numbers("time_us"), [12.5, np.nan, 0.002])


@pytest.mark.parametrize(
    "cell",
    [
        "recovered",
        "> x",
        "C++",
        "1,234",
        "1,234.5",
        "1 234.5",
        "0,5",
        "1.234,5",
        "OOM",
        "12 ms",
        "1,23,4",
        "1_100",
        "\u0661\u0662",
        "0x",
    ],
)
def test_an_invalid_number_is_refused_with_its_line(table, cell):
    path = table({"trial": [1, 2], "latency_us": [5, f'"{cell}"']})
    assert f"line 3: latency_us is {cell!r}, not a number" in refusal(path)


def test_a_pipe_is_read_and_one_with_a_name_is_refused(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    assert "named pipe" in refusal(tmp_path / "t.csv")
    read, write = os.pipe()
    os.write(write, b"latency_us\n5\n6\n")
    os.close(write)
    assert times_of(f"/dev/fd/{read}") == [5000, 6000]
    os.close(read)


def test_blank_rows_of_a_spreadsheet_are_no_trials(tmp_path):
    path = tmp_path / "t.csv"
    for end in (",\n", ",\r\n,\r\n", "\n\n , \n", ","):
        path.write_text(f"trial,latency_us\n1,5\n2,6\n{end}")
        assert times_of(path) == [5000, 6000], end
    path.write_text("trial,latency_us\n1,5\n,\n2,6\n3,x")
    assert "line 5: latency_us is 'x'" in refusal(path)
    path.write_text("trial,latency_us,note\n1,5,\n2,6,\n")
    assert times_of(path) == [5000, 6000]


# Kinds of files


def test_one_number_a_line(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("# from a logger\n\n500\n501.5  # late\n499.25\n\n# end\n")
    read = load(path, unit="ms")
    assert (read.how, read.grouped, read.warnings) == ({"unit": "ms"}, False, ())
    assert times_of(path, unit="ms") == [500e6, 501.5e6, 499.25e6]


def test_the_header_of_savetxt_states_the_unit(tmp_path):
    np.savetxt(tmp_path / "t.txt", [1.5, 2.5], header="latency_ms")
    assert times_of(tmp_path / "t.txt") == [1.5e6, 2.5e6]
    (tmp_path / "u.txt").write_text("# the deadline is 10 ms\n500\n501\n")
    assert "--unit" in refusal(tmp_path / "u.txt")


OLD_TRTEXEC = ("startInMs", "endInMs", "startComputeMs", "endComputeMs", "startOutMs", "endOutMs", "inMs", "computeMs")
NEW_TRTEXEC = (
    "startEnqMs",
    "endEnqMs",
    "startH2dMs",
    "endH2dMs",
    "startComputeMs",
    "endComputeMs",
    "startD2hMs",
    "endD2hMs",
)


@pytest.mark.parametrize("names", [OLD_TRTEXEC, NEW_TRTEXEC])
def test_times_that_trtexec_exports(tmp_path, names):
    rows = []
    for place in range(50):
        row = {name: 0.5 * place + 0.01 * k for k, name in enumerate(names)}
        rows.append({**row, "computeMs": 0.3, "latencyMs": 0.4 + place / 1000})
    path = tmp_path / "times.json"
    path.write_text(json.dumps(rows))
    read = load(path)
    assert read.how == {"column": "latencyMs", "unit": "ms"} and read.warnings == ()
    assert times_of(path) == [400_000 + 1000 * place for place in range(50)]
    assert only_round(path).start_ns.tolist() == [500_000 * place for place in range(50)]
    assert times_of(path, column="computeMs") == [300_000] * 50


@pytest.mark.parametrize(
    ("name", "text", "unit"),
    [
        ("a.json", '{"latency_us": [5, 6.5], "tool": "x"}', None),
        ("b.json", "[5000, 6500]", "ns"),
        ("c.jsonl", '{"latency_us": 5}\n{"latency_us": 6.5}\n', None),
    ],
)
def test_other_json(tmp_path, name, text, unit):
    (tmp_path / name).write_text(text)
    assert times_of(tmp_path / name, unit=unit) == [5000, 6500]


@pytest.mark.parametrize("write", [pd.DataFrame.to_parquet, pd.DataFrame.to_csv])
def test_a_table_of_pandas_with_categories_and_an_index(tmp_path, write):
    frame = pd.DataFrame({"latency_us": [5.0, 6.0, 7.0, 8.0], "model": pd.Categorical(["b", "a", "b", "a"])})
    write(frame, tmp_path / "t")
    read = load(tmp_path / "t", group_by=["model"])
    assert [(group.group["model"], group.rounds[0].latency_ns.tolist()) for group in read] == [
        ("b", [5000, 7000]),
        ("a", [6000, 8000]),
    ]


# Other columns


def test_starts_warm_up_rounds_and_counts_are_taken_by_name(table):
    rows = np.arange(60)
    columns = {
        "round": rows % 3,
        "trial": rows // 3,
        "warmup": rows < 6,
        "start_us": 100 * rows,
        "latency_us": 10 + rows,
        "minor_faults": rows % 2,
        "spikes": (rows == 50).astype(int),
    }
    path = table(columns)
    (group,) = load(path)
    assert [round_.round for round_ in group.rounds] == [0, 1, 2] and group.n == 54
    for round_ in group.rounds:
        places = rows[round_.round :: 3]
        assert (round_.latency_ns == 1000 * (10 + places)).all()
        assert (round_.start_ns == 100_000 * places).all()
        assert (round_.warmup == (places < 6)).all()
        assert (round_.causes["minor_faults"] == places % 2).all() and list(round_.causes) == ["minor_faults"]
    (group,) = load(path, causes=["spikes"])
    assert [round_.causes["spikes"].sum() for round_ in group.rounds] == [0, 0, 1]
    assert "not a column of counts" in refusal(table({"latency_us": [1, 2], "load": [0.5, 1]}), causes=["load"])


@pytest.mark.random(tail=0, why="identity")
def test_rows_are_put_in_the_order_of_the_trials(table, rng):
    order = rng.permutation(100)
    path = table({"trial": order, "start_us": 1000 * order, "latency_us": order + 1})
    round_ = only_round(path)
    assert (round_.latency_ns == 1000 * np.arange(1, 101)).all()
    assert (round_.start_ns[1:] > round_.start_ns[:-1]).all()
    (warning,) = load(path).warnings
    assert "sorted by trial" in warning


def test_starts_keep_their_precision(table):
    """Nanoseconds since 1970 are above 2**53."""
    starts = 1_700_000_000_000_000_000 + 1001 * np.arange(100)
    round_ = only_round(table({"start_ns": starts, "latency_us": range(1, 101)}))
    assert (round_.start_ns == 1001 * np.arange(100)).all()


@pytest.mark.parametrize(
    ("name", "starts", "warned"), [("start_us", [3, 2, 1], 1), ("start_us", [1, 1, 2], 1), ("start", [1, 2, 3], 0)]
)
def test_starts_that_do_not_ascend_or_have_no_unit_are_not_used(table, name, starts, warned):
    path = table({name: starts, "latency_us": [5, 6, 7]})
    assert only_round(path).start_ns is None
    assert ["start_us" in warning for warning in load(path).warnings] == [True] * warned


@pytest.mark.parametrize(("true", "false"), [("true", "false"), ("True", "False"), (1, 0), ("yes", "no")])
def test_warm_up_in_all_spellings(table, true, false):
    path = table({"warm-up": [true] * 2 + [false] * 3, "latency_us": [9, 8, 5, 6, 7]})
    assert only_round(path).warmup.tolist() == [True, True, False, False, False]


# Groups


def test_groups_have_the_values_of_the_table_in_the_order_of_the_rows(table):
    first = {"hidden": 128, "scale": 0.5, "graph": True, "runtime": "ort"}
    second = {"hidden": 64, "scale": 0.5, "graph": False, "runtime": "trt"}
    rows = pd.DataFrame([first, second, first, second, second, first])
    read = load(table({**rows, "latency_us": range(1, 7)}), group_by=[*rows])
    assert read.grouped and [group.group for group in read] == [first, second]
    assert type(read[0].group["hidden"]) is int and type(read[0].group["graph"]) is bool
    assert [group.rounds[0].latency_ns.tolist() for group in read] == [[1000, 3000, 6000], [2000, 4000, 5000]]
    assert json.loads(json.dumps(read[0].group)) == first


@pytest.mark.random(tail=0, why="identity")
def test_every_row_is_in_one_group(table, rng):
    layers, hidden, times = rng.integers(0, 5, 2000), rng.integers(0, 7, 2000), rng.permutation(2000) + 1
    read = load(table({"layers": layers, "hidden": hidden, "latency_ns": times}), group_by=("layers", "hidden"))
    assert len(read) == len(set(zip(layers.tolist(), hidden.tolist(), strict=True)))
    for group in read:
        rows = (layers == group.group["layers"]) & (hidden == group.group["hidden"])
        assert (group.rounds[0].latency_ns == times[rows]).all()


CONFIGURED = [
    {"hidden": [32, 64] * 100},
    {"Num LSTM layers": [1] * 100 + [2] * 100},
    {"batch_size": [1] * 198 + [4] * 2},
    {"model": ["a", "b"] * 100},
    {"what": ["quick"] * 100 + ["slow"] * 100},
    {"graph": ["true", "false"] * 100},
    {"config_id": ["9f", "a0"] * 100, "trial": list(range(100)) * 2},
]
OF_TRIALS = [
    {"trial": range(200)},
    {"temperature": [60 + place // 50 for place in range(200)]},
    {"cpu": [0, 1] * 100},
    {"start_ns": range(0, 2000, 10)},
    {"note": ["", "gc"] * 50 + [""] * 99 + ["late"]},
    {"round": ["a", "b"] * 100},
    {"gpu_clock_mhz": [1410, 1980] * 100},
    {"load": [0.5, 0.25] * 100},
    {"hidden": [64] * 200, "model": ["a"] * 200},
    {"request": [f"r{place}" for place in range(200)]},
    {"kernel_us": [5, 6] * 100},
    {"round": [0, 1] * 100},
]


@pytest.mark.parametrize("columns", CONFIGURED, ids=lambda columns: next(iter(columns)))
def test_configurations_that_are_mixed_are_refused(table, columns):
    path, name = table({**columns, "latency_us": range(1, 201)}), next(iter(columns))
    message = refusal(path)
    assert f"2 values of {name}" in message and "--group-by" in message and "--one-group" in message
    assert len(load(path, group_by=[name])) == 2
    assert load(path, one_group=True)[0].n == 200


@pytest.mark.parametrize("columns", OF_TRIALS, ids=lambda columns: next(iter(columns)))
def test_columns_of_trials_are_no_configuration(table, columns):
    assert load(table({**columns, "latency_us": range(1, 201)}))[0].n == 200


def test_a_balanced_column_of_unknown_name_gives_a_warning(table):
    assert "--group-by k" in load(table({"k": [1, 2] * 100, "latency_us": range(1, 201)})).warnings[0]
    path = table({"hidden": [1, 2] * 100, "layers": [1, 1, 2, 2] * 50, "latency_us": range(1, 201)})
    assert "values of layers within a group" in load(path, group_by=["hidden"]).warnings[0]


# Recordings


def test_recordings_are_distinguished_from_tables(tmp_path):
    recordings = [planted(8), planted(8, round=1), planted(16)]
    _, file, _ = (files.write(recording, tmp_path) for recording in recordings)
    read = load(file)
    assert read.own and not read.grouped and read[0].group == {} and len(read[0].rounds) == 1
    read = load(tmp_path)
    assert read.grouped
    assert [(group.group["hidden"], len(group.rounds)) for group in read] == [(8, 2), (16, 1)]
    pair = tmp_path / "pair"
    pair.mkdir()
    consolidated.consolidate(recordings, pair)
    for path in (pair, pair / consolidated.TRIALS_FILE, pair / consolidated.CONFIGS_FILE):
        again = load(path)
        assert again.grouped and [group.name for group in again] == [group.name for group in read]
        assert (again[0].rounds[0].latency_ns == read[0].rounds[0].latency_ns).all()
    for option in ({"column": "latency_ns"}, {"unit": "us"}, {"group_by": ["hidden"]}, {"causes": ["minor_faults"]}):
        for path in (tmp_path, file):
            with pytest.raises(NotATable):
                load(path, **option)


def test_what_was_exported_as_csv_is_read_as_it_was_recorded(tmp_path):
    items = [planted(8), planted(8, round=1), planted(16)]
    consolidated.consolidate(items, tmp_path)
    path = tmp_path / "trials.csv"
    pq.read_table(tmp_path / consolidated.TRIALS_FILE).to_pandas().to_csv(path, index=False)
    assert "values of config_id" in refusal(path)
    for group, own in zip(load(path, group_by=["config_id"]), groups_of(items), strict=True):
        assert group.group == {"config_id": own.configuration.id}
        for round_, wanted in zip(group.rounds, own.rounds, strict=True):
            assert round_.round == wanted.round
            assert (round_.latency_ns == wanted.latency_ns).all() and (round_.warmup == wanted.warmup).all()
            assert (np.diff(round_.start_ns) == np.diff(wanted.start_ns)).all()
            assert round_.causes.keys() == wanted.causes.keys()


PACED = {"trials": 99, "arrival": "periodic", "wait": "spin", "period_us": 1000.0}


@pytest.mark.parametrize(
    ("part", "changes", "names"),
    [
        (None, {}, [""]),
        ("options", {"graph": True}, [", graph False", ", graph True"]),
        ("protocol", PACED, [", closed", ", periodic every 1000 us (spin)"]),
    ],
)
def test_configurations_of_equal_name_get_distinct_names(part, changes, names):
    items = [planted(8)]
    if part:
        configuration = items[0].configuration
        other = replace(configuration, **{part: replace(getattr(configuration, part), **changes)})
        items.append(replace(items[0], configuration=other))
    assert {group.name for group in groups_of(items)} == {f"1x8-s4-b1 on onnxruntime{name}" for name in names}


# What cannot be read

CASES = [(name, suffix) for name, case in golden.BAD_TABLES.items() for suffix in case["suffixes"]]


@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_a_bad_table_is_refused_in_its_golden_line(tmp_path, name, suffix):
    case = golden.BAD_TABLES[name]
    assert golden.refusal_of_table(case, tmp_path, suffix) == case["line"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        *(
            (f"t{suffix}", *case)
            for suffix in (".csv", ".txt", "")
            for case in (
                ("latency_us\n" + "9" * 300_000 + "\n5\n", "1 infinite, the first in line 2"),
                ("5\n" + "9" * 300_000 + "\n", "1 infinite, the first in line 2"),
                ("x" * 300_000 + "\n5\n6\n", "xxxx..."),
            )
        ),
        ("t.json", "[" * 100_000, "is not JSON"),
    ],
    ids=lambda value: value[:9],
)
def test_what_is_huge_is_refused_in_one_line(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    assert expected in refusal(tmp_path / name, unit=None if "x" in content else "us")


@pytest.mark.random(tail=0, why="fuzzing, 18 files")
@pytest.mark.parametrize("suffix", [".csv", ".txt", ".json", ".parquet", ".jsonl", ""])
def test_garbage_is_refused_in_one_line(tmp_path, suffix, rng):
    for content in (rng.bytes(3000), b"PAR1" + rng.bytes(3000), rng.bytes(3000).replace(b"\0", b"\x01")):
        (tmp_path / f"t{suffix}").write_bytes(content)
        refusal(tmp_path / f"t{suffix}")


def test_bad_parquet_is_refused_in_one_line(tmp_path):
    path = tmp_path / "t.parquet"
    for column, expected in (
        (pa.array([], pa.float64()), "no rows"),
        (pa.array([1.0, None, 3.0]), "1 blank or NaN, the first in row 2"),
        (pa.array([None, None]), "2 blank or NaN, the first in row 1"),
        (pa.array([[1.0], [3.0]]), "latency_us is not a column of numbers"),
        (pa.array(["5", "six"]), "row 2: latency_us is 'six'"),
        (pa.array([True, False]), "latency_us is not a column of numbers"),
        (pa.array([1.0, float("inf")]), "1 infinite, the first in row 2"),
    ):
        pq.write_table(pa.table({"latency_us": column}), path)
        assert expected in refusal(path, column="latency_us"), column
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a valid Parquet file" in refusal(path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"group_by": ["hiden"]}, "no column 'hiden'; its columns are layers, hidden, latency_us"),
        ({"column": "latency"}, "no column 'latency'"),
        ({"group_by": ["latency_us"]}, "holds the times"),
        ({"group_by": ["hidden", "Hidden"]}, "hidden=32 has 1 time"),
        ({"unit": "parsec"}, "unknown unit"),
        ({"causes": ["x"], "one_group": True}, "no column 'x'"),
    ],
)
def test_bad_options_are_refused_in_one_line(table, options, expected):
    assert expected in refusal(table({"layers": [1, 1, 1], "hidden": [32, 64, 64], "latency_us": [5, 6, 7]}), **options)


@pytest.mark.parametrize("options", [{"column": "x"}, {"group_by": ["x"]}, {"causes": ["x"]}])
def test_a_file_without_column_names_has_no_column(tmp_path, options):
    (tmp_path / "t.txt").write_text("5\n6\n")
    assert "without column names" in refusal(tmp_path / "t.txt", unit="us", **options)


def test_what_is_not_there_is_refused_and_many_names_are_counted(tmp_path, table):
    with pytest.raises(UsageError):
        load(tmp_path / "nowhere")
    with pytest.raises(StoreError):
        load(tmp_path)
    assert "and 480 more" in refusal(table({f"column{place}": [1, 2] for place in range(500)}))


@pytest.mark.parametrize(("unit", "absurd"), [("ns", True), ("us", False), ("ms", False), ("s", True)])
def test_a_median_that_suggests_a_wrong_unit_gives_a_warning(table, unit, absurd):
    warnings = load(table({"t": [500, 501, 502]}), unit=unit).warnings
    assert ["right unit" in warning for warning in warnings] == [True] * absurd


def test_a_unit_that_contradicts_the_name_gives_a_warning(table):
    path = table({"latency_us": [5, 6, 7]})
    read = load(path, unit="ms")
    assert read.how["unit"] == "ms" and "the unit us" in read.warnings[0]
    assert load(path, unit="us").warnings == ()


#: Columns of aggregates, as tools and people name them; some state a unit, others need --column.
AGGREGATES = ("Average time (s)", "p50 latency", "p99_us", "latencyP99Ms", "MeanUs", "max latency", "median_ms", "avg")


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_are_no_trials(table, name):
    path = table({"concurrency": [1, 2, 4], name: [0.005, 0.006, 0.007]})
    for options in ({}, {"column": name, "unit": "us"}, {"column": "2", "unit": "s"}):
        assert "aggregates" in refusal(path, **options)


@pytest.mark.parametrize("by", ["Percentile", "quantile", "iterations"])
def test_rows_of_a_distribution_are_no_trials(table, by):
    for name, options in (("Value", {"column": "Value", "unit": "us"}), ("latency_us", {})):
        path = table({name: [181.1, 205.4, 300.5], by: [0, 0.5, 0.99], "TotalCount": [1, 50, 99]})
        assert "aggregates" in refusal(path, **options)


@pytest.mark.parametrize("first", [0, 1])
def test_a_running_number_is_neither_a_time_nor_a_configuration(table, first):
    rows = range(first, first + 2000)
    path = table({"batch": rows, "latency_ms": [1 + place % 7 for place in rows]})
    read = load(path)
    assert read[0].n == 2000 and read.warnings == ()
    assert "counts the rows" in refusal(path, column="batch", unit="us")


def test_a_short_running_number_may_be_a_size_from_1_on(table):
    few = table({"batch": range(1, 65), "latency_ms": range(5, 69)})
    assert "mixes 64 values of batch" in refusal(few) and load(few, one_group=True)[0].n == 64
    assert load(table({"batch": [*range(100)] * 3, "latency_ms": [5, 6, 7] * 100}))[0].n == 300  # none has 0 samples


# Headings

#: Rows as tools write them without a heading; the times are in column 2.
HEADLESS = {
    "text first": ("lstm,0.0012,50,0", "lstm,0.0003,50,1", "lstm,0.0004,50,2"),
    "numbers only": ("7,5.5,1", "7,6.5,2", "7,4.5,3"),
    "equal cells": ("50,50", "50,51", "50,52"),
    "a place as a cell": ("x,2.5,2", "x,3.5,2", "x,4.5,2"),
    "quoted": ('"a","5"', '"a","6"', '"a","7"'),
    "a first time of another kind": ("1e-3,1e-3,nan", "2,2,x", "3,3,y"),
}


@pytest.mark.parametrize("name", HEADLESS)
def test_no_trial_is_lost_where_there_is_no_heading(tmp_path, name):
    rows, path = HEADLESS[name], tmp_path / "t.csv"
    cells = [row.split(",")[1].strip('"') for row in rows]
    for comments in ("", "# a comment\n\n"):
        path.write_text(comments + "\n".join(rows) + "\n")
        assert times_of(path, column="2", unit="s", one_group=True) == [round(float(cell) * 1e9) for cell in cells]
    assert load(path, column="2", unit="s", one_group=True).how["column"] == "column 2"
    assert load(path, rename={"2": "latency_s"}, column="2", one_group=True)[0].n == 3
    for column in (None, *[cells[0]] * (not cells[0].isdecimal())):
        assert "--column" in refusal(path, column=column, unit="s")


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("columns", [1, 3])
def test_headings_that_pandas_writes_are_no_trials(tmp_path, index, columns):
    frame = pd.DataFrame({place: [5.5 + place, 6.5 + place, 7.5 + place] for place in range(columns)})
    path = tmp_path / "t.csv"
    alone = columns == 1 and not index
    frame.to_csv(path, index=index)
    for place in range(columns):
        column = None if alone else str(place)
        assert times_of(path, column=column, unit="us") == (1000 * frame[place]).tolist()
    frame.to_csv(path, index=index, header=False)
    column = None if alone else str(1 + index)
    assert times_of(path, column=column, unit="us") == (1000 * frame[0]).tolist()


def test_a_place_counts_the_columns_of_the_file(tmp_path, table):
    path = tmp_path / "i.csv"
    path.write_text(",first,second\n0,5,50\n1,6,60\n2,7,70\n")  # the index of pandas has no name
    for names in ({}, {"first": ""}):
        assert times_of(path, column="3", unit="us", rename=names) == [50e3, 60e3, 70e3]
    for column in ("0", "1", "4", "x"):
        assert "no column" in refusal(path, column=column, unit="us")
    assert load(table({"2": [5, 6], "b": [7, 8]}), column="1", unit="us").how["column"] == "column 1"


# In memory


TIMES = np.r_[np.arange(200, 300, 0.5), 5000]


def test_a_frame_is_read_as_its_file(tmp_path):
    frame = pd.DataFrame({"model": "a", "latency_us": TIMES}, index=TIMES)
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    assert times_of(frame) == times_of(path) and load(frame).how == load(path).how
    assert verdict(frame, 400, "90")[0].as_dict() == verdict(path, 400, "90")[0].as_dict()
    two = pd.concat([frame, frame.assign(model="b")])
    assert "mixes 2 values of model" in refusal(two)
    assert [group.group for group in load(two, group_by=["model"])] == [{"model": "a"}, {"model": "b"}]
    assert load(np.array([str(path)])[0])[0].n == len(TIMES)  # a text of numpy is a path


@pytest.mark.parametrize(
    "array", [TIMES, TIMES.astype(np.float32), pd.Series(TIMES)], ids=lambda array: str(type(array))
)
def test_an_array_is_a_column_of_times(array):
    assert times_of(array, unit="us") == (1000 * TIMES).tolist()
    assert "--unit" in refusal(array)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (np.ones((2, 3)), "2 dimensions"),
        (np.array(["a", "b"]), "not a number"),
        (pd.DataFrame({"a": [1, 2], "b": [3, 4]}), "column"),
    ],
)
def test_what_is_no_column_of_times_is_refused(data, expected):
    assert expected in refusal(data, unit="us")


# Several tables, compressed ones, arrays, and standard input


@pytest.fixture
def tables(tmp_path):
    """Two tables in a folder, beside a file and a hidden one that are not read; the second begins at 101 us."""
    for name, start in (("a", 1), ("b", 101)):
        put(tmp_path / f"{name}.csv", {"hidden": [8, 16] * 10, "latency_us": range(start, start + 20)})
    for name in ("notes.md", ".hidden.csv"):
        (tmp_path / name).write_text("not read")
    return tmp_path


def firsts(runs) -> list:
    """The fields of each group, and the first latency in us of each of its rounds."""
    return [(group.group, [round_.latency_ns[0] / 1e3 for round_ in group.rounds]) for group in runs]


EACH = [({"file": "a"}, [1]), ({"file": "b"}, [101])]


def test_columns_or_an_option_say_what_is_a_group_of_several_tables(tables):
    files = [tables / "a.csv", tables / "b.csv"]
    assert "mixes 2 values of hidden" in refusal(files)
    assert firsts(load(files, group_by=["file"], one_group=True)) == EACH
    by_hidden = load([*files, files[0]], group_by=["hidden"])  # a file that is given twice is read once
    assert firsts(by_hidden) == [({"hidden": 8}, [1, 101]), ({"hidden": 16}, [2, 102])]
    whole = load(tables, one_group=True)
    assert firsts(whole) == [({}, [1, 101])] and not whole.grouped
    assert [round_.round for round_ in whole[0].rounds] == [0, 1]
    assert firsts(load(tables, group_by=["file", "hidden"])) == [
        ({"file": file, "hidden": hidden}, [start])
        for file, hidden, start in (("a", 8, 1), ("a", 16, 2), ("b", 8, 101), ("b", 16, 102))
    ]


def test_each_of_several_tables_is_a_group(tables):
    files = [tables / "a.csv", tables / "b.csv"]
    for path in files:
        path.write_text(path.read_text().replace("hidden", "trial_of_day"))
    runs = load(tables)
    assert firsts(runs) == firsts(load(files)) == EACH
    assert [group.name for group in runs] == ["a", "b"] and runs.grouped and "notes.md" in runs.warnings[0]
    assert firsts(runs.where(file="b")) == EACH[1:]
    for single in ([files[0]], str(files[0])):  # a single file is not grouped
        assert firsts(load(single)) == [({}, [1])]


def test_names_of_tables_are_distinct(tmp_path):
    columns = {"latency_us": [1, 2]}
    x, y = tmp_path / "x", tmp_path / "y"
    for folder in (x, y):
        folder.mkdir()
        put(folder / "times.csv", columns)
    (x / "times.txt.gz").write_bytes(gzip.compress(b"# latency_us\n1\n2\n"))
    for paths, names in (
        ([x / "times.csv", put(tmp_path / "b.csv", columns)], ["times", "b"]),
        ([x], [str(x / "times.csv"), str(x / "times.txt.gz")]),
        ([x / "times.csv", y / "times.csv"], [str(x / "times.csv"), str(y / "times.csv")]),
    ):
        assert [group.group["file"] for group in load(paths)] == names


def test_recordings_and_tables_are_not_read_together(tmp_path, table):
    folders = [tmp_path / "rec", tmp_path / "again"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        files.write(planted(8, round=number), folder)
    path = table({"latency_us": [5, 6]})
    message = refusal([folders[0], path])
    assert str(path) in message and str(folders[0]) in message
    assert "remove --drop-missing" in refusal(folders[0], drop_missing=True)
    assert "no path" in refusal([])
    runs = load(folders)
    assert [len(group.rounds) for group in runs] == [2] and "pooled" in runs.warnings[0]
    path.rename(folders[0] / "summary.csv")  # recordings beside a table are read as before
    assert load(folders[0]).own


TEXTS = {
    ".csv": b"trial,latency_us\n0,5\n1,6.5\n",
    ".txt": b"# latency_us\n5\n6.5\n",
    ".json": b'[{"latency_us": 5}, {"latency_us": 6.5}]',
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("suffix", TEXTS)
def test_compressed_text_and_standard_input_are_read_as_the_file(tmp_path, monkeypatch, suffix, pack):
    content = pack(TEXTS[suffix])
    path = tmp_path / f"t{suffix}{'.gz' * (pack is gzip.compress)}"
    path.write_bytes(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    runs = load("-")
    assert times_of(path) == runs[0].rounds[0].latency_ns.tolist() == [5000, 6500]
    assert runs.source == "standard input"


ARRAYS = {
    "numbers": (np.array([5.0, 6.5]), {"unit": "us"}),
    "single precision": (np.array([5, 6.5], np.float32), {"unit": "us"}),
    "other byte order": (np.array([5000, 6500], ">i8"), {"unit": "ns"}),
    "durations": (np.array([5000, 6500], "m8[ns]"), {}),
    "columns": (np.array([(0, 5.0), (1, 6.5)], [("trial", "i4"), ("latency_us", "f8")]), {}),
}


def test_a_column_of_hexadecimal_names_is_text(table):
    path = table({"address": ["0xff", "0xfe"] * 2, "latency_us": [5, 6, 7, 8]})
    assert load(path, group_by=["address"])[0].group == {"address": "0xff"}
    assert load(path, one_group=True)[0].n == 4


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_numpy(tmp_path, name):
    array, options = ARRAYS[name]
    path = tmp_path / "t.npy"
    np.save(path, array)
    assert times_of(path, **options) == [5000, 6500]
    assert "--unit" in refusal(path) if options else load(path)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.ones((5, 3)), "2 dimensions"),
        (np.float64(5), "0 dimensions"),
        (np.array([]), "no rows"),
        (np.array([5, None], object), "not a valid .npy"),
        (np.array(["5 us", "6 us"], "S4"), "not a column of numbers"),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tmp_path, array, expected):
    np.save(tmp_path / "t.npy", array)
    assert expected in refusal(tmp_path / "t.npy", unit="us")


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


NPY, GZ = saved(np.ones(100)), gzip.compress(b"latency_us\n" + b"5\n" * 2000, mtime=0)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (NPY[:-8], "not a valid .npy"),
        (NPY.replace(b"(100,)", b"(9**99,)", 1), "not a valid .npy"),
        (b"\x93NUMPY", "not a valid .npy"),
        (GZ[:-9], "not a valid gzip file"),
        (GZ[:20] + b"\0" + GZ[21:], "not a valid gzip file"),
        (b"\x1f\x8b", "not a valid gzip file"),
    ],
)
def test_files_that_end_early_or_are_damaged_are_refused_in_one_line(tmp_path, content, expected):
    path = tmp_path / ("t.npy" if "npy" in expected else "t.csv.gz")
    path.write_bytes(content)
    assert expected in refusal(path, unit="us")


def test_too_large_files_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("lstm_judge.read.tables.LARGEST_BYTES", 4000)
    (tmp_path / "t.csv.gz").write_bytes(GZ)
    assert "more than 4.00 kB" in refusal(tmp_path / "t.csv.gz")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"5\n" * 2001)))
    assert "standard input holds more than 4.00 kB" in refusal("-", unit="us")


# Missing times


def test_rows_without_a_time_are_dropped_only_on_request_and_counted(tmp_path, table):
    starts, times = [*range(0, 60, 10), "", 70], [5, "", 6, "NaN", 7, 8, "-", 9]
    path = table({"trial": range(8), "start_us": starts, "latency_us": times})
    assert "3 blank or NaN" in refusal(path) and "--drop-missing" in refusal(path)
    round_ = only_round(path, drop_missing=True)
    assert round_.latency_ns.tolist() == [5000, 6000, 7000, 8000, 9000]
    assert round_.start_ns.tolist() == [0, 20_000, 40_000, 50_000, 70_000]
    (warning,) = load(path, drop_missing=True).warnings
    assert "3 of 8 rows have no time" in warning
    assert load(table({"latency_us": [5, 6]}), drop_missing=True).warnings == ()
    pq.write_table(pa.table({"latency_us": [5.0, None, 6.0]}), tmp_path / "t.parquet")
    assert times_of(tmp_path / "t.parquet", drop_missing=True) == [5000, 6000]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([5, "", -1, 6], "1 negative, the first in line 4"),
        ([5, "", "inf", 6], "1 infinite"),
        ([5, "", "x", 6], "line 4"),
        ([5, "", "", "", 6], "3 of 5 rows have no time"),
    ],
)
def test_what_is_no_time_and_most_rows_are_not_dropped(table, times, message):
    assert message in refusal(table({"trial": range(len(times)), "latency_us": times}), drop_missing=True)


def test_a_configuration_with_too_few_times_has_a_failure(table):
    """Calls that failed would leave only the fast ones."""
    path = table({"hidden": [8, 16, 32] * 4, "latency_us": [5, "", 6] * 3 + [5, 9, ""]})
    runs = load(path, group_by=["hidden"], drop_missing=True)
    few = "3 of 4 rows have no time, too many to drop"
    assert [(group.n, group.failure and str(group.failure)) for group in runs] == [(4, None), (0, few), (3, None)]


def failed(version: str, threads: int = 1, protocol: Protocol | None = None) -> schema.Failure:
    options = Options(threads=threads, device="cpu")
    configuration = Configuration(
        LstmShape(1, 8, 4), "onnxruntime", version, "a processor", options, protocol or Protocol()
    )
    return schema.Failure(configuration, 0, "run", "planted")


@pytest.mark.parametrize("version", ["1.9.0", "1.10.0", "1.31.1", "1.32.0"])
def test_groups_are_in_the_order_of_their_configurations_and_not_of_their_identities(version):
    """An identity is a hash of the configuration with the version of the runtime: each gives it another order."""
    protocols = [Protocol(), *(Protocol(arrival="periodic", period_us=period) for period in (90.0, 1000.0))]
    kinds = [(threads, protocol) for threads in (1, 2, 10) for protocol in protocols]
    groups = groups_of([failed(version, *kind) for kind in reversed(kinds)])
    assert [(each.configuration.options.threads, each.configuration.protocol) for each in groups] == kinds


def test_versions_are_in_the_order_of_their_numbers():
    groups = groups_of([failed(version) for version in ("1.31.1", "1.9.0", "1.10.0")])
    assert [each.configuration.runtime_version for each in groups] == ["1.9.0", "1.10.0", "1.31.1"]


def test_names_of_an_array_that_are_not_unicode_are_refused(tmp_path):
    """numpy writes and reads such names, which no table of Arrow can have."""
    array = np.zeros(3, dtype=[("latency_us", "f8"), ("a\ud800", "f8")])
    np.save(tmp_path / "a.npy", array)
    for source in (array, tmp_path / "a.npy"):
        with pytest.raises(UsageError, match="surrogates"):
            load(source)
