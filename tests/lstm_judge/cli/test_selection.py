"""The same flags select what every command reads, and nothing that was asked for is silently absent."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from lstm_judge.read.runs import as_runs, group_fields
from lstm_judge.summarize.summarize import summarize
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files, schema
from tests.lstm_judge.read.test_runs import recorded_with
from tests.lstm_trt.store.test_store import planted

#: Command -> what it needs besides a path.
READING = {
    "summarize": (),
    "verdict": ("--deadline-us", 1000),
    "outliers": (),
    "replay": ("--period-us", 1000),
    "scaling": (),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selection")
    for hidden in (8, 16, 32):
        files.write(planted(hidden), folder)
    return folder


@pytest.mark.parametrize("command", READING)
def test_what_was_selected_is_read_and_what_is_not_recorded_is_named(lab, folder, command):
    """On standard error and in the JSON; nothing is named of a selection that is complete."""
    more = (*READING[command], "--where", "trials=17", "threads=1", "--format", "json", "--hidden")
    complete = lab(command, folder, *more, 8, 32)
    partly = lab(command, folder, *more, 8, 9, 32, 33)
    assert complete.returncode in (0, 1, 3) and "warning" not in complete.stderr
    assert partly.returncode == (complete.returncode or 3)
    named = "no recording or row has hidden 9, hidden 33, which was asked for"
    assert partly.stderr.count("\n") == 1 and named in partly.stderr
    found = json.loads(partly.stdout)
    rows = found if isinstance(found, list) else [found]
    assert any(named in warning for warning in rows[-1]["warnings"])
    if command == "scaling":
        assert found["counts"]["shapes"] == 2
    else:
        assert [row["group"]["hidden"] for row in rows] == [8, 32]


def test_the_text_ends_with_what_is_not_recorded(lab, folder):
    command = ("verdict", folder, "--deadline-us", 1000, "--hidden")
    assert lab(*command, 8, 9, 32).stdout == f"{lab(*command, 8, 32).stdout}not recorded: hidden 9\n"


def test_a_table_of_averages_names_what_it_lacks(lab, table):
    path = table({"layers": [1, 1], "hidden": [8, 16], "mean_us": [5.0, 9.0]})
    result = lab("scaling", path, "--hidden", 8, 16, 24)
    assert "no recording or row has hidden 24" in result.stderr and result.returncode == 3


def test_both_sides_of_a_comparison_are_selected(lab, folder):
    result = lab("compare", folder, folder, "--hidden", 8, "--format", "json")
    assert json.loads(result.stdout)["one_configuration"] is True


def test_a_table_is_selected_by_its_columns(lab, table):
    path = table({"hidden": [8, 16] * 3, "tool": ["x"] * 6, "latency_us": [1, 2, 3, 4, 5, 6]})
    result = lab("summarize", path, "--group-by", "hidden", "tool", "--hidden", 16, "--where", "tool=x")
    assert "16" in result.stdout and len(result.stdout.splitlines()) == 4


#: Fields of what is recorded -> values; the last is never recorded.
VALUES = {
    "hidden": (8, 16, 32, 9),
    "runtime": ("onnxruntime", "pytorch", "openvino"),
    "threads": (1, 2, 3),
    "precision": ("fp32", "bf16", "int8"),
}


def recorded_or_failed(fails: bool, hidden: int, runtime: str, threads: int, precision: str):
    recording = recorded_with("1.0", hidden, runtime)
    options = Options(threads=threads, precision=precision)
    configuration = replace(recording.configuration, options=options)
    if fails:
        return schema.Failure(configuration, 0, "memory", "too large", {"machine_fingerprint": "m"})
    return replace(recording, configuration=configuration)


@pytest.mark.random(tail=0, why="identity")
def test_nothing_that_was_selected_is_silently_absent(rng):
    """Random selections over random recordings: each value is that of a group, or named; else the refusal names all."""
    every = list(itertools.product(*(values[:-1] for values in VALUES.values())))
    for _ in range(50):
        kept = [combination for combination in every if rng.random() < 0.3] or every
        items = [recorded_or_failed(rng.random() < 0.2, *combination) for combination in kept]
        fields = rng.permutation([*VALUES])[: rng.integers(1, 5)].tolist()
        asked = {name: rng.choice(VALUES[name], rng.integers(1, 4), replace=False).tolist() for name in fields}
        found = [dict(zip(VALUES, each, strict=True)) for each in kept]
        found = [row for row in found if all(row[name] in values for name, values in asked.items())]
        each_asked = [(name, value) for name, values in asked.items() for value in values]
        wanted = {name: list(map(str, values)) for name, values in asked.items()} if rng.random() < 0.5 else asked
        if not found:
            with pytest.raises(UsageError) as refused:
                as_runs(items).where(**wanted)
            assert all(str(value) in str(refused.value) for _, value in each_asked)
            continue
        runs = as_runs(items).where(**wanted)
        chosen = [{name: group_fields(group)[name] for name in VALUES} for group in runs]
        assert sorted(map(str, chosen)) == sorted(map(str, found))
        absent = {f"{name} {value}" for name, value in each_asked if value not in [row[name] for row in found]}
        assert runs.missing.keys() == absent
        warnings = " ".join(summarize(runs).warnings)
        assert all(name in warnings for name in absent)


def test_a_second_selection_leaves_nothing_silently_out_that_the_first_asked_for():
    runs = as_runs([recorded_with("1.0", 8, "onnxruntime"), recorded_with("1.0", 16, "pytorch")])
    at_once = runs.where(hidden=[8, 16], runtime="pytorch")
    assert at_once.missing == {"hidden 8": {"hidden": 8}}
    assert runs.where(hidden=[8, 16]).where(runtime="pytorch").missing == at_once.missing
