"""Writes what each test took and how it ended, where `LSTM_TRT_TEST_TIMES` names a file (`benchmarks/suite.py`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "LSTM_TRT_TEST_TIMES"


def cpu_s() -> float:
    """CPU seconds of this process and of those of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTimes:
    """A pytest plugin of the processes that run tests: the CPU time of each test goes into its last report."""

    _began_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._began_s = cpu_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append(("cpu_s", cpu_s() - self._began_s))
        return report


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
            "cpu_seconds": round(dict(report.user_properties).get("cpu_s", 0.0), 3),
            "ended_s": time.time(),
            "session": os.getpid(),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def register(config: pytest.Config) -> None:
    """Adds the plugins where `LSTM_TRT_TEST_TIMES` is set, but not to a session that a test started."""
    path = os.environ.get(VARIABLE)
    of_a_test = "PYTEST_CURRENT_TEST" in os.environ or config.rootpath != ROOT
    if not path or of_a_test:
        return
    config.pluginmanager.register(CpuTimes())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Times(Path(path)))
