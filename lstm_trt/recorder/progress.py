"""The progress of a sweep: what is recorded now, how much is done, and about how long the rest
takes."""

from __future__ import annotations

import io
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.format import count, duration, listed, terminal_width
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.pool import waiting_text
from lstm_trt.recorder.report import SweepReport

#: What `guessed_s` assumes of any runtime: operations a second, and the seconds around the calls.
OPERATIONS_PER_S = 25e9
AROUND_CALLS_S = 1.0


def guessed_s(configuration: Configuration) -> float:
    """About how long a recording takes, in comparison with others of the same sweep."""
    protocol = configuration.protocol
    call_s = configuration.workload.work(configuration.mode) / OPERATIONS_PER_S
    calls = protocol.warmup + protocol.trials
    return AROUND_CALLS_S + calls * max(call_s, protocol.gap_s)


class Progress:
    """The progress line: the current configuration, the number done and the time left.

    The time left: what is left takes so much longer than what is done as the guesses say
    (`guessed_s`), each multiplied by how far those of its runtime were off so far.
    """

    def __init__(self, plan: Sequence[Configuration], report: SweepReport, show: bool) -> None:
        self._report = report
        self._began = time.monotonic()
        #: By runtime: the guesses for what is left and done, and what the latter took.
        self._guessed_left_s: dict[str, float] = defaultdict(float)
        self._guessed_done_s: dict[str, float] = defaultdict(float)
        self._took_s: dict[str, float] = defaultdict(float)
        for configuration in plan:
            self._guessed_left_s[configuration.runtime] += guessed_s(configuration)
        self._left_s: float | None = None
        self._running = ""
        self._show = show and report.left > 0
        self._bar: tqdm | None = None
        self._shown_at = -math.inf
        #: Shortest time between two lines; each update of a notebook makes the browser draw.
        self._every_s = 10.0

    def __enter__(self) -> Progress:
        in_notebook = _in_notebook()
        if self._show and (in_notebook or terminal_width(sys.stderr)):
            self._every_s = 0.5 if in_notebook else 0.0
            kind = NotebookBar if in_notebook else tqdm
            self._bar = kind(
                total=self._report.total,
                initial=self._report.done_before + self._report.failed_before,
                bar_format="{n_fmt}/{total_fmt} |{bar:10}| {elapsed}{postfix}",
                dynamic_ncols=not in_notebook,
            )
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str("")
            self._bar.close()

    def begin(self, configuration: Configuration, number: int) -> None:
        """Round `number` of a configuration begins in this process."""
        self._running = configuration.title
        if number:
            self._running += f", r{number}"
        self._show_line(self._running)

    def submitted(self, jobs: int, workers: int) -> None:
        """While executors record: what they have, and how much each machine has recorded."""
        machines = [f"{name} {number}" for name, number in self._report.machines.most_common()]
        at = f"{count(jobs, 'job')} at {count(workers, 'worker')}"
        self._running = f"{at}, recorded by {listed(machines, 3)}"
        self._show_line(self._running)

    def listen(self, message: dict) -> None:
        """A message of the process that records."""
        if message["event"] == "waiting":
            self._show_line(f"{self._running} {waiting_text(message)}", soon=True)
        elif message["event"] == "progress" and 0 < message["done"] < message["total"]:
            self._show_line(f"{self._running} {100 * message['done'] // message['total']} %")

    def end(self, configuration: Configuration, seconds: Seconds) -> None:
        """A configuration took so long to be recorded, or to fail, and the report contains it."""
        runtime = configuration.runtime
        self._guessed_left_s[runtime] -= guessed_s(configuration)
        self._guessed_done_s[runtime] += guessed_s(configuration)
        took_s = seconds.preparing + seconds.timing + seconds.control + seconds.storing
        self._took_s[runtime] += took_s
        self._left_s = self.seconds_left()
        if self._bar is not None:
            self._bar.update()
        elif not self._report.machines:  # else `submitted` follows
            self._show_line("")

    def seconds_left(self) -> float:
        """The time left, estimated after at least one configuration."""
        took_s = sum(self._took_s.values())
        usual = took_s / sum(self._guessed_done_s.values())
        left_s = 0.0
        for runtime, guess_s in self._guessed_left_s.items():
            done_s = self._guessed_done_s[runtime]
            left_s += guess_s * (self._took_s[runtime] / done_s if done_s else usual)
        at_a_time = max(1.0, took_s / (time.monotonic() - self._began))  # of executors
        return left_s / at_a_time

    def _show_line(self, running: str, soon: bool = False) -> None:
        """Show the line, but none that follows another too early, unless `soon`."""
        now = time.monotonic()
        if not self._show or (now - self._shown_at < self._every_s and not soon):
            return
        self._shown_at = now
        texts = ["remaining time not known yet"]
        if self._left_s is not None:
            texts = [f"about {duration(self._left_s)} left"]
        if self._report.failures:
            texts.append(f"{len(self._report.failures)} failed")
        if running:
            texts.append(running)
        text = ", ".join(texts)  # a narrow terminal cuts the end
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            done = self._report.total - self._report.left
            print(f"{done}/{self._report.total}  {text}", file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar(tqdm):
    """A progress bar as text in the output of a cell; updates replace it, so that a notebook is
    saved with the last.

    Not `tqdm.notebook`, whose widgets need ipywidgets, and leave an error in a saved notebook; nor
    what `tqdm.auto` does without ipywidgets: a warning, and every update is saved.
    """

    def __init__(self, **arguments: Any) -> None:
        self._output = None
        super().__init__(file=io.StringIO(), ascii=False, **arguments)

    def display(self, *ignored: Any, **also: Any) -> None:
        from IPython.display import display

        text = {"text/plain": str(self)}
        if self._output is None:
            self._output = display(text, raw=True, display_id=True)
        else:
            self._output.update(text, raw=True)
