"""Verdicts as text. No code parses it."""

import math
from collections.abc import Iterator, Sequence

from lstm_judge.outcomes import Outcome, SteadyState
from lstm_judge.outliers.text import levels_texts
from lstm_judge.read.labels import load_text, of_length, record_command
from lstm_judge.read.numbers import (
    percent_at_least,
    percent_at_most,
    percent_certified,
    signed_percent,
)
from lstm_judge.read.rounds import by_network
from lstm_judge.statistics import bursts
from lstm_judge.statistics.excess import PARTS, Excess
from lstm_judge.statistics.processes import SHARE
from lstm_judge.verdict.answer import Verdict
from lstm_judge.verdict.firm import FirmStatistics
from lstm_judge.verdict.verdict import Verdicts
from lstm_trt.config.format import count, listed, microseconds, percent, short_number

#: What an outcome says of the share of calls in time.
MEANS = {
    Outcome.MET: ": at least",
    Outcome.MISSED: ": fewer than",
    Outcome.NOT_ENOUGH_EVIDENCE: " for",
}

#: Most networks of which the worst load is named.
MOST_NETWORKS = 5

#: Folder of a new recording, in commands.
NEW = "new-recordings"


# Several verdicts


def text(verdicts: Verdicts) -> str:
    """One verdict on several lines, or a line for each, and how many meet the deadline."""
    if len(verdicts) == 1:
        return verdict_text(verdicts[0], verdicts.runs[0].name)
    lines = verdicts.texts(verdict_line)
    return "\n".join([f"{question(verdicts[0])}:", *lines, conclusion(verdicts)])


def headline(verdicts: Verdicts) -> str:
    """The answer in one line."""
    if len(verdicts) == 1:
        return str(verdicts).partition("\n")[0]
    return f"{question(verdicts[0])}: {conclusion(verdicts).splitlines()[0].replace('Of', 'of', 1)}"


def legend(verdicts: Verdicts) -> list[str]:
    """What the columns mean."""
    return [
        "the largest maximum first; miss rate upper percent: one-sided bound, "
        f"{_allowed(verdicts[0])} are allowed; trials needed: length of a new recording"
    ]


def least(verdicts: Verdicts) -> Sequence[str]:
    """Columns of the table that a notebook can do without: a reason says how many are effective."""
    return ("effective_n",)


def names_text(verdicts: Verdicts) -> str:
    """Which configurations meet the deadline and which do not, and the `conclusion`."""
    lines = [f"{question(verdicts[0])}:"]
    for fared, names in _names(verdicts).items():
        lines.append(f"  {fared}: {listed(names, comma='; ')}")
    return "\n".join([*lines, conclusion(verdicts)])


def conclusion(verdicts: Verdicts) -> str:
    """`Of 5 configurations 2 met it, 2 missed it, 1 had too few trials to say`, and the
    `selection`."""
    if len(verdicts) == 1:
        return f"The one configuration {_fared(verdicts[0])}"
    fared = ", ".join(f"{len(names)} {fared}" for fared, names in _names(verdicts).items())
    return "\n".join(
        [
            f"Of {len(verdicts)} configurations {fared}",
            *worst_loads(verdicts),
            *selection(verdicts),
        ]
    )


def worst_loads(verdicts: Verdicts) -> Iterator[str]:
    """Of networks with several loads, where quiet is one, the load with the largest maximum, and
    the others; the slowest networks first."""
    slowest = sorted(verdicts.items(), key=lambda pair: pair[1].max_us or 0, reverse=True)
    several = [places for places in by_network(group for group, _ in slowest) if len(places) > 1]
    for places in several[:MOST_NETWORKS]:
        texts = []
        for place in places:
            group, verdict = slowest[place]
            said = f"max {microseconds(verdict.max_us)} us, {verdict.outcome}"
            texts.append(f"{load_text(group.configuration)}: {said if verdict.n else 'failed'}")
        worst, *others = texts
        yield f"{group.configuration.title}, worst {worst} ({'; '.join(others)})"


def selection(verdicts: Verdicts) -> Iterator[str]:
    """The largest network that met it, and the largest above it that a new recording may decide,
    with its command."""
    met = verdicts.largest()
    if met is not None:
        yield (
            f"Largest network that met it: {verdicts.runs[met].name}, {_observed(verdicts[met])}"
            f" (selected from {len(verdicts)}: only a new recording confirms it)"
        )
    larger = verdicts.largest(undecided=True)
    trials = None if larger is None else verdicts[larger].trials_needed
    if larger is not None and trials is not None:
        configuration = verdicts.runs[larger].configuration
        command = configuration and record_command(of_length(configuration, trials), NEW)
        needed = f"{_new_trials(verdicts[larger], 'new ')} can prove MET"
        text = f"Largest undecided network: {verdicts.runs[larger].name}; {needed}"
        yield f"{text}: {command}" if command else text


def _names(verdicts: Verdicts) -> dict[str, list[str]]:
    """What configurations did about the deadline -> their names, those that met it first."""
    found: dict[str, list[str]] = {}
    for outcome in MEANS:
        for group, verdict in verdicts.items():
            if verdict.outcome == outcome:
                found.setdefault(_fared(verdict), []).append(group.name)
    return found


def _fared(verdict: Verdict) -> str:
    """What a configuration did about the deadline."""
    if verdict.outcome == Outcome.MET:
        return "met it"
    if verdict.outcome == Outcome.MISSED:
        return "missed it"
    if not verdict.n:
        return "failed"
    undecided = verdict.effective.outcome == Outcome.NOT_ENOUGH_EVIDENCE
    if undecided and verdict.new_recording.trials:
        return "had too few trials to say"
    return "stayed undecided"


def verdict_line(verdict: Verdict, name: str = "") -> str:
    """The verdict on one line, for lists of configurations."""
    parts = ", ".join(_in_one_line(verdict)) if verdict.n else "; ".join(verdict.reasons)
    line = f"{verdict.outcome:19}  {parts}"
    return f"{line}  {name}" if name else line


def _in_one_line(verdict: Verdict) -> Iterator[str]:
    yield f"max {microseconds(verdict.max_us)} us"
    yield _missed(verdict) + _these(verdict)
    if verdict.outcome == Outcome.MET:
        yield f"assuming that {_assumed(verdict)}"
    else:
        yield f"proven for {percent_certified(verdict.bounds.certifies)} % of calls"
    if verdict.miss_excess is not None and verdict.miss_excess.mostly:
        yield f"the excess of misses is mostly {PARTS[verdict.miss_excess.mostly][0]}"
    if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE:
        needed = verdict.new_recording.trials
        yield _recommendation(verdict) if needed else "too many misses to prove it"


# One verdict


def sentence(verdict: Verdict) -> str:
    """The verdict in one or two sentences, for figures."""
    deadline = f"{short_number(verdict.question.deadline_us)} us"
    percentile = short_number(verdict.question.percentile)
    reasons = "; ".join(verdict.reasons)
    if not verdict.n:
        return f"No verdict for the deadline of {deadline}: {reasons}."
    confidence = f"{_confident(verdict)}{_these(verdict)}"
    observed = _observed(verdict)
    within = f"{percentile} % of calls finish within {deadline}"
    if verdict.outcome == Outcome.MET:
        return f"{within}, {confidence}, assuming that {_assumed(verdict)}: {observed}."
    if verdict.outcome == Outcome.MISSED:
        return (
            f"The {percentile}th percentile exceeds {deadline}, {confidence}: {observed}; "
            f"at least {percent_at_least(verdict.bounds.miss_rate_low)} of calls miss "
            f"the deadline, {_allowed(verdict)} are allowed."
        )
    text = f"Not proven {confidence} that {within}: {observed}. Reason: {reasons}."
    if verdict.new_recording.trials:
        text += f" A new recording of {_new_trials(verdict)} can prove it."
    return text


def verdict_text(verdict: Verdict, name: str = "") -> str:
    """The verdict on several lines: the verdict first, then the maximum."""
    first = f"{verdict.outcome}{MEANS[verdict.outcome]} {question(verdict)}{_these(verdict)}"
    if name:
        first += f"  {name}"
    return "\n  ".join([first, *(_lines(verdict) if verdict.n else verdict.reasons)])


def _lines(verdict: Verdict) -> Iterator[str]:
    yield _maximum(verdict)
    yield _percentile(verdict)
    yield _misses(verdict)
    yield from _margin(verdict)
    yield from _excess(verdict.miss_excess)
    yield from _certified(verdict)
    yield _bounds(verdict)
    yield from _processes(verdict)
    yield from _evidence(verdict)
    yield from _assumption(verdict)
    for reason in verdict.reasons:
        yield f"because {reason}"
    yield from _order(verdict)
    if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE:
        yield from _new_recording(verdict)


def question(verdict: Verdict) -> str:
    """What was tested: percentile, deadline and confidence."""
    asked = verdict.question
    text = (
        f"{short_number(asked.percentile)} % of calls within "
        f"{short_number(asked.deadline_us)} us, {_confident(verdict)}"
    )
    if asked.burst_length > 1:
        text += f", bursts of misses up to {bursts.calls(asked.burst_length)}"
    return text


def _these(verdict: Verdict) -> str:
    """Of several processes: that the verdict is on these, and on no other."""
    return f", in these {len(verdict.rounds)} processes" if len(verdict.rounds) > 1 else ""


def _confident(verdict: Verdict) -> str:
    return f"at {short_number(100 * verdict.question.confidence)} % confidence"


def _observed(verdict: Verdict) -> str:
    return f"{_missed(verdict)}, maximum {microseconds(verdict.max_us)} us"


def _allowed(verdict: Verdict) -> str:
    return f"{100 - verdict.question.percentile:.9g} %"


def _assumed(verdict: Verdict) -> str:
    """What MET assumes about bursts of misses."""
    return bursts.assumption(verdict.bursts.assumed_length or 1)


# Its lines


def _maximum(verdict: Verdict) -> str:
    if verdict.max_us is None:
        return f"max above the last bin in n = {verdict.n} trials"
    most = "at most " if verdict.known_to else ""
    text = (
        f"max {most}{microseconds(verdict.max_us)} us in n = {verdict.n} trials "
        f"(with warm-up {microseconds(verdict.max_with_warmup_us)} us)"
    )
    if len(verdict.rounds) > 1:
        text += "; by round " + " ".join(microseconds(each.max_us) for each in verdict.rounds)
    return text


def _percentile(verdict: Verdict) -> str:
    low_us = verdict.bounds.percentile_low_us
    high_us = verdict.bounds.percentile_high_us
    low = "no lower bound" if low_us is None else f"at least {microseconds(low_us)} us"
    high = "no upper bound" if high_us is None else f"at most {microseconds(high_us)} us"
    return (
        f"{_percentile_name(verdict)} {microseconds(verdict.percentile_us)} us, {low}, {high} "
        f"(one-sided, {_confident(verdict)})"
    )


def _percentile_name(verdict: Verdict) -> str:
    return f"p{short_number(verdict.question.percentile)}"


def _missed(verdict: Verdict) -> str:
    """The number of misses, or of calls that do and that may miss."""
    text = f"{count(verdict.misses, 'miss')} in {verdict.n} trials"
    return f"{verdict.certain_misses} to {text}" if _uncertain(verdict) else text


def _uncertain(verdict: Verdict) -> bool:
    """Whether some calls may miss, but need not."""
    return verdict.certain_misses < verdict.misses


def _misses(verdict: Verdict) -> str:
    bounds = verdict.bounds
    high = f"at most {percent_at_most(bounds.miss_rate_high)}"
    if verdict.misses:
        rate = percent(verdict.misses / verdict.n)
        if _uncertain(verdict):
            rate = f"{percent(verdict.certain_misses / verdict.n)} to {rate}"
        high = f"{rate}, at least {percent_at_least(bounds.miss_rate_low)}, {high}"
    return (
        f"{_missed(verdict)}: miss rate {high} (one-sided, {_confident(verdict)}); "
        f"allowed {_allowed(verdict)}"
    )


def _margin(verdict: Verdict) -> Iterator[str]:
    """That a large margin proves nothing, where no call missed and that does not suffice."""
    undecided = verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE
    if undecided and not verdict.misses and verdict.max_us is not None:
        share = 100 * verdict.max_us / verdict.question.deadline_us
        yield (
            f"the longest call took {share:.3g} % of the deadline; "
            "a margin is no evidence of calls that were not seen"
        )


def _excess(excess: Excess | None) -> Iterator[str]:
    """What the misses spent more time on than the other calls, and what would help."""
    if excess is None:
        return
    longer = " longer than the other calls" if excess.others else ""
    spent = [f"{PARTS[kind][0]} {microseconds(us)} us" for kind, us in excess.parts_us.items()]
    helps = f"; {PARTS[excess.mostly][1]}" if excess.mostly else ""
    yield (
        f"the misses took {microseconds(excess.excess_us)} us{longer} on average: "
        f"{', '.join(spent)}{helps}"
    )


def _certified(verdict: Verdict) -> Iterator[str]:
    """What these trials prove, and the chance of a longer call.

    There is no such chance if the level changed: then later trials may be longer for certain.
    """
    proven = f"proven {_confident(verdict)}"
    met = percent_certified(verdict.bounds.certifies)
    yield f"at least {met} % of calls meet the deadline, {proven}"
    shorter = percent_certified(verdict.bounds.max_certifies)
    text = f"at least {shorter} % of calls do not exceed the maximum, {proven}"
    if not any(each.levels for each in verdict.rounds) and not list(_drifts(verdict)):
        text += "; the chance that the next n trials contain a longer one is at most 50 %"
    yield text


def _bounds(verdict: Verdict) -> str:
    """What the bounds assume about bursts of misses, and as how many independent trials they count
    all."""
    text = "all bounds hold if misses come singly"
    if verdict.question.burst_length > 1:
        text = f"all bounds hold if {bursts.assumption(verdict.question.burst_length)}"
    if verdict.evidence:
        return f"{text}, however often the recording was looked at: beyond them the e-value decides"
    upper = verdict.effective.n
    lower = verdict.n / verdict.bursts.tau
    if upper == verdict.n == lower:
        return text
    return f"{text}; the upper bounds count {verdict.n} trials as {upper}, the lower as {lower:.0f}"


def _processes(verdict: Verdict) -> Iterator[str]:
    """What several processes say about another one."""
    found = verdict.processes
    if found is None:
        return
    name = _percentile_name(verdict)
    proven = _confident(verdict)
    yield (
        f"processes: {name} {microseconds(found.percentile_low_us)} to "
        f"{microseconds(found.percentile_high_us)} us; another process of {found.trials} calls "
        f"has a larger maximum with a chance of at most 1/{found.count + 1}; "
        f"{proven} at least {percent_at_least(found.no_more_misses_share)} of processes have "
        f"no more misses than the worst of these ({found.worst_misses} of {found.trials})"
    )
    if found.percentile_bound_us is not None:
        yield (
            f"processes, if log-normal: {100 * SHARE:.0f} % of them have a {name} of at most "
            f"{microseconds(found.percentile_bound_us)} us, {proven}"
        )


def _evidence(verdict: Verdict) -> Iterator[str]:
    """What decides a recording that ended when it was decided."""
    if verdict.evidence:
        yield (
            f"evidence (e-value) for MET {_e_value(verdict.evidence.log_met)}, "
            f"for MISSED {_e_value(verdict.evidence.log_missed)}; "
            f"{1 / (1 - verdict.question.confidence):.3g} decides"
        )


def _e_value(log: float) -> str:
    return "below 1e-6" if log < math.log(1e-6) else f"{math.exp(min(log, 700)):.2g}"


def _assumption(verdict: Verdict) -> Iterator[str]:
    if verdict.outcome != Outcome.MET:
        return
    yield f"assumes that {_assumed(verdict)} (E[L^2] / E[L] of the lengths L of bursts)"
    slow = verdict.bursts.slow
    if slow is None:
        return
    come = "come singly"
    if slow.length >= bursts.BY_CHANCE:
        come = f"come in bursts that count as {bursts.calls(slow.length)} each"
    text = (
        f"for comparison: calls above {microseconds(slow.above_us)} us, "
        f"most of which meet the deadline, {come}"
    )
    if verdict.bursts.slow_longer:
        length = bursts.calls(verdict.bursts.assumed_length or 1)
        text += f", longer than the {length} for which MET holds"
    yield text


def _order(verdict: Verdict) -> Iterator[str]:
    """What the order of the trials shows, or why it shows nothing."""
    why = verdict.not_judged
    if verdict.known_to == "bin":
        yield f"{why}: dependence, drift and (m,k)-firm statistics are not judged"
        return
    yield _dependence(verdict)
    yield from levels_texts(verdict.rounds)
    if why is None:
        yield from _drifts(verdict)
    else:
        yield f"drift is not judged: {why}"
    if verdict.firm_statistics is not None:
        yield _firm(verdict.firm_statistics)


def _dependence(verdict: Verdict) -> str:
    found = verdict.dependence
    effective = verdict.effective
    if not found.how:
        return (
            "dependence: slow calls do not cluster more than by chance; "
            f"effective sample size {verdict.n}"
        )
    text = f"dependence: {found.how}"
    if found.extremal_index < 1:
        text += f"; extremal index {found.extremal_index:.2g} (1 / mean size of a burst)"
    text += f"; {count(verdict.n, 'trial')}, effective sample size {effective.n}"
    if effective.outcome == effective.outcome_if_independent:
        return f"{text}: this does not change the verdict"
    return f"{text}: {effective.outcome} instead of {effective.outcome_if_independent}"


def _drifts(verdict: Verdict) -> Iterator[str]:
    for each in verdict.rounds:
        flat = each.steady_state == SteadyState.FLAT and each.segments == 1
        if each.drift is not None and not flat:
            place = f" in round {each.round}" if len(verdict.rounds) > 1 else ""
            yield f"drift of the bulk {signed_percent(each.drift)}{place} ({each.steady_state})"


def _firm(firm: FirmStatistics) -> str:
    worst = [f"{m} in any {k}" for k, m in firm.worst_in.items() if m is not None]
    text = f"longest run of misses {firm.longest_run}; P(miss) {percent(firm.p_miss)}"
    if worst:
        text = f"misses at most {', '.join(worst)} consecutive trials; {text}"
    if firm.p_miss_after_miss is not None:
        text += f", after a miss {percent(firm.p_miss_after_miss)}"
    return f"(m,k)-firm: {text}"


# A new recording


def _new_recording(verdict: Verdict) -> Iterator[str]:
    """How many trials prove MET, how likely, and how many are likely to."""
    new = verdict.new_recording
    if new.trials is None:
        return
    if verdict.evidence:
        yield f"at this rate of misses MET would be decided after {new.trials} trials"
        return
    text = _recommendation(verdict)
    if new.chance is not None:
        text += f": they prove MET with a chance of {100 * new.chance:.0f} %"
        if new.trials_for_80_percent is not None:
            text += f", {new.trials_for_80_percent} with 80 %"
        elif verdict.misses:
            text += ", and no number of trials is likely to"
    yield f"{text}; do not append to this recording"


def _recommendation(verdict: Verdict) -> str:
    new = verdict.new_recording
    text = f"record {_new_trials(verdict, 'new ')}"
    if new.trials == new.trials_if_independent:
        return text
    return f"{text} ({new.trials_if_independent} if slow calls did not come in bursts)"


def _new_trials(verdict: Verdict, kind: str = "") -> str:
    """The number of trials needed; "in a steady state" if their number did not prevent MET."""
    steady = " in a steady state" if verdict.effective.outcome == Outcome.MET else ""
    return f"{verdict.new_recording.trials} {kind}trials{steady}"
