"""Campaigns: what notebooks draw from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lstm_trt.campaign import Campaign, load
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files, schema
from lstm_trt.store.folders import find_folder, project_folder
from tests.conftest import ROOT
from tests.store.test_store import planted


@pytest.fixture
def folder(tmp_path):
    for hidden in (8, 9, 10):
        files.write(planted(hidden), tmp_path)
    files.write_failure(schema.Failure(planted(11).configuration, 0, "build", "no"), tmp_path)
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


def test_groups_and_control_runs_of_a_campaign(tmp_path):
    noise = np.arange(7, 27)
    for number in range(11):
        control = {"start_ns": 100 * np.arange(20), "latency_ns": noise + number} if number < 2 else None
        files.write(replace(planted(8, round=number), control=control), tmp_path)
    campaign = load(tmp_path, grids=grid(8), trials=17)
    (group,) = campaign.groups
    assert [sample.round for sample in group.samples] == list(range(11))  # not 0, 1, 10, 2, as text is sorted
    assert group.n == 11 * 17 and campaign.groups is campaign.groups
    (kept,) = campaign.controls.values()
    np.testing.assert_array_equal(kept, np.r_[noise, noise + 1])
    assert campaign.controls.keys() == {planted(8).configuration.id}


def test_arrivals_are_never_mixed_unless_asked_for(tmp_path):
    closed = planted(8)
    files.write(closed, tmp_path)
    for period_us in (1000.0, 2000.0):
        protocol = replace(closed.configuration.protocol, arrival="periodic", wait="spin", period_us=period_us)
        intended = {"intended_ns": closed.columns["start_ns"]}
        configuration = replace(closed.configuration, protocol=protocol)
        files.write(replace(closed, configuration=configuration, columns={**closed.columns, **intended}), tmp_path)

    def periods(**more):
        items = load(tmp_path, grids=grid(8), **more).items
        return sorted((item.configuration.protocol.period_us or 0) for item in items)

    assert periods(trials=17) == [0]
    assert periods(trials=17, arrivals=[{"arrival": "periodic", "period_us": 2000}]) == [2000]
    assert periods(trials=None, arrivals=None) == [0, 1000, 2000]
    with pytest.raises(UsageError, match="shapes with such arrivals"):
        periods(trials=17, arrivals=[{"arrival": "paused", "pause_ms": 3}])


def test_recording_here_goes_on_where_it_was(tmp_path, capsys):
    arguments = {"record": True, "out": tmp_path / "out", "trials": 30, "show_progress": False}
    assert len(load("nowhere", grids=grid(8), **arguments).items) == 1
    again = load("nowhere", grids=grid(8, 9), **arguments)
    assert sorted(again.summary["hidden"]) == [8, 9] and set(again.summary["n"]) == {30}
    assert "1 recorded, 0 failed, 1 were there already" in capsys.readouterr().out


def test_data_is_found_from_the_notebooks_folder_and_from_the_top(monkeypatch):
    for start in (ROOT, ROOT / "notebooks", ROOT / "lstm_trt" / "analysis"):
        monkeypatch.chdir(start)
        assert find_folder("data/README.md").resolve() == ROOT / "data" / "README.md"
        assert project_folder("data/local/x") == ROOT / "data" / "local" / "x"
    with pytest.raises(UsageError, match="no data/nothing"):
        find_folder("data/nothing")
