"""The answers as text for the terminal, tables and figures. No code parses these texts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from lstm_trt.analysis.outcomes import Change, CountedBy, Outcome, SteadyState, TimesBy
from lstm_trt.analysis.quantiles import ROUNDS
from lstm_trt.config.configuration import Options
from lstm_trt.config.format import (
    count,
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
    scientific,
    short_number,
    signed_percent,
    table,
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

#: Display names of counters.
CAUSE_NAMES = {
    "involuntary_switches": "involuntary context switches",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "steal_ns": "CPU time stolen by the host",
    "throttled_periods": "CPU throttling",
}

#: A cause explains a cluster only in part if fewer than this share of its trials have it.
MOSTLY = 0.5

#: Fast trials and a segment are at the same level if their medians differ by at most this share.
SAME_STATE = 0.02

#: A tail with fewer trials is called stragglers.
LEAST_TAIL = 5

#: Maximum number of segments, and of inversions, that are printed; the others are counted.
MOST_SEGMENTS, MOST_INVERSIONS = 5, 10

AXIS_NAMES = {"layers": "Layers", "hidden": "Hidden size", "sequence": "Sequence length", "batch": "Batch size"}

AXIS_UNITS = {"layers": "layer", "hidden": "unit", "sequence": "step", "batch": "sample"}

#: A series counts as linear if its R2 is above this.
LINEAR_R2 = 0.99


# Verdicts


def verdict_text(verdict: Verdict, name: str = "") -> str:
    """The verdict on several lines: the verdict first, then the maximum."""
    lines = [f"{verdict.verdict}  {question(verdict)}" + (f"  {name}" if name else "")]
    if verdict.n == 0:
        return "\n  ".join([*lines, *verdict.reasons])
    lines += [_maximum(verdict), _percentile(verdict), _misses(verdict), *_certificate(verdict)]
    lines += [f"because {reason}" for reason in verdict.reasons]
    lines += [_dependence(verdict), *_drift(verdict), _firm(verdict.firm_statistics), *_to_record(verdict)]
    return "\n  ".join(lines)


def verdict_line(verdict: Verdict, name: str = "") -> str:
    """The verdict on one line, for lists of configurations."""
    end = f"  {name}" if name else ""
    if verdict.n == 0:
        return f"{verdict.verdict:19}  {'; '.join(verdict.reasons)}{end}"
    text = f"max {microseconds(verdict.max_us)} us, {count(verdict.misses, 'miss')} in {verdict.n} trials"
    if verdict.verdict != Outcome.MET:
        text += f", proven for {percent_certified(verdict.certifies)} % of calls"
    if verdict.verdict == Outcome.NOT_ENOUGH_EVIDENCE:
        text += f", {_recommendation(verdict)}" if verdict.trials_needed else ", too many misses to prove it"
    return f"{verdict.verdict:19}  {text}{end}"


def sentence(verdict: Verdict) -> str:
    """The verdict in one or two sentences, for figures."""
    percentile, deadline_us = short_number(verdict.percentile), short_number(verdict.deadline_us)
    confidence = f"{_confidence(verdict)} confidence"
    if verdict.n == 0:
        return f"No verdict for the deadline of {deadline_us} us: {'; '.join(verdict.reasons)}."
    observed = f"{count(verdict.misses, 'miss')} in {verdict.n} trials, maximum {microseconds(verdict.max_us)} us"
    if verdict.verdict == Outcome.MET:
        return f"{percentile} % of calls finish within {deadline_us} us, at {confidence}: {observed}."
    if verdict.verdict == Outcome.MISSED:
        return (
            f"The {percentile}th percentile exceeds {deadline_us} us, at {confidence}: {observed};"
            f" at least {percent_at_least(verdict.miss_rate_low)} of calls miss the deadline,"
            f" {_allowed(verdict)} are allowed."
        )
    first = f"Not proven at {confidence} that {percentile} % of calls finish within {deadline_us} us: {observed}."
    reasons = f" Reason: {'; '.join(verdict.reasons)}." if verdict.reasons else ""
    record = f" A new recording of {_trials_needed(verdict)} can prove it." if verdict.trials_needed else ""
    return first + reasons + record


def question(verdict: Verdict) -> str:
    """What was tested: percentile, deadline and confidence."""
    percentile, deadline_us = short_number(verdict.percentile), short_number(verdict.deadline_us)
    return f"p{percentile} within {deadline_us} us at {_confidence(verdict)} confidence"


def _maximum(verdict: Verdict) -> str:
    text = f"max {microseconds(verdict.max_us)} us in n = {verdict.n} trials"
    text += f" (with warm-up {microseconds(verdict.max_with_warmup_us)} us)"
    if len(verdict.rounds) > 1:
        text += "; by round " + " ".join(map(microseconds, verdict.max_us_rounds))
    return text


def _percentile(verdict: Verdict) -> str:
    bounds = [
        f"{side} {microseconds(bound)} us" if bound is not None else f"{none} bound at n = {verdict.n}"
        for side, none, bound in (
            ("at least", "no lower", verdict.percentile_low_us),
            ("at most", "no upper", verdict.percentile_high_us),
        )
    ]
    measured = f"p{short_number(verdict.percentile)} {microseconds(verdict.percentile_us)} us, {', '.join(bounds)}"
    deadline = f"deadline {short_number(verdict.deadline_us)} us"
    return f"{measured} (one-sided bounds, {_confidence(verdict)} confidence); {deadline}"


def _misses(verdict: Verdict) -> str:
    text = f"{count(verdict.misses, 'miss')} in {verdict.n} trials: miss rate "
    if verdict.misses:
        text += f"{percent(verdict.misses / verdict.n)}, at least {percent_at_least(verdict.miss_rate_low)}, "
    bound = "one-sided bounds" if verdict.misses else "one-sided bound"
    text += f"at most {percent_at_most(verdict.miss_rate_high)} ({bound}, {_confidence(verdict)} confidence)"
    return f"{text}; allowed {_allowed(verdict)}"


def _certificate(verdict: Verdict) -> list[str]:
    proven = f"proven at {_confidence(verdict)} confidence:"
    return [
        f"{proven} {percent_certified(verdict.certifies)} % of calls meet the deadline",
        f"{proven} {percent_certified(verdict.max_certifies)} % of calls do not exceed the maximum;"
        " there is a 50 % chance that the next n trials contain a longer one",
    ]


def _dependence(verdict: Verdict) -> str:
    found = verdict.dependence
    if not found.how:
        return f"dependence: slow calls do not cluster more than by chance; effective sample size {verdict.n}"
    text = f"dependence: {found.how}"
    text += (
        f"; extremal index {found.extremal_index:.2g} (1 / mean size of a burst)" if found.extremal_index < 1 else ""
    )
    text += f"; {count(verdict.n, 'trial')}, effective sample size {verdict.effective_n}"
    if verdict.misses:
        text += f" ({count(verdict.misses, 'miss')}, effectively {verdict.effective_misses})"
    if verdict.verdict_if_effective == verdict.verdict_if_independent:
        return f"{text}: this does not change the verdict"
    return f"{text}: {verdict.verdict_if_effective} instead of {verdict.verdict_if_independent}"


def _drift(verdict: Verdict) -> list[str]:
    several = len(verdict.rounds) > 1
    return [
        f"drift of the bulk {signed_percent(part.drift)}{f' in round {part.round}' * several} ({part.steady_state})"
        for part in verdict.rounds
        if part.steady_state != SteadyState.FLAT or part.segments > 1
    ]


def _firm(firm: FirmStatistics) -> str:
    worst = ", ".join(f"{m} in any {k}" for k, m in firm.worst_in.items() if m is not None)
    text = "(m,k)-firm: " + (f"misses at most {worst} consecutive trials; " if worst else "")
    text += f"longest run of misses {firm.longest_run}; P(miss) {percent(firm.p_miss)}"
    return text + ("" if firm.p_miss_after_miss is None else f", after a miss {percent(firm.p_miss_after_miss)}")


def _to_record(verdict: Verdict) -> list[str]:
    if verdict.verdict != Outcome.NOT_ENOUGH_EVIDENCE or verdict.trials_needed is None:
        return []
    return [f"{_recommendation(verdict)}; do not append to this recording"]


def _recommendation(verdict: Verdict) -> str:
    text = f"record {_trials_needed(verdict, 'new ')}"
    if verdict.trials_needed == verdict.trials_needed_if_independent:
        return text
    return f"{text} ({verdict.trials_needed_if_independent} if slow calls did not come in bursts)"


def _trials_needed(verdict: Verdict, kind: str = "") -> str:
    """The number of trials needed; "in a steady state" if their number was not what prevented MET."""
    steady = " in a steady state" if verdict.verdict_if_effective == Outcome.MET else ""
    return f"{verdict.trials_needed} {kind}trials{steady}"


def _confidence(verdict: Verdict) -> str:
    return f"{short_number(100 * verdict.confidence)} %"


def _allowed(verdict: Verdict) -> str:
    return f"{100 - verdict.percentile:.9g} %"


# Outliers


def outliers_text(outliers: Outliers, name: str = "") -> str:
    """Several lines: number of outliers, course of the level, clusters, and tail."""
    lines = [f"{name}:"] if name else []
    rounds = outliers.rounds
    over = f" in {len(rounds)} rounds" if len(rounds) > 1 else ""
    lines.append(
        f"{count(outliers.n, 'trial')}{over}, median {microseconds(outliers.median_us)} us; {_box_plot_count(outliers)}"
    )
    lines.append(f"Trials: {_partition(outliers)}")
    lines += _course(rounds)
    if outliers.clusters:
        fast = sum(cluster.fast for cluster in outliers.clusters)
        kinds = ((len(outliers.clusters) - fast, "slow cluster"), (fast, "fast cluster"))
        clusters = " and ".join(count(size, kind) for size, kind in kinds if size)
        lines.append(f"{clusters}, as multiples of the local median (with the 95 % interval of the share):")
        lines += [f"  {_cluster(cluster, outliers)}" for cluster in outliers.clusters]
        lines += _uneven(outliers)
    else:
        lines.append("No clusters.")
    lines += _tail(outliers)
    if outliers.clusters and outliers.period_by is not None and not outliers.causes_counted:
        lines.append(
            "No events were counted: `lstm-trt record` counts context switches, page faults, steal and throttling."
        )
    return "\n".join(lines)


def outliers_line(outliers: Outliers, name: str) -> str:
    """The outliers on one line, for lists of configurations."""
    found = f"{count(outliers.n, 'trial')}: {_partition(outliers)}; {_box_plot_count(outliers)}"
    return f"{name}: {found}; clusters: {clusters_line(outliers.clusters)}; level: {outliers.steady_state}"


def _box_plot_count(outliers: Outliers) -> str:
    return f"{outliers.outliers} outside 1.5 x IQR (box plot; {percent(outliers.outliers / outliers.n)})"


def _partition(outliers: Outliers) -> str:
    """Number of trials of each kind; they add up to n."""
    return ", ".join(f"{kind.replace('_', ' ')} {size}" for kind, size in outliers.partition.items())


def clusters_line(clusters: Sequence) -> str:
    """`1.25x 2.0 %, 2.01x 1.0 %`, or `none`."""
    return ", ".join(f"{multiple(cluster.multiplier)} {percent(cluster.share)}" for cluster in clusters) or "none"


def clusters_cell(clusters: Sequence) -> str:
    """The most frequent cluster and the number of others: `1.25x 2.0 %, +2`, `1.25x 2.0 %`, or `none`."""
    line = clusters_line(sorted(clusters, key=lambda cluster: -cluster.share)[:1])
    return f"{line}, +{len(clusters) - 1}" if len(clusters) > 1 else line


def causes_text(part: Cluster | Tail, outliers: Outliers) -> str:
    """Causes for figures: `minor page faults (odds ratio 12)`, compared with the bulk, or `unexplained`."""
    if not outliers.causes_counted:
        return "no events were counted" + _hint(part)
    texts = []
    for cause in part.causes:
        if cause.by == CountedBy.CONTROL:
            texts.append("machine noise (control run)")
            continue
        name = CAUSE_NAMES.get(cause.name, cause.name.replace("_", " "))
        odds = f"odds\u00a0ratio\u00a0{number(cause.odds_ratio)}"
        whole = cause.share >= MOSTLY
        texts.append(f"{name} ({odds})" if whole else f"partly {name} ({percent(cause.share)} of these, {odds})")
    return ", ".join(texts) or "unexplained" + _hint(part)


def _hint(part: Cluster | Tail) -> str:
    return f" ({part.hint})" if part.hint else ""


def _course(rounds: Sequence[Round]) -> list[str]:
    """Steady state and segments of each round; one line if all rounds are flat."""
    several = len(rounds) > 1
    if all(part.steady_state == SteadyState.FLAT and len(part.segments) == 1 for part in rounds):
        return [f"Level: flat{' in all rounds' * several}"]
    return [
        (f"Round {part.round}: " if several else "Level: ") + f"{part.steady_state}{_segments(part)}" for part in rounds
    ]


def _segments(part: Round) -> str:
    if len(part.segments) == 1 and not part.segments[0].change:
        return ""
    texts = []
    for segment in part.segments[:MOST_SEGMENTS]:
        change = f" (drift {signed_percent(segment.change)})" if segment.change else ""
        trials = f"trials {segment.start + 1} to {segment.stop}"
        texts.append(f"{microseconds(segment.median_ns / 1e3)} us in {trials}{change}")
    more = len(part.segments) - len(texts)
    texts += [f"and {count(more, 'more segment')}"] if more else []
    return f", {signed_percent(part.drift)} from start to end: {'; '.join(texts)}"


def _cluster(cluster: Cluster, outliers: Outliers) -> str:
    text = f"{multiple(cluster.multiplier)} ({microseconds(cluster.time_us)} us): {count(cluster.count, 'trial')},"
    text += f" {percent(cluster.share)} ({percent_number(cluster.share_low)} to {percent(cluster.share_high)})"
    text += _period(cluster.period_ms, outliers) + _level_elsewhere(cluster, outliers.rounds)
    return text if outliers.period_by is None else f"{text}, {_causes(cluster)}"


def _level_elsewhere(cluster: Cluster, rounds: Sequence[Round]) -> str:
    """For a cluster of fast trials, the longest segment at the same level, if there is one."""
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
    _, number_of_round, segment = max(near, key=lambda found: found[0])
    of_round = f" of round {number_of_round}" if len(rounds) > 1 else ""
    return f", close to the median of trials {segment.start + 1} to {segment.stop}{of_round}"


def _uneven(outliers: Outliers) -> list[str]:
    """Clusters with a share that differs significantly between rounds (chi-squared test at 0.1 %)."""
    if len(outliers.rounds) < 2:
        return []
    from scipy.special import chdtrc

    lines = []
    for cluster in outliers.clusters:
        expected = [cluster.share * part.n for part in outliers.rounds]
        if min(expected) < 5:
            continue
        square = sum((observed - mean) ** 2 / mean for observed, mean in zip(cluster.counts, expected, strict=True))
        if chdtrc(len(expected) - 1, square) < 0.001:
            counts = ", ".join(map(str, cluster.counts))
            lines.append(f"  the frequency of {multiple(cluster.multiplier)} differs between rounds: {counts} trials")
    return lines


def _tail(outliers: Outliers) -> list[str]:
    tail = outliers.tail
    if tail is None:
        return []
    few = tail.count < LEAST_TAIL
    text = ("Stragglers" if few else "A smooth tail") + " outside clusters" * bool(outliers.clusters)
    text += f": {count(tail.count, 'trial')}, {percent(tail.share)}, from {multiple(tail.start)}"
    text += f" to {multiple(tail.stop)}" if tail.count > 1 else ""
    text += "" if few else f", {tail.shape}"
    return [text + _period(tail.period_ms, outliers) + (f", {_causes(tail)}" if tail.causes or tail.hint else "")]


def _period(period_ms: float | None, outliers: Outliers) -> str:
    if period_ms is None:
        return ""
    by = " (start times estimated by summing latencies)" if outliers.period_by == TimesBy.SUMMED_LATENCIES else ""
    return f", every {number(period_ms)} ms{by}"


def _causes(part: Cluster | Tail) -> str:
    return ", ".join(map(_cause, part.causes)) or "unexplained" + _hint(part)


def _cause(cause: Cause) -> str:
    if cause.by == CountedBy.CONTROL:
        share = percent(cause.share_bulk)
        return (
            f"consistent with machine noise: the control run (an empty step) has similar delays in {share} of its calls"
        )
    partly = "" if cause.share >= MOSTLY else "partly "
    return (
        f"{partly}associated with {CAUSE_NAMES.get(cause.name, cause.name)}"
        f" (in {percent(cause.share)} of these trials, {percent(cause.share_bulk)} of the bulk;"
        f" odds ratio {number(cause.odds_ratio)}, p {_p_value(cause.p)})"
    )


def _p_value(p: float) -> str:
    return "below 1e-99" if p < 1e-99 else f"{p:.0e}" if p < 0.001 else f"{p:.3f}"


# Comparisons


def comparison_text(comparison: Comparison, a_name: str = "A", b_name: str = "B") -> str:
    """Several lines: the two results, ratios, reasons, clusters, other differences, and what to record."""
    sides = [letter if name == letter else f"{letter} ({name})" for letter, name in (("B", b_name), ("A", a_name))]
    lines = [f"median {comparison.median}, tail {comparison.tail}: {sides[0]} compared with {sides[1]}"]
    lines.append(_ratios(comparison))
    processes = [count(rounds, "process") for rounds in (comparison.rounds_a, comparison.rounds_b)]
    lines.append(f"  {processes[0]} of A, n = {comparison.n_a}; {processes[1]} of B, n = {comparison.n_b}")
    lines += [f"  {reason}" for reason in comparison.reasons]
    lines += _changed_clusters(comparison)
    if comparison.differences:
        lines.append("other differences, which may be the cause:")
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
            ("a cluster on one side only, possibly by chance", comparison.clusters_unclear),
        )
        if pairs
    ]
    few = min(comparison.rounds_a, comparison.rounds_b) < ROUNDS
    caveat = f" (with fewer than {ROUNDS} processes per side, a cluster can be new or gone by chance)"
    caveat *= bool(few and (comparison.clusters_gone or comparison.clusters_new))
    head = f"clusters, share of the trials in A -> in B{caveat}:"
    return [head, *lines] if lines else ["no clusters"]


def _pair(pair: ClusterPair) -> str:
    return f"{multiple(pair.multiplier)} {percent(pair.share_a)} -> {percent(pair.share_b)}"


def _rounds_to_record(comparison: Comparison) -> list[str]:
    if Change.AMBIGUOUS not in (comparison.median, comparison.tail):
        return []
    if not comparison.rounds_needed:
        return ["to decide the tail, record more trials in each process"]
    if comparison.command is None:
        return [
            f"to decide it, record at least {comparison.rounds_needed} processes per side, alternating,"
            " with the number of the process in a column `round`, or a file for each and --one-group"
        ]
    lines = comparison.command.splitlines()
    return ["to decide it, record new rounds and compare those:", *(f"  {line}" for line in lines)]


# Summaries


def summary_table(rows: Sequence[SummaryRow]) -> str:
    """The summary as a text table; the maximum comes first, times are in us.

    A star marks a percentile without an upper bound at this n. Rows of tables from elsewhere show their group instead
    of a shape.
    """
    named = _name_columns(rows)
    shown = sorted((column for column in fields(rows[0]) if column.metadata), key=lambda c: c.metadata["place"])
    # `not_alone` is shown if it is above 0 anywhere, the error if a precision is not float32 or a row was not checked
    empty = [name for name in ("floor_us", "not_alone") if not any(getattr(row, name) for row in rows)]
    recorded = [row for row in rows if row.status == "ok" and row.config_id is not None]
    plain = all(row.precision == Options.precision and row.parity_error is not None for row in recorded)
    empty += ["parity_error"] if plain else []
    shown = [column for column in shown if column.name not in empty]
    lines = []
    for row in rows:
        cells = ["-" if value is None else str(value) for value in (cell(row) for cell in named.values())]
        if row.status == "ok":
            cells += [_cell(row, column.name) for column in shown]
        else:
            cells.append(f"failed at {row.stage}: {row.reason}" if row.stage else f"failed: {row.reason}")
        lines.append(cells)
    header = [*named, *(column.metadata["title"] for column in shown)]
    least = sorted((column.metadata for column in shown if column.metadata["drop"]), key=lambda data: data["drop"])
    caption = "latencies in us after warm-up"
    caption += "; network: layers x hidden" if "network" in header else ""
    caption += "; n: number of trials"
    caption += "; parity error: relative to float32" if "parity error" in header else ""
    caption += "; roofline: lower bound for this machine" if "roofline" in header else ""
    legend = "outliers: outside 1.5 x IQR (box plot);"
    legend += " clusters: the largest (multiple of local median, share), others"
    if "not alone" in header:
        legend += "; not alone: recordings during which other programs used the CPU"
    star = any("*" in cell for cells in lines for cell in cells)
    legend += "; *: n too small for an upper bound" if star else ""
    text = table(header, lines, left=("clusters",), drop=[data["title"] for data in least])
    return "\n".join([caption, legend, text])


def _name_columns(rows: Sequence[SummaryRow]) -> dict[str, Callable[[SummaryRow], object]]:
    """Columns that identify the rows: heading -> function that gives the value for a row."""
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
    if workloads:  # the name of a workload includes its sizes, except those that vary
        sizes = {(row.group.get("workload"), row.sequence, row.batch) for row in rows}
        if all("workload" in row.group for row in rows):
            del named["network"]
            named = named if len(sizes) > len({name for name, _, _ in sizes}) else {}
        named = {name: lambda row, name=name: row.group.get(name, "-") for name in workloads} | named
    elif any(row.mode not in (None, "forward") for row in rows):
        named["mode"] = lambda row: row.mode
    named |= {"runtime": lambda row: row.runtime}
    named |= {"precision": lambda row: row.precision, "threads": lambda row: row.threads} if options else {}
    named |= {"graph": _graph} if any(row.graph for row in rows) else {}
    unbound = any(row.group.get("io_binding") is False for row in rows)
    named |= {"I/O binding": lambda row: "no" if row.group.get("io_binding") is False else "yes"} if unbound else {}
    reduced = any(row.group.get("reduce_range") for row in rows)
    named |= {"weights": lambda row: "7 bits" if row.group.get("reduce_range") else "full"} if reduced else {}
    clocks = any(row.device_clocks not in (None, "off") for row in rows)
    named |= {"device clocks": lambda row: row.device_clocks} if clocks else {}
    named |= {"arrival": _arrival} if any(row.arrival != "closed" for row in rows) else {}
    return named | rounds


def _graph(row: SummaryRow) -> str:
    return "refused" if row.graph and row.graph_captured is False else "yes" if row.graph else "no"


def _arrival(row: SummaryRow) -> str:
    if row.period_us:
        return f"{short_number(row.period_us)} us {row.wait}"
    return f"pause {milliseconds(row.pause_ms)}" if row.pause_ms else str(row.arrival)


def _cell(row: SummaryRow, name: str) -> str:
    value = getattr(row, name)
    if name == "clusters" and value is not None:
        return clusters_cell(value)
    if name == "parity_error":
        return "not checked" if value is None else scientific(value)
    if not name.endswith("_us"):
        return "-" if value is None else str(value)
    return microseconds(value) + "*" * (getattr(row, f"{name}_high", row.max_us) is None)


# Replays


def replay_text(replay: Replay, name: str = "") -> str:
    """A table of the closed loop and the fixed rate, and the delayed calls."""
    trials = count(replay.n, "trial") + (f" of {replay.rounds} processes, each separately" * (replay.rounds > 1))
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
            f"{head}{trials}, replayed with a call due every {replay.period_us:g} us ({rate(replay.period_us)})",
            table(("us", "closed", "at a fixed rate"), rows, indent=2),
            f"utilization {percent(replay.utilisation)} (mean latency / period); {_queued(replay)}",
            "not included: runtimes can be slower after a pause; record with --arrival periodic to measure that",
        ]
    )


def _queued(replay: Replay) -> str:
    if not replay.queued:
        return "no call waited for an earlier one"
    calls, earlier = count(replay.queued, "call"), count(replay.longest_queue, "earlier call")
    wait = f"{microseconds(replay.worst_wait_us)} us"
    return f"{calls} ({percent(replay.queued_share)}) started up to {wait} late, waiting for up to {earlier}"


# Scaling


def scaling_text(findings: Findings) -> str:
    """The source, then for each system: each axis, batching, and larger networks that are faster."""
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
    text = f"{times.where}: times of {count(counts.shapes, 'shape')} ({grid}){times.mode_text}"
    for number_left, noun, more in (
        (counts.holes, "shape", " of the grid missing"),
        (counts.blank, "row", " with a blank"),
        (counts.failed, "failure", ""),
    ):
        text += f", {count(number_left, noun)}{more}" if number_left else ""
    lines = [text, "a series: networks that differ in one size only; slopes: median (lowest to highest)"]
    if times.unused:
        lines.append(f"columns not used: {', '.join(times.unused)}")
    if counts.duplicates:
        lines.append(
            f"{count(counts.duplicates, 'row')} of a shape that occurs before: the median is used; if a column"
            ' distinguishes them, name it with --rename, for example "GPU=device_name"'
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
        text += f" {'median slope' if between else 'slope'} {_slope(statistics.median(slopes))} us per"
        text += f" {AXIS_UNITS[axis]}{between}; "
        breaks = Counter(line.breaks_at for line in series if line.breaks_at is not None)
        places = ", ".join(f"{times} at {axis} {size}" for size, times in sorted(breaks.items()))
        leave = "leaves" if breaks.total() == 1 else "leave"
        text += (
            f"{breaks.total()} series {leave} the line through the smaller sizes by more than 10 % ({places})"
            if breaks
            else "no series leaves the line through the smaller sizes by more than 10 %"
        )
    else:
        text = f"linearity not tested: needs at least 3 sizes, has {findings.longest_line(system, axis)}"
    text += f"; larger is faster in {count(len(inversions), 'pair')}{_significant(inversions)}" if inversions else ""
    return f"{AXIS_NAMES[axis]}: {text}{_places(findings.times, system, axis, inversions)}"


def _places(times: Times, system: str, axis: str, inversions: Sequence[Inversion]) -> str:
    """The sizes between which a larger network is faster, and the sizes on the other axes if not all."""
    if not inversions:
        return ""
    steps = Counter((pair.smaller[axis], pair.larger[axis]) for pair in inversions)
    texts = [f"between {', '.join(f'{small} and {large} ({n})' for (small, large), n in steps.most_common(3))}"]
    texts[0] += " and others" if len(steps) > 3 else ""
    for place, other in enumerate(times.axes):
        sizes = {pair.smaller[other] for pair in inversions}
        if other != axis and len(inversions) > 1 and sizes < {shape[place] for shape in times.cells[system]}:
            texts.append(f"only at {other} {', '.join(map(str, sorted(sizes)))}")
    return ", " + ", ".join(texts)


def _penalties(findings: Findings, system: str) -> str:
    found = sorted((pair for pair in findings.batch1_penalties if pair.system == system), key=lambda pair: -pair.ratio)
    measured = findings.with_batches_1_and_2(system)
    if not measured:
        return "Batch 1 slower than batch 2: not tested, no network was measured at both"
    text = f"Batch 1 slower than batch 2: in {len(found) or 'none'}{_significant(found)}"
    text += f" of {count(measured, 'network')} measured at both"
    return text + (f", by at most {multiple(found[0].ratio)} at {_shape(found[0].shape)}" if found else "")


def _batching(findings: Findings, system: str) -> str:
    here = [batching for batching in findings.batching if batching.system == system]
    if not here:
        return "Batching: no network was measured at two batch sizes"
    stopped = [batching for batching in here if batching.stops_at is not None]
    nowhere = sum(batching.free_up_to == batching.smallest for batching in stopped)
    free = Counter(batching.free_up_to for batching in stopped if batching.free_up_to != batching.smallest)
    never = sum(batching.stops_at is None for batching in here)
    places = [f"at no batch size ({count(nowhere, 'network')})"] if nowhere else []
    places += [f"up to batch {size} ({count(times, 'network')})" for size, times in sorted(free.items())]
    places += [f"up to the largest batch measured ({count(never, 'network')})"] if never else []
    best = Counter(batching.cheapest for batching in here)
    cheapest = (f"batch {size} ({count(times, 'network')})" for size, times in sorted(best.items()))
    text = f"Batching: doubling the batch costs less than 10 % {', '.join(places)}"
    text += f"; least time per sample at {', '.join(cheapest)}"
    largest = sum(batching.cheapest_is_largest for batching in here)
    if largest:
        text += (
            f"; in {largest} of {len(here)} networks this is the largest batch measured, and a larger one may be better"
        )
    return text


def _inversions(findings: Findings, system: str) -> list[str]:
    found = sorted((pair for pair in findings.inversions if pair.system == system), key=lambda pair: pair.ratio)
    lines = []
    for pair in found[:MOST_INVERSIONS]:
        rest = {axis: size for axis, size in pair.smaller.items() if axis != pair.axis}
        text = f"  {pair.ratio:.3f}  {pair.axis} {pair.smaller[pair.axis]} -> {pair.larger[pair.axis]}"
        text += f" at {_shape(rest)}" if rest else ""
        lines.append(text + {True: "  significant", False: "  not significant", None: ""}[pair.certain])
    if len(found) > MOST_INVERSIONS:
        lines.append(f"  and {len(found) - MOST_INVERSIONS} more; --format json lists all")
    doubts = Counter(doubt for pair in found for doubt in pair.uncertain_because or ())
    if doubts:
        reasons = ", ".join(f"{doubt} ({count(pairs, 'pair')})" for doubt, pairs in doubts.most_common())
        lines.append(f"  not significant because of: {reasons}")
    return ["Larger networks that are faster (ratio of times, larger / smaller):", *lines] if lines else []


def _significant(pairs: Sequence) -> str:
    if not pairs or pairs[0].certain is None:
        return ""
    return f" ({sum(pair.certain for pair in pairs)} significant)"


def _shape(shape: dict[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in shape.items())


def _slope(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
