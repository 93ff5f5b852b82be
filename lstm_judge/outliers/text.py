"""Outliers and clusters as text. No code parses it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lstm_judge.answers import Answers
from lstm_judge.outcomes import CountedBy, SteadyState, TimesBy
from lstm_judge.outliers.answer import Cluster, Events, OutlierRound, Outliers, Tail
from lstm_judge.read import numbers
from lstm_judge.statistics.causes import Cause
from lstm_judge.statistics.excess import OF_BLOCKS, PARTS, Excess, ran
from lstm_judge.statistics.segments import FEWEST_STEPS, SAME_LEVEL, Levels, Segment
from lstm_trt.config import format as fmt
from lstm_trt.config.libraries import special

#: Display names of counters.
CAUSE_NAMES = {
    "involuntary_switches": "involuntary context switches",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "steal_ns": "CPU time stolen by the host",
    "throttled_periods": "CPU throttling",
    "runnable_ns": "time waiting for a core",
    "pool_preempted_ns": "preemption of its pool",
    "unexplained_cpu_ns": "CPU time of threads outside the runtime's pool",
    "cpu_khz": "clock",
}

#: A cause explains a cluster only in part if fewer than this share of its trials have it.
MOSTLY = 0.5

#: Fast trials and a segment are at the same level if their medians differ by at most this share.
SAME_STATE = 0.02

#: A tail with fewer trials is called stragglers.
LEAST_TAIL = 5

#: Refusal in a recording -> what was not measured.
REFUSED = {
    "missing": "Times off the core were not measured",
    "ran_missing": "What ran while a call was preempted is not known",
    "faults_missing": "Addresses of page faults are not known",
}

#: Up to this number of configurations are printed in full; more are printed with one line each.
AT_LENGTH = 8

#: Maximum number of segments that are printed; the others are counted.
MOST_SEGMENTS = 5


def text(answers: Answers[Outliers]) -> str:
    """Several lines for each configuration, or one if there are many."""
    if len(answers) > AT_LENGTH:
        return "\n".join(answers.texts(outliers_line))
    return "\n\n".join(answers.texts(outliers_text))


def headline(answers: Answers[Outliers]) -> str:
    """The answer in one line: that of the only configuration, or how many have clusters, the most
    frequent of these, and the largest share of slow calls."""
    if len(answers) == 1:
        return answers.texts(outliers_line)[0]
    found = [answer for answer in answers if isinstance(answer, Outliers)]
    clusters = [cluster for outliers in found for cluster in outliers.clusters]
    clustered = sum(bool(outliers.clusters) for outliers in found)
    unsteady = sum(outliers.steady_state == SteadyState.NONE for outliers in found)
    which = f" ({clusters_text(clusters, short=True)})" if clusters else ""
    slow = max(map(_slow, found), default=0)
    return (
        f"{fmt.count(len(answers), 'configuration')}: {clustered} with clusters of slow or fast"
        f" calls{which}, up to {fmt.percent(slow)} of calls slow, {unsteady} without a steady state"
    )


def _slow(outliers: Outliers) -> float:
    """The share of calls in slow clusters and in the tail."""
    return (outliers.partition["slow_clusters"] + outliers.partition["tail"]) / outliers.n


def least(answers: Answers[Outliers]) -> Sequence[str]:
    """Columns of the table that a notebook can do without, the first one first."""
    return "bulk", "outliers", "fast_clusters", "n"


def outliers_line(outliers: Outliers, name: str) -> str:
    """The outliers on one line, for lists of configurations."""
    return (
        f"{name}: {fmt.count(outliers.n, 'trial')}: {_partition(outliers)};"
        f" {_box_plot_count(outliers)}; clusters (x median): {clusters_text(outliers.clusters)};"
        f" level: {outliers.steady_state}"
    )


def clusters_text(clusters: Sequence[Cluster], short: bool = False) -> str:
    """`2.0 % at 1.25x, 1.0 % at 2.01x`, or `none`; if `short`: `2.0 % at 1.25x; 2 more`, with the
    most frequent one."""
    if short and len(clusters) > 1:
        most = max(clusters, key=lambda cluster: cluster.share)
        return f"{clusters_text([most])}; {len(clusters) - 1} more"
    return fmt.listed(
        f"{fmt.percent(cluster.share)} at {numbers.multiple(cluster.multiplier)}"
        for cluster in clusters
    )


def outliers_text(outliers: Outliers, name: str = "") -> str:
    """Several lines: number of outliers, course of the level, clusters, and tail."""
    lines = [f"{name}:"] if name else []
    trials = fmt.count(outliers.n, "trial")
    if len(outliers.rounds) > 1:
        trials += f" in {len(outliers.rounds)} rounds"
    trials += f", median {fmt.microseconds(outliers.median_us)} us"
    lines.append(f"{trials}; {_box_plot_count(outliers)}")
    lines.append(f"Trials: {_partition(outliers)}")
    if outliers.clock_step_us >= SAME_LEVEL * outliers.median_us:
        lines.append(
            f"The clock has steps of {fmt.latency(outliers.clock_step_us)}: clusters nearer than"
            f" {FEWEST_STEPS} steps to the median are not seen."
        )
    lines += levels_texts(outliers.rounds)
    lines += _course(outliers.rounds)
    lines += _clusters(outliers)
    if outliers.tail is not None:
        lines.append(_tail(outliers.tail, outliers))
    events = outliers.events
    if events is not None:
        lines += _times(outliers, events)
        lines += _seen_meanwhile(events)
        lines += events.unexplained
        if outliers.clusters and not events.counted:
            lines.append(
                "No events were counted: `lstm-trt record` counts context switches, page faults,"
                " steal and throttling."
            )
    return "\n".join(lines)


def _box_plot_count(outliers: Outliers) -> str:
    count = outliers.outliers
    return f"{count} outside 1.5 x IQR (box plot; {fmt.percent(count / outliers.n)})"


def _partition(outliers: Outliers) -> str:
    """Number of trials of each kind; they add up to n."""
    return ", ".join(f"{kind} {size}" for kind, size in outliers.partition.items()).replace(
        "_", " "
    )


def levels_texts(rounds: Sequence[Any]) -> list[str]:
    """Of each round with several levels `2 levels in runs of 50.0 calls on average: 100.0 us (50.0
    %), ...`.

    `rounds`: objects with `round`, their number, and `levels`.
    """
    texts = []
    for each in rounds:
        if each.levels is not None:
            text = _levels(each.levels)
            texts.append(f"Round {each.round}: {text}" if len(rounds) > 1 else text)
    return texts


def _levels(levels: Levels) -> str:
    texts = []
    for median_us, *shares in zip(
        levels.medians_us, levels.shares, levels.shares_first, levels.shares_last, strict=True
    ):
        share, first, last = map(fmt.percent, shares)
        if first != last:
            share += f", from {first} in the first tenth of the trials to {last} in the last"
        texts.append(f"{fmt.microseconds(median_us)} us ({share})")
    return (
        f"{len(texts)} levels in runs of {fmt.number(levels.run_length)} calls on average:"
        f" {', '.join(texts)}"
    )


def _course(rounds: Sequence[OutlierRound]) -> Iterator[str]:
    """Steady state and segments of each round; one line if all rounds are flat."""
    several = len(rounds) > 1
    if all(each.steady_state == SteadyState.FLAT and len(each.segments) == 1 for each in rounds):
        yield "Level: flat in all rounds" if several else "Level: flat"
        return
    for each in rounds:
        place = f"Round {each.round}" if several else "Level"
        yield f"{place}: {each.steady_state}{_segments(each)}"


def _segments(round_: OutlierRound) -> str:
    if len(round_.segments) == 1 and not round_.drift:
        return ""
    texts = []
    for segment in round_.segments[:MOST_SEGMENTS]:
        text = f"{fmt.microseconds(segment.median_us)} us in {_trials(segment)}"
        if segment.change:
            text += f" (drift {numbers.signed_percent(segment.change)})"
        texts.append(text)
    more = len(round_.segments) - len(texts)
    if more:
        texts.append(f"and {fmt.count(more, 'more segment')}")
    return f", {numbers.signed_percent(round_.drift)} from start to end: {'; '.join(texts)}"


def _trials(segment: Segment) -> str:
    return f"trials {segment.start + 1} to {segment.stop}"


def _clusters(outliers: Outliers) -> Iterator[str]:
    if not outliers.clusters:
        yield "No clusters."
        return
    kinds = Counter(
        "fast cluster" if cluster.fast else "slow cluster" for cluster in outliers.clusters
    )
    counted = " and ".join(fmt.count(kinds[kind], kind) for kind in sorted(kinds, reverse=True))
    yield (f"{counted}, as multiples of the local median (with the 95 % interval of the share):")
    for cluster in outliers.clusters:
        yield f"  {_cluster(cluster, outliers)}"
    for cluster in outliers.clusters:
        if _is_uneven(cluster, outliers.rounds):
            yield (
                f"  the frequency of {numbers.multiple(cluster.multiplier)} differs between rounds:"
                f" {', '.join(map(str, cluster.counts))} trials"
            )


def _cluster(cluster: Cluster, outliers: Outliers) -> str:
    text = (
        f"{numbers.multiple(cluster.multiplier)} ({fmt.microseconds(cluster.time_us)} us):"
        f" {fmt.count(cluster.count, 'trial')}, {fmt.percent(cluster.share)}"
        f" ({fmt.percent_number(cluster.share_low)} to {fmt.percent(cluster.share_high)})"
        f"{_period(cluster, outliers.events)}"
    )
    if cluster.fast:
        text += _level_elsewhere(cluster, outliers.rounds)
    return text if outliers.events is None else f"{text}, {causes_text(cluster, outliers.events)}"


def _level_elsewhere(cluster: Cluster, rounds: Sequence[OutlierRound]) -> str:
    """The longest segment at the same level, if there is one."""
    longest = 0
    text = ""
    for each in rounds:
        for segment in each.segments:
            near = abs(segment.median_us / cluster.time_us - 1) <= SAME_STATE
            if near and segment.trials > longest:
                longest = segment.trials
                text = f", close to the median of {_trials(segment)}"
                if len(rounds) > 1:
                    text += f" of round {each.round}"
    return text


def _is_uneven(cluster: Cluster, rounds: Sequence[OutlierRound]) -> bool:
    """Whether the share differs significantly between rounds (chi-squared test at 0.1 %)."""
    expected = np.array([cluster.share * each.n for each in rounds])
    if len(rounds) < 2 or expected.min() < 5:
        return False
    square = ((cluster.counts - expected) ** 2 / expected).sum()
    return bool(special.chdtrc(len(rounds) - 1, square) < 0.001)


def _tail(tail: Tail, outliers: Outliers) -> str:
    few = tail.count < LEAST_TAIL
    text = "Stragglers" if few else "A smooth tail"
    if outliers.clusters:
        text += " outside clusters"
    text += (
        f": {fmt.count(tail.count, 'trial')}, {fmt.percent(tail.share)},"
        f" from {numbers.multiple(tail.start)}"
    )
    if tail.count > 1:
        text += f" to {numbers.multiple(tail.stop)}"
    if not few:
        text += f", {tail.shape}"
    text += _period(tail, outliers.events)
    if tail.causes or tail.hint:
        text += f", {causes_text(tail, outliers.events)}"
    return text


def _period(part: Cluster | Tail, events: Events | None) -> str:
    if part.period_ms is None or events is None:
        return ""
    text = f", every {fmt.number(part.period_ms)} ms"
    if events.period_by == TimesBy.SUMMED_LATENCIES:
        text += " (start times estimated by summing latencies)"
    return text


def causes_text(part: Cluster | Tail, events: Events | None, short: bool = False) -> str:
    """Causes, compared with the bulk, or `unexplained`; `short` for a cell of a table or a figure:
    `minor page faults (odds ratio 12)`."""
    if part.causes:
        return ", ".join(_cause(cause, short) for cause in part.causes)
    text = "unexplained"
    if short and (events is None or not events.counted):
        text = "no events were counted"
    return f"{text} ({part.hint})" if part.hint else text


def _cause(cause: Cause, short: bool) -> str:
    name = counter_name(cause.name)
    odds = fmt.number(cause.odds_ratio)
    share = fmt.percent(cause.share)
    bulk = fmt.percent(cause.share_bulk)
    partly = cause.share < MOSTLY
    if cause.by == CountedBy.CONTROL:
        if short:
            return "machine noise (control run)"
        return (
            "consistent with machine noise: the control run (an empty step) has similar delays in"
            f" {bulk} of its calls"
        )
    if short:
        part = f"{share} of these, " if partly else ""
        text = f"{name} ({part}odds\u00a0ratio\u00a0{odds})"
    else:
        text = (
            f"associated with {name} (in {share} of these trials, {bulk} of the bulk;"
            f" odds ratio {odds}, p {_p_value(cause.p)})"
        )
    return f"partly {text}" if partly else text


def counter_name(name: str) -> str:
    """Display name of a counter."""
    return CAUSE_NAMES.get(name, name.replace("_", " "))


def _p_value(p: float) -> str:
    if p < 1e-99:
        return "below 1e-99"
    return f"{p:.0e}" if p < 0.001 else f"{p:.3f}"


def _times(outliers: Outliers, events: Events) -> list[str]:
    """What slow calls spent their time on, as a table."""
    rows: list[tuple[str, Excess | None]] = []
    if events.slowest:
        rows.append((f"the {events.slowest.n} slowest calls", events.slowest))
    for cluster in outliers.clusters:
        rows.append((f"cluster at {numbers.multiple(cluster.multiplier)}", cluster.excess))
    if outliers.tail:
        rows.append(("tail", outliers.tail.excess))
    if events.control:
        rows.append((f"empty step, the {events.control.n} slowest", events.control))
    measured = [(name, excess) for name, excess in rows if excess]
    if not measured:
        return []
    kinds = [kind for kind in PARTS if any(kind in excess.parts_us for _, excess in measured)]
    cells = []
    for name, excess in measured:
        times_us = (excess.excess_us, *map(excess.parts_us.get, kinds))
        cells.append((name, *map(fmt.microseconds, times_us), _seen(excess)))
    columns = ["in all", *(PARTS[kind][0] for kind in kinds)]
    return [
        "Time of slow calls, and of an empty step, which shows the machine without the network."
        " Of the time on the core the cause is not observed; a guest cannot see its hypervisor:",
        *fmt.table_lines(
            ["longer on average, us", *columns, "more in these calls or blocks"],
            cells,
            indent=2,
            right=columns,
            wrap=True,
        ),
    ]


def _seen(excess: Excess) -> str:
    """Counters that were higher, `interrupts 40 instead of 12 per block`, and a lower clock, with
    their units."""
    texts = []
    for name, values in excess.seen.items():
        scale = 1.0
        unit = " per block" if name in OF_BLOCKS else " per call"
        if name == "cpu_khz":
            scale, unit = 1e3, " MHz"
        elif name.endswith("_ns"):
            scale, unit = 1e3, f" us{unit}"
        here, there = (fmt.number(value / scale) for value in values)
        texts.append(f"{counter_name(name)} {here} instead of {there}{unit}")
    return ", ".join(texts) or "none seen"


def _seen_meanwhile(events: Events) -> Iterator[str]:
    """What ran while a call was preempted, what page faults were of, and what was not measured."""
    turns = []
    for name, each in sorted(ran(events.switches).items(), key=lambda item: -item[1]["total_ns"]):
        turns.append(
            f"{name} ({fmt.count(each['times'], 'time')}, {fmt.number(each['shortest_ns'] / 1e3)}"
            f" to {fmt.number(each['longest_ns'] / 1e3)} us)"
        )
    if turns:
        yield f"Ran while a timed call was preempted: {fmt.listed(turns, 8)}"
    faults: Counter[str] = Counter()
    for each in events.switches:
        faults.update(each["faults"])
    if faults:
        mapped = fmt.listed((f"{name} {times}" for name, times in faults.most_common()), 8)
        yield f"Page faults of timed calls: {mapped}"
    for name, what in REFUSED.items():
        refused = [each[name] for each in events.switches if each[name]]
        if refused:
            yield f"{what}: {refused[-1]} (lstm-trt doctor)"
