"""The answers as text for a terminal, a table or a page, made from their values; no code reads it back."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from lstm_trt.analysis.outcomes import Change, CountedBy, Outcome, SteadyState, TimesBy
from lstm_trt.analysis.quantiles import ROUNDS
from lstm_trt.config.format import (
    count,
    latency,
    microseconds,
    milliseconds,
    multiple,
    number,
    percent,
    percent_at_least,
    percent_at_most,
    percent_certified,
    percent_number,
    rate,
    short_number,
    signed_percent,
    table,
    table_lines,
)

if TYPE_CHECKING:
    from lstm_trt.analysis.causes import Cause
    from lstm_trt.analysis.compare import ClusterPair, Comparison
    from lstm_trt.analysis.deadline import FirmStatistics, Verdict
    from lstm_trt.analysis.outliers import Cluster, Outliers, Round, Tail
    from lstm_trt.analysis.replay import Replay
    from lstm_trt.analysis.scaling import Findings, Inversion
    from lstm_trt.analysis.summary import SummaryRow
    from lstm_trt.analysis.times import Times

#: Names of counters for people.
CAUSE_NAMES = {
    "involuntary_switches": "involuntary context switches",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "steal_ns": "CPU time stolen by the host",
    "throttled_periods": "CPU throttling",
}

#: A cause that a smaller share of a cluster's trials have explains it in part only.
MOSTLY = 0.5

#: Fast trials and a segment are of one state where their medians differ by at most this share.
SAME_STATE = 0.02

#: Tails of fewer trials are called stragglers.
LEAST_TAIL = 5

#: So many segments and inversions are printed; the others are counted.
MOST_SEGMENTS, MOST_INVERSIONS = 5, 10

#: Characters of a line of the summary.
WIDTH = 140

AXIS_NAMES = {"layers": "Layers", "hidden": "Hidden size", "sequence": "Sequence length", "batch": "Batch size"}

AXIS_UNITS = {"layers": "layer", "hidden": "unit", "sequence": "step", "batch": "sample"}

#: A series is called linear above this.
LINEAR_R2 = 0.99


# Verdicts


def verdict_text(verdict: Verdict, name: str = "") -> str:
    """Several lines; the verdict comes first, the maximum second."""
    lines = [f"{verdict.verdict}  {_question(verdict)}" + (f"  {name}" if name else "")]
    if verdict.n == 0:
        return "\n  ".join([*lines, *verdict.reasons])
    lines += [_maximum(verdict), _misses(verdict), *_certificate(verdict)]
    lines += [f"because {reason}" for reason in verdict.reasons]
    lines += [_dependence(verdict), *_drift(verdict), _firm(verdict.card), *_to_record(verdict)]
    return "\n  ".join(lines)


def verdict_line(verdict: Verdict, name: str = "") -> str:
    """One line of a table of many configurations."""
    end = f"  {name}" if name else ""
    if verdict.n == 0:
        return f"{verdict.verdict:19}  {'; '.join(verdict.reasons)}{end}"
    text = f"max {verdict.max_us:.1f} us, {count(verdict.misses, 'miss')} in {verdict.n}"
    if verdict.verdict != Outcome.MET:
        text += f", certifies {percent_certified(verdict.certifies)} %"
    if verdict.verdict == Outcome.NOT_ENOUGH_EVIDENCE:
        needed = verdict.trials_needed
        text += f", record {needed} fresh trials" if needed else ", too many misses to show it"
    return f"{verdict.verdict:19}  {text}{end}"


def sentence(verdict: Verdict) -> str:
    """One or two sentences for a page that is shown at a review."""
    percentile, deadline_us = short_number(verdict.percentile), short_number(verdict.deadline_us)
    confidence = f"{_confidence(verdict)} confidence"
    if verdict.n == 0:
        return f"Nothing is known about the deadline of {deadline_us} us: {'; '.join(verdict.reasons)}."
    seen = f"{count(verdict.misses, 'miss')} in {verdict.n} trials, the longest {verdict.max_us:.1f} us"
    if verdict.verdict == Outcome.MET:
        return f"{percentile} % of calls answer within {deadline_us} us, at {confidence}: {seen}."
    if verdict.verdict == Outcome.MISSED:
        return (
            f"The {percentile}th percentile misses {deadline_us} us, at {confidence}: {seen};"
            f" at least {percent_at_least(verdict.miss_rate_low)} of calls are late where {_allowed(verdict)} may be."
        )
    first = f"Whether {percentile} % of calls answer within {deadline_us} us is not shown at {confidence}: {seen}."
    because = f" Held back: {'; '.join(verdict.reasons)}." if verdict.reasons else ""
    record = f" A fresh recording of {_trials_needed(verdict)} can show it." if verdict.trials_needed else ""
    return first + because + record


def _question(verdict: Verdict) -> str:
    percentile, deadline_us = short_number(verdict.percentile), short_number(verdict.deadline_us)
    return f"p{percentile} within {deadline_us} us at {_confidence(verdict)} confidence"


def _maximum(verdict: Verdict) -> str:
    text = f"max {verdict.max_us:.1f} us of n = {verdict.n} (with warm-up {verdict.max_with_warmup_us:.1f} us)"
    if len(verdict.rounds) > 1:
        text += ", of the rounds " + " ".join(f"{max_us:.1f}" for max_us in verdict.max_us_rounds)
    return text


def _misses(verdict: Verdict) -> str:
    text = f"{count(verdict.misses, 'miss')} in {verdict.n} trials"
    if verdict.misses:
        text += f" = {percent(verdict.misses / verdict.n)}, at least {percent_at_least(verdict.miss_rate_low)}"
    text += f", at most {percent_at_most(verdict.miss_rate_high)} (each bound one-sided, {_confidence(verdict)})"
    return f"{text}; allowed {_allowed(verdict)}"


def _certificate(verdict: Verdict) -> list[str]:
    return [
        f"these trials prove that {percent_certified(verdict.certifies)} % of calls meet the deadline",
        f"and that {percent_certified(verdict.max_certifies)} % of calls are at or below the maximum"
        f" ({_confidence(verdict)} confidence); there is a 50 % chance that the next n trials contain a longer one",
    ]


def _dependence(verdict: Verdict) -> str:
    found = verdict.dependence
    if not found.how:
        return "dependence: late calls cluster no more than by chance; every trial counts"
    text = f"dependence: {found.how}"
    text += f"; extremal index {found.extremal_index:.2g}" if found.extremal_index < 1 else ""
    text += f"; {count(verdict.n, 'trial')}, effective sample size {verdict.effective_n}"
    if verdict.misses:
        text += f" ({count(verdict.misses, 'miss')}, effectively {verdict.effective_misses})"
    if verdict.verdict_if_effective == verdict.verdict_if_independent:
        return f"{text}: the verdict stays"
    return f"{text}: {verdict.verdict_if_effective} instead of {verdict.verdict_if_independent}"


def _drift(verdict: Verdict) -> list[str]:
    several = len(verdict.rounds) > 1
    return [
        f"drift of the bulk {signed_percent(part.drift)}{f' in round {part.round}' * several} ({part.steady_state})"
        for part in verdict.rounds
        if part.steady_state != SteadyState.FLAT or part.segments > 1
    ]


def _firm(card: FirmStatistics) -> str:
    worst = ", ".join(f"{m} in any {k}" for k, m in card.worst_in.items() if m is not None)
    text = "(m,k)-firm: " + (f"at worst {worst} trials; " if worst else "")
    text += f"longest run of misses {card.longest_run}; P(miss) {percent(card.p_miss)}"
    return text + ("" if card.p_miss_after_miss is None else f", after a miss {percent(card.p_miss_after_miss)}")


def _to_record(verdict: Verdict) -> list[str]:
    if verdict.verdict != Outcome.NOT_ENOUGH_EVIDENCE or verdict.trials_needed is None:
        return []
    text = f"record {_trials_needed(verdict, 'fresh ')}; do not append to this recording"
    if verdict.trials_needed != verdict.trials_needed_if_independent:
        text += f" ({verdict.trials_needed_if_independent} if trials were independent)"
    return [text]


def _trials_needed(verdict: Verdict, kind: str = "") -> str:
    """How many trials, and in which state where it is not their number that held MET back."""
    steady = " in a steady state" if verdict.verdict_if_effective == Outcome.MET else ""
    return f"{verdict.trials_needed} {kind}trials{steady}"


def _confidence(verdict: Verdict) -> str:
    return f"{short_number(100 * verdict.confidence)} %"


def _allowed(verdict: Verdict) -> str:
    return f"{100 - verdict.percentile:.9g} %"


# Outliers


def outliers_text(outliers: Outliers, name: str = "") -> str:
    """Several lines: how many there are, the course of the level, the clusters, and the tail."""
    lines = [f"{name}:"] if name else []
    rounds = outliers.rounds
    over = f" in {len(rounds)} rounds" if len(rounds) > 1 else ""
    lines.append(
        f"{count(outliers.n, 'trial')}{over}, median {latency(outliers.median_us)};"
        f" {outliers.outliers} outside 1.5 x IQR ({percent(outliers.outliers / outliers.n)})"
    )
    lines += _course(rounds)
    if outliers.clusters:
        lines.append(f"{count(len(outliers.clusters), 'cluster')}, as multiples of the local median:")
        lines += [f"  {_cluster(cluster, outliers)}" for cluster in outliers.clusters]
        lines += _uneven(outliers)
    else:
        lines.append("No cluster of outliers.")
    lines += _tail(outliers)
    if outliers.clusters and outliers.period_by is not None and not outliers.causes_counted:
        lines.append(
            "No causes were counted: `lstm-trt record` counts context switches, page faults, steal, throttling."
        )
    return "\n".join(lines)


def outliers_line(outliers: Outliers, name: str) -> str:
    """One line of a table of many configurations."""
    clusters = clusters_line(outliers.clusters)
    return f"{name}: {outliers.outliers} outliers in {outliers.n}, clusters {clusters}, {outliers.steady_state}"


def clusters_line(clusters: Sequence, most: int | None = None) -> str:
    """`1.25x 2.0 %, 2.01x 1.0 %`, or `none`; with `most` the most frequent ones, and how many others: `+2`."""
    if most is not None:
        clusters = sorted(clusters, key=lambda cluster: -cluster.share)
    shown = ", ".join(f"{multiple(cluster.multiplier)} {percent(cluster.share)}" for cluster in clusters[:most])
    others = len(clusters) - len(clusters[:most])
    if not others:
        return shown or "none"
    return f"{shown}, +{others}" if shown else count(others, "cluster")


def causes_text(late: Cluster | Tail, outliers: Outliers) -> str:
    """For figures: `minor page faults (odds 12×)`, the odds ratio against the bulk; in part, or unexplained."""
    if not outliers.causes_counted:
        return "nothing was counted"
    texts = []
    for cause in late.causes:
        if cause.by == CountedBy.CONTROL:
            texts.append("the machine's own noise (control run)")
            continue
        name = CAUSE_NAMES.get(cause.name, cause.name.replace("_", " "))
        odds = f"odds\u00a0{number(cause.odds_ratio)}×"
        whole = cause.share >= MOSTLY
        texts.append(f"{name} ({odds})" if whole else f"in part {name} ({percent(cause.share)} of these, {odds})")
    return ", ".join(texts) or "unexplained"


def _course(rounds: Sequence[Round]) -> list[str]:
    """Steady state and segments, one line where all rounds agree on a flat course."""
    several = len(rounds) > 1
    if all(part.steady_state == SteadyState.FLAT and len(part.segments) == 1 for part in rounds):
        return [f"Steady state: flat{' in every round' * several}"]
    return [
        (f"Round {part.round}: " if several else "Steady state: ") + f"{part.steady_state}{_segments(part)}"
        for part in rounds
    ]


def _segments(part: Round) -> str:
    if len(part.segments) == 1 and not part.segments[0].change:
        return ""
    texts = []
    for segment in part.segments[:MOST_SEGMENTS]:
        change = f" ({signed_percent(segment.change)} over them)" if segment.change else ""
        texts.append(f"{latency(segment.median_ns / 1e3)} in trials {segment.start + 1} to {segment.stop}{change}")
    more = len(part.segments) - len(texts)
    texts += [f"and {more} more"] if more else []
    return f", {signed_percent(part.drift)} from start to end: {'; '.join(texts)}"


def _cluster(cluster: Cluster, outliers: Outliers) -> str:
    text = f"{multiple(cluster.multiplier)} ({latency(cluster.time_us)}): {count(cluster.count, 'trial')},"
    text += f" {percent(cluster.share)} ({percent_number(cluster.share_low)} to {percent(cluster.share_high)})"
    text += _period(cluster.period_ms, outliers) + _level_elsewhere(cluster, outliers.rounds)
    return text if outliers.period_by is None else f"{text}, {_causes(cluster.causes)}"


def _level_elsewhere(cluster: Cluster, rounds: Sequence[Round]) -> str:
    """Of fast trials, the longest segment at their level: short visits to a state in which the machine may stay."""
    if cluster.multiplier >= 1:
        return ""
    near = [
        (segment.stop - segment.start, part.round, segment)
        for part in rounds
        for segment in part.segments
        if abs(segment.median_ns / 1e3 / cluster.time_us - 1) <= SAME_STATE
    ]
    if not near:
        return ""
    _, place, segment = max(near, key=lambda found: found[0])
    of = f" of round {place}" if len(rounds) > 1 else ""
    return f", the level of trials {segment.start + 1} to {segment.stop}{of} as well"


def _uneven(outliers: Outliers) -> list[str]:
    """Clusters whose share differs between rounds beyond chance (chi-squared test at 0.1 %)."""
    if len(outliers.rounds) < 2:
        return []
    from scipy.special import chdtrc

    lines = []
    for cluster in outliers.clusters:
        expected = [cluster.share * part.n for part in outliers.rounds]
        if min(expected) < 5:
            continue
        square = sum((seen - mean) ** 2 / mean for seen, mean in zip(cluster.counts, expected, strict=True))
        if chdtrc(len(expected) - 1, square) < 0.001:
            counts = ", ".join(map(str, cluster.counts))
            lines.append(f"  {multiple(cluster.multiplier)} is not equally frequent in the rounds: {counts} trials")
    return lines


def _tail(outliers: Outliers) -> list[str]:
    tail = outliers.tail
    if tail is None:
        return []
    few = tail.count < LEAST_TAIL
    name = "stragglers" if few else "a smooth tail"
    text = f"Besides, {name}" if outliers.clusters else name.capitalize()
    text += f": {count(tail.count, 'trial')}, {percent(tail.share)}, from {multiple(tail.start)}"
    text += f" to {multiple(tail.stop)}" if tail.count > 1 else ""
    text += "" if few else f", {tail.shape}"
    return [text + _period(tail.period_ms, outliers) + (f", {_causes(tail.causes)}" if tail.causes else "")]


def _period(period_ms: float | None, outliers: Outliers) -> str:
    if period_ms is None:
        return ""
    by = " (period by summed latencies)" if outliers.period_by == TimesBy.SUMMED_LATENCIES else ""
    return f", every {milliseconds(period_ms)}{by}"


def _causes(causes: Sequence[Cause]) -> str:
    return ", ".join(map(_cause, causes)) or "unexplained"


def _cause(cause: Cause) -> str:
    if cause.by == CountedBy.CONTROL:
        share = percent(cause.share_body)
        return f"explained by the machine's own noise: the control run stalls as long in {share} of its calls"
    part, only = ("", "") if cause.share >= MOSTLY else ("in part ", "only ")
    return (
        f"{part}coincides with {CAUSE_NAMES.get(cause.name, cause.name)}"
        f" ({only}{percent(cause.share)} of these, {percent(cause.share_body)} of the bulk;"
        f" odds ratio {number(cause.odds_ratio)}, p {_p_value(cause.p)})"
    )


def _p_value(p: float) -> str:
    return "below 1e-99" if p < 1e-99 else f"{p:.0e}" if p < 0.001 else f"{p:.3f}"


# Comparisons


def comparison_text(comparison: Comparison, a_name: str = "A", b_name: str = "B") -> str:
    """The two answers first, then the ratios, what they rest on, the clusters, and what to record."""
    sides = [letter if name == letter else f"{letter} ({name})" for letter, name in (("B", b_name), ("A", a_name))]
    lines = [f"median {comparison.median}, tail {comparison.tail}: {sides[0]} compared with {sides[1]}"]
    lines.append(_ratios(comparison))
    processes = [count(rounds, "process") for rounds in (comparison.rounds_a, comparison.rounds_b)]
    lines.append(f"  {processes[0]} of A, n = {comparison.n_a}; {processes[1]} of B, n = {comparison.n_b}")
    lines += [f"  {reason}" for reason in comparison.reasons]
    lines += _changed_clusters(comparison)
    if comparison.differences:
        lines.append("other differences, which may be the reason:")
        lines += [f"  {difference}" for difference in comparison.differences]
    return "\n".join(lines + _rounds_to_record(comparison))


def _ratios(comparison: Comparison) -> str:
    rows = [
        ("median", comparison.median_us_rounds_a, comparison.median_us_rounds_b, comparison.median_ratio),
        ("max", (comparison.max_us_a,), (comparison.max_us_b,), None),
    ]
    if comparison.tail_percentile is not None:
        tail = (comparison.tail_us_rounds_a, comparison.tail_us_rounds_b, comparison.tail_ratio)
        rows.insert(1, (f"p{comparison.tail_percentile:g}", *tail))
    cells = [(name, _middle(a), _middle(b), "" if ratio is None else f"{ratio:.3f}") for name, a, b, ratio in rows]
    return table(("us", "A", "B", "B / A"), cells, right=("A", "B"), indent=2)


def _middle(rounds_us: Sequence[float]) -> str:
    middle = microseconds(statistics.median_low(rounds_us))
    if len(rounds_us) == 1:
        return middle
    return f"{middle} ({microseconds(min(rounds_us))} to {microseconds(max(rounds_us))})"


def _changed_clusters(comparison: Comparison) -> list[str]:
    lines = [
        f"  {label}: {', '.join(map(_pair, pairs))}"
        for label, pairs in (
            ("gone", comparison.clusters_gone),
            ("new", comparison.clusters_new),
            ("on both sides", comparison.clusters_kept),
            ("on one side, which may be chance", comparison.clusters_unclear),
        )
        if pairs
    ]
    few = min(comparison.rounds_a, comparison.rounds_b) < ROUNDS
    of = " in these processes, others may differ" * bool(few and (comparison.clusters_gone or comparison.clusters_new))
    return [f"clusters of outliers, share of A -> of B{of}:", *lines] if lines else ["clusters of outliers: none"]


def _pair(pair: ClusterPair) -> str:
    return f"{multiple(pair.multiplier)} {percent(pair.share_a)} -> {percent(pair.share_b)}"


def _rounds_to_record(comparison: Comparison) -> list[str]:
    if Change.AMBIGUOUS not in (comparison.median, comparison.tail):
        return []
    if not comparison.rounds_needed:
        return ["to decide the tail, record more trials in each process"]
    if comparison.command is None:
        return [
            f"to decide it, record at least {comparison.rounds_needed} processes per side, in turns,"
            " and give each its number in a column `round`"
        ]
    sides = ", once for each side into a folder of its own" * comparison.one_configuration
    return [f"to decide it, record new rounds{sides}, and compare those:", f"  {comparison.command}"]


# Summaries


def summary_table(rows: Sequence[SummaryRow]) -> str:
    """For the terminal, at most `WIDTH` wide: the maximum comes first, since it rules; times in microseconds.

    A star marks a percentile without an upper bound at this n. What was measured elsewhere is named by its group
    instead of its shape. The reason of a failure may make a line longer, and the names of workloads, which differ
    in their ends.
    """
    named = _name_columns(rows)
    shown = sorted((column for column in fields(rows[0]) if column.metadata), key=lambda c: c.metadata["place"])
    if all(row.floor_us is None for row in rows):
        shown = [column for column in shown if column.name != "floor_us"]
    lines = []
    for row in rows:
        cells = ["-" if value is None else str(value) for value in (cell(row) for cell in named.values())]
        if row.status == "ok":
            cells += [_cell(row, column.name) for column in shown]
        else:
            cells.append(f"failed at {row.stage}: {row.reason}" if row.stage else f"failed: {row.reason}")
        lines.append(cells)
    whole = any(row.runtime is not None and "workload" in row.group for row in rows)
    header = [*named, *(column.metadata["title"] for column in shown)]
    last = "clusters"
    head, *texts = table_lines(header, lines, width=None if whole else WIDTH - len(last) - 2)
    room = max(WIDTH - len(head) - 2, len(last))
    texts = [
        f"{text}  {_clusters(row, room)}" if row.status == "ok" else text for text, row in zip(texts, rows, strict=True)
    ]
    caption = "latencies in us after warm-up, n trials; outliers lie outside 1.5 x IQR"
    caption += "; floor: arithmetic and weight traffic" if "floor" in header else ""
    caption += "; * no upper bound at this n" if any("*" in cell for cells in lines for cell in cells) else ""
    return "\n".join([caption, f"{head}  {last}", *texts])


def _name_columns(rows: Sequence[SummaryRow]) -> dict[str, Callable[[SummaryRow], object]]:
    """Columns that tell the rows apart, each with what it shows of a row."""
    several = any(row.rounds > 1 or row.round is not None for row in rows)
    rounds = {"rounds": lambda row: row.rounds if row.round is None else f"r{row.round}"} if several else {}
    if any(row.runtime is None for row in rows):
        keys = dict.fromkeys(key for row in rows for key in row.group)
        return {str(key): lambda row, key=key: row.group.get(key, "-") for key in keys} | rounds
    both = any(row.directions == 2 for row in rows)
    options = len({(row.precision, row.threads) for row in rows} | {("fp32", 1)}) > 1

    def network(row: SummaryRow) -> str:
        if row.layers is None or row.hidden is None:
            return "-"
        return f"{row.layers}x{row.hidden}" + ("" if not both else " bi" if row.directions == 2 else "   ")

    named = {"network": network, "seq": lambda row: row.sequence, "batch": lambda row: row.batch}
    workloads = [name for name in ("workload", "mode") if any("workload" in row.group for row in rows)]
    if workloads:  # a workload's name says its sizes
        named = {} if all("workload" in row.group for row in rows) else named
        named = {name: lambda row, name=name: row.group.get(name, "-") for name in workloads} | named
    named |= {"runtime": lambda row: row.runtime}
    named |= {"precision": lambda row: row.precision, "threads": lambda row: row.threads} if options else {}
    named |= {"arrival": _arrival} if any(row.arrival != "closed" for row in rows) else {}
    return named | rounds


def _arrival(row: SummaryRow) -> str:
    if row.period_us:
        return f"{milliseconds(row.period_us / 1e3)} {row.wait}"
    return f"pause {milliseconds(row.pause_ms)}" if row.pause_ms else str(row.arrival)


def _cell(row: SummaryRow, name: str) -> str:
    value = getattr(row, name)
    if not name.endswith("_us"):
        return str(value)
    return microseconds(value) + "*" * (getattr(row, f"{name}_high", row.max_us) is None)


def _clusters(row: SummaryRow, room: int) -> str:
    """The most frequent clusters, as many as there is room for."""
    if row.clusters is None:
        return "-"
    texts = (clusters_line(row.clusters, most) for most in range(len(row.clusters), -1, -1))
    return next((text for text in texts if len(text) <= room), str(len(row.clusters)))


# Replays


def replay_text(replay: Replay, name: str = "") -> str:
    """A small table, the closed loop beside the fixed rate, and what became late."""
    of = count(replay.n, "trial") + (f" of {replay.rounds} processes, each by itself" if replay.rounds > 1 else "")
    head = f"{name}: " if name else ""
    sides = (replay.closed, replay.replayed)
    rows = [
        (label, *(microseconds(getattr(side, field)) for side in sides))
        for label, field in (("max", "max_us"), ("p99.9", "p999_us"), ("p99", "p99_us"), ("median", "median_us"))
    ]
    limit = "the period" if replay.deadline_us == replay.period_us else f"{replay.deadline_us:g} us"
    rows.append((f"above {limit}", *(str(side.misses) for side in sides)))
    rows.append(("longest run above", *(str(side.longest_run) for side in sides)))
    return "\n".join(
        [
            f"{head}{of}, replayed with a call due every {replay.period_us:g} us ({rate(replay.period_us)})",
            table(("us", "closed", "at a fixed rate"), rows, indent=2),
            f"utilization {percent(replay.utilisation)}; {_queued(replay)}",
            "not seen here: a runtime that answers slower after a pause; record with --arrival periodic for that",
        ]
    )


def _queued(replay: Replay) -> str:
    if not replay.queued:
        return "no call waited for an earlier one"
    calls, earlier = count(replay.queued, "call"), count(replay.longest_queue, "earlier call")
    wait = f"{microseconds(replay.worst_wait_us)} us"
    return f"{calls} ({percent(replay.queued_share)}) began late, by up to {wait}, behind up to {earlier}"


# Scaling


def scaling_text(findings: Findings) -> str:
    """What was read, then a block a system: each axis, batching, and where a larger network is faster."""
    lines = [_source(findings.times)]
    for system in findings.times.cells:
        lines.append("")
        if len(findings.times.systems) > 1:
            lines.append(f"{system}:")
        lines += [_axis(findings, system, axis) for axis in findings.times.axes]
        if "batch" in findings.times.axes:
            lines += [_penalties(findings, system), _batching(findings, system)]
        lines += _inversions(findings, system)
    return "\n".join(lines)


def _source(times: Times) -> str:
    counts = times.counts
    sizes: dict[str, set] = {axis: set() for axis in times.axes}
    for cells in times.cells.values():
        for shape in cells:
            for axis, size in zip(times.axes, shape, strict=True):
                sizes[axis].add(size)
    grid = "; ".join(f"{axis} {' '.join(map(str, sorted(values)))}" for axis, values in sizes.items())
    text = f"{times.where}: times of {count(counts.shapes, 'shape')} ({grid})"
    for number_left, noun, more in (
        (counts.holes, "hole", " in the grid"),
        (counts.blank, "row", " with a blank"),
        (counts.failed, "failure", ""),
    ):
        text += f", {count(number_left, noun)}{more}" if number_left else ""
    lines = [text]
    if times.unused:
        lines.append(f"columns not used: {', '.join(times.unused)}")
    if counts.duplicates:
        lines.append(
            f"{count(counts.duplicates, 'row')} of a shape that came before: the median is taken; if a column tells"
            ' them apart, name it with --rename, as in "GPU=device_name"'
        )
    return "\n".join(lines)


def _axis(findings: Findings, system: str, axis: str) -> str:
    series = [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]
    inversions = [pair for pair in findings.inversions if (pair.system, pair.axis) == (system, axis)]
    if series:
        slopes = sorted(line.slope_us for line in series)
        linear = sum(line.r2 > LINEAR_R2 for line in series)
        between = f" ({_slope(slopes[0])} to {_slope(slopes[-1])})" if len(slopes) > 1 else ""
        text = f"R2 > {LINEAR_R2} in {linear} of {len(series)} series,"
        text += f" {_slope(statistics.median(slopes))} us per {AXIS_UNITS[axis]}{between}; "
        breaks = Counter(line.breaks_at for line in series if line.breaks_at is not None)
        places = ", ".join(f"at {axis} {size} ({times})" for size, times in sorted(breaks.items()))
        leave = "leaves" if breaks.total() == 1 else "leave"
        text += (
            f"{breaks.total()} of them {leave} the fitted line by more than 10 %: {places}"
            if breaks
            else "none leaves its fitted line by more than 10 %"
        )
    else:
        text = f"linearity not tested: needs at least 3 values, has {findings.longest_line(system, axis)}"
    text += f"; larger is faster in {count(len(inversions), 'pair')}{_certain(inversions)}"
    return f"{AXIS_NAMES[axis]}: {text}{_places(findings.times, system, axis, inversions)}"


def _places(times: Times, system: str, axis: str, inversions: Sequence[Inversion]) -> str:
    """Between which sizes, and where on the other axes, if not everywhere."""
    if not inversions:
        return ""
    steps = Counter((pair.smaller[axis], pair.larger[axis]) for pair in inversions)
    texts = [f"between {', '.join(f'{small} and {large} ({n})' for (small, large), n in steps.most_common(3))}"]
    texts[0] += " and others" if len(steps) > 3 else ""
    for place, other in enumerate(times.axes):
        seen = {pair.smaller[other] for pair in inversions}
        if other != axis and len(inversions) > 1 and seen < {shape[place] for shape in times.cells[system]}:
            texts.append(f"only at {other} {', '.join(map(str, sorted(seen)))}")
    return ", " + ", ".join(texts)


def _penalties(findings: Findings, system: str) -> str:
    found = sorted((pair for pair in findings.batch1_penalties if pair.system == system), key=lambda pair: -pair.ratio)
    text = f"Batch 1 slower than batch 2: in {len(found) or 'none'}{_certain(found)}"
    text += f" of {count(findings.with_batches_1_and_2(system), 'network')} that have both"
    return text + (f", the most by {multiple(found[0].ratio)} at {_shape(found[0].shape)}" if found else "")


def _batching(findings: Findings, system: str) -> str:
    here = [batching for batching in findings.batching if batching.system == system]
    if not here:
        return "Batching: no network has two batch sizes"
    free = Counter(batching.free_up_to for batching in here if batching.stops_at is not None)
    never = sum(batching.stops_at is None for batching in here)
    places = [f"to batch {size} ({times})" for size, times in sorted(free.items())]
    places += [f"to the largest measured ({never})"] if never else []
    best = Counter(batching.cheapest for batching in here)
    text = f"Batching: each doubling costs less than 10 % up {', '.join(places)}"
    text += f"; least time per sample at batch {', '.join(f'{size} ({times})' for size, times in sorted(best.items()))}"
    largest = sum(batching.cheapest_is_largest for batching in here)
    if largest:
        text += f", in {largest} of {len(here)} networks the largest measured: a larger one may be better"
    return text


def _inversions(findings: Findings, system: str) -> list[str]:
    found = sorted((pair for pair in findings.inversions if pair.system == system), key=lambda pair: pair.ratio)
    lines = []
    for pair in found[:MOST_INVERSIONS]:
        rest = {axis: size for axis, size in pair.smaller.items() if axis != pair.axis}
        text = (
            f"  {pair.ratio:.3f}  {pair.axis} {pair.smaller[pair.axis]} -> {pair.larger[pair.axis]} at {_shape(rest)}"
        )
        lines.append(text + {True: "  certain", False: "  not certain", None: ""}[pair.certain])
    if len(found) > MOST_INVERSIONS:
        lines.append(f"  and {len(found) - MOST_INVERSIONS} more: --format json has them all")
    return ["Larger networks that are faster, larger / smaller:", *lines] if lines else []


def _certain(pairs: Sequence) -> str:
    if not pairs or pairs[0].certain is None:
        return ""
    return f" ({sum(pair.certain for pair in pairs)} certain)"


def _shape(shape: dict[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in shape.items()) or "that"


def _slope(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
