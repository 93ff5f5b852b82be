"""What an editor says of a user's file: basedpyright knows the answers, and what `runs` may be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT

CHECKER = find_spec("basedpyright")

#: 25 lines of a user; a comment states the rule that a wrong line breaks.
FILE = """\
import numpy as np
import pandas as pd
import lstm_trt as lab

runs = lab.load("recordings")
verdicts = lab.verdict(runs.where(hidden=[64, 128]), 1000, "99.9")
first = verdicts[0]
print(first.outcome.casefold(), first.bounds.certifies, verdicts.frame["verdict"])
print([each.outcome for each in verdicts[1:3]], verdicts.sentence)
print(lab.verdict(pd.DataFrame({"latency_us": [1.0]}), 1000)[0].outcome)
print(lab.verdict(np.ones(1000), 1000)[0].outcome)
print(lab.summarize(["one", "two"])[0], runs[0].n)
print(lab.compare("before", "after")[0], lab.compare("before", "after", "later")[1][0])
print(lab.outliers(runs, causes=False)[0])
print(lab.scaling(runs).frame, lab.replay(runs, 2000).exit_status)

lab.verdict(42, 1000)  # reportArgumentType
lab.load(3)  # reportArgumentType
lab.summarize(None)  # reportArgumentType
lab.verdict(runs, "1 ms")  # reportArgumentType
lab.compare("before")  # reportCallIssue
lab.summarize(runs, by_rounds=True)  # reportCallIssue
print(verdicts[0].verdikt)  # reportAttributeAccessIssue
print(first.bounds.certified)  # reportAttributeAccessIssue
print(verdicts.sentense)  # reportAttributeAccessIssue
"""


@pytest.mark.heavy
@pytest.mark.skipif(CHECKER is None, reason="needs basedpyright")
def test_an_editor_marks_the_wrong_lines_of_a_user_and_no_others(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(FILE)
    settings = {"typeCheckingMode": "basic", "extraPaths": [str(ROOT)], "include": ["user.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {each["range"]["start"]["line"]: each["rule"] for each in found if each["severity"] == "error"}
    rules = [re.search(r"# (report\w+)", line) for line in FILE.splitlines()]
    assert errors == {number: rule[1] for number, rule in enumerate(rules) if rule}
