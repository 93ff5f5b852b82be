"""What a report says: verdicts, the largest network of each system that meets the deadline, and
what they rest on."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lstm_judge.compare.answer import Comparison, Comparisons, NotCompared
from lstm_judge.compare.pairing import later_recording
from lstm_judge.outcomes import Change, Outcome
from lstm_judge.outliers.outliers import OutlierAnswers
from lstm_judge.read.runs import Runs
from lstm_judge.report.views import Pairs
from lstm_judge.statistics import bursts
from lstm_judge.summarize.summarize import SummaryRow
from lstm_judge.verdict.verdict import Verdicts
from lstm_trt import registry
from lstm_trt.config.errors import printable
from lstm_trt.config.format import count, value_text
from lstm_trt.config.libraries import pd

#: What a configuration is at a deadline: its verdict, or that it has no trials.
FAILED = "failed"
NAMES = (*map(str, Outcome), FAILED)

#: Longest name that is shown whole.
NAME_LETTERS = 80

#: Paths in messages.
_PATH = r"(?<![\w/.])(?:~|\.{1,2})?/[^\s:,;'\"]+"

#: A table: its header and its rows.
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True, eq=False)
class Slider:
    """What each configuration is at other deadlines, which the slider of the page shows.

    `deadlines_us` are ascending; `names`: (configurations, deadlines) places in `NAMES`.
    """

    deadlines_us: Sequence[float]
    names: np.ndarray


@dataclass(frozen=True, eq=False)
class Report:
    """What a report says; configurations are numbered by their places in `runs`.

    `verdicts`, `rows` and `tails` have an entry for each. `systems`: a runtime with its options on
    one machine -> the places of its configurations. `undecided`: what NOT ENOUGH EVIDENCE is in
    JUnit, "failure" or "skipped". `pairs`: the comparisons of neighbours, if the page is to explore
    and holds single calls, else None.
    """

    verdicts: Verdicts
    rows: Sequence[SummaryRow]
    tails: OutlierAnswers
    systems: dict[str, list[int]]
    slider: Slider
    comparisons: Comparisons | None = None
    anonymous: bool = False
    undecided: str = "failure"
    pairs: Pairs | None = None

    @property
    def runs(self) -> Runs:
        return self.verdicts.runs

    @property
    def exit_status(self) -> int:
        """That of the verdicts, with a baseline that of the comparison."""
        if self.comparisons is not None:
            return self.comparisons.exit_status
        return self.verdicts.exit_status

    def outcome(self, place: int) -> str:
        """One of `NAMES`: the verdict on a configuration at the deadline."""
        return str(self.verdicts[place].outcome) if self.runs[place].n else FAILED

    def remark(self, place: int) -> str:
        """What MET assumes, or why a configuration is not MET."""
        verdict = self.verdicts[place]
        if verdict.bursts.assumed_length:
            return f"assumes that {bursts.assumption(verdict.bursts.assumed_length)}"
        return "; ".join(verdict.reasons)

    def counts(self, places: Sequence[int] | None = None) -> dict[str, int]:
        """Each of `NAMES` -> number of configurations, of all or at these places; "failed" only if
        there are any in the report."""
        every = [self.outcome(place) for place in range(len(self.runs))]
        found = Counter(every if places is None else map(every.__getitem__, places))
        return {name: found[name] for name in NAMES if name != FAILED or FAILED in every}

    @property
    def overview(self) -> Table:
        """The numbers of verdicts by system, and the largest network that is MET."""
        rows = []
        for label, places in self.systems.items():
            rows.append([label, *map(str, self.counts(places).values()), self._largest(places)])
        return ["system", *self.counts(), "largest network that meets it"], rows

    def _largest(self, places: Sequence[int]) -> str:
        place = self.verdicts.largest(places=places)
        if place is None:
            return "none"
        group = self.runs[place]
        later = later_recording(group, self.runs)
        tested = len({self.runs[each].configuration.workload for each in places})
        status = f"selected from {tested}" if tested > 1 else "the only one tested"
        if later is None:
            status += ", not confirmed"
        for other, found in self.verdicts.items():
            if other is later:
                status += f", a later recording of it: {found.outcome}"
        return f"{group.configuration.name} ({status})"

    @property
    def compared(self) -> Table:
        """Each configuration that is also in the baseline, SLOWER first; without one no rows."""
        rows = []
        for both, answer in () if self.comparisons is None else self.comparisons.items():
            if both.on_both_sides:
                rows.append(_compared(both.name, answer))
        order = (Change.SLOWER, Change.AMBIGUOUS, Change.FASTER, Change.SAME)
        rows.sort(key=lambda row: min(map(order.index, row[1:3])))
        header = [
            "network",
            "median",
            "tail",
            "median, new / baseline",
            "tail, new / baseline",
            "percentile of the tail",
            "remark",
        ]
        return header, rows

    @property
    def unfinished(self) -> list[str]:
        """Why more recordings will or should follow: also configurations that lack rounds which
        others have."""
        reasons = [*self.runs.unfinished, *self.runs.lacks]
        for label, places in self.systems.items():
            rounds = [{each.round for each in self.runs[place].rounds} for place in places]
            most = len(set().union(*rounds))
            lacking = sum(0 < len(recorded) < most for recorded in rounds)
            if lacking:
                reasons.append(
                    f"{count(lacking, 'configuration')} on {label} lack rounds that others have"
                )
        return reasons

    def shown(self, text: object) -> str:
        """A text with control characters as escapes, and if `anonymous` without paths, host name
        and user."""
        whole = str(text).replace("\u00a0", " ")
        if self.anonymous:
            words = (*self.runs.source.split(", "), platform.node(), Path.home().name)
            private = [rf"\b{re.escape(word)}\b" for word in words if word]
            whole = re.sub("|".join([_PATH, *private]), "[left out]", whole)
        return printable(whole)

    def cut(self, name: object) -> str:
        """A name as `shown`, and shortened if it is long."""
        whole = self.shown(name)
        return whole if len(whole) <= NAME_LETTERS else f"{whole[: NAME_LETTERS - 1]}…"

    def __str__(self) -> str:
        return registry.load_entry("TEXTS", type(self).__name__).text(self)

    @property
    def frame(self) -> pd.DataFrame:
        """The verdicts as a table."""
        return self.verdicts.frame

    def as_dict(self) -> dict:
        """JSON values: the verdicts, the largest networks, and the comparison."""
        return {
            "verdicts": self.verdicts.as_dict(),
            "largest": {label: largest for label, *_, largest in self.overview[1]},
            "unfinished": self.unfinished,
            "comparisons": self.comparisons and self.comparisons.as_dict(),
        }


def _compared(name: str, answer: Comparison | NotCompared) -> list[str]:
    """A row of `Report.compared`."""
    if isinstance(answer, NotCompared):
        return [name, Change.AMBIGUOUS, Change.AMBIGUOUS, "-", "-", "-", answer.reason]
    median = answer.median
    tail = answer.tail
    shown = map(value_text, (median.ratio.estimate, tail.ratio.estimate, tail.percentile))
    return [name, median.change, tail.change, *shown, ""]
