"""Tail latency with and without the telemetry of ONNX Runtime and OpenVINO: `.venv/bin/python benchmarks/telemetry.py`.

Each round records the same network twice on each runtime, in new processes and in turns: as the recorder does it, with
telemetry off, and as a user turns it on (`ORT_DISABLE_TELEMETRY=0`; for OpenVINO its file of consent, in a home that
holds nothing else). Variables such as CI, with which the libraries turn it off themselves, are not set for them. A
table has, for each runtime, the median of the rounds and their range: median, p99.9 and maximum, the ratios with /
without of the two recordings of a round, and the CPU time that threads outside the runtime's pool used.

ONNX Runtime sends every 10 s, OpenVINO when it is imported: a recording should last longer than 10 s. By default 30 000
trials of a network of about a millisecond, 5 rounds: 12 minutes of an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import lstm_trt as lab
from lstm_judge.read.numbers import table
from lstm_trt.config.format import microseconds
from lstm_trt.config.libraries import OPENVINO_CONSENT, ORT_VARIABLE
from lstm_trt.store import cache

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


def ranged(values: Sequence[float], text: Callable[[float], str]) -> str:
    return f"{text(statistics.median(values))} ({text(min(values))} to {text(max(values))})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=30_000)
    parser.add_argument("--runtimes", nargs="+", default=["onnxruntime", "openvino"], metavar="RUNTIME")
    parser.add_argument(
        "--shape", type=int, nargs=3, default=(2, 128, 128), metavar=("LAYERS", "HIDDEN", "SEQUENCE"), help="network"
    )
    arguments = parser.parse_args()
    layers, hidden, sequence = arguments.shape
    shape = lab.LstmShape(layers=layers, hidden=hidden, sequence=sequence)
    found: dict[tuple[str, bool], list[dict[str, float]]] = {}
    for number in range(arguments.rounds):
        for runtime in arguments.runtimes:
            for on in (False, True) if number % 2 else (True, False):
                found.setdefault((runtime, on), []).append(recorded(shape, runtime, arguments.trials, on))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    print(f"{shape.label}, {arguments.trials} trials, us: median of {arguments.rounds} rounds, and their range")
    rows = []
    for runtime in arguments.runtimes:
        without, sent = found[runtime, False], found[runtime, True]
        for name in VALUES:
            columns = [ranged([each[name] for each in rounds], microseconds) for rounds in (without, sent)]
            ratios = [b[name] / a[name] for a, b in zip(without, sent, strict=True) if a[name]]
            rows.append((runtime, name, *columns, ranged(ratios, "{:.3f}".format) if ratios else "-"))
    print(table(("runtime", "", "telemetry off", "telemetry on", "on / off"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
