"""The report of a sweep: what was recorded, what failed, and what took how long."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.format import count, duration, warning_lines
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.pool import Recorded
from lstm_trt.recorder.task import Result
from lstm_trt.store.schema import Failure

#: Number of failures that the report lists; the folder contains all of them.
FAILURES_LISTED = 10

#: Attributes of a report that JSON has as they are.
_JSON_VALUES = (
    "total",
    "done_before",
    "failed_before",
    "recorded",
    "left",
    "stopped",
    "wall_s",
    "preparing_s_each",
    "efficiency",
    "warnings",
)


@dataclass
class SweepReport:
    """Result of a sweep. `left`: configurations not recorded yet (after Ctrl-C).

    `machines`: of an executor, with the numbers of results. `folders`: where the recordings are.
    """

    total: int = 0
    done_before: int = 0
    failed_before: int = 0
    recorded: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)
    wall_s: float = 0.0
    stopped: bool = False
    warnings: list[str] = field(default_factory=list)
    machines: Counter[str] = field(default_factory=Counter)
    folders: list[Path] = field(default_factory=list)

    def add(self, configuration: Configuration, outcome: Recorded) -> None:
        """Add one recording or failure."""
        self.seconds.add(outcome.seconds)
        if outcome.failure:
            self.failures.append(outcome.failure)
        else:
            self.recorded += 1
        self.warnings += [f"{configuration.name}: {text}" for text in outcome.warnings]
        if isinstance(outcome, Result):
            self.machines[outcome.machine] += 1

    @property
    def left(self) -> int:
        attempted = self.recorded + len(self.failures)
        return self.total - self.done_before - self.failed_before - attempted

    @property
    def efficiency(self) -> float | None:
        """Time inside trials divided by the wall time of timing."""
        return self.seconds.inside_trials / self.seconds.timing if self.seconds.timing else None

    @property
    def preparing_s_each(self) -> float | None:
        """Preparation time per configuration, including the start of workers."""
        attempted = self.recorded + len(self.failures)
        return self.seconds.preparing / attempted if attempted else None

    def as_dict(self) -> dict:
        values = {name: getattr(self, name) for name in _JSON_VALUES}
        for name, seconds in asdict(self.seconds).items():
            values[f"{name}_s"] = seconds
        if self.machines:
            values["machines"] = dict(self.machines)
        values["failed"] = len(self.failures)
        values["failures"] = [
            {
                "shape": failure.configuration.name,
                "runtime": failure.configuration.runtime,
                "precision": failure.configuration.options.precision,
                "stage": failure.stage,
                "reason": failure.reason,
            }
            for failure in self.failures
        ]
        return values

    def __str__(self) -> str:
        lines = [self._counts()]
        if self.seconds.timing:
            lines.append(self._times())
        for failure in self.failures[:FAILURES_LISTED]:
            lines.append(
                f"failed: {failure.configuration.title} at {failure.stage}: {failure.reason}"
            )
        more = len(self.failures) - FAILURES_LISTED
        if more > 0:
            lines.append(f"and {count(more, 'more failure')}; lstm-trt summarize lists all of them")
        if self.failures or self.failed_before:
            lines.append(
                "each failure is a file CONFIG_ID-rROUND.failure.json in the folder of recordings:"
                " --retry-failed repeats it, and deleting the file forgets it"
            )
        return "\n".join([*lines, *warning_lines(self.warnings)])

    def _counts(self) -> str:
        counts = [f"{self.recorded} recorded", f"{len(self.failures)} failed"]
        if self.done_before:
            counts.append(f"{self.done_before} already recorded")
        if self.failed_before:
            counts.append(f"{self.failed_before} failed earlier")
        if self.left:
            counts.append(f"{self.left} left")
        return f"{', '.join(counts)}, of {self.total}; total time {duration(self.wall_s)}"

    def _times(self) -> str:
        seconds = self.seconds
        each = f"{self.preparing_s_each:.2f} s per configuration, including the start of workers"
        inside = 100 * seconds.inside_trials / seconds.timing
        texts = [
            f"preparing {seconds.preparing:.1f} s ({each})",
            f"timing {seconds.timing:.1f} s ({inside:.1f} % of it inside trials)",
        ]
        if seconds.control:
            texts.append(f"control runs {seconds.control:.1f} s")
        return ", ".join([*texts, f"storing {seconds.storing:.1f} s"])
