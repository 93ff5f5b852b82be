"""The verdict on a deadline in words: for the terminal, for a table, for a review.

What was found of the outliers, in words.

What a comparison of two recorded sides found, in words.

What a replay at a fixed rate found, in words.

What the analysis of scaling found, in words.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from lstm_trt.analysis.causes import Cause
from lstm_trt.analysis.compare import AMBIGUOUS, ClusterPair, Comparison
from lstm_trt.analysis.deadline import MET, MISSED, Verdict
from lstm_trt.analysis.outliers import Cluster, Outliers, Round
from lstm_trt.analysis.quantiles import ROUNDS
from lstm_trt.analysis.replay import Replay
from lstm_trt.analysis.scaling import POINTS, Findings, Inversion, lines
from lstm_trt.analysis.summary import microseconds
from lstm_trt.analysis.times import Times
from lstm_trt.plots.style import number, percent


def verdict_text(verdict: Verdict, name: str = "") -> str:
    """Several lines; the verdict comes first, the maximum second."""
    lines = [f"{verdict.verdict}  {_asked(verdict)}" + (f"  {name}" if name else "")]
    if verdict.n == 0:
        return "\n".join([*lines, *(f"  {reason}" for reason in verdict.reasons)])
    lines += [_maximum(verdict), _misses(verdict), _certifies(verdict)]
    lines += [f"because {reason}" for reason in verdict.reasons]
    lines += [_dependence(verdict), *_drift(verdict), _card(verdict), *_record(verdict)]
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])


def verdict_line(verdict: Verdict, name: str = "") -> str:
    """One line of a table of many configurations."""
    head = f"{verdict.verdict:19}  "
    tail = f"  {name}" if name else ""
    if verdict.n == 0:
        return f"{head}{'; '.join(verdict.reasons)}{tail}"
    told = f"max {verdict.max_us:.1f} us, {_count(verdict.misses)} in {verdict.n}"
    if verdict.verdict != MET:
        told += f", certifies {certified(verdict.certifies)} %"
    if verdict.verdict not in (MET, MISSED):
        told += (
            f", record {verdict.trials_needed} fresh trials"
            if verdict.trials_needed
            else ", too many misses to show it"
        )
    return f"{head}{told}{tail}"


def sentence(verdict: Verdict) -> str:
    """One or two sentences for a page that is shown at a review."""
    which, deadline = _number(verdict.percentile), _number(verdict.deadline_us)
    sure = f"{_number(100 * verdict.confidence)} % confidence"
    if verdict.n == 0:
        return f"Nothing is known about the deadline of {deadline} us: {'; '.join(verdict.reasons)}."
    seen = f"{_count(verdict.misses)} in {verdict.n} trials, the longest {verdict.max_us:.1f} us"
    if verdict.verdict == MET:
        return f"{which} % of calls answer within {deadline} us, at {sure}: {seen}."
    if verdict.verdict == MISSED:
        low = 100 * verdict.miss_rate_low
        return (
            f"The {which}th percentile misses {deadline} us, at {sure}: {seen};"
            f" at least {_down(low)} % of calls are late where {_number(100 - verdict.percentile)} % may be."
        )
    first = f"Whether {which} % of calls answer within {deadline} us is not shown at {sure}: {seen}."
    because = f" Held back: {'; '.join(verdict.reasons)}." if verdict.reasons else ""
    record = f" A fresh recording of {_needed(verdict)} can show it." if verdict.trials_needed else ""
    return first + because + record


def certified(percent: float) -> str:
    """A percentage rounded down so far that two digits tell what is missing to 100: 99.7009 -> 99.7."""
    rest = 100 - percent
    if rest <= 0 or percent <= 0:
        return "0" if percent <= 0 else "100"
    digits = max(0, 1 - math.floor(math.log10(rest)))
    scale = 10**digits
    # A hair up before rounding down: 99.9 itself is below 99.9 in floating point.
    return _stripped(f"{math.floor(percent * scale + 1e-9) / scale:.{digits}f}")


def miss_rate_text(share: float) -> str:
    """A share in percent with three digits: 0.00123 -> 0.123."""
    return _stripped(_fixed(100 * share, 3))


def _asked(verdict: Verdict) -> str:
    return (
        f"p{_number(verdict.percentile)} within {_number(verdict.deadline_us)} us"
        f" at {_number(100 * verdict.confidence)} % confidence"
    )


def _maximum(verdict: Verdict) -> str:
    told = f"max {verdict.max_us:.1f} us of n = {verdict.n} (with warm-up {verdict.max_with_warmup_us:.1f} us)"
    if len(verdict.rounds) > 1:
        told += ", of the rounds " + " ".join(f"{one:.1f}" for one in verdict.max_us_rounds)
    return told


def _misses(verdict: Verdict) -> str:
    low, high = verdict.miss_rate_low, verdict.miss_rate_high
    told = f"{_count(verdict.misses)} of {verdict.n}"
    told += (
        f" = {miss_rate_text(verdict.misses / verdict.n)} %, at least {_down(100 * low)} %" if verdict.misses else ""
    )
    return f"{told}, at most {_up(100 * high)} % (each bound {_sure(verdict)}); {_allowed(verdict)} % may miss"


def _certifies(verdict: Verdict) -> str:
    told = f"these trials prove that {certified(verdict.certifies)} % of calls meet the deadline"
    maximum = (
        f"the maximum {verdict.max_us:.1f} us of n = {verdict.n} certifies:"
        f" {certified(verdict.max_certifies)} % of calls are at or below it ({_sure(verdict)});"
        " the next n trials exceed it with probability one half"
    )
    return f"{told}\n  {maximum}"


def _dependence(verdict: Verdict) -> str:
    found = verdict.dependence
    if not found.how:
        return "dependence: late answers cluster no more than chance gives; every trial counts"
    told = f"dependence: {found.how}"
    told += f"; extremal index {found.extremal_index:.2g}" if found.extremal_index < 1 else ""
    told += f"; {verdict.n} trials are worth {verdict.effective_n}"
    told += f", the {_count(verdict.misses)} {verdict.effective_misses}" if verdict.misses else ""
    effective = verdict.verdict_if_effective
    if effective == verdict.verdict_if_independent:
        return f"{told}: the verdict stays"
    return f"{told}: {effective} instead of {verdict.verdict_if_independent}"


def _drift(verdict: Verdict) -> list[str]:
    told = []
    for one in verdict.rounds:
        if one.steady_state != "flat" or one.segments > 1:
            of = f" in round {one.round}" if len(verdict.rounds) > 1 else ""
            told.append(f"the body drifts by {100 * one.drift:+.1f} %{of} ({one.steady_state})")
    return told


def _card(verdict: Verdict) -> str:
    card = verdict.card
    worst = ", ".join(f"{m} in any {k}" for k, m in card.worst_in.items() if m is not None)
    told = f"(m, k): at worst {worst}; " if worst else "(m, k): "
    told += f"longest run {card.longest_run}; P(miss) {miss_rate_text(card.p_miss) if card.p_miss else 0} %"
    if card.p_miss_after_miss is not None:
        told += f", after a miss {miss_rate_text(card.p_miss_after_miss) if card.p_miss_after_miss else 0} %"
    return told


def _record(verdict: Verdict) -> list[str]:
    if verdict.verdict in (MET, MISSED) or verdict.trials_needed is None:
        return []
    told = f"record {_needed(verdict, 'fresh ')}; do not append"
    if verdict.trials_needed != verdict.trials_needed_if_independent:
        told += f" ({verdict.trials_needed_if_independent} if they were independent)"
    return [told]


def _needed(verdict: Verdict, kind: str = "") -> str:
    """How many trials, and of which kind where their number was not what held MET back."""
    steady = " in a steady state" if verdict.verdict_if_effective == MET else ""
    return f"{verdict.trials_needed} {kind}trials{steady}"


def _sure(verdict: Verdict) -> str:
    return f"{_number(100 * verdict.confidence)} %"


def _allowed(verdict: Verdict) -> str:
    return _number(float(f"{100 - verdict.percentile:.9g}"))


def _count(misses: int) -> str:
    return "no miss" if misses == 0 else f"{misses} miss{'es' * (misses > 1)}"


def _number(value: float) -> str:
    return f"{value:.10g}"


def _fixed(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def _up(percent: float) -> str:
    return _directed(percent, math.ceil)


def _down(percent: float) -> str:
    return _directed(percent, math.floor)


def _directed(percent: float, whole) -> str:
    """Three digits, a bound rounded to its safe side; shorter where that is exact."""
    if percent == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(percent)))
    scale = 10.0**digits
    return _stripped(f"{whole(percent * scale) / scale:.{digits}f}")


def _stripped(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


NAMES = {
    "involuntary_switches": "involuntary context switches",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "steal_ns": "CPU time stolen by the host",
    "throttled_periods": "CPU throttling",
}

SEGMENTS_TOLD = 5

#: A cause that fewer of a cluster's trials have explains it in part only.
MOSTLY = 0.5

#: Fast trials and a segment are of one state where their medians differ by at most this share.
SAME_STATE = 0.02


def outliers_text(outliers: Outliers, name: str = "") -> str:
    """The answer as lines of text for a terminal."""
    told = [f"{name}:"] if name else []
    rounds = outliers.rounds
    over = f" in {len(rounds)} rounds" if len(rounds) > 1 else ""
    told.append(
        f"{outliers.n} trials{over}, median {_time(outliers.median_us)};"
        f" {outliers.outliers} outside 1.5 x IQR ({_percent(outliers.outliers / outliers.n)})"
    )
    told += _order(rounds)
    if outliers.clusters:
        told.append(f"{_count_o(len(outliers.clusters), 'cluster')}, as multiples of the local median:")
        told += [f"  {_cluster(one, outliers)}" for one in outliers.clusters]
        told += _uneven(outliers)
    else:
        told.append("No cluster of outliers.")
    if outliers.tail is not None:
        tail = outliers.tail
        what = "Besides, a smooth tail" if outliers.clusters else "A smooth tail"
        if tail.count < 5:
            what = "Besides, stragglers" if outliers.clusters else "Stragglers"
        line = f"{what}: {_count_o(tail.count, 'trial')}, {_percent(tail.share)}, from {tail.start:.2f}x"
        line += f" to {tail.stop:.2f}x" if tail.count > 1 else ""
        line += f", {tail.shape}" if tail.count >= 5 else ""
        line += _every(tail.period_ms, outliers) + (f", {_causes(tail.causes)}" if tail.causes else "")
        told.append(line)
    if outliers.clusters and outliers.period_by is not None and not outliers.causes_counted:
        told.append("No causes were counted here: recordings of this lab count switches, faults, steal and throttling.")
    return "\n".join(told)


def clusters_line(clusters: Sequence[Cluster]) -> str:
    """`1.25x 2.0 %, 2.01x 1.0 %`, or `none`."""
    return ", ".join(f"{one.multiplier:.2f}x {_percent(one.share)}" for one in clusters) or "none"


def _cluster(cluster: Cluster, outliers: Outliers) -> str:
    told = f"{cluster.multiplier:.2f}x ({_time(cluster.time_us)}): {_count_o(cluster.count, 'trial')},"
    told += f" {_percent(cluster.share)} ({_number_o(cluster.share_low)} to {_percent(cluster.share_high)})"
    told += _every(cluster.period_ms, outliers) + _level_elsewhere(cluster, outliers.rounds)
    if outliers.period_by is None:
        return told
    return f"{told}, {_causes(cluster.causes)}"


def _level_elsewhere(cluster: Cluster, rounds: Sequence[Round]) -> str:
    """Of fast trials, the longest stretch whose level is theirs: short visits to a state in which the machine stays."""
    if cluster.multiplier >= 1:
        return ""
    near = [
        (segment.stop - segment.start, segment, one.round)
        for one in rounds
        for segment in one.segments
        if abs(segment.median_ns / 1e3 / cluster.time_us - 1) <= SAME_STATE
    ]
    if not near:
        return ""
    _, segment, number = max(near, key=lambda found: found[0])
    of = f" of round {number}" if len(rounds) > 1 else ""
    return f", the level of trials {segment.start + 1} to {segment.stop}{of} as well"


def _every(period_ms: float | None, outliers: Outliers) -> str:
    if period_ms is None:
        return ""
    by = "" if outliers.period_by == "timestamps" else " (period by summed latencies)"
    return f", every {_beat(period_ms)}{by}"


def _causes(causes: Sequence[Cause]) -> str:
    if not causes:
        return "unexplained"
    told = []
    for cause in causes:
        if cause.by == "control":
            told.append(
                f"explained by the machine's own noise: the control run stalls as long in {_percent(cause.share_body)}"
                " of its calls"
            )
        else:
            name = NAMES.get(cause.name, cause.name)
            odds = f"odds {_ratio(cause.odds_ratio)}, p {_p(cause.p_corrected)}"
            if cause.share >= MOSTLY:
                part = f"coincides with {name} ({_percent(cause.share)} of these"
            else:
                part = f"in part coincides with {name} (only {_percent(cause.share)} of these"
            told.append(f"{part}, {_percent(cause.share_body)} of the body; {odds})")
    return ", ".join(told)


def _order(rounds: Sequence[Round]) -> list[str]:
    """Steady state and segments, one line where all rounds agree on a flat course."""
    if all(one.steady_state == "flat" and len(one.segments) == 1 for one in rounds):
        return [f"Steady state: flat{' in every round' if len(rounds) > 1 else ''}"]
    return [
        (f"Round {one.round}: " if len(rounds) > 1 else "Steady state: ") + f"{one.steady_state}{_segments(one)}"
        for one in rounds
    ]


def _segments(one: Round) -> str:
    if len(one.segments) == 1 and not one.segments[0].change:
        return ""
    told = []
    for segment in one.segments[:SEGMENTS_TOLD]:
        drifts = f" ({100 * segment.change:+.1f} % over them)" if segment.change else ""
        told.append(f"{_time(segment.median_ns / 1e3)} in trials {segment.start + 1} to {segment.stop}{drifts}")
    more = len(one.segments) - len(told)
    told += [f"and {more} more"] if more else []
    return f", {100 * one.drift:+.1f} % from start to end: {'; '.join(told)}"


def _uneven(outliers: Outliers) -> list[str]:
    """Clusters whose share differs between rounds beyond chance, and rounds of their own level."""
    told = []
    if len(outliers.rounds) < 2:
        return told
    from scipy.special import chdtrc

    for cluster in outliers.clusters:
        expected = [cluster.share * one.n for one in outliers.rounds]
        if min(expected) <= 0:
            continue
        square = sum((seen - mean) ** 2 / mean for seen, mean in zip(cluster.counts, expected, strict=True))
        if min(expected) >= 5 and chdtrc(len(expected) - 1, square) < 0.001:
            counts = ", ".join(map(str, cluster.counts))
            told.append(f"  {cluster.multiplier:.2f}x is not as frequent in every round: {counts} trials")
    return told


def _count_o(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _number_o(share: float) -> str:
    percent = 100 * share
    return f"{percent:.1f}" if percent >= 1 or percent == 0 else f"{percent:#.2g}" if percent >= 1e-3 else "below 0.001"


def _percent(share: float) -> str:
    return f"{_number_o(share)} %"


def _time(time_us: float) -> str:
    if time_us >= 1e6:
        return f"{time_us / 1e6:.4g} s"
    return f"{time_us:.4g} us" if time_us < 1e3 else f"{time_us / 1e3:.4g} ms"


def _beat(period_ms: float) -> str:
    digits = f"{period_ms:#.3g}".rstrip(".") if period_ms < 1e3 else f"{period_ms:.0f}"
    return f"{digits} ms" if period_ms >= 0.1 else f"{1e3 * period_ms:.3g} us"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}" if value < 1e4 else f"{value:.0e}"


def _p(value: float) -> str:
    if value < 1e-99:
        return "below 1e-99"
    return f"{value:.0e}" if value < 0.001 else f"{value:.3f}"


def comparison_text(comparison: Comparison, a_name: str = "A", b_name: str = "B") -> str:
    """The two answers first, then the ratios, what they rest on, the clusters, and what to record."""
    one = comparison
    lines = [f"median {one.median}, tail {one.tail}: {_which('B', b_name)} against {_which('A', a_name)}"]
    lines.append(_ratio_c("median", one.median_ratio, one.median_us_rounds_a, one.median_us_rounds_b))
    if one.tail_percentile is not None:
        lines.append(_ratio_c(f"p{one.tail_percentile:g}", one.tail_ratio, one.tail_us_rounds_a, one.tail_us_rounds_b))
    lines.append(f"  {'max':<7}A {microseconds(one.max_us_a)}, B {microseconds(one.max_us_b)} us")
    lines.append(f"  {_processes(one.rounds_a)} of A, n = {one.n_a}; {_processes(one.rounds_b)} of B, n = {one.n_b}")
    lines += [f"  {reason}" for reason in one.reasons]
    lines += _clusters(one)
    if one.differences:
        lines.append("differs beside the latencies, and may be the reason:")
        lines += [f"  {difference}" for difference in one.differences]
    return "\n".join(lines + _to_record(one))


def _which(letter: str, name: str) -> str:
    return letter if name == letter else f"{letter} ({name})"


def _ratio_c(name: str, ratio: float, a_us: Sequence[float], b_us: Sequence[float]) -> str:
    return f"  {name:<7}A {_middle(a_us)}, B {_middle(b_us)} us: B / A {ratio:.3f}"


def _middle(rounds_us: Sequence[float]) -> str:
    middle = microseconds(statistics.median_low(rounds_us))
    return (
        middle
        if len(rounds_us) == 1
        else f"{middle} ({microseconds(min(rounds_us))} to {microseconds(max(rounds_us))})"
    )


def _clusters(one: Comparison) -> list[str]:
    lines = []
    for label, pairs in (
        ("gone", one.clusters_gone),
        ("new", one.clusters_new),
        ("on both sides", one.clusters_kept),
        ("on one side, which may be chance", one.clusters_unclear),
    ):
        if pairs:
            lines.append(f"  {label}: {', '.join(map(_pair, pairs))}")
    few = min(one.rounds_a, one.rounds_b) < ROUNDS
    of = " in these processes, others may differ" if few and (one.clusters_gone or one.clusters_new) else ""
    head = f"clusters of late answers, share of A -> of B{of}:"
    return [head, *lines] if lines else ["clusters of late answers: none"]


def _pair(pair: ClusterPair) -> str:
    return f"{pair.multiplier:.2f}x {_percent_c(pair.share_a)} -> {_percent_c(pair.share_b)}"


def _to_record(one: Comparison) -> list[str]:
    if AMBIGUOUS not in (one.median, one.tail):
        return []
    if not one.rounds_needed:
        return ["to decide the tail record more trials in each process"]
    if one.command is None:
        return [
            f"to decide it record at least {one.rounds_needed} processes a side, in turns, and tell them apart by a"
            " column `round`"
        ]
    sides = ", once for each side into a folder of its own" if one.one_configuration else ""
    return [f"to decide it record rounds anew{sides}, and compare those:", f"  {one.command}"]


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _percent_c(share: float) -> str:
    return f"{100 * share:.2g} %"


def replay_text(replay: Replay, name: str = "") -> str:
    """A small table, the closed loop beside the fixed rate, and what became late."""
    head = f"{name}: " if name else ""
    of = f"{replay.n} trials" + (f" of {replay.rounds} processes, each apart" if replay.rounds > 1 else "")
    lines = [f"{head}{of}, replayed with a call due every {replay.period_us:g} us ({rate_text(replay.period_us)})"]
    rows = [
        (label, *(microseconds(getattr(side, field)) for side in (replay.closed, replay.replayed)))
        for label, field in (("max", "max_us"), ("p99.9", "p999_us"), ("p99", "p99_us"), ("median", "median_us"))
    ]
    limit = "the period" if replay.deadline_us == replay.period_us else f"{replay.deadline_us:g} us"
    rows.append((f"above {limit}", str(replay.closed.misses), str(replay.replayed.misses)))
    rows.append(("longest run above", str(replay.closed.longest_run), str(replay.replayed.longest_run)))
    rows.insert(0, ("us", "closed", "at a fixed rate"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines += [f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows]
    lines.append(f"utilisation {100 * replay.utilisation:.1f} %; {_queued(replay)}")
    lines.append("a runtime that answers slower after a pause is not seen here: record with --arrival periodic")
    return "\n".join(lines)


def rate_text(period_us: float) -> str:
    """`1000` -> `1 kHz`."""
    hertz = 1e6 / period_us
    for unit, size in (("MHz", 1e6), ("kHz", 1e3)):
        if hertz >= size:
            return f"{hertz / size:.4g} {unit}"
    return f"{hertz:.4g} Hz"


def _queued(replay: Replay) -> str:
    if not replay.queued:
        return "no call waited for an earlier one"
    calls = f"{replay.queued} call{'s' * (replay.queued > 1)} ({_percent_r(replay.queued_share)})"
    earlier = f"{replay.longest_queue} earlier call{'s' * (replay.longest_queue > 1)}"
    return f"{calls} began late, by up to {microseconds(replay.worst_wait_us)} us, behind up to {earlier}"


def _percent_r(share: float) -> str:
    return f"{100 * share:.3g} %"


AXIS_NAMES = {"layers": "Layers", "hidden": "Hidden size", "sequence": "Sequence length", "batch": "Batch size"}

A_UNIT = {"layers": "a layer", "hidden": "a unit", "sequence": "a step", "batch": "a sample"}

#: A line is called linear above this.
LINEAR_R2 = 0.99

INVERSIONS_TOLD = 10


def scaling_text(findings: Findings) -> str:
    """The answers as lines of text, a block a system."""
    told = [_source(findings.times)]
    for system in findings.times.cells:
        told.append("")
        if len(findings.times.systems) > 1:
            told.append(f"{system}:")
        told += [_axis(findings, system, axis) for axis in findings.times.axes]
        if "batch" in findings.times.axes:
            told += [_penalties(findings, system), _batching(findings, system)]
        told += _inversions(findings, system)
    return "\n".join(told)


def _source(times: Times) -> str:
    counts = times.counts
    sizes = {axis: set() for axis in times.axes}
    for cells in times.cells.values():
        for shape in cells:
            for axis, size in zip(times.axes, shape, strict=True):
                sizes[axis].add(size)
    grid = "; ".join(f"{axis} {' '.join(map(str, sorted(values)))}" for axis, values in sizes.items())
    left = [
        _count_s(count, what) + more
        for count, what, more in (
            (counts.holes, "hole", " in the grid"),
            (counts.blank, "row", " with a blank"),
            (counts.failed, "failure", ""),
        )
        if count
    ]
    lines_told = [f"{times.where}: times of {counts.shapes} shapes ({grid})" + "".join(f", {one}" for one in left)]
    if times.unused:
        lines_told.append(f"columns not used: {', '.join(times.unused)}")
    if counts.duplicates:
        lines_told.append(
            f"{_count_s(counts.duplicates, 'row')} on top of another of the same shape: the median is taken; where a"
            ' column tells them apart, name it with --rename, as in "GPU=device_name"'
        )
    return "\n".join(lines_told)


def _axis(findings: Findings, system: str, axis: str) -> str:
    name = AXIS_NAMES[axis]
    here = [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]
    if here:
        slopes = sorted(line.slope_us for line in here)
        linear = sum(line.r2 > LINEAR_R2 for line in here)
        between = f", {_number_s(slopes[0])} to {_number_s(slopes[-1])}" if len(slopes) > 1 else ""
        told = f"{name}: linear in {linear} of {_count_s(len(here), 'line')} (R2 > {LINEAR_R2})"
        told += f", {_number_s(statistics.median(slopes))} us {A_UNIT[axis]}{between}; "
        breaks = Counter(line.breaks_at for line in here if line.breaks_at is not None)
        places = ", ".join(f"at {size} ({count})" for size, count in sorted(breaks.items()))
        told += f"{breaks.total()} break off by more than 10 %, {places}" if breaks else "none breaks off by 10 %"
    else:
        most = max((len(line) for one, other, _, line in lines(findings.times) if (one, other) == (system, axis)))
        told = f"{name}: {_count_s(most, 'value')} at most on a line, {POINTS} are needed to ask for linearity"
    found = [pair for pair in findings.inversions if (pair.system, pair.axis) == (system, axis)]
    return f"{told}; {_count_s(len(found), 'inversion')}{_sure_s(found)}{_where(findings.times, system, axis, found)}"


def _where(times: Times, system: str, axis: str, found: Sequence[Inversion]) -> str:
    """Between which sizes, and where on the other axes, if not everywhere."""
    if not found:
        return ""
    steps = Counter((pair.smaller[axis], pair.larger[axis]) for pair in found)
    told = [f"between {', '.join(f'{one} and {other} ({n})' for (one, other), n in steps.most_common(3))}"]
    if len(steps) > 3:
        told[0] += " and others"
    for place, other in enumerate(times.axes):
        seen = {pair.smaller[other] for pair in found}
        if other != axis and len(found) > 1 and seen < {shape[place] for shape in times.cells[system]}:
            told.append(f"only at {other} {', '.join(map(str, sorted(seen)))}")
    return ", " + ", ".join(told)


def _penalties(findings: Findings, system: str) -> str:
    found = sorted((one for one in findings.batch1_penalties if one.system == system), key=lambda one: -one.ratio)
    told = f"Batch 1 slower than batch 2: in {len(found) or 'none'}{_sure_s(found)}"
    told += f" of {_count_s(_both_batches(findings.times, system), 'network')} that have both"
    return told + (f", the most by {found[0].ratio:.2f} at {_shape(found[0].shape)}" if found else "")


def _both_batches(times: Times, system: str) -> int:
    return sum({1, 2} <= line.keys() for one, axis, _, line in lines(times) if (one, axis) == (system, "batch"))


def _batching(findings: Findings, system: str) -> str:
    here = [one for one in findings.batching if one.system == system]
    if not here:
        return "Batching: no network has two batch sizes"
    free = Counter(one.free_up_to for one in here if one.stops_at is not None)
    never = sum(one.stops_at is None for one in here)
    places = [f"{size} ({count})" for size, count in sorted(free.items())]
    told = "Batching: almost free, under 10 % a doubling,"
    told += f" up to batch {', '.join(places)}" if places else ""
    told += f"{' and' if places else ''} to the largest measured ({never})" if never else ""
    best = Counter(one.cheapest for one in here)
    told += f"; least time a sample at batch {', '.join(f'{size} ({count})' for size, count in sorted(best.items()))}"
    largest = sum(one.cheapest_is_largest for one in here)
    return told + (f", in {largest} of {len(here)} the largest measured: a larger one may be better" if largest else "")


def _inversions(findings: Findings, system: str) -> list[str]:
    found = sorted((one for one in findings.inversions if one.system == system), key=lambda one: one.ratio)
    told = [
        f"  {one.ratio:.3f}  {one.axis} {one.smaller[one.axis]} -> {one.larger[one.axis]} at "
        + _shape({axis: size for axis, size in one.smaller.items() if axis != one.axis})
        + {True: "  certain", False: "  not certain", None: ""}[one.certain]
        for one in found[:INVERSIONS_TOLD]
    ]
    if len(found) > INVERSIONS_TOLD:
        told.append(f"  and {len(found) - INVERSIONS_TOLD} more: --format json has them all")
    return ["The larger is faster, larger / smaller:", *told] if told else []


def _sure_s(found: Sequence) -> str:
    if not found or found[0].certain is None:
        return ""
    return f" ({sum(one.certain for one in found)} certain)"


def _shape(shape: dict[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in shape.items()) or "that"


def _count_s(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _number_s(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def causes_text(late: Cluster | Tail, outliers: Outliers) -> str:  # noqa: F821
    """`minor page faults (odds 12×)`, how much likelier than in the body; `in part` of few trials; or unexplained."""
    if not outliers.causes_counted:
        return "nothing was counted"
    return ", ".join(_cause_text(cause) for cause in late.causes) or "unexplained"


def _cause_text(cause: Cause) -> str:
    from lstm_trt.analysis.text import MOSTLY, NAMES

    if cause.by == "control":
        return "the machine's own noise (control run)"
    told = NAMES.get(cause.name, cause.name.replace("_", " "))
    odds = f"odds\u00a0{number(cause.odds_ratio)}×"
    if cause.share >= MOSTLY:
        return f"{told} ({odds})"
    return f"in part {told} ({percent(cause.share)} of these, {odds})"
