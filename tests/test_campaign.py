"""Campaigns: what notebooks draw from."""

from __future__ import annotations

import pytest

from lstm_trt import store
from lstm_trt.campaign import Campaign, find, load, project_folder
from lstm_trt.errors import UsageError
from tests.conftest import ROOT
from tests.test_store import planted


@pytest.fixture
def folder(tmp_path):
    for hidden in (8, 9, 10):
        store.write(planted(hidden), tmp_path)
    store.write_failure(store.Failure(planted(11).configuration, 0, "build", "no"), tmp_path)
    return tmp_path


def grid(*hidden):
    return [{"layers": (1,), "hidden": hidden, "sequence": (4,)}]


def test_the_rows_that_were_asked_for_and_no_others(folder):
    campaign = load(folder, grids=grid(8, 10, 11, 99), trials=17)
    assert sorted(campaign.summary["hidden"]) == [8, 10, 11]
    assert campaign.summary.set_index("hidden")["status"].to_dict() == {8: "ok", 10: "ok", 11: "failed"}
    assert campaign.trials["config_id"].nunique() == 2 and len(campaign.trials) == 40
    assert "2 recordings of 17 trials, 1 failures" in campaign.describe()
    assert campaign.select(hidden=[8]).summary["hidden"].tolist() == [8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"grids": grid(99), "trials": 17}, "holds none of these shapes"),
        ({"grids": grid(8), "trials": 5}, "5 trials"),
        ({"grids": grid(8), "trials": 17, "runtimes": ["pytorch"]}, "pytorch"),
        ({"grids": grid(0), "trials": 17}, "at least 1"),
    ],
)
def test_nothing_to_draw_is_told(folder, arguments, words):
    with pytest.raises(UsageError, match=words):
        load(folder, **arguments)
    with pytest.raises(UsageError, match="unknown axis"):
        Campaign((planted(8),), folder).select(colour=[1])


def test_recording_here_goes_on_where_it_was(tmp_path, capsys):
    arguments = {"record": True, "out": tmp_path / "out", "trials": 30, "show_progress": False}
    assert len(load("nowhere", grids=grid(8), **arguments).items) == 1
    again = load("nowhere", grids=grid(8, 9), **arguments)
    assert sorted(again.summary["hidden"]) == [8, 9] and set(again.summary["n"]) == {30}
    assert "1 recorded, 0 failed, 1 were there already" in capsys.readouterr().out


def test_data_is_found_from_the_notebooks_folder_and_from_the_top(monkeypatch):
    for start in (ROOT, ROOT / "notebooks", ROOT / "lstm_trt" / "analysis"):
        monkeypatch.chdir(start)
        assert find("data/README.md").resolve() == ROOT / "data" / "README.md"
        assert project_folder("data/local/x") == ROOT / "data" / "local" / "x"
    with pytest.raises(UsageError, match="no data/nothing"):
        find("data/nothing")
