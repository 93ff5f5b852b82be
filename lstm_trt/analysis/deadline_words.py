"""The verdict on a deadline in words: for the terminal, for a table, for a review."""

from __future__ import annotations

import math

from lstm_trt.analysis.deadline import MET, MISSED, Verdict


def words(verdict: Verdict, name: str = "") -> str:
    """Several lines; the verdict comes first, the maximum second."""
    lines = [f"{verdict.verdict}  {_asked(verdict)}" + (f"  {name}" if name else "")]
    if verdict.n == 0:
        return "\n".join([*lines, *(f"  {reason}" for reason in verdict.reasons)])
    lines += [_maximum(verdict), _misses(verdict), _certifies(verdict)]
    lines += [f"because {reason}" for reason in verdict.reasons]
    lines += [_dependence(verdict), *_drift(verdict), _card(verdict), *_record(verdict)]
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])


def one_line(verdict: Verdict, name: str = "") -> str:
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


def rate(share: float) -> str:
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
    told += f" = {rate(verdict.misses / verdict.n)} %, at least {_down(100 * low)} %" if verdict.misses else ""
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
    told += f"longest run {card.longest_run}; P(miss) {rate(card.p_miss) if card.p_miss else 0} %"
    if card.p_miss_after_miss is not None:
        told += f", after a miss {rate(card.p_miss_after_miss) if card.p_miss_after_miss else 0} %"
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
