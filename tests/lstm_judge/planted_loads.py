"""Recordings of one network quiet and beside loads, of which the maximum is known."""

from __future__ import annotations

from lstm_trt.config.shape import LstmShape
from lstm_trt.store.schema import Recording
from tests.lstm_judge.report.conftest import recording

STREAM = "stress-ng --stream 1"

#: What ran while calls were preempted: twice the load's own process, once another one.
RAN = {
    name: {"times": times, "shortest_ns": 2000, "longest_ns": 4000, "total_ns": 6000}
    for name, times in (("stress-ng-strea", 2), ("kworker/0:1", 1))
}
SWITCHES = {"missing": None, "ran": RAN, "ran_missing": None, "faults": {}, "faults_missing": None}


def used(name: str, command: str, **more) -> dict:
    """What a recording states of a load, which used a core during half of the time."""
    return {
        "name": name,
        "command": command,
        "cores": [1],
        "cpu_ns": 500_000_000,
        "wall_ns": 1_000_000_000,
        "io_bytes": 0,
        "processes": [f"stress-ng-{name}"[:15]],
        "rate": None,
        "rate_alone": None,
        **more,
    }


def planted(max_us: float, loads: dict[str, str] | None = None, hidden: int = 8, **how) -> Recording:
    """A recording beside loads (name -> command), by default quiet; `protocol` has other fields."""
    protocol = dict(how.pop("protocol", {}))
    stated = {"switches": SWITCHES}
    if loads:
        protocol["beside"] = tuple(loads.items())
        stated["beside"] = [used(*load) for load in loads.items()]
    runtime = how.pop("runtime", "fast")
    shape = LstmShape(1, hidden, 4)
    return recording(shape, runtime, 100.0, max_us=max_us, protocol=protocol, stated=stated, **how)


def of_one_network() -> list[Recording]:
    """Quiet, and beside three loads, of which one also runs on the core of the trials."""
    stream = {"stream": STREAM}
    return [
        planted(4556, stream),
        planted(700, {"COPIES": "2"}),
        planted(610),
        planted(900, stream, protocol={"beside_on": "same-core"}),
    ]
