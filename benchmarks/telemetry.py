"""Tail latency with and without the telemetry of ONNX Runtime and OpenVINO: `.venv/bin/python benchmarks/telemetry.py`.

Each round records the same network twice on each runtime, in new processes and in turns: as the recorder does it, with
telemetry off, and as a user turns it on (`ORT_DISABLE_TELEMETRY=0`; for OpenVINO its file of consent, in a home that
holds nothing else). Variables such as CI, with which the libraries turn it off themselves, are not set for them. A
table has, for each runtime, the median of the rounds and their range: median, p99.9 and maximum, the ratios with /
without of the two recordings of a round, and the CPU time that threads outside the runtime's pool used.

ONNX Runtime sends every 10 s, OpenVINO when it is imported: a recording should last longer than 10 s. By default 30 000
trials of a network of about a millisecond, 5 rounds: 12 minutes of an otherwise idle machine.

`--csv` prints the rows as `data/measured/telemetry.csv` has them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

import lstm_trt as lab
from lstm_judge.read.numbers import table
from lstm_trt.config.format import microseconds
from lstm_trt.config.libraries import OPENVINO_CONSENT, ORT_VARIABLE
from lstm_trt.store import cache
from tests.support.measured import print_rows

#: With one of these set, a library turns its telemetry off itself.
CI = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TRAVIS", "JENKINS_URL", "CODEBUILD_BUILD_ID")
CI += ("BUILDKITE", "TEAMCITY_VERSION", "APPVEYOR", "BITBUCKET_BUILD_NUMBER", "SYSTEM_TEAMFOUNDATIONCOLLECTIONURI")

#: Name -> what it is of one recording, in us.
VALUES: dict[str, Callable[[lab.Recording], float]] = {
    "median": lambda recording: float(np.median(recording.timed_ns)) / 1e3,
    "p99.9": lambda recording: float(np.percentile(recording.timed_ns, 99.9, method="inverted_cdf")) / 1e3,
    "max": lambda recording: float(recording.timed_ns.max()) / 1e3,
    "other threads' CPU": lambda recording: (recording.provenance["unexplained_cpu_ns"] or 0) / 1e3,
}


@contextmanager
def surroundings(on: bool) -> Iterator[None]:
    """The environment of a user who has turned telemetry on, or has said nothing about it; an empty home."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = str(cache.folder().parent)
        os.environ["HOME"] = home
        for name in (*CI, ORT_VARIABLE):
            os.environ.pop(name, None)
        if on:
            os.environ[ORT_VARIABLE] = "0"
            consent = Path(home) / OPENVINO_CONSENT
            consent.parent.mkdir()
            consent.write_text("1")
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def recorded(shape: lab.LstmShape, runtime: str, trials: int, on: bool) -> dict[str, float]:
    """The `VALUES` of a new recording; exits if its telemetry is not as asked."""
    with surroundings(on):
        recording = lab.record(shape, runtime, lab.Protocol(trials=trials), control=False)
    stated = recording.provenance["telemetry"].get(runtime)
    if stated != ("on" if on else "off"):
        sys.exit(f"{runtime} {recording.configuration.runtime_version}: telemetry {stated}, which cannot be compared")
    return {name: value(recording) for name, value in VALUES.items()}


def ratio_text(ratio: float) -> str:
    return f"{ratio:.3f}"


@dataclass(frozen=True)
class Row:
    """One value of a runtime in all rounds, without telemetry and with it."""

    runtime: str
    name: str
    off_us: list[float]
    on_us: list[float]

    @property
    def ratios(self) -> list[float]:
        return [on / off for off, on in zip(self.off_us, self.on_us, strict=True) if off]

    def of_table(self) -> tuple[str, ...]:
        off, on = ranged(self.off_us, microseconds), ranged(self.on_us, microseconds)
        return self.runtime, self.name, off, on, ranged(self.ratios, ratio_text)

    def of_file(self) -> dict[str, object]:
        row: dict[str, object] = {"runtime": self.runtime, "statistic": self.name}
        row |= columns("off_us", self.off_us, microseconds) | columns("on_us", self.on_us, microseconds)
        return row | columns("on_over_off", self.ratios, ratio_text)


def columns(name: str, values: Sequence[float], text: Callable[[float], str]) -> dict[str, str]:
    if not values:
        return {name: "", f"lowest_{name}": "", f"highest_{name}": ""}
    return {
        name: text(statistics.median(values)),
        f"lowest_{name}": text(min(values)),
        f"highest_{name}": text(max(values)),
    }


def ranged(values: Sequence[float], text: Callable[[float], str]) -> str:
    if not values:
        return "-"
    return f"{text(statistics.median(values))} ({text(min(values))} to {text(max(values))})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=30_000)
    parser.add_argument("--runtimes", nargs="+", default=["onnxruntime", "openvino"], metavar="RUNTIME")
    parser.add_argument(
        "--shape", type=int, nargs=3, default=(2, 128, 128), metavar=("LAYERS", "HIDDEN", "SEQUENCE"), help="network"
    )
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    arguments = parser.parse_args()
    layers, hidden, sequence = arguments.shape
    shape = lab.LstmShape(layers=layers, hidden=hidden, sequence=sequence)
    found: dict[tuple[str, bool], list[dict[str, float]]] = {}
    for number in range(arguments.rounds):
        for runtime in arguments.runtimes:
            for on in (False, True) if number % 2 else (True, False):
                found.setdefault((runtime, on), []).append(recorded(shape, runtime, arguments.trials, on))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    rows = []
    for runtime in arguments.runtimes:
        for name in VALUES:
            off_us, on_us = ([each[name] for each in found[runtime, on]] for on in (False, True))
            rows.append(Row(runtime, name, off_us, on_us))
    if arguments.csv:
        print_rows(row.of_file() for row in rows)
    else:
        print(f"{shape.label}, {arguments.trials} trials, us: median of {arguments.rounds} rounds, and their range")
        heads = ("runtime", "", "telemetry off", "telemetry on", "on / off")
        print(table(heads, [row.of_table() for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
