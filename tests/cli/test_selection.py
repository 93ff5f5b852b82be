"""The same flags select what every command reads."""

from __future__ import annotations

import json

import pytest

from lstm_trt.store import files
from tests.store.test_samples import put
from tests.store.test_store import planted

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
