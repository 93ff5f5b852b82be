"""Trials of any step, as the recorder times them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Protocol
from lstm_trt.recorder.jobs import RecordJob, Written
from lstm_trt.recorder.loop import Loop, Trials, quiet_collector
from lstm_trt.recorder.run import record


class NoSwitches:
    """In place of `Switches`, for steps whose clock is set by hand: nothing is measured."""

    def discard(self) -> None:
        pass

    def room(self, trials: int) -> int:
        return 1 << 62

    def take(self, start_ns, end_ns) -> dict:
        return {}

    def as_dict(self) -> dict:
        return {"missing": "planted", "ran": {}, "ran_missing": "planted", "faults": {}, "faults_missing": "planted"}


def run_trials(step: Callable[[], None], protocol: Protocol, **readings) -> Trials:
    """Run `protocol.warmup` and `protocol.trials` trials of `step`; `readings` are keyword arguments of `Loop`."""
    with quiet_collector():
        loop = Loop(step, protocol, **readings)
        loop.part(protocol.warmup)
    return loop.trials()


def record_here(folder: Path, configuration: Configuration, reference: Mapping) -> Written:
    """Record in this process into a folder, as a worker does."""
    job = RecordJob(configuration.as_dict(), reference, str(folder))
    return record(configuration, job, lambda event, **values: None)
