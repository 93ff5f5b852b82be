"""The same flags select what every command reads."""

from __future__ import annotations

import json

import pytest

from lstm_trt.store import files
from tests.lstm_judge.read.test_rounds import put
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
@pytest.mark.parametrize("flags", [("--hidden", 8, 32), ("--hidden", "8", 32, "--where", "trials=17", "threads=1")])
def test_a_selection_leaves_out_the_others(lab, folder, command, flags):
    result = lab(command, folder, *READING[command], *flags, "--format", "json")
    assert result.returncode in (0, 1, 3), result.stderr
    found = json.loads(result.stdout)
    hidden = [row.get("hidden", row["group"].get("hidden")) for row in found] if command != "scaling" else [8, 32]
    assert hidden == [8, 32] and (command != "scaling" or found["counts"]["shapes"] == 2)


def test_what_was_selected_and_is_not_recorded_is_named(lab, folder):
    """On standard error, in the text and in the JSON; nothing is named of a selection that is complete."""
    for command, more in READING.items():
        complete = lab(command, folder, *more, "--hidden", 8, 32)
        partly = lab(command, folder, *more, "--hidden", 8, 9, 32, 33, "--format", "json")
        assert complete.returncode in (0, 1, 3) and "warning" not in complete.stderr, command
        assert partly.returncode == (complete.returncode or 3), command
        named = "no recording or row has hidden 9, hidden 33, which was asked for"
        assert partly.stderr.count("\n") == 1 and named in partly.stderr
        (*_, row) = found if isinstance(found := json.loads(partly.stdout), list) else [found]
        assert any(named in warning for warning in row["warnings"])
    text = lab("verdict", folder, "--deadline-us", 1000, "--hidden", 8, 9, 32).stdout
    assert text.splitlines()[-1] == "not recorded: hidden 9"
    assert (
        text.splitlines()[:-1] == lab("verdict", folder, "--deadline-us", 1000, "--hidden", 8, 32).stdout.splitlines()
    )


def test_a_table_of_averages_names_what_it_lacks(lab, tmp_path):
    path = put(tmp_path / "t.csv", {"layers": [1, 1], "hidden": [8, 16], "mean_us": [5.0, 9.0]})
    result = lab("scaling", path, "--hidden", 8, 16, 24)
    assert "no recording or row has hidden 24" in result.stderr and result.returncode == 3


def test_both_sides_of_a_comparison_are_selected(lab, folder):
    result = lab("compare", folder, folder, "--hidden", 8, "--format", "json")
    assert json.loads(result.stdout)["one_configuration"] is True


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--hidden", 9), "no recording or row has hidden 9"),
        (("--where", "hiden=8"), "no group has the field 'hiden' (did you mean 'hidden'?)"),
        (("--where", "hidden"), "--where takes KEY=VALUE, not 'hidden'"),
        (("--hidden", 8, "--where", "hidden=8"), "--where gives 'hidden' once more"),
        (("--where", "seed=0", "seed=1"), "--where gives 'seed' once more"),
    ],
)
def test_a_wrong_selection_is_one_line(refused, folder, flags, message):
    assert message in refused("summarize", folder, *flags)


def test_a_table_is_selected_by_its_columns(lab, tmp_path):
    path = put(tmp_path / "t.csv", {"hidden": [8, 16] * 3, "tool": ["x"] * 6, "latency_us": [1, 2, 3, 4, 5, 6]})
    result = lab("summarize", path, "--group-by", "hidden", "tool", "--hidden", 16, "--where", "tool=x")
    assert "16" in result.stdout and len(result.stdout.splitlines()) == 4
