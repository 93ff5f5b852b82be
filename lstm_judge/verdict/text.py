"""Verdicts as text. No code parses it."""

import math

from lstm_judge.outcomes import Outcome, SteadyState
from lstm_judge.outliers.text import levels_texts
from lstm_judge.read import numbers
from lstm_judge.statistics import bursts
from lstm_judge.statistics.excess import PARTS, Excess
from lstm_judge.statistics.processes import SHARE
from lstm_judge.verdict.answer import Verdict
from lstm_judge.verdict.firm import FirmStatistics
from lstm_judge.verdict.verdict import Verdicts
from lstm_trt.config import format as fmt


def text(verdicts: Verdicts) -> str:
    """One verdict on several lines, or a line for each, and how many meet the deadline."""
    if len(verdicts) == 1:
        return verdict_text(verdicts[0], verdicts.runs[0].name)
    return "\n".join(
        [f"{question(verdicts[0])}:", *verdicts.texts(verdict_line), conclusion(verdicts)]
    )


def headline(verdicts: Verdicts) -> str:
    """The answer in one line."""
    if len(verdicts) == 1:
        return str(verdicts).partition("\n")[0]
    counted, _, _ = conclusion(verdicts).partition("\n")
    return f"{question(verdicts[0])}: {counted[0].lower()}{counted[1:]}"


def names_text(verdicts: Verdicts) -> str:
    """Which configurations meet the deadline and which do not, and the `conclusion`."""
    names = [
        f"  {fared}: {fmt.listed(names, comma='; ')}" for fared, names in _names(verdicts).items()
    ]
    return "\n".join([f"{question(verdicts[0])}:", *names, conclusion(verdicts)])


def conclusion(verdicts: Verdicts) -> str:
    """`Of 5 configurations 2 met it, 2 missed it, 1 had too few trials to say`, and the largest
    network that met it."""
    if len(verdicts) == 1:
        return f"The one configuration {_fared(verdicts[0])}"
    parts = [f"{len(names)} {fared}" for fared, names in _names(verdicts).items()]
    text = f"Of {len(verdicts)} configurations {', '.join(parts)}"
    largest = verdicts.largest()
    if largest is None:
        return text
    chosen = f"selected from {len(verdicts)}: confirm it with a new recording"
    return f"{text}\nLargest network that met it: {verdicts.runs[largest].name} ({chosen})"


def _names(verdicts: Verdicts) -> dict[str, list[str]]:
    """What configurations did about the deadline -> their names, those that met it first."""
    found: dict[str, list[str]] = {}
    for outcome in (Outcome.MET, Outcome.MISSED, Outcome.NOT_ENOUGH_EVIDENCE):
        for group, verdict in verdicts.items():
            if verdict.outcome == outcome:
                found.setdefault(_fared(verdict), []).append(group.name)
    return found


def _fared(verdict: Verdict) -> str:
    """What a configuration did about the deadline."""
    if verdict.outcome != Outcome.NOT_ENOUGH_EVIDENCE:
        return "met it" if verdict.outcome == Outcome.MET else "missed it"
    if not verdict.n:
        return "failed"
    few = (
        verdict.new_recording.trials is not None
        and verdict.effective.outcome == Outcome.NOT_ENOUGH_EVIDENCE
    )
    return "had too few trials to say" if few else "stayed undecided"


def verdict_text(verdict: Verdict, name: str = "") -> str:
    """The verdict on several lines: the verdict first, then the maximum."""
    means = {
        Outcome.MET: ": at least",
        Outcome.MISSED: ": fewer than",
        Outcome.NOT_ENOUGH_EVIDENCE: " for",
    }
    first = f"{verdict.outcome}{means[verdict.outcome]} {question(verdict)}{_these(verdict)}"
    lines = [first + (f"  {name}" if name else "")]
    if verdict.n == 0:
        return "\n  ".join([*lines, *verdict.reasons])
    proven = f"proven at {_confidence(verdict)} confidence"
    lines += [
        _maximum(verdict),
        _percentile(verdict),
        _misses(verdict),
        *_margin(verdict),
        *_excess(verdict.miss_excess),
        f"at least {numbers.percent_certified(verdict.bounds.certifies)} % of calls meet the deadline, {proven}",
        f"at least {numbers.percent_certified(verdict.bounds.max_certifies)} % of calls do not exceed the maximum, {proven}"
        + _next_maximum(verdict),
        _bounds(verdict),
        *_processes(verdict),
        *_evidence(verdict),
        *_assumption(verdict),
        *(f"because {reason}" for reason in verdict.reasons),
        *_order(verdict),
    ]
    if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE and verdict.new_recording.trials is not None:
        decided = f"at this rate of misses MET would be decided after {verdict.new_recording.trials} trials"
        record = f"{_recommendation(verdict)}{_chances(verdict)}; do not append to this recording"
        lines.append(decided if verdict.evidence else record)
    return "\n  ".join(lines)


def verdict_line(verdict: Verdict, name: str = "") -> str:
    """The verdict on one line, for lists of configurations."""
    end = f"  {name}" if name else ""
    if verdict.n == 0:
        return f"{verdict.outcome:19}  {'; '.join(verdict.reasons)}{end}"
    text = f"max {fmt.microseconds(verdict.max_us)} us, {_missed(verdict)}{_these(verdict)}"
    if verdict.outcome == Outcome.MET:
        text += f", assuming that {_assumed(verdict)}"
    else:
        text += f", proven for {numbers.percent_certified(verdict.bounds.certifies)} % of calls"
    if verdict.miss_excess and verdict.miss_excess.mostly:
        text += f", the excess of misses is mostly {PARTS[verdict.miss_excess.mostly][0]}"
    if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE:
        text += (
            f", {_recommendation(verdict)}"
            if verdict.new_recording.trials
            else ", too many misses to prove it"
        )
    return f"{verdict.outcome:19}  {text}{end}"


def sentence(verdict: Verdict) -> str:
    """The verdict in one or two sentences, for figures."""
    percentile, deadline_us = (
        fmt.short_number(verdict.question.percentile),
        fmt.short_number(verdict.question.deadline_us),
    )
    confidence = f"{_confidence(verdict)} confidence{_these(verdict)}"
    if verdict.n == 0:
        return f"No verdict for the deadline of {deadline_us} us: {'; '.join(verdict.reasons)}."
    observed = f"{_missed(verdict)}, maximum {fmt.microseconds(verdict.max_us)} us"
    if verdict.outcome == Outcome.MET:
        met = f"{percentile} % of calls finish within {deadline_us} us, at {confidence}"
        return f"{met}, assuming that {_assumed(verdict)}: {observed}."
    if verdict.outcome == Outcome.MISSED:
        late = f"at least {numbers.percent_at_least(verdict.bounds.miss_rate_low)} of calls miss the deadline"
        exceeds = f"The {percentile}th percentile exceeds {deadline_us} us, at {confidence}"
        return f"{exceeds}: {observed}; {late}, {_allowed(verdict)} are allowed."
    first = f"Not proven at {confidence} that {percentile} % of calls finish within {deadline_us} us: {observed}."
    record = (
        f" A new recording of {_trials_needed(verdict)} can prove it."
        if verdict.new_recording.trials
        else ""
    )
    return f"{first} Reason: {'; '.join(verdict.reasons)}.{record}"


def question(verdict: Verdict) -> str:
    """What was tested: percentile, deadline and confidence."""
    of_bursts = (
        f", bursts of misses up to {_calls(verdict.question.burst_length)}"
        if verdict.question.burst_length > 1
        else ""
    )
    within = f"{fmt.short_number(verdict.question.percentile)} % of calls within {fmt.short_number(verdict.question.deadline_us)} us"
    return f"{within}, at {_confidence(verdict)} confidence{of_bursts}"


def _calls(length: float) -> str:
    return f"{length:.3g} call{'' if length == 1 else 's'}"


def _assumed(verdict: Verdict) -> str:
    """What MET assumes about bursts of misses."""
    return bursts.assumption(verdict.bursts.assumed_length or 1)


def _next_maximum(verdict: Verdict) -> str:
    """The chance of a longer call, unless the level changed: then later trials may be longer for
    certain."""
    if _drift(verdict) or any(part.levels for part in verdict.rounds):
        return ""
    return "; the chance that the next n trials contain a longer one is at most 50 %"


def _bounds(verdict: Verdict) -> str:
    """What the bounds assume about bursts of misses, and as how many independent trials they count
    all."""
    text = "all bounds hold if misses come singly"
    if verdict.question.burst_length > 1:
        burst = f"a burst of at most {_calls(verdict.question.burst_length)}"
        text = f"all bounds hold if a miss lies, averaged over misses, in {burst}"
    if verdict.evidence:
        return f"{text}, however often the recording was looked at: beyond them the e-value decides"
    independent = verdict.n / verdict.bursts.tau
    if verdict.effective.n == verdict.n == independent:
        return text
    return f"{text}; the upper bounds count {verdict.n} trials as {verdict.effective.n}, the lower as {independent:.0f}"


def _assumption(verdict: Verdict) -> list[str]:
    if verdict.outcome != Outcome.MET:
        return []
    lines = [f"assumes that {_assumed(verdict)} (E[L^2] / E[L] of the lengths L of bursts)"]
    if verdict.misses == 0:
        lines[0] += "; no miss was seen"
    if verdict.bursts.slow is not None:
        alone = verdict.bursts.slow.length < bursts.BY_CHANCE
        come = (
            "come singly"
            if alone
            else f"come in bursts that count as {_calls(verdict.bursts.slow.length)} each"
        )
        above = f"calls above {fmt.microseconds(verdict.bursts.slow.above_us)} us"
        lines.append(f"for comparison: {above}, most of which meet the deadline, {come}")
        if verdict.bursts.slow_longer:
            lines[-1] += (
                f", longer than the {_calls(verdict.bursts.assumed_length or 1)} for which MET holds"
            )
    return lines


def _evidence(verdict: Verdict) -> list[str]:
    """What decides a recording that ended when it was decided."""
    if verdict.evidence is None:
        return []
    logs = (verdict.evidence.log_met, verdict.evidence.log_missed)
    met, missed = (
        "below 1e-6" if log < math.log(1e-6) else f"{math.exp(min(log, 700)):.2g}" for log in logs
    )
    return [
        f"evidence (e-value) for MET {met}, for MISSED {missed}; {1 / (1 - verdict.question.confidence):.3g} decides"
    ]


def _these(verdict: Verdict) -> str:
    """Of several processes: that the verdict is on these, and on no other."""
    return f", in these {len(verdict.rounds)} processes" if len(verdict.rounds) > 1 else ""


def _processes(verdict: Verdict) -> list[str]:
    """What several processes say about another one."""
    found = verdict.processes
    if found is None:
        return []
    name = f"p{fmt.short_number(verdict.question.percentile)}"
    low_us, high_us = map(fmt.microseconds, (found.percentile_low_us, found.percentile_high_us))
    no_more = f"at least {numbers.percent_at_least(found.no_more_misses_share)} of processes have no more misses"
    worst = f"than the worst of these ({found.worst_misses} of {found.trials})"
    larger = f"another process of {found.trials} calls has a larger maximum with a chance of at most 1/{found.count + 1}"
    proven = f"at {_confidence(verdict)} confidence"
    lines = [f"processes: {name} {low_us} to {high_us} us; {larger}; {proven} {no_more} {worst}"]
    if found.percentile_bound_us is not None:
        at_most = f"a {name} of at most {fmt.microseconds(found.percentile_bound_us)} us"
        lines.append(
            f"processes, if log-normal: {100 * SHARE:.0f} % of them have {at_most}, {proven}"
        )
    return lines


def _maximum(verdict: Verdict) -> str:
    if verdict.max_us is None:
        return f"max above the last bin in n = {verdict.n} trials"
    most = "at most " if verdict.known_to else ""
    text = f"max {most}{fmt.microseconds(verdict.max_us)} us in n = {verdict.n} trials"
    text += f" (with warm-up {fmt.microseconds(verdict.max_with_warmup_us)} us)"
    if len(verdict.rounds) > 1:
        text += "; by round " + " ".join(fmt.microseconds(each.max_us) for each in verdict.rounds)
    return text


def _percentile(verdict: Verdict) -> str:
    low_us, high_us, none = (
        verdict.bounds.percentile_low_us,
        verdict.bounds.percentile_high_us,
        f"bound at n = {verdict.n}",
    )
    low = f"no lower {none}" if low_us is None else f"at least {fmt.microseconds(low_us)} us"
    high = f"no upper {none}" if high_us is None else f"at most {fmt.microseconds(high_us)} us"
    measured = f"p{fmt.short_number(verdict.question.percentile)} {fmt.microseconds(verdict.percentile_us)} us, {low}, {high}"
    deadline = f"deadline {fmt.short_number(verdict.question.deadline_us)} us"
    return f"{measured} (one-sided bounds, {_confidence(verdict)} confidence); {deadline}"


def _missed(verdict: Verdict) -> str:
    """The number of misses, or of calls that do and that may miss."""
    certain = f"{verdict.certain_misses} to " if verdict.certain_misses < verdict.misses else ""
    return f"{certain}{fmt.count(verdict.misses, 'miss')} in {verdict.n} trials"


def _misses(verdict: Verdict) -> str:
    text = f"{_missed(verdict)}: miss rate "
    if verdict.misses:
        certain = f"{fmt.percent(verdict.certain_misses / verdict.n)} to "
        text += certain if verdict.certain_misses < verdict.misses else ""
        low = numbers.percent_at_least(verdict.bounds.miss_rate_low)
        text += f"{fmt.percent(verdict.misses / verdict.n)}, at least {low}, "
    bound = "one-sided bounds" if verdict.misses else "one-sided bound"
    text += f"at most {numbers.percent_at_most(verdict.bounds.miss_rate_high)} ({bound}, {_confidence(verdict)} confidence)"
    return f"{text}; allowed {_allowed(verdict)}"


def _margin(verdict: Verdict) -> list[str]:
    """That a large margin proves nothing, where no call missed and that does not suffice."""
    if verdict.outcome != Outcome.NOT_ENOUGH_EVIDENCE or verdict.misses or verdict.max_us is None:
        return []
    share = f"{100 * verdict.max_us / verdict.question.deadline_us:.3g} %"
    return [
        f"the longest call took {share} of the deadline; a margin is no evidence of calls that were not seen"
    ]


def _excess(excess: Excess | None) -> list[str]:
    """What the misses spent more time on than the other calls, and what would help."""
    if excess is None:
        return []
    spent = ", ".join(
        f"{PARTS[kind][0]} {fmt.microseconds(time_us)} us"
        for kind, time_us in excess.parts_us.items()
    )
    helps = f"; {PARTS[excess.mostly][1]}" if excess.mostly else ""
    longer = " longer than the other calls" if excess.others else ""
    return [
        f"the misses took {fmt.microseconds(excess.excess_us)} us{longer} on average: {spent}{helps}"
    ]


def _dependence(verdict: Verdict) -> str:
    found = verdict.dependence
    if not found.how:
        return f"dependence: slow calls do not cluster more than by chance; effective sample size {verdict.n}"
    index = f"; extremal index {found.extremal_index:.2g} (1 / mean size of a burst)" * (
        found.extremal_index < 1
    )
    sizes = f"{fmt.count(verdict.n, 'trial')}, effective sample size {verdict.effective.n}"
    text = f"dependence: {found.how}{index}; {sizes}"
    if verdict.misses:
        text += f" ({fmt.count(verdict.misses, 'miss')}, effectively {verdict.effective.misses})"
    if verdict.effective.outcome == verdict.effective.outcome_if_independent:
        return f"{text}: this does not change the verdict"
    return (
        f"{text}: {verdict.effective.outcome} instead of {verdict.effective.outcome_if_independent}"
    )


def _order(verdict: Verdict) -> list[str]:
    """What the order of the trials shows, or why it shows nothing."""
    if verdict.known_to == "bin":
        return [f"{verdict.not_judged}: dependence, drift and (m,k)-firm statistics are not judged"]
    drift = (
        _drift(verdict)
        if verdict.not_judged is None
        else [f"drift is not judged: {verdict.not_judged}"]
    )
    return [
        _dependence(verdict),
        *levels_texts(verdict.rounds),
        *drift,
        *map(_firm, filter(None, [verdict.firm_statistics])),
    ]


def _drift(verdict: Verdict) -> list[str]:
    several = len(verdict.rounds) > 1
    texts = []
    for part in verdict.rounds:
        if part.drift is not None and (part.steady_state != SteadyState.FLAT or part.segments != 1):
            place = f" in round {part.round}" if several else ""
            texts.append(
                f"drift of the bulk {numbers.signed_percent(part.drift)}{place} ({part.steady_state})"
            )
    return texts


def _firm(firm: FirmStatistics) -> str:
    worst = ", ".join(f"{m} in any {k}" for k, m in firm.worst_in.items() if m is not None)
    text = "(m,k)-firm: " + (f"misses at most {worst} consecutive trials; " if worst else "")
    text += f"longest run of misses {firm.longest_run}; P(miss) {fmt.percent(firm.p_miss)}"
    return text + (
        ""
        if firm.p_miss_after_miss is None
        else f", after a miss {fmt.percent(firm.p_miss_after_miss)}"
    )


def _recommendation(verdict: Verdict) -> str:
    text = f"record {_trials_needed(verdict, 'new ')}"
    if verdict.new_recording.trials == verdict.new_recording.trials_if_independent:
        return text
    return f"{text} ({verdict.new_recording.trials_if_independent} if slow calls did not come in bursts)"


def _chances(verdict: Verdict) -> str:
    """How likely the new trials decide it, and how many are likely to."""
    if verdict.new_recording.chance is None:
        return ""
    text = f": they prove MET with a chance of {100 * verdict.new_recording.chance:.0f} %"
    if verdict.new_recording.trials_for_80_percent is not None:
        return f"{text}, {verdict.new_recording.trials_for_80_percent} with 80 %"
    return f"{text}, and no number of trials is likely to" if verdict.misses else text


def _trials_needed(verdict: Verdict, kind: str = "") -> str:
    """The number of trials needed; "in a steady state" if their number was not what prevented MET."""
    steady = " in a steady state" if verdict.effective.outcome == Outcome.MET else ""
    return f"{verdict.new_recording.trials} {kind}trials{steady}"


def _confidence(verdict: Verdict) -> str:
    return f"{fmt.short_number(100 * verdict.question.confidence)} %"


def _allowed(verdict: Verdict) -> str:
    return f"{100 - verdict.question.percentile:.9g} %"
