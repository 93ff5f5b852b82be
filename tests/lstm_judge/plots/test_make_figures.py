"""All pictures of `make figures`: nothing is cut off, covered or too small, and none is taller than four rows need."""

from __future__ import annotations

import re

import pytest

from lstm_judge.plots import style
from tests.conftest import ROOT, sampled
from tests.support.pictures import assert_readable

MAKEFILE = (ROOT / "Makefile").read_text()

#: Folders of which `make figures` draws all figures.
TOPICS = [f"epyc/{folder.name}" for folder in sorted((ROOT / "data" / "epyc").iterdir())]
TOPICS += [f"xeon/{name}" for name in re.search(r"^XEON = (.*)$", MAKEFILE, re.M)[1].split()]

COMMANDS = [("summarize", topic, "--deadline-us", 1000) for topic in TOPICS] + [("scaling", topic) for topic in TOPICS]
COMMANDS += [("outliers", topic) for topic in ("epyc/arrivals", "xeon/interrupted", "xeon/interruptions")]
COMMANDS += [("verdict", topic, "--deadline-us", 1000) for topic in ("epyc/confirm", "epyc/deadline")]
COMMANDS += [("summarize", "xeon/own-network", "--deadline-us", 100), ("lstm-literature", "xeon/literature")]

#: Four rows of panels of 240 pixels with their titles and names, a legend, and the notes of the figure.
TALLEST = 1700


# One in twelve of them, chosen by the seed: a command lays out up to 30 pictures, half a second each.
@pytest.mark.heavy
@sampled(12)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command[:2])))
def test_every_picture_can_be_read(tmp_path, monkeypatch, lab, command):
    problems = {}

    def check(picture, form="png"):
        try:
            assert_readable(picture)
            assert picture.bbox.height <= TALLEST, f"{picture.bbox.height:.0f} pixels high"
        except AssertionError as error:
            problems[f"{picture.title} {picture.notes[:1]}"] = str(error).split("assert ")[0]
        return b""

    monkeypatch.setattr(style, "image_bytes", check)
    name, topic, *more = command
    words = [name, "table", "--out"] if name == "lstm-literature" else [name]
    done = lab(*words, ROOT / "data" / topic, *more, "--figures", tmp_path / "figures")
    assert done.returncode in (0, 1, 3), done.stderr
    assert name == "scaling" or list((tmp_path / "figures").iterdir())
    assert not problems, "\n".join(f"{title}: {problem}" for title, problem in problems.items())


def test_these_are_the_commands_of_make_figures():
    target = MAKEFILE.split("\nfigures: ")[1].split("\nlab: ")[0]
    drawn = set(re.findall(r"\$\(BIN\)/(lstm-\w+ \w+)", target))
    known = {"lstm-literature table" if name == "lstm-literature" else f"lstm-trt {name}" for name, *_ in COMMANDS}
    assert drawn == known | {"lstm-trt report"}  # of which tests/lstm_judge/report looks at the pictures
