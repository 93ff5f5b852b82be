"""The answers to what ships stay what they are: JSON, text and refusals of commands, and every configuration's id."""

from __future__ import annotations

import json
import shlex

import pytest

from lstm_trt.config.configuration import Configuration
from lstm_trt.store.folders import read_many
from tests.conftest import ROOT, run_here
from tests.support import golden


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case["name"])
def test_a_command_answers_as_before(case):
    status, found = golden.run(case["argv"])
    expected = json.loads((golden.FOLDER / f"{case['name']}.json").read_text())
    assert status == case["status"]
    assert not golden.differences(expected, found)


@pytest.mark.parametrize("name", golden.TEXTS)
def test_a_command_prints_its_golden_text(name):
    assert run_here(golden.TEXTS[name]).stdout == (golden.FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("command", golden.REFUSALS)
def test_a_wrong_command_is_refused_in_its_golden_line(command, refused):
    assert refused(*shlex.split(command)) == golden.REFUSALS[command]
    assert not (ROOT / "data/nowhere").exists()  # nothing is written before a refusal


def test_every_recording_that_ships_keeps_its_id():
    expected = json.loads((golden.FOLDER / "ids.json").read_text())
    found = {
        folder.name: sorted({Configuration.from_dict(item.configuration.as_dict()).id for item in read_many(folder)})
        for folder in [*sorted((ROOT / "data" / "epyc").iterdir()), ROOT / "data" / "xeon" / "literature"]
    }
    assert found == {name: sorted(set(ids)) for name, ids in expected.items()}
