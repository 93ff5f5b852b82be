"""The line that a sweep shows while it runs: what runs, how much is done, how long is left."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from lstm_trt.configuration import Configuration
from lstm_trt.processes import Outcome

if TYPE_CHECKING:
    from lstm_trt.sweep import Report


def duration(seconds: float) -> str:
    """`75` -> `1 min 15 s`."""
    seconds = max(0, round(seconds))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds % 60:02d} s" if minutes else f"{seconds} s"


class Progress:
    """One line: what runs, how much is done, how long is left. Also keeps the report."""

    def __init__(self, plan: list[list[Configuration]], report: Report, show: bool) -> None:
        self._left: Counter[str] = Counter()  # configurations and operations, a runtime
        self._work_left: Counter[str] = Counter()
        self._scheduled_left = 0.0
        versions: dict[str, set[str]] = {}
        for configuration in itertools.chain.from_iterable(plan):
            self._left[configuration.runtime] += 1
            self._work_left[configuration.runtime] += _work(configuration)
            self._scheduled_left += configuration.protocol.scheduled_s
            versions.setdefault(configuration.runtime, set()).add(configuration.runtime_version)
        self._in_versions = {runtime for runtime, found in versions.items() if len(found) > 1}
        self._report = report
        self._show = show and self._left.total() > 0
        self._terminal = self._show and sys.stderr.isatty()
        self._bar = None
        self._said = 0.0
        # For the time left: seconds and operations of what was done, a runtime.
        self._spent: dict[str, tuple[float, float]] = {}
        self._overhead: list[float] = []

    def __enter__(self) -> Progress:
        if self._terminal:
            with suppress(ImportError):
                from tqdm import tqdm

                self._bar = tqdm(
                    total=self._report.total,
                    initial=self._report.done_before + self._report.failed_before,
                    bar_format="{n_fmt}/{total_fmt} |{bar:20}| {elapsed}{postfix}",
                    dynamic_ncols=True,
                    leave=True,
                )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str("")
            self._bar.close()

    def begin(self, configuration: Configuration, number: int) -> None:
        version = f" {configuration.runtime_version}" if configuration.runtime in self._in_versions else ""
        self._running = f"{configuration.name} {configuration.runtime}{version}" + (f" r{number}" if number else "")
        self._tell(self._running)

    def listen(self, answer: dict) -> None:
        if answer["event"] == "progress" and answer["done"] and answer["total"] > answer["done"]:
            self._tell(f"{self._running} {100 * answer['done'] // answer['total']} %", quiet=True)

    def end(self, configuration: Configuration, outcome: Outcome) -> None:
        report, seconds = self._report, outcome.seconds
        report.seconds.add(seconds)
        if outcome.failure:
            report.failures.append(outcome.failure)
        else:
            report.recorded += 1
        report.warnings.extend(f"{configuration.name}: {text}" for text in outcome.warnings)
        self._left[configuration.runtime] -= 1
        self._work_left[configuration.runtime] -= _work(configuration)
        scheduled = configuration.protocol.scheduled_s
        self._scheduled_left -= scheduled
        self._overhead.append(seconds.preparing + seconds.control + seconds.storing)
        if not outcome.failure:
            spent, work = self._spent.get(configuration.runtime, (0.0, 0.0))
            spent += max(0.0, seconds.timing - scheduled)
            self._spent[configuration.runtime] = (spent, work + _work(configuration))
        if self._bar is not None:
            self._bar.update()
        else:
            self._tell("", quiet=self._left.total() > 0)

    def seconds_left(self) -> float | None:
        """From the gaps that are to come, and the rate of operations that each runtime reached so far.

        None before the first.
        """
        if not self._overhead:
            return None
        overhead = sum(self._overhead) / len(self._overhead)
        spent, work = (sum(values) for values in zip(*self._spent.values(), strict=True)) if self._spent else (0.0, 1.0)
        total = self._scheduled_left
        for runtime, count in self._left.items():
            runtime_spent, runtime_work = self._spent.get(runtime, (spent, work))
            total += count * overhead
            if runtime_work:  # none where a period says how long calls take
                total += self._work_left[runtime] * runtime_spent / runtime_work
        return total

    def _tell(self, running: str, quiet: bool = False) -> None:
        if not self._show:
            return
        left = self.seconds_left()
        failed = f"{len(self._report.failures)} failed" if self._report.failures else ""
        time_left = f"about {duration(left)} left" if left is not None else "time left not known yet"
        words = ", ".join(filter(None, [running, failed, time_left]))
        if self._bar is not None:
            self._bar.set_postfix_str(words)
            return
        now = time.monotonic()
        if now - self._said < 10 and (quiet or self._said):
            return
        self._said = now
        report = self._report
        done = report.total - report.left
        print(f"{done}/{report.total}  {words}", file=sys.stderr, flush=True)


def _work(configuration: Configuration) -> int:
    protocol = configuration.protocol
    if protocol.period_us:
        return 0
    # 2 us a step and layer stand for what does not grow with the arithmetic.
    shape, passes = configuration.workload, 3 if configuration.mode == "training" else 1
    return (protocol.trials + protocol.warmup) * passes * (shape.flops + 50_000 * shape.sequence * shape.layers)
