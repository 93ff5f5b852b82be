"""What a report says in sentences. No code parses them."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from lstm_judge.outcomes import Change, Outcome
from lstm_judge.read.labels import FINGERPRINT, with_version
from lstm_judge.read.runs import Runs
from lstm_judge.report.answer import Report
from lstm_judge.statistics import bursts
from lstm_judge.verdict.text import headline
from lstm_trt.config.format import count, latency, listed, short_number
from lstm_trt.store.schema import Stored


def text(report: Report) -> str:
    """What is unfinished, the answer, and the largest network of each system that is MET."""
    unfinished = [f"unfinished: {reason}" for reason in report.unfinished]
    largest = [f"largest on {label}: {network}" for label, *_, network in report.overview[1]]
    return "\n".join(map(report.shown, [*unfinished, *answer(report), *largest]))


def title(report: Report) -> str:
    """The question."""
    return f"Which networks answer within {latency(report.verdicts[0].question.deadline_us)}?"


def answer(report: Report) -> list[str]:
    """In sentences what meets the deadline, on which machine, how sure, under which assumption, and
    what is lacking."""
    lines = [f"{headline(report.verdicts)}."]
    lines += _needed(report)
    lines += basis(report)
    if len(report.verdicts) > 1:
        confidence = short_number(100 * report.verdicts[0].question.confidence)
        alone = f"Each verdict holds at {confidence} % confidence for its configuration alone"
        lines.append(f"{alone}: of many verdicts, some are wrong by chance.")
    assumed = [each.bursts.assumed_length for each in report.verdicts]
    lengths = [length for length in assumed if length is not None]
    if lengths:
        least = f"MET assumes that {bursts.assumption(min(lengths))}"
        lines.append(f"{least} (its remark states it for each), and that nothing else changes.")
    if report.comparisons is not None:
        lines += _compared(report)
    return lines


def _needed(report: Report) -> list[str]:
    """The lengths of new recordings that would decide what is undecided."""
    needed = []
    for verdict in report.verdicts:
        undecided = verdict.n and verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE
        if undecided and verdict.new_recording.trials:
            needed.append(verdict.new_recording.trials)
    if not needed:
        return []
    trials = " to ".join(map(str, dict.fromkeys((min(needed), max(needed)))))
    undecided = f"For {len(needed)} that are undecided"
    return [f"{undecided} a new recording of {trials} trials would decide."]


def _compared(report: Report) -> Iterator[str]:
    """How many configurations are slower or faster than in the baseline."""
    _, rows = report.compared
    for column, name in enumerate(("Median", "Tail"), start=1):
        found = Counter(row[column] for row in rows)
        texts = [f"{found[change]} {change}" for change in Change if found[change]]
        yield f"{name} compared with the baseline: {listed(texts)}."
    alone = len(report.comparisons or ()) - len(rows)
    if alone:
        yield f"On one side only, and not compared: {count(alone, 'configuration')}."


def basis(report: Report) -> list[str]:
    """In sentences when and on which machines the recordings, and those of the baseline, were
    made."""
    lines = [f"Recorded {text}." for text in _recorded(report, report.runs)]
    if report.comparisons is not None:
        baseline = _recorded(report, report.comparisons.runs)
        lines += [f"Baseline recorded {text}." for text in baseline]
    return lines


def _recorded(report: Report, runs: Runs) -> Iterator[str]:
    """For each machine the first and the last day (UTC), processor and devices, and versions."""
    machines: dict[str, list[Stored]] = defaultdict(list)
    for item in runs.recordings:
        # Failures may lack them.
        if {"started_unix_ns", "machine", "versions"} <= item.provenance.keys():
            machines[str(item.provenance.get("machine_fingerprint"))].append(item)
    if not machines:
        yield "at an unknown time on an unknown machine"
    for fingerprint, items in machines.items():
        devices = [item.configuration.device_name for item in items]
        hardware = dict.fromkeys([items[0].provenance["machine"]["cpu"], *devices])
        used = set()
        for item in items:
            configuration = item.configuration
            used.add(with_version(configuration.runtime, configuration.runtime_version))
            used.add(f"lstm_trt {item.provenance['versions'].get('lstm_trt')}")
        machine = f"{', '.join(map(report.cut, hardware))} (machine {fingerprint[:FINGERPRINT]})"
        yield f"{_days(items)} on {machine}: {'; '.join(map(report.cut, sorted(used)))}"


def _days(items: Sequence[Stored]) -> str:
    """`2026-05-01 to 2026-05-03`, or the one day."""
    starts = [item.provenance["started_unix_ns"] for item in items]
    ends = [time.gmtime(ns / 1e9) for ns in (min(starts), max(starts))]
    return " to ".join(dict.fromkeys(time.strftime("%Y-%m-%d", day) for day in ends))
