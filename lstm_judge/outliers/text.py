"""Outliers and clusters as text. No code parses it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lstm_judge.outcomes import CountedBy, SteadyState, TimesBy
from lstm_judge.outliers.outliers import (
    CAUSE_NAMES,
    MOSTLY,
    Cluster,
    OutlierAnswers,
    OutlierRound,
    Outliers,
    Tail,
    clusters_line,
    hint_text,
)
from lstm_judge.read import numbers
from lstm_judge.statistics.causes import Cause
from lstm_judge.statistics.excess import OF_BLOCKS, PARTS, Excess, ran
from lstm_judge.statistics.segments import FEWEST_STEPS, SAME_LEVEL, Levels
from lstm_trt.config import format as fmt
from lstm_trt.config.libraries import special

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


def text(answers: OutlierAnswers) -> str:
    """Several lines for each configuration, or one if there are many."""
    if len(answers) > AT_LENGTH:
        return "\n".join(answers.texts(outliers_line))
    return "\n\n".join(answers.texts(outliers_text))


def outliers_text(outliers: Outliers, name: str = "") -> str:
    """Several lines: number of outliers, course of the level, clusters, and tail."""
    over = f" in {len(outliers.rounds)} rounds" * (len(outliers.rounds) > 1)
    trials = (
        f"{fmt.count(outliers.n, 'trial')}{over}, median {fmt.microseconds(outliers.median_us)} us"
    )
    lines = [f"{name}:"] if name else []
    lines.append(f"{trials}; {_box_plot_count(outliers)}")
    lines += [f"Trials: {_partition(outliers)}", *_clock(outliers), *_course(outliers.rounds)]
    if outliers.clusters:
        fast = sum(cluster.fast for cluster in outliers.clusters)
        kinds = ((len(outliers.clusters) - fast, "slow cluster"), (fast, "fast cluster"))
        clusters = " and ".join(fmt.count(size, kind) for size, kind in kinds if size)
        lines.append(
            f"{clusters}, as multiples of the local median (with the 95 % interval of the share):"
        )
        lines += [f"  {_cluster(cluster, outliers)}" for cluster in outliers.clusters]
        lines += _uneven(outliers)
    else:
        lines.append("No clusters.")
    lines += [*_tail(outliers), *_parts(outliers), *outliers.unexplained]
    if outliers.clusters and outliers.period_by is not None and not outliers.causes_counted:
        events = "context switches, page faults, steal and throttling"
        lines.append(f"No events were counted: `lstm-trt record` counts {events}.")
    return "\n".join(lines)


def outliers_line(outliers: Outliers, name: str) -> str:
    """The outliers on one line, for lists of configurations."""
    found = f"{fmt.count(outliers.n, 'trial')}: {_partition(outliers)}; {_box_plot_count(outliers)}"
    return f"{name}: {found}; clusters (x median): {clusters_line(outliers.clusters)}; level: {outliers.steady_state}"


def _box_plot_count(outliers: Outliers) -> str:
    return f"{outliers.outliers} outside 1.5 x IQR (box plot; {fmt.percent(outliers.outliers / outliers.n)})"


def _partition(outliers: Outliers) -> str:
    """Number of trials of each kind; they add up to n."""
    return ", ".join(
        f"{kind.replace('_', ' ')} {size}" for kind, size in outliers.partition.items()
    )


def _course(rounds: Sequence[OutlierRound]) -> list[str]:
    """Steady state and segments of each round; one line if all rounds are flat."""
    several = len(rounds) > 1
    mixed = levels_texts(rounds)
    if all(part.steady_state == SteadyState.FLAT and len(part.segments) == 1 for part in rounds):
        return [*mixed, f"Level: flat{' in all rounds' * several}"]
    return mixed + [
        (f"Round {part.round}: " if several else "Level: ")
        + f"{part.steady_state}{_segments(part)}"
        for part in rounds
    ]


def levels_texts(rounds: Sequence[Any]) -> list[str]:
    """Of each round with several levels `2 levels in runs of 50.0 calls on average: 100.0 us (50.0
    %), ...`."""
    found = []
    for part in rounds:
        if part.levels:
            of_round = f"Round {part.round}: " if len(rounds) > 1 else ""
            found.append(of_round + _levels(part.levels))
    return found


def _levels(levels: Levels) -> str:
    texts = []
    for median_us, *shares in zip(
        levels.medians_us, levels.shares, levels.shares_first, levels.shares_last, strict=True
    ):
        share, first, last = map(fmt.percent, shares)
        changes = (
            ""
            if first == last
            else f", from {first} in the first tenth of the trials to {last} in the last"
        )
        texts.append(f"{fmt.microseconds(median_us)} us ({share}{changes})")
    runs = f"in runs of {fmt.number(levels.run_length)} calls on average"
    return f"{len(texts)} levels {runs}: {', '.join(texts)}"


def _clock(outliers: Outliers) -> list[str]:
    """What a coarse clock hides."""
    if outliers.clock_step_us < SAME_LEVEL * outliers.median_us:
        return []
    step = fmt.latency(outliers.clock_step_us)
    return [
        f"The clock has steps of {step}: clusters nearer than {FEWEST_STEPS} steps to the median are not seen."
    ]


def _segments(part: OutlierRound) -> str:
    if len(part.segments) == 1 and not part.drift:
        return ""
    texts = []
    for segment in part.segments[:MOST_SEGMENTS]:
        change = f" (drift {numbers.signed_percent(segment.change)})" if segment.change else ""
        trials = f"trials {segment.start + 1} to {segment.stop}"
        texts.append(f"{fmt.microseconds(segment.median_us)} us in {trials}{change}")
    more = len(part.segments) - len(texts)
    texts += [f"and {fmt.count(more, 'more segment')}"] if more else []
    return f", {numbers.signed_percent(part.drift)} from start to end: {'; '.join(texts)}"


def _cluster(cluster: Cluster, outliers: Outliers) -> str:
    place = f"{numbers.multiple(cluster.multiplier)} ({fmt.microseconds(cluster.time_us)} us)"
    interval = f"{fmt.percent_number(cluster.share_low)} to {fmt.percent(cluster.share_high)}"
    text = (
        f"{place}: {fmt.count(cluster.count, 'trial')}, {fmt.percent(cluster.share)} ({interval})"
    )
    text += _period(cluster.period_ms, outliers) + _level_elsewhere(cluster, outliers)
    return text if outliers.period_by is None else f"{text}, {_causes(cluster)}"


def _level_elsewhere(cluster: Cluster, outliers: Outliers) -> str:
    """For a cluster of fast trials, the longest segment at the same level, if there is one."""
    if cluster.multiplier >= 1:
        return ""
    near = [
        found
        for found in outliers.segments
        if abs(found[0].median_us / cluster.time_us - 1) <= SAME_STATE
    ]
    if not near:
        return ""
    segment, number_of_round = max(near, key=lambda found: found[0].trials)
    of_round = f" of round {number_of_round}" * (len(outliers.rounds) > 1)
    return f", close to the median of trials {segment.start + 1} to {segment.stop}{of_round}"


def _uneven(outliers: Outliers) -> list[str]:
    """Clusters with a share that differs significantly between rounds (chi-squared test at 0.1 %)."""
    if len(outliers.rounds) < 2:
        return []
    lines = []
    for cluster in outliers.clusters:
        expected = [cluster.share * part.n for part in outliers.rounds]
        if min(expected) < 5:
            continue
        square = sum(
            (observed - mean) ** 2 / mean
            for observed, mean in zip(cluster.counts, expected, strict=True)
        )
        if special.chdtrc(len(expected) - 1, square) < 0.001:
            place, counts = (
                numbers.multiple(cluster.multiplier),
                ", ".join(map(str, cluster.counts)),
            )
            lines.append(f"  the frequency of {place} differs between rounds: {counts} trials")
    return lines


def _tail(outliers: Outliers) -> list[str]:
    tail = outliers.tail
    if tail is None:
        return []
    few = tail.count < LEAST_TAIL
    text = ("Stragglers" if few else "A smooth tail") + " outside clusters" * bool(
        outliers.clusters
    )
    text += f": {fmt.count(tail.count, 'trial')}, {fmt.percent(tail.share)}, from {numbers.multiple(tail.start)}"
    text += f" to {numbers.multiple(tail.stop)}" if tail.count > 1 else ""
    text += "" if few else f", {tail.shape}"
    return [
        text
        + _period(tail.period_ms, outliers)
        + (f", {_causes(tail)}" if tail.causes or tail.hint else "")
    ]


def _parts(outliers: Outliers) -> list[str]:
    """What slow calls spent their time on: a table, and what ran meanwhile."""
    named = [("the {} slowest calls", outliers.slowest)]
    named += [
        (f"cluster at {numbers.multiple(cluster.multiplier)}", cluster.excess)
        for cluster in outliers.clusters
    ]
    named += [("tail", outliers.tail.excess)] if outliers.tail else []
    named += [("empty step, the {} slowest", outliers.control)]
    found = [(name.format(excess.n), excess) for name, excess in named if excess]
    if not found:
        return []
    kinds = [kind for kind in PARTS if any(kind in excess.parts_us for _, excess in found)]
    rows = [
        (
            name,
            *map(fmt.microseconds, (excess.excess_us, *map(excess.parts_us.get, kinds))),
            _seen(excess),
        )
        for name, excess in found
    ]
    header = (
        "longer on average, us",
        "in all",
        *(PARTS[kind][0] for kind in kinds),
        "more in these calls or blocks",
    )
    why = "Of the time on the core the cause is not observed; a guest cannot see its hypervisor:"
    lines = [
        f"Time of slow calls, and of an empty step, which shows the machine without the network. {why}"
    ]
    lines += fmt.table_lines(header, rows, indent=2, right=header[1:-1], wrap=True)
    turns = []
    for name, each in sorted(ran(outliers.switches).items(), key=lambda item: -item[1]["total_ns"]):
        shortest, longest = (
            fmt.number(each[bound] / 1e3) for bound in ("shortest_ns", "longest_ns")
        )
        turns.append(f"{name} ({fmt.count(each['times'], 'time')}, {shortest} to {longest} us)")
    mapped = sum((Counter(each["faults"]) for each in outliers.switches), Counter())
    refused = {
        what: each[name]
        for each in outliers.switches
        for name, what in REFUSED.items()
        if each[name]
    }
    more = {
        "Ran while a timed call was preempted": turns,
        "Page faults of timed calls": [f"{name} {times}" for name, times in mapped.most_common()],
        **{what: [f"{why} (lstm-trt doctor)"] for what, why in refused.items()},
    }
    return lines + [f"{name}: {fmt.listed(items, 8)}" for name, items in more.items() if items]


def _seen(excess: Excess) -> str:
    """Counters that were higher, `interrupts 40 instead of 12 per block`, and a lower clock, with
    their units."""
    texts = []
    for name, values in excess.seen.items():
        scale, unit = {"ns": (1e3, " us"), "khz": (1e3, " MHz")}.get(
            name.rpartition("_")[2], (1, "")
        )
        here, there = (fmt.number(value / scale) for value in values)
        per = {"cpu_khz": ""}.get(name, " per block" if name in OF_BLOCKS else " per call")
        texts.append(f"{CAUSE_NAMES.get(name, name)} {here} instead of {there}{unit}{per}")
    return ", ".join(texts) or "none seen"


def _period(period_ms: float | None, outliers: Outliers) -> str:
    if period_ms is None:
        return ""
    by = (
        " (start times estimated by summing latencies)"
        if outliers.period_by == TimesBy.SUMMED_LATENCIES
        else ""
    )
    return f", every {fmt.number(period_ms)} ms{by}"


def _causes(part: Cluster | Tail) -> str:
    return ", ".join(map(_cause, part.causes)) or "unexplained" + hint_text(part)


def _cause(cause: Cause) -> str:
    if cause.by == CountedBy.CONTROL:
        noise = "consistent with machine noise: the control run (an empty step) has similar delays"
        return f"{noise} in {fmt.percent(cause.share_bulk)} of its calls"
    partly = "" if cause.share >= MOSTLY else "partly "
    shares = f"in {fmt.percent(cause.share)} of these trials, {fmt.percent(cause.share_bulk)} of the bulk"
    odds = f"odds ratio {fmt.number(cause.odds_ratio)}, p {_p_value(cause.p)}"
    return f"{partly}associated with {CAUSE_NAMES.get(cause.name, cause.name)} ({shares}; {odds})"


def _p_value(p: float) -> str:
    return "below 1e-99" if p < 1e-99 else f"{p:.0e}" if p < 0.001 else f"{p:.3f}"
