"""What a report says: verdicts, the largest network of each system that meets the deadline, and
what they rest on."""

from __future__ import annotations

import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lstm_judge.answers import runs_to_judge
from lstm_judge.compare import compare, pairing
from lstm_judge.compare.answer import NotCompared
from lstm_judge.outcomes import Change, Outcome
from lstm_judge.outliers import outliers
from lstm_judge.plots.points import system_labels
from lstm_judge.read.labels import FINGERPRINT, with_version
from lstm_judge.read.runs import Runs, RunsSource, paths_of
from lstm_judge.report import html, junit, markdown
from lstm_judge.statistics import bursts, parallel
from lstm_judge.statistics.quantiles import shares_of
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize import summarize as summary
from lstm_judge.verdict import verdict as deadline
from lstm_judge.verdict.question import Question
from lstm_trt.config.errors import file_errors, one_of, printable
from lstm_trt.config.format import count, latency, listed, short_number, value_text
from lstm_trt.store.files import write_whole
from lstm_trt.store.schema import Stored

#: Ending of a file -> what writes its content.
FORMATS: dict[str, Callable[..., str]] = {
    ".html": html.page,
    ".md": markdown.page,
    ".xml": junit.page,
}

#: Number of deadlines at which every configuration is judged.
STOPS = 60

#: What a configuration is at a deadline: its verdict, or that it has no trials.
NAMES = (*map(str, Outcome), "failed")
FAILED = len(Outcome)

#: Longest name that is shown whole.
NAME_LETTERS = 80

#: Paths in messages.
_PATH = r"(?<![\w/.])(?:~|\.{1,2})?/[^\s:,;'\"]+"


@dataclass(frozen=True, eq=False)
class Report:
    """What a report says of `runs`; configurations are numbered by their places there.

    `verdicts`, `rows` and `tails` have an entry for each. `systems`: a runtime with its options on
    one machine -> the places of its configurations. `stops_us`: deadlines, ascending; `outcomes`:
    (configurations, stops) places in `NAMES`. `undecided`: what NOT ENOUGH EVIDENCE is in JUnit,
    "failure" or "skipped".
    """

    runs: Runs
    verdicts: deadline.Verdicts
    rows: Sequence[summary.SummaryRow]
    tails: outliers.OutlierAnswers
    systems: dict[str, list[int]]
    stops_us: Sequence[float]
    outcomes: np.ndarray
    comparisons: Any = None
    anonymous: bool = False
    undecided: str = "failure"

    @property
    def exit_status(self) -> int:
        """That of the verdicts, with a baseline that of the comparison."""
        return (self.comparisons or self.verdicts).exit_status

    def shown(self, text: object) -> str:
        """A text with control characters as escapes, and if `anonymous` without paths, host name
        and user."""
        words = filter(None, (*self.runs.source.split(", "), platform.node(), Path.home().name))
        private = "|".join((_PATH, *(rf"\b{re.escape(word)}\b" for word in words)))
        return printable(re.sub(private, "[left out]", str(text)) if self.anonymous else str(text))

    def cut(self, name: object) -> str:
        """A name as `shown`, and shortened if it is long."""
        whole = self.shown(name)
        return whole if len(whole) <= NAME_LETTERS else f"{whole[: NAME_LETTERS - 1]}…"

    @property
    def unfinished(self) -> list[str]:
        """Why more recordings will or should follow: also configurations that lack rounds which
        others have."""
        reasons = [*self.runs.unfinished, *self.runs.lacks]
        for label, places in self.systems.items():
            rounds = [{round_.round for round_ in self.runs[place].rounds} for place in places]
            lacking = sum(0 < len(each) < len(set().union(*rounds)) for each in rounds)
            reasons += (
                [f"{count(lacking, 'configuration')} on {label} lack rounds that others have"]
                if lacking
                else []
            )
        return reasons

    def _largest(self, places: Sequence[int]) -> str:
        place = self.verdicts.largest(places=places)
        if place is None:
            return "none"
        group, tested = (
            self.runs[place],
            len({self.runs[each].configuration.workload for each in places}),
        )
        later, pairs = pairing.later_recording(group, self.runs), self.verdicts.items()
        status = [f"selected from {tested}" if tested > 1 else "the only one tested"]
        status += [
            f"a later recording of it: {found.outcome}" for each, found in pairs if each is later
        ]
        return (
            f"{group.configuration.name} ({', '.join(status)}{', not confirmed' * (later is None)})"
        )

    @property
    def title(self) -> str:
        return f"Which networks answer within {latency(self.verdicts[0].question.deadline_us)}?"

    def outcome(self, place: int) -> str:
        """One of `NAMES`: the verdict on a configuration at the deadline."""
        return str(self.verdicts[place].outcome) if self.runs[place].n else NAMES[FAILED]

    def remark(self, place: int) -> str:
        """What MET assumes, or why a configuration is not MET."""
        verdict = self.verdicts[place]
        assumed = verdict.bursts.assumed_length
        return (
            f"assumes that {bursts.assumption(assumed)}" if assumed else "; ".join(verdict.reasons)
        )

    @property
    def counts(self) -> dict[str, int]:
        """Each of `NAMES` -> number of configurations; "failed" only if there are any."""
        found = Counter(map(self.outcome, range(len(self.runs))))
        return {name: found[name] for name in NAMES if found[name] or name != NAMES[FAILED]}

    @property
    def overview(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table: the numbers of `counts` by system, and the largest network
        that is MET."""
        rows = []
        for label, places in self.systems.items():
            found = Counter(map(self.outcome, places))
            rows.append([label, *(str(found[name]) for name in self.counts), self._largest(places)])
        return ["system", *self.counts, "largest network that meets it"], rows

    @property
    def compared(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table: each configuration that is also in the baseline, SLOWER
        first."""
        rows = []
        for both, answer in self.comparisons.items():
            if not both.on_both_sides:
                continue
            if isinstance(answer, NotCompared):
                ambiguous = str(Change.AMBIGUOUS)
                rows.append([both.name, ambiguous, ambiguous, "-", "-", "-", answer.reason])
                continue
            changes = (answer.median, answer.tail)
            words = [str(change.change) for change in changes]
            numbers = [*(change.ratio.estimate for change in changes), answer.tail.percentile]
            rows.append([both.name, *words, *map(value_text, numbers), ""])
        order = (Change.SLOWER, Change.AMBIGUOUS, Change.FASTER, Change.SAME)
        rows.sort(key=lambda row: min(map(order.index, row[1:3])))
        ratios = ["median, new / baseline", "tail, new / baseline", "percentile of the tail"]
        return ["network", "median", "tail", *ratios, "remark"], rows

    @property
    def basis(self) -> list[str]:
        """In sentences when and on which machines the recordings, and those of the baseline, were
        made."""
        lines = [f"Recorded {text}." for text in self._recorded(self.runs)]
        if self.comparisons:
            lines += [
                f"Baseline recorded {text}." for text in self._recorded(self.comparisons.runs)
            ]
        return lines

    def _recorded(self, runs: Runs) -> Iterator[str]:
        """For each machine the first and the last day (UTC), processor and devices, and versions."""
        machines: dict[str, list[Stored]] = defaultdict(list)
        for item in runs.recordings:
            if {
                "started_unix_ns",
                "machine",
                "versions",
            } <= item.provenance.keys():  # failures may lack them
                machines[str(item.provenance.get("machine_fingerprint"))].append(item)
        for fingerprint, items in machines.items():
            starts = [item.provenance["started_unix_ns"] for item in items]
            days = dict.fromkeys(
                time.strftime("%Y-%m-%d", time.gmtime(ns / 1e9))
                for ns in (min(starts), max(starts))
            )
            hardware = [
                items[0].provenance["machine"]["cpu"],
                *(item.configuration.device_name for item in items),
            ]
            used = {
                with_version(item.configuration.runtime, item.configuration.runtime_version)
                for item in items
            }
            used |= {f"lstm_trt {item.provenance['versions'].get('lstm_trt')}" for item in items}
            machine = f"{', '.join(map(self.cut, dict.fromkeys(hardware)))} (machine {fingerprint[:FINGERPRINT]})"
            yield f"{' to '.join(days)} on {machine}: {'; '.join(map(self.cut, sorted(used)))}"
        if not machines:
            yield "at an unknown time on an unknown machine"

    def _verdicts_text(self, calls: str) -> str:
        """How many configurations meet the deadline, and what the others do; `calls`: what of its
        calls that says."""
        found = self.counts
        if len(self.runs) == 1:
            texts: dict[str, str] = {
                Outcome.MET: f"The one configuration meets it: at least {calls}.",
                Outcome.MISSED: f"The one configuration misses it: fewer than {calls}.",
                Outcome.NOT_ENOUGH_EVIDENCE: f"Whether at least {calls} is undecided for the one configuration.",
            }
            return texts.get(self.outcome(0), f"The one configuration failed: {self.remark(0)}.")
        met, missed, lacking, *failed = found.values()
        others = [f"{missed} miss it"] if missed else []
        others += [f"for {lacking} the evidence is too weak"] if lacking else []
        others += [f"{failed[0]} failed"] if failed else []
        first = f"In {met or 'none'} of {len(self.runs)} configurations at least {calls}."
        return f"{first} {'; '.join(others).capitalize()}." if others else first

    @property
    def answer(self) -> list[str]:
        """In sentences what meets the deadline, on which machine, how sure, under which assumption,
        what is lacking."""
        first = self.verdicts[0]
        confidence = f"{short_number(100 * first.question.confidence)} % confidence"
        within = f"within {short_number(first.question.deadline_us)} us, at {confidence}"
        lines = [
            self._verdicts_text(
                f"{short_number(first.question.percentile)} % of calls answer {within}"
            )
        ]
        weak = (
            each for each in self.verdicts if each.n and each.outcome == Outcome.NOT_ENOUGH_EVIDENCE
        )
        if needed := sorted(filter(None, (each.new_recording.trials for each in weak))):
            trials = " to ".join(map(str, dict.fromkeys((needed[0], needed[-1]))))
            lines.append(
                f"For {len(needed)} of these a new recording of {trials} trials would decide."
            )
        lines += self.basis
        if len(self.verdicts) > 1:
            alone = f"Each verdict holds at {confidence} for its configuration alone"
            lines.append(f"{alone}: of many verdicts, some are wrong by chance.")
        if assumed := list(filter(None, (each.bursts.assumed_length for each in self.verdicts))):
            least = bursts.assumption(min(assumed))
            lines.append(
                f"MET assumes that {least} (its remark states it for each), and that nothing else changes."
            )
        if self.comparisons:
            _, rows = self.compared
            for column, name in enumerate(("Median", "Tail"), start=1):
                found = Counter(row[column] for row in rows)
                texts = (f"{found[change]} {change}" for change in Change if found[change])
                lines.append(f"{name} compared with the baseline: {listed(texts)}.")
            if len(rows) < len(self.comparisons):
                alone = count(len(self.comparisons) - len(rows), "configuration")
                lines.append(f"On one side only, and not compared: {alone}.")
        return lines

    def __str__(self) -> str:
        largest = (f"largest on {row[0]}: {row[-1]}" for row in self.overview[1])
        unfinished = (f"unfinished: {reason}" for reason in self.unfinished)
        return "\n".join(map(self.shown, (*unfinished, *self.answer, *largest)))

    def as_dict(self) -> dict:
        """JSON values: the verdicts, the largest networks, and the comparison."""
        largest = {row[0]: row[-1] for row in self.overview[1]}
        plain = {
            "verdicts": self.verdicts.as_dict(),
            "largest": largest,
            "unfinished": self.unfinished,
        }
        return plain | {"comparisons": self.comparisons and self.comparisons.as_dict()}


def report(
    runs: RunsSource,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = 0.95,
    *,
    baseline: RunsSource | None = None,
    out: str | Path | Sequence[str | Path] = (),
    anonymous: bool = False,
    undecided: str = "failure",
    percentiles: Iterable[str | float] = (),
    **bursts: Any,
) -> Report:
    """The verdicts on recordings with what they rest on, written to files; other arguments are
    those of `verdict`.

    `out`: one path or several, ending in .html (one file that needs nothing else), .md (a short
    form) or .xml (JUnit, where `undecided` is what NOT ENOUGH EVIDENCE is: a "failure", or
    "skipped"). `baseline`: recordings that these are compared with. `anonymous`: leave out host
    name, user and paths. `percentiles`: as for `summarize`. The same recordings give the same
    bytes. Raises `UsageError` if an argument is out of range, and what `verdict` and `compare`
    raise.
    """
    question = Question(
        deadline_us, percentile, confidence, **bursts
    )  # refused before reading files
    shares = shares_of(percentiles)
    paths = paths_of(out) if out else []
    for path in paths:  # before what takes long
        one_of("format of a report", path.suffix, FORMATS)
        with file_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
    runs = runs_to_judge(runs, bounds=True)
    comparisons = (
        None if baseline is None else compare.compare(baseline, runs, confidence=confidence)
    )
    verdicts, tails = (
        deadline.verdict(runs, deadline_us, percentile, confidence, **bursts),
        outliers.outliers(runs),
    )
    stops_us, timed = (
        _stops(runs, question.deadline_us),
        [place for place, group in enumerate(runs) if group.n],
    )
    asked = [((runs[place].plain.rounds, question, runs[place].until), stops_us) for place in timed]
    codes = np.full((len(runs), len(stops_us)), FAILED)
    found = parallel.computed(deadline.outcomes_of, asked, [runs[place].n for place in timed])
    for place, each in zip(timed, found, strict=True):
        codes[place] = list(map(list(Outcome).index, each))
    statistics = zip(
        summary.summarize_groups(runs, clusters=False, shares=shares), tails, strict=True
    )
    rows = [replace(row, clusters=getattr(tail, "clusters", None)) for row, tail in statistics]
    systems: dict[str, list[int]] = {}
    for place, label in enumerate(
        system_labels(runs.groups) if runs.own else [runs.source] * len(runs)
    ):
        systems.setdefault(label, []).append(place)
    answer = Report(
        runs, verdicts, rows, tails, systems, stops_us, codes, comparisons, anonymous, undecided
    )
    for path in paths:
        with file_errors(f"write {path}"):
            write_whole(path, FORMATS[path.suffix](answer).encode())
    return answer


def _stops(runs: Runs, deadline_us: float) -> list[float]:
    """Deadlines from below the shortest to above the longest latency, evenly on a log scale, and
    the given one."""
    timed = [Trials.of(*group.rounds) for group in runs if group.n]
    low = min((process.statistic("min_us") / 1.1 for process in timed), default=deadline_us)
    high = max((process.max_us * 1.1 for process in timed), default=deadline_us)
    return sorted(
        {float(f"{value:.3g}") for value in np.geomspace(low, high, STOPS - 1)} | {deadline_us}
    )
