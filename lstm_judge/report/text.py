"""What a report says in sentences. No code parses them."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from lstm_judge.outcomes import Change
from lstm_judge.read.labels import FINGERPRINT, with_version
from lstm_judge.read.runs import Runs
from lstm_judge.report.answer import Report
from lstm_judge.report.views import MOST_CALLS
from lstm_judge.statistics import bursts
from lstm_judge.verdict.text import headline, worst_loads
from lstm_trt.config.format import count, latency, listed, short_number
from lstm_trt.store.schema import Stored


def text(report: Report) -> str:
    """What is unfinished, the answer, and the largest network of each system that is MET."""
    lines = [f"unfinished: {reason}" for reason in report.unfinished] + answer(report)
    lines += [f"largest on {label}: {network}" for label, *_, network in report.overview[1]]
    return "\n".join(map(report.shown, lines))


def title(report: Report) -> str:
    """The question."""
    return f"Which networks answer within {latency(report.verdicts[0].question.deadline_us)}?"


def answer(report: Report) -> list[str]:
    """In sentences what meets the deadline, on which machine, how sure, under which assumption, and
    what is lacking."""
    lines = [
        f"{headline(report.verdicts)}.",
        *worst_loads(report.verdicts),
        *_needed(report),
        *basis(report),
    ]
    if len(report.verdicts) > 1:
        confidence = short_number(100 * report.verdicts[0].question.confidence)
        lines.append(
            f"Each verdict holds at {confidence} % confidence for its configuration alone:"
            " of many verdicts, some are wrong by chance."
        )
    lengths = [
        each.bursts.assumed_length
        for each in report.verdicts
        if each.bursts.assumed_length is not None
    ]
    if lengths:
        lines.append(
            f"MET assumes that {bursts.assumption(min(lengths))} (its remark states it for each),"
            " and that nothing else changes."
        )
    if report.comparisons is not None:
        lines += _compared(report)
    return lines


def _needed(report: Report) -> Iterator[str]:
    """The lengths of new recordings that would decide what is undecided."""
    needed = []
    for verdict in report.verdicts:
        if verdict.n and verdict.trials_needed:
            needed.append(verdict.trials_needed)
    if needed:
        trials = " to ".join(map(str, dict.fromkeys((min(needed), max(needed)))))
        yield (
            f"For {len(needed)} that are undecided a new recording of {trials} trials would decide."
        )


def _compared(report: Report) -> Iterator[str]:
    """How many configurations are slower or faster than in the baseline."""
    _, rows = report.compared
    for column, name in enumerate(("Median", "Tail"), start=1):
        found = Counter(row[column] for row in rows)
        texts = listed(f"{found[change]} {change}" for change in Change if found[change])
        yield f"{name} compared with the baseline: {texts}."
    alone = len(report.comparisons or ()) - len(rows)
    if alone:
        yield f"On one side only, and not compared: {count(alone, 'configuration')}."


def basis(report: Report) -> list[str]:
    """In sentences when and on which machines the recordings, and those of the baseline, were
    made."""
    lines = [f"Recorded {text}." for text in _recorded(report, report.runs)]
    if report.comparisons is not None:
        for text in _recorded(report, report.comparisons.runs):
            lines.append(f"Baseline recorded {text}.")
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
        hardware = {items[0].provenance["machine"]["cpu"]: None}
        used = set()
        for item in items:
            configuration = item.configuration
            hardware[configuration.device_name] = None
            used.add(with_version(configuration.runtime, configuration.runtime_version))
            used.add(f"lstm_trt {item.provenance['versions'].get('lstm_trt')}")
        yield (
            f"{_days(items)} on {', '.join(map(report.cut, hardware))} (machine"
            f" {fingerprint[:FINGERPRINT]}): {'; '.join(map(report.cut, sorted(used)))}"
        )


def _days(items: Sequence[Stored]) -> str:
    """`2026-05-01 to 2026-05-03`, or the one day."""
    days = [
        time.strftime("%Y-%m-%d", time.gmtime(item.provenance["started_unix_ns"] / 1e9))
        for item in items
    ]
    return " to ".join(dict.fromkeys((min(days), max(days))))


def holds(report: Report, calls: bool) -> str:
    """What a page holds, and whether its calls in order."""
    source = "recordings" if report.anonymous else report.runs.source
    single = "no weights, inputs or single calls"
    if calls:
        single = (
            f"single calls: the latencies of up to {MOST_CALLS} calls of each configuration, in"
            " order. It holds no weights or inputs"
        )
    elif report.pairs is not None:
        single += " (of so many configurations the calls in order are left out: select some)"
    private = "besides the paths of the recordings no host name or user"
    if report.anonymous:
        private = "no paths, host name or user"
    return (
        f"Made by lstm-trt of {source}. This page holds statistics, thinned curves and verdicts of"
        " each configuration, names of networks, and what the recordings state of machines,"
        f" versions and other programs. It holds {single}, and {private}."
    )
