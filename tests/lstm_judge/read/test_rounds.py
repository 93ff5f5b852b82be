"""Reading latencies from tables and recordings: nothing is guessed, and invalid content is refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lstm_judge.read.rounds import groups_of
from lstm_judge.read.runs import load
from lstm_judge.read.tables import read_table, split_unit, time_column
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import LabError, StoreError, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import consolidated, files, folders, schema
from tests.lstm_trt.store.test_store import planted


def put(path, columns: dict, separator: str = ","):
    """A CSV file; cells as they are printed."""
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def only_sample(path, **options):
    """The only sample of a file."""
    (group,) = load(path, **options).groups
    (round_,) = group.rounds
    return round_


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
def test_the_column_of_times_is_the_one_that_needs_no_guess(tmp_path, names, found):
    table = read_table(put(tmp_path / "t.csv", {name: [1, 2] for name in names}))
    assert time_column(table, None, None) == (*found, [])


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
def test_the_option_is_named_instead_of_guessing(tmp_path, names):
    path = put(tmp_path / "t.csv", {name: [1, 2] for name in names})
    for options in ({}, {"unit": "us"}):
        message = refusal(path, **options)
        assert "--column" in message and all(name in message for name in names)
    assert load(path, column=names[1], unit="ns").how == {"column": names[1], "unit": "ns"}


def test_a_unit_that_is_not_stated_is_required(tmp_path):
    (tmp_path / "plain.txt").write_text("500\n501\n")
    (tmp_path / "plain.json").write_text("[500, 501]")
    paths = [
        put(tmp_path / "a.csv", {"latency": [5, 6]}),
        put(tmp_path / "b.csv", {"trial": [1, 2], "latency": [5, 6]}),
    ]
    for path in (*paths, put(tmp_path / "c.csv", {"took": [5, 6]}), tmp_path / "plain.txt", tmp_path / "plain.json"):
        assert "--unit" in refusal(path)
        assert load(path, unit="ms")[0].rounds[0].latency_ns[0] in (5e6, 500e6)


def test_columns_are_renamed_before_they_are_read(tmp_path):
    columns = {"Size": [8, 16, 8, 16], "elapsed": [5, 6, 7, 8], "stamp_us": [0, 10, 20, 30], "other_us": [1, 2, 3, 4]}
    path = put(tmp_path / "t.csv", columns)
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
def test_decimals_become_whole_nanoseconds(tmp_path, unit, digits, in_ns):
    """1.1 ms is exactly 1100 us, whatever the unit in the file."""
    whole = np.arange(1, 20_000, 7)
    path = put(tmp_path / "t.csv", {f"latency_{unit}": [f"{value / 10**digits:.{digits}f}" for value in whole]})
    assert (only_sample(path).latency_ns == whole * in_ns).all()


def test_without_rounding_some_would_be_off():
    """The previous test can fail: plain multiplication gives other values."""
    values = np.arange(1, 20_000, 7)
    assert (np.array([float(f"{value / 1000:.3f}") for value in values]) * 1e6 != values * 1000.0).any()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.decimal128(12, 6)])
def test_single_precision_is_read_as_the_decimal_it_was(tmp_path, kind):
    import decimal

    values = [decimal.Decimal(k) / 1000 for k in range(900, 1200)]
    column = pa.array(values if pa.types.is_decimal(kind) else [float(value) for value in values], kind)
    pq.write_table(pa.table({"latency_ms": column}), tmp_path / "t.parquet")
    assert (only_sample(tmp_path / "t.parquet").latency_ns == np.arange(900, 1200) * 1000).all()


def test_durations_state_their_unit(tmp_path):
    pq.write_table(pa.table({"took": pa.array([5, 6, 7], pa.duration("ms"))}), tmp_path / "t.parquet")
    read = load(tmp_path / "t.parquet")
    assert read.groups[0].rounds[0].latency_ns.tolist() == [5e6, 6e6, 7e6] and read.how["unit"] == "ms"
    assert "the unit ms" in load(tmp_path / "t.parquet", unit="us").warnings[0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_of_text_and_of_numbers_hold_the_same_times(tmp_path, separator):
    random = np.random.default_rng(2)
    values = [f"{value:.3f}" for value in random.lognormal(7, 0.5, 500)]
    others = {"trial": range(500), "label": random.permutation(500), "load": [f"{v:.2f}" for v in random.random(500)]}
    numbers = put(tmp_path / "numbers.csv", {**others, "latency_us": values}, separator)
    padded = put(tmp_path / "text.csv", {**others, "latency_us": [f'" {value} "' for value in values]}, separator)
    assert (only_sample(numbers).latency_ns == only_sample(padded).latency_ns).all()
    assert (only_sample(numbers).latency_ns == [round(float(value) * 1000) for value in values]).all()


@pytest.mark.parametrize("blank", ["", "  ", "NaN", "NA", "n/a", "null", "-"])
def test_blank_cells(tmp_path, blank):
    table = read_table(put(tmp_path / "t.csv", {"trial": [1, 2, 3], "time_us": [" 12.5 ", blank, "2e-3"]}))
    np.testing.assert_array_equal(table.numbers("time_us"), [12.5, np.nan, 0.002])


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
def test_an_invalid_number_is_refused_with_its_line(tmp_path, cell):
    path = put(tmp_path / "t.csv", {"trial": [1, 2], "latency_us": [5, f'"{cell}"']})
    assert f"line 3: latency_us is {cell!r}, not a number" in refusal(path)


def test_a_pipe_is_read_and_one_with_a_name_is_refused(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    assert "named pipe" in refusal(tmp_path / "t.csv")
    read, write = os.pipe()
    os.write(write, b"latency_us\n5\n6\n")
    os.close(write)
    assert only_sample(f"/dev/fd/{read}").n == 2
    os.close(read)


def test_blank_rows_of_a_spreadsheet_are_no_trials(tmp_path):
    path = tmp_path / "t.csv"
    for end in (",\n", ",\r\n,\r\n", "\n\n , \n", ","):
        path.write_text(f"trial,latency_us\n1,5\n2,6\n{end}")
        assert only_sample(path).latency_ns.tolist() == [5000, 6000], end
    path.write_text("trial,latency_us\n1,5\n,\n2,6\n3,x")
    assert "line 5: latency_us is 'x'" in refusal(path)
    path.write_text("trial,latency_us,note\n1,5,\n2,6,\n")
    assert only_sample(path).latency_ns.tolist() == [5000, 6000]


# Kinds of files


def test_one_number_a_line(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("# from a logger\n\n500\n501.5  # late\n499.25\n\n# end\n")
    read = load(path, unit="ms")
    assert read.how == {"unit": "ms"} and not read.grouped
    assert read.groups[0].rounds[0].latency_ns.tolist() == [500e6, 501.5e6, 499.25e6] and read.warnings == ()


def test_the_header_of_savetxt_states_the_unit(tmp_path):
    np.savetxt(tmp_path / "t.txt", [1.5, 2.5], header="latency_ms")
    assert only_sample(tmp_path / "t.txt").latency_ns.tolist() == [1.5e6, 2.5e6]
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
    rows = [
        {
            **{name: 0.5 * place + 0.01 * k for k, name in enumerate(names)},
            "computeMs": 0.3,
            "latencyMs": 0.4 + place / 1000,
        }
        for place in range(50)
    ]
    (tmp_path / "times.json").write_text(json.dumps(rows))
    read = load(tmp_path / "times.json")
    (round_,) = read.groups[0].rounds
    assert read.how == {"column": "latencyMs", "unit": "ms"} and read.warnings == ()
    assert round_.latency_ns.tolist() == [400_000 + 1000 * place for place in range(50)]
    assert round_.start_ns.tolist() == [500_000 * place for place in range(50)]
    assert only_sample(tmp_path / "times.json", column="computeMs").latency_ns.tolist() == [300_000] * 50


def test_other_json(tmp_path):
    (tmp_path / "a.json").write_text('{"latency_us": [5, 6.5], "tool": "x"}')
    (tmp_path / "b.json").write_text("[5000, 6500]")
    (tmp_path / "c.jsonl").write_text('{"latency_us": 5}\n{"latency_us": 6.5}\n')
    assert only_sample(tmp_path / "b.json", unit="ns").latency_ns.tolist() == [5000, 6500]
    for name in ("a.json", "c.jsonl"):
        assert only_sample(tmp_path / name).latency_ns.tolist() == [5000, 6500]


def test_a_table_of_pandas_with_categories_and_an_index(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"latency_us": [5.0, 6.0, 7.0, 8.0], "model": pd.Categorical(["b", "a", "b", "a"])})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        read = load(tmp_path / name, group_by=["model"])
        assert [(group.group, group.rounds[0].latency_ns.tolist()) for group in read.groups] == [
            ({"model": "b"}, [5000, 7000]),
            ({"model": "a"}, [6000, 8000]),
        ]


# Other columns


def test_starts_warm_up_rounds_and_counts_are_taken_by_name(tmp_path):
    rows = 60
    columns = {
        "round": [place % 3 for place in range(rows)],
        "trial": [place // 3 for place in range(rows)],
        "warmup": [str(place < 6).lower() for place in range(rows)],
        "start_us": [100 * place for place in range(rows)],
        "latency_us": [10 + place for place in range(rows)],
        "minor_faults": [place % 2 for place in range(rows)],
        "spikes": [int(place == 50) for place in range(rows)],
    }
    path = put(tmp_path / "t.csv", columns)
    (group,) = load(path).groups
    assert [round_.round for round_ in group.rounds] == [0, 1, 2] and group.n == 54
    for place, round_ in enumerate(group.rounds):
        places = np.arange(place, rows, 3)
        assert (round_.latency_ns == 1000 * (10 + places)).all()
        assert (round_.start_ns == 100_000 * places).all()
        assert (round_.warmup == (places < 6)).all()
        assert (round_.causes["minor_faults"] == places % 2).all() and list(round_.causes) == ["minor_faults"]
    (group,) = load(path, causes=["spikes"]).groups
    assert [round_.causes["spikes"].sum() for round_ in group.rounds] == [0, 0, 1]
    assert "not a column of counts" in refusal(put(path, {"latency_us": [1, 2], "load": [0.5, 1]}), causes=["load"])


def test_rows_are_put_in_the_order_of_the_trials(tmp_path, rng):
    order = rng.permutation(100)
    read = load(put(tmp_path / "t.csv", {"trial": order, "start_us": 1000 * order, "latency_us": order + 1}))
    assert (read.groups[0].rounds[0].latency_ns == 1000 * np.arange(1, 101)).all()
    assert (read.groups[0].rounds[0].start_ns[1:] > read.groups[0].rounds[0].start_ns[:-1]).all()
    assert len(read.warnings) == 1 and "sorted by trial" in read.warnings[0]


def test_starts_keep_their_precision(tmp_path):
    """Nanoseconds since 1970 are above 2**53."""
    starts = 1_700_000_000_000_000_000 + 1001 * np.arange(100)
    round_ = only_sample(put(tmp_path / "t.csv", {"start_ns": starts, "latency_us": np.arange(1, 101)}))
    assert (round_.start_ns == 1001 * np.arange(100)).all()


@pytest.mark.parametrize("starts", [[3, 2, 1], [1, 1, 2]])
def test_starts_that_do_not_ascend_are_not_used(tmp_path, starts):
    read = load(put(tmp_path / "t.csv", {"start_us": starts, "latency_us": [5, 6, 7]}))
    assert read.groups[0].rounds[0].start_ns is None and "start_us" in read.warnings[0]


def test_a_clock_without_unit_is_no_start(tmp_path):
    assert only_sample(put(tmp_path / "t.csv", {"start": [1, 2, 3], "latency_us": [5, 6, 7]})).start_ns is None


@pytest.mark.parametrize(("true", "false"), [("true", "false"), ("True", "False"), (1, 0), ("yes", "no")])
def test_warm_up_in_all_spellings(tmp_path, true, false):
    path = put(tmp_path / "t.csv", {"warm-up": [true] * 2 + [false] * 3, "latency_us": [9, 8, 5, 6, 7]})
    assert only_sample(path).warmup.tolist() == [True, True, False, False, False]


# Groups


def test_groups_have_the_values_of_the_table_in_the_order_of_the_rows(tmp_path):
    columns = {
        "hidden": [128, 64, 128, 64, 64, 128],
        "scale": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        "graph": ["true", "false"] * 3,
        "runtime": ["ort ", "trt"] * 3,
        "latency_us": [1, 2, 3, 4, 5, 6],
    }
    columns["graph"] = ["true", "false", "true", "false", "false", "true"]
    columns["runtime"] = ["ort", "trt", "ort", "trt", "trt", "ort"]
    read = load(put(tmp_path / "t.csv", columns), group_by=["hidden", "scale", "graph", "runtime"])
    assert read.grouped and [group.group for group in read.groups] == [
        {"hidden": 128, "scale": 0.5, "graph": True, "runtime": "ort"},
        {"hidden": 64, "scale": 0.5, "graph": False, "runtime": "trt"},
    ]
    assert type(read.groups[0].group["hidden"]) is int and type(read.groups[0].group["graph"]) is bool
    assert [group.rounds[0].latency_ns.tolist() for group in read.groups] == [[1000, 3000, 6000], [2000, 4000, 5000]]
    assert json.loads(json.dumps(read.groups[0].group)) == read.groups[0].group


def test_every_row_is_in_one_group(tmp_path, rng):
    a, b = rng.integers(0, 5, 2000), rng.integers(0, 7, 2000)
    times = rng.permutation(2000) + 1
    read = load(put(tmp_path / "t.csv", {"layers": a, "hidden": b, "latency_ns": times}), group_by=("layers", "hidden"))
    assert len(read.groups) == len(set(zip(a.tolist(), b.tolist(), strict=True)))
    for group in read.groups:
        rows = (a == group.group["layers"]) & (b == group.group["hidden"])
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
def test_configurations_that_are_mixed_are_refused(tmp_path, columns):
    path = put(tmp_path / "t.csv", {**columns, "latency_us": range(1, 201)})
    name = next(iter(columns))
    message = refusal(path)
    assert f"2 values of {name}" in message and "--group-by" in message and "--one-group" in message
    assert len(load(path, group_by=[name]).groups) == 2
    assert load(path, one_group=True).groups[0].n == 200


@pytest.mark.parametrize("columns", OF_TRIALS, ids=lambda columns: next(iter(columns)))
def test_columns_of_trials_are_no_configuration(tmp_path, columns):
    assert load(put(tmp_path / "t.csv", {**columns, "latency_us": range(1, 201)})).groups[0].n == 200


def test_a_balanced_column_of_unknown_name_gives_a_warning(tmp_path):
    path = put(tmp_path / "t.csv", {"k": [1, 2] * 100, "latency_us": range(1, 201)})
    assert "--group-by k" in load(path).warnings[0]
    path = put(tmp_path / "t.csv", {"hidden": [1, 2] * 100, "layers": [1, 1, 2, 2] * 50, "latency_us": range(1, 201)})
    assert "values of layers within a group" in load(path, group_by=["hidden"]).warnings[0]


# Recordings


def test_recordings_are_distinguished_from_tables(tmp_path):
    files.write(planted(8), tmp_path)
    files.write(planted(8, round=1), tmp_path)
    files.write(planted(16), tmp_path)
    file = next(tmp_path.glob("*-r1.parquet"))
    read = load(file)
    assert read.own and not read.grouped and read.groups[0].group == {} and len(read.groups[0].rounds) == 1
    read = load(tmp_path)
    assert read.grouped and [len(group.rounds) for group in read.groups] == [2, 1]
    assert [group.group["hidden"] for group in read.groups] == [8, 16]
    consolidated.consolidate(
        folders.read_many(tmp_path), tmp_path / "pair" if (tmp_path / "pair").mkdir() is None else None
    )
    for path in (
        tmp_path / "pair",
        tmp_path / "pair" / consolidated.TRIALS_FILE,
        tmp_path / "pair" / consolidated.CONFIGS_FILE,
    ):
        again = load(path)
        assert again.grouped and [group.name for group in again.groups] == [group.name for group in read.groups]
        assert (again.groups[0].rounds[0].latency_ns == read.groups[0].rounds[0].latency_ns).all()
    for option in ({"column": "latency_ns"}, {"unit": "us"}, {"group_by": ["hidden"]}, {"causes": ["minor_faults"]}):
        assert "remove --" in refusal(tmp_path, **option) and "remove --" in refusal(file, **option)


def test_what_was_exported_as_csv_is_read_as_it_was_recorded(tmp_path):
    items = [planted(8), planted(8, round=1), planted(16)]
    consolidated.consolidate(items, tmp_path)
    table = pq.read_table(tmp_path / consolidated.TRIALS_FILE).to_pandas()
    table.to_csv(tmp_path / "trials.csv", index=False)
    assert "values of config_id" in refusal(tmp_path / "trials.csv")
    read = load(tmp_path / "trials.csv", group_by=["config_id"])
    for group, own in zip(read.groups, groups_of(items), strict=True):
        assert group.group == {"config_id": own.configuration.id}
        for round_, wanted in zip(group.rounds, own.rounds, strict=True):
            assert round_.round == wanted.round
            assert (round_.latency_ns == wanted.latency_ns).all() and (round_.warmup == wanted.warmup).all()
            assert (np.diff(round_.start_ns) == np.diff(wanted.start_ns)).all()
            assert round_.causes.keys() == wanted.causes.keys()


def test_configurations_of_equal_name_get_distinct_names():
    from dataclasses import replace

    plain = planted(8)
    graph = replace(plain.configuration, options=replace(plain.configuration.options, graph=True))
    other = schema.Recording(graph, 0, plain.columns, plain.provenance)
    names = {group.name for group in groups_of([plain, other])}
    assert names == {"1x8-s4-b1 on onnxruntime, graph False", "1x8-s4-b1 on onnxruntime, graph True"}
    assert [group.name for group in groups_of([plain])] == ["1x8-s4-b1 on onnxruntime"]
    protocol = replace(plain.configuration.protocol, trials=99, arrival="periodic", wait="spin", period_us=1000.0)
    paced = schema.Recording(replace(plain.configuration, protocol=protocol), 0, plain.columns, plain.provenance)
    names = {group.name for group in groups_of([plain, paced])}
    assert names == {"1x8-s4-b1 on onnxruntime, closed", "1x8-s4-b1 on onnxruntime, periodic every 1000 us (spin)"}


# What cannot be read

GOOD = "\n".join(f"{500 + place % 7}.25" for place in range(100))
BAD = {
    "empty": (b"", "is empty"),
    "blanks": (b" \n\n", "is empty"),
    "comments": (b"# a\n# b\n", "no numbers"),
    "header": (b"latency_us\n", "no rows"),
    "one trial": (b"latency_us\n500\n", "has 1 time"),
    "one number": (b"500\n", "has 1 time"),
    "nan": (
        f"latency_us\n{GOOD}\nnan\n5\nNaN\n".encode(),
        "of 103 times in latency_us, 2 blank or NaN, the first in line 102",
    ),
    "blank cell": (f"a,latency_us\n1,5\n2,\n3,{'5'}\n".encode(), "1 blank or NaN, the first in line 3"),
    "infinite": (f"latency_us\ninf\n{GOOD}\n-inf".encode(), "1 infinite, the first in line 2"),
    "negative": (f"latency_us\n{GOOD}\n-5\n0\n".encode(), "1 negative, the first in line 102"),
    "two kinds": (b"latency_us\n5\n-5\nnan\n", "1 blank or NaN, the first in line 4"),
    "negative number": (f"5\n-5\n{GOOD}".encode(), "1 negative, the first in line 2"),
    "nan number": (f"# x\nnan\n{GOOD}".encode(), "1 blank or NaN, the first in line 2"),
    "text cell": (f"latency_us\n{GOOD}\nfailed\n".encode(), "line 102: latency_us is 'failed'"),
    "text number": (f"{GOOD}\n\nfailed\n".encode(), "line 102: the time is 'failed', not a number"),
    "text behind comments": (b"# tool\n# x\n\nlatency_us,b\n5,1\nx,2\n", "line 6: latency_us is 'x'"),
    "decimal comma": (b"trial;latency_us\n1;500,5\n2;501,25\n", "line 2: latency_us is '500,5', not a number"),
    "thousands or not": (b"trial;latency_us\n1;1,500\n2;1,501\n", "line 2: latency_us is '1,500', not a number"),
    "hexadecimal": (b"trial,latency_us\n1,0x64\n2,0x65\n", "line 2: latency_us is '0x64', not a number"),
    "some hexadecimal": (b"latency_us\n5\n0x64\n", "line 3: latency_us is '0x64', not a number"),
    "separated": (b"5\n1_100\n", "line 2: the time is '1_100', not a number"),
    "other digits": ("5\n\u0661\u0662\n".encode(), "line 2: the time is '\u0661\u0662', not a number"),
    "no times": (b"a,b\n1,2\n3,4\n", "--column"),
    "no numbers": (b"a,b\nx,y\nz,w\n", "--column"),
    "open quote": (b'latency_us,k\n1,"x\n3,4\n5,6\n', "a quote is not closed"),
    "twice": (b"latency_us,latency_us\n1,2\n3,4\n", "2 columns named latency_us"),
    "two units": (b"latency_us,latency_ms\n1,2\n3,4\n", "latency_us, latency_ms"),
    "no header": (b"1,2\n3,4\n", "no heading, it starts with '1, 2': use --column with the place"),
    "spaces": (b"trial latency_us\n1 500\n2 501\n", "line 2: trial latency_us is '1 500', not a number"),
    "wide row": (b"latency_us\n1\n2,3\n", "line 3: 2 cells in a table with 1 column"),
    "all warm-up": (b"warmup,latency_us\n1,5\n1,6\n", "no times after warm-up"),
    "one timed": (b"warmup,latency_us\n1,5\n0,6\n", "1 time after warm-up"),
    "zeros": (b"\0" * 100, "not a UTF-8 text"),
    "latin-1": ("Latency (µs)\n5\n6\n".encode("latin-1"), "not a UTF-8 text"),
    "huge cell": (b"latency_us\n" + b"9" * 300_000 + b"\n5\n", "1 infinite, the first in line 2"),
    "huge number": (b"5\n" + b"9" * 300_000 + b"\n", "1 infinite, the first in line 2"),
    "huge header": (b"x" * 300_000 + b"\n5\n6\n", "xxxx..."),
    "out of range": (b"latency_s\n1e308\n5\n", "out of range"),
    "too small": (b"latency_ns\n1e-9\n5\n", "out of range"),
}


#: Cases with a unit in the column's name, read without --unit.
STATED = ("out of range", "too small", "two units", "huge header")


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("suffix", [".csv", ".txt", ""])
def test_bad_text_is_refused_in_one_line(tmp_path, name, suffix):
    content, expected = BAD[name]
    path = tmp_path / f"times{suffix}"
    path.write_bytes(content)
    message = refusal(path, unit=None if name in STATED else "us")
    assert expected in message and message.startswith(str(path)), message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "not a list of objects"),
        ("{}", "not a list of objects"),
        ("3", "not a list of objects"),
        ("[{", "is not JSON"),
        ('[{"latencyMs": "x"}, {"latencyMs": 1}]', "row 1: latencyMs is 'x'"),
        ('[{"latencyMs": 1}, 3]', "row 2: '3' is not an object"),
        ('[{"latencyMs": NaN}, {"latencyMs": 1}]', "1 blank or NaN, the first in row 1"),
        ('[{"latencyMs": 1}, {"latencyMs": 1}, {"a": 1}]', "1 blank or NaN, the first in row 3"),
        ('[{"computeMs": 1, "latencyMs": 1}]', "has 1 time"),
        ("[5, [6]]", "row 2: the time is '[6]', not a number"),
        ("[" * 100_000, "is not JSON"),
        ('{"a\\ud800": [1, 2], "latencyMs": [1, 2]}', "has a text that is not Unicode"),
        ('{"name": ["\\udcff", "b"], "latencyMs": [1, 2]}', "has a text that is not Unicode"),
        ('{"results": [{"stats": [1, 2]}]}', "has no single times"),
        ('{"results": [{"times": 5}]}', "has no single times"),
    ],
)
def test_bad_json_is_refused_in_one_line(tmp_path, text, expected):
    (tmp_path / "t.json").write_text(text)
    assert expected in refusal(tmp_path / "t.json", unit="ms")


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


def test_bad_options_are_refused_in_one_line(tmp_path):
    path = put(tmp_path / "t.csv", {"layers": [1, 1, 1], "hidden": [32, 64, 64], "latency_us": [5, 6, 7]})
    assert "no column 'hiden'; its columns are layers, hidden, latency_us" in refusal(path, group_by=["hiden"])
    assert "no column 'latency'" in refusal(path, column="latency")
    assert "holds the times" in refusal(path, group_by=["latency_us"])
    assert "hidden=32 has 1 time" in refusal(path, group_by=["hidden", "Hidden"])
    assert "unknown unit" in refusal(path, unit="parsec")
    assert "no column 'x'" in refusal(path, causes=["x"], one_group=True)
    (tmp_path / "t.txt").write_text("5\n6\n")
    for options in ({"column": "x"}, {"group_by": ["x"]}, {"causes": ["x"]}):
        assert "without column names" in refusal(tmp_path / "t.txt", unit="us", **options)
    with pytest.raises(UsageError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(StoreError, match="contains no recordings"):
        load(tmp_path / "nothing")
    wide = put(tmp_path / "wide.csv", {f"column{place}": [1, 2] for place in range(500)})
    assert "and 480 more" in refusal(wide)


@pytest.mark.parametrize(("unit", "absurd"), [("ns", True), ("us", False), ("ms", False), ("s", True)])
def test_a_median_that_suggests_a_wrong_unit_gives_a_warning(tmp_path, unit, absurd):
    read = load(put(tmp_path / "t.csv", {"t": [500, 501, 502]}), unit=unit)
    assert any("right unit" in warning for warning in read.warnings) == absurd


def test_a_unit_that_contradicts_the_name_gives_a_warning(tmp_path):
    path = put(tmp_path / "t.csv", {"latency_us": [5, 6, 7]})
    read = load(path, unit="ms")
    assert read.how["unit"] == "ms" and "the unit us" in read.warnings[0]
    assert load(path, unit="us").warnings == ()


#: Columns of aggregates, as tools and people name them; some state a unit, others need --column.
AGGREGATES = ("Average time (s)", "p50 latency", "p99_us", "latencyP99Ms", "MeanUs", "max latency", "median_ms", "avg")


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_are_no_trials(tmp_path, name):
    path = put(tmp_path / "t.csv", {"concurrency": [1, 2, 4], name: [0.005, 0.006, 0.007]})
    assert "aggregates" in refusal(path)
    assert "aggregates" in refusal(path, column=name, unit="us") and "aggregates" in refusal(path, column="2", unit="s")


@pytest.mark.parametrize("by", ["Percentile", "quantile", "iterations"])
def test_rows_of_a_distribution_are_no_trials(tmp_path, by):
    path = put(tmp_path / "t.csv", {"Value": [181.1, 205.4, 300.5], by: [0, 0.5, 0.99], "TotalCount": [1, 50, 99]})
    assert "aggregates" in refusal(path, column="Value", unit="us")
    path = put(tmp_path / "t.csv", {"latency_us": [181.1, 205.4, 300.5], by: [0, 0.5, 0.99]})
    assert "aggregates" in refusal(path)


@pytest.mark.parametrize("first", [0, 1])
def test_a_running_number_is_neither_a_time_nor_a_configuration(tmp_path, first):
    rows = range(first, first + 2000)
    path = put(tmp_path / "t.csv", {"batch": rows, "latency_ms": [1 + place % 7 for place in rows]})
    assert load(path)[0].n == 2000 and load(path).warnings == ()
    assert "counts the rows" in refusal(path, column="batch", unit="us")
    few = put(tmp_path / "few.csv", {"batch": range(1, 65), "latency_ms": range(5, 69)})  # may be a size
    assert "mixes 64 values of batch" in refusal(few) and load(few, one_group=True)[0].n == 64
    again = put(tmp_path / "again.csv", {"batch": [*range(100)] * 3, "latency_ms": [5, 6, 7] * 100})
    assert load(again)[0].n == 300  # no batch has 0 samples


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
    rows = HEADLESS[name]
    path = tmp_path / "t.csv"
    for comments in ("", "# a comment\n\n"):
        path.write_text(comments + "\n".join(rows) + "\n")
        wanted = [round(float(row.split(",")[1].strip('"')) * 1e9) for row in rows]
        read = load(path, column="2", unit="s", one_group=True)
        assert read[0].rounds[0].latency_ns.tolist() == wanted and read.how["column"] == "column 2"
    assert load(path, rename={"2": "latency_s"}, column="2", one_group=True)[0].n == 3
    assert "--column" in refusal(path, unit="s")
    cell = rows[0].split(",")[1].strip('"')
    if not cell.isdecimal():
        assert "--column" in refusal(path, column=cell, unit="s")


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("columns", [1, 3])
def test_headings_that_pandas_writes_are_no_trials(tmp_path, index, columns):
    import pandas as pd

    times = np.array([5.5, 6.5, 7.5, 8.5])
    frame = pd.DataFrame(np.column_stack([times + place for place in range(columns)]))
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=index)
    for place in range(columns):
        column = {} if columns == 1 and not index else {"column": str(place)}
        round_ = only_sample(path, **column, unit="us")
        assert round_.latency_ns.tolist() == (1000 * (times + place)).tolist()
    frame.to_csv(path, index=index, header=False)
    column = {} if columns == 1 and not index else {"column": str(1 + index)}
    assert only_sample(path, **column, unit="us").latency_ns.tolist() == (1000 * times).tolist()


def test_a_place_counts_the_columns_of_the_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",first,second\n0,5,50\n1,6,60\n2,7,70\n")  # the index of pandas has no name
    assert only_sample(path, column="3", unit="us").latency_ns.tolist() == [50e3, 60e3, 70e3]
    assert only_sample(path, column="3", unit="us", rename={"first": ""}).latency_ns.tolist() == [50e3, 60e3, 70e3]
    for column in ("0", "1", "4", "x"):
        assert "no column" in refusal(path, column=column, unit="us")
    assert load(put(path, {"2": [5, 6], "b": [7, 8]}), column="1", unit="us").how["column"] == "column 1"


# In memory


def test_a_frame_and_an_array_are_read_as_their_files(tmp_path):
    import pandas as pd

    from lstm_judge.verdict.verdict import verdict

    times = np.r_[np.arange(200, 300, 0.5), 5000]
    frame = pd.DataFrame({"model": ["a"] * len(times), "latency_us": times}, index=times)
    frame.to_csv(tmp_path / "t.csv", index=False)
    file, own = load(tmp_path / "t.csv"), load(frame)
    assert (own[0].rounds[0].latency_ns == file[0].rounds[0].latency_ns).all() and own.how == file.how
    assert verdict(frame, 400, "90")[0].as_dict() == verdict(tmp_path / "t.csv", 400, "90")[0].as_dict()
    two = pd.concat([frame, frame.assign(model="b")])
    assert "mixes 2 values of model" in refusal(two)
    assert [group.group for group in load(two, group_by=["model"])] == [{"model": "a"}, {"model": "b"}]
    for array in (times, times.astype(np.float32), pd.Series(times), times[:, None][:, 0]):
        assert (load(array, unit="us")[0].rounds[0].latency_ns == 1000 * times).all()
    assert "--unit" in refusal(times) and "2 dimensions" in refusal(np.ones((2, 3)), unit="us")
    assert "not a number" in refusal(np.array(["a", "b"]), unit="us")
    assert "column" in refusal(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    assert load(np.array([str(tmp_path / "t.csv")])[0])[0].n == len(times)


# Several tables, compressed ones, arrays, and standard input


def test_each_of_several_tables_is_a_group_unless_columns_or_an_option_say_otherwise(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, start in (("a", 1), ("b", 101)):
        put(folder / f"{name}.csv", {"hidden": [8, 16] * 10, "latency_us": range(start, start + 20)})
    (folder / "notes.md").write_text("not a table")
    (folder / ".hidden.csv").write_text("not read")
    files = [folder / "a.csv", folder / "b.csv"]

    def found(source, **options):
        runs = load(source, **options)
        return [(group.group, [round_.latency_ns[0] / 1e3 for round_ in group.rounds]) for group in runs]

    each = [({"file": "a"}, [1]), ({"file": "b"}, [101])]
    assert "mixes 2 values of hidden" in refusal(files)
    assert found(files, group_by=["file"], one_group=True) == each
    assert found([*files, files[0]], group_by=["hidden"]) == [({"hidden": 8}, [1, 101]), ({"hidden": 16}, [2, 102])]
    assert found(folder, one_group=True) == [({}, [1, 101])] and not load(folder, one_group=True).grouped
    both = found(folder, group_by=["file", "hidden"])
    assert both[:2] == [({"file": "a", "hidden": 8}, [1]), ({"file": "a", "hidden": 16}, [2])] and len(both) == 4
    for path in files:
        path.write_text(path.read_text().replace("hidden", "trial_of_day"))
    runs = load(folder)
    assert found(folder) == found(files) == each and [group.name for group in runs] == ["a", "b"] and runs.grouped
    assert "notes.md" in runs.warnings[0] and [round_.round for round_ in load(folder, one_group=True)[0].rounds] == [
        0,
        1,
    ]
    assert load(folder).where(file="b")[0].group == {"file": "b"}
    assert found([files[0]]) == [({}, [1])] and found(str(files[0])) == [({}, [1])]  # a single file is not grouped


def test_names_of_tables_are_distinct(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "times.csv", {"latency_us": [1, 2]})
    put(tmp_path / "x" / "times.txt.gz", {"latency_us": [1, 2]}).write_bytes(gzip.compress(b"# latency_us\n1\n2\n"))

    def files(*paths):
        return [group.group["file"] for group in load(paths)]

    assert files(tmp_path / "x" / "times.csv", put(tmp_path / "b.csv", {"latency_us": [1, 2]})) == ["times", "b"]
    assert files(tmp_path / "x") == [str(tmp_path / "x" / name) for name in ("times.csv", "times.txt.gz")]
    both = [str(tmp_path / name / "times.csv") for name in ("x", "y")]
    assert files(*both) == both


def test_recordings_and_tables_are_not_read_together(tmp_path):
    (tmp_path / "rec").mkdir()
    files.write(planted(8), tmp_path / "rec")
    (tmp_path / "again").mkdir()
    files.write(planted(8, round=1), tmp_path / "again")
    path = put(tmp_path / "t.csv", {"latency_us": [5, 6]})
    message = refusal([tmp_path / "rec", path])
    assert str(path) in message and str(tmp_path / "rec") in message
    assert "remove --drop-missing" in refusal(tmp_path / "rec", drop_missing=True)
    assert "no path" in refusal([])
    runs = load([tmp_path / "rec", tmp_path / "again"])
    assert [len(group.rounds) for group in runs] == [2] and "pooled" in runs.warnings[0]
    put(tmp_path / "rec" / "summary.csv", {"latency_us": [5, 6]})  # recordings beside a table are read as before
    assert load(tmp_path / "rec").own


TEXTS = {
    ".csv": b"trial,latency_us\n0,5\n1,6.5\n",
    ".txt": b"# latency_us\n5\n6.5\n",
    ".json": b'[{"latency_us": 5}, {"latency_us": 6.5}]',
}


@pytest.mark.parametrize("suffix", TEXTS)
def test_compressed_text_and_standard_input_are_read_as_the_file(tmp_path, monkeypatch, suffix):
    (tmp_path / f"t{suffix}").write_bytes(TEXTS[suffix])
    (tmp_path / f"c{suffix}.gz").write_bytes(gzip.compress(TEXTS[suffix]))
    for content in (TEXTS[suffix], gzip.compress(TEXTS[suffix])):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        runs = load("-")
        assert runs[0].rounds[0].latency_ns.tolist() == [5000, 6500] and runs.source == "standard input"
    for name in (f"t{suffix}", f"c{suffix}.gz"):
        assert only_sample(tmp_path / name).latency_ns.tolist() == [5000, 6500]


ARRAYS = {
    "numbers": (np.array([5.0, 6.5]), {"unit": "us"}),
    "single precision": (np.array([5, 6.5], np.float32), {"unit": "us"}),
    "other byte order": (np.array([5000, 6500], ">i8"), {"unit": "ns"}),
    "durations": (np.array([5000, 6500], "m8[ns]"), {}),
    "columns": (np.array([(0, 5.0), (1, 6.5)], [("trial", "i4"), ("latency_us", "f8")]), {}),
}


def test_a_column_of_hexadecimal_names_is_text(tmp_path):
    path = put(tmp_path / "t.csv", {"address": ["0xff", "0xfe"] * 2, "latency_us": [5, 6, 7, 8]})
    assert load(path, group_by=["address"]).groups[0].group == {"address": "0xff"}
    assert only_sample(path, one_group=True).n == 4


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_numpy(tmp_path, name):
    array, options = ARRAYS[name]
    np.save(tmp_path / "t.npy", array)
    assert only_sample(tmp_path / "t.npy", **options).latency_ns.tolist() == [5000, 6500]
    assert "--unit" in refusal(tmp_path / "t.npy") if options else load(tmp_path / "t.npy")


def test_bad_arrays_and_compressed_files_are_refused_in_one_line(tmp_path, monkeypatch):
    bad = {
        "2 dimensions": np.ones((5, 3)),
        "0 dimensions": np.float64(5),
        "no rows": np.array([]),
        "not a valid .npy": np.array([5, None], object),
        "not a column of numbers": np.array(["5 us", "6 us"], "S4"),
    }
    path = tmp_path / "t.npy"
    for expected, array in bad.items():
        np.save(path, array)
        assert expected in refusal(path, unit="us"), expected
    np.save(path, np.ones(100))
    for content in (path.read_bytes()[:-8], path.read_bytes().replace(b"(100,)", b"(9**99,)", 1), b"\x93NUMPY"):
        path.write_bytes(content)
        assert "not a valid .npy" in refusal(path, unit="us")
    path = tmp_path / "t.csv.gz"
    whole = gzip.compress(b"latency_us\n" + b"5\n" * 2000)
    for content in (whole[:-9], whole[:20] + b"\0" + whole[21:], b"\x1f\x8b"):
        path.write_bytes(content)
        assert "not a valid gzip file" in refusal(path)
    monkeypatch.setattr("lstm_judge.read.tables.LARGEST_BYTES", 4000)
    path.write_bytes(whole)
    assert "more than 4.00 kB" in refusal(path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"5\n" * 2001)))
    assert "standard input holds more than 4.00 kB" in refusal("-", unit="us")


# Missing times


def test_rows_without_a_time_are_dropped_only_on_request_and_counted(tmp_path):
    columns = {
        "trial": range(8),
        "start_us": [*range(0, 60, 10), "", 70],
        "latency_us": [5, "", 6, "NaN", 7, 8, "-", 9],
    }
    path = put(tmp_path / "t.csv", columns)
    assert "3 blank or NaN" in refusal(path) and "--drop-missing" in refusal(path)
    runs = load(path, drop_missing=True)
    (round_,) = runs[0].rounds
    assert round_.latency_ns.tolist() == [5000, 6000, 7000, 8000, 9000]
    assert round_.start_ns.tolist() == [0, 20_000, 40_000, 50_000, 70_000]
    assert len(runs.warnings) == 1 and "3 of 8 rows have no time" in runs.warnings[0]
    assert load(put(path, {"latency_us": [5, 6]}), drop_missing=True).warnings == ()
    pq.write_table(pa.table({"latency_us": [5.0, None, 6.0]}), tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet", drop_missing=True)[0].n == 2
    for wrong, message in (("-1", "1 negative, the first in line 4"), ("inf", "1 infinite"), ("x", "line 4")):
        put(path, {"trial": range(4), "latency_us": [5, "", wrong, 6]})
        assert message in refusal(path, drop_missing=True)
    put(path, {"trial": range(5), "latency_us": [5, "", "", "", 6]})
    assert "3 of 5 rows have no time" in refusal(path, drop_missing=True)


def test_a_configuration_with_too_few_times_has_a_failure(tmp_path):
    """Calls that failed would leave only the fast ones."""
    times = [5, "", 6] * 3 + [5, 9, ""]
    path = put(tmp_path / "t.csv", {"hidden": [8, 16, 32] * 4, "latency_us": times})
    runs = load(path, group_by=["hidden"], drop_missing=True)
    assert [(group.group["hidden"], group.n, group.failure is None) for group in runs] == [
        (8, 4, True),
        (16, 0, False),
        (32, 3, True),
    ]
    assert str(runs[1].failure) == "3 of 4 rows have no time, too many to drop"


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
