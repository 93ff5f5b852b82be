"""A third-party implementation is listed, planned and drawn without changes to the package."""

from __future__ import annotations

import pytest

from lstm_literature import implementations, schedule
from lstm_literature.pictures import bars, over_size
from lstm_literature.sides import Side, SideEntry, title_of
from lstm_literature.states import listing
from lstm_trt import registry

NAME = "tests.support.own_implementation:OWN"


@pytest.fixture(params=["name with a dot", "entry point"])
def given(request, monkeypatch) -> tuple[str, tuple[str, ...]]:
    """The implementation's name, and the names passed in addition to the registered ones."""
    if request.param == "name with a dot":
        return NAME, (NAME,)
    others = registry._offered
    monkeypatch.setattr(registry, "_offered", lambda group: {"own": NAME} if "implem" in group else others(group))
    return "own", ()


def test_it_is_listed(given):
    name, more = given
    found = listing(["cell", "ptb-lm"], more).as_dict()
    assert {"ready": True, "reason": "", "remedy": ""}.items() <= found["implementations"][name].items()
    assert [name in workload["implementations"]["forward"] for workload in found["workloads"]] == [True, True]
    assert name in str(listing(more=more))


def test_it_is_planned_without_an_estimate(given):
    name, more = given
    whole = schedule.plan(more)
    own = [entry for entry in whole.entries if entry.implementation == name]
    assert {entry.workload.name for entry in own} == {"cell", "layer", "stack"}
    assert all(entry.estimate_s is None and entry.batches == schedule.FEWEST and entry.configuration for entry in own)
    assert f"{len(own)} rows" in str(whole)
    others = [entry for entry in whole.entries if entry.implementation != name]
    assert tuple(others) == schedule.plan().entries or not more
    assert all(entry.estimate_s > 0 for entry in others)


def test_an_implementation_that_cannot_be_loaded_is_not_ready():
    found = listing(["cell"], ["no.such"]).as_dict()
    assert not found["implementations"]["no.such"]["ready"] and found["implementations"]["no.such"]["reason"]
    assert "no.such" not in found["workloads"][0]["implementations"]["forward"]
    assert "no.such" not in {entry.implementation for entry in schedule.plan(["no.such"]).entries}


def test_it_is_drawn(given):
    name, _ = given
    title = title_of(name, "")
    assert title == implementations.load_implementation(name).TITLE
    entries = (SideEntry(name, title, 0.5, "ok"), SideEntry("onnxruntime", "ONNX", 1.0, "ok"))
    side = Side("today", "a CPU", "batch 1", entries)
    labels = [label.get_text() for ax in bars([side], "A title").axes for label in ax.get_yticklabels()]
    assert title in labels
    over_size({}, {1: side, 2: side}, "layers", "A title")
