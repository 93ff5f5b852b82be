"""Writes what each test took and how it ended, where `LSTM_TRT_TEST_TIMES` names a file (`benchmarks/suite.py`)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

VARIABLE = "LSTM_TRT_TEST_TIMES"


class Times:
    """A pytest plugin: a line of JSON for each test, when its last part has ended."""

    def __init__(self, path: Path):
        self._path = path
        self._seconds: dict[str, float] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[name] = report.outcome
        if report.when != "teardown":
            return
        line = {
            "test": name,
            "outcome": self._outcomes.pop(name, "passed"),
            "seconds": round(self._seconds.pop(name), 3),
            "ended_s": time.time(),
            "session": os.getpid(),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def register(config: pytest.Config) -> None:
    """Adds the plugin where `LSTM_TRT_TEST_TIMES` is set, but not to a session that a test started, nor to workers."""
    path = os.environ.get(VARIABLE)
    if path and "PYTEST_CURRENT_TEST" not in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Times(Path(path)))
