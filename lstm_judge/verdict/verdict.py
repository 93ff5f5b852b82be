"""Test whether a percentile of the latency meets a deadline.

There are three verdicts. MET: the exact binomial test rejects that the miss rate is the allowed
rate or more. MISSED: the exact lower bound of the miss rate is above the allowed rate, also if the
misses of a burst are counted as one (`bursts.py`). Otherwise NOT ENOUGH EVIDENCE, with the length
of the new recording that is needed. MET assumes that bursts of misses that were not seen are short;
the length that is assumed can be given. Where the bins of a histogram or a coarse clock leave open
whether a call misses, it does for MET, and does not for MISSED. Only these findings turn MET into
NOT ENOUGH EVIDENCE: dependence, which reduces the effective sample size (`dependence.py`); bursts
as long as was given; a round or a segment that by itself misses more than allowed; a drift that
would carry the tail over the deadline; long bursts of slow calls near the deadline. Parts and drift
matter because all trials together can meet a deadline that one process, or its end, misses.

Bounds of percentile and miss rate are these tests, inverted (`bounds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.outcomes import Outcome
from lstm_judge.read.foreign import ABSURD_ABOVE_NS, ABSURD_BELOW_NS
from lstm_judge.read.labels import size_of
from lstm_judge.read.rounds import Round, by_network
from lstm_judge.read.runs import Runs, RunsSource, as_runs
from lstm_judge.statistics import quantiles, sequential
from lstm_judge.statistics.excess import Spent
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.processes import processes_of
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.statistics.trials import timed_rounds
from lstm_judge.verdict.answer import (
    Bursts,
    Effective,
    EValues,
    NewRecording,
    Verdict,
    VerdictRound,
)
from lstm_judge.verdict.decide import Decision, at_effective_size, decide, fixed_number
from lstm_judge.verdict.explain import too_few, undecided
from lstm_judge.verdict.firm import firm_statistics
from lstm_judge.verdict.measure import AtDeadline, RoundAtDeadline, measure
from lstm_judge.verdict.plan import new_recording
from lstm_judge.verdict.question import Question
from lstm_trt.config.format import short_number
from lstm_trt.config.libraries import pd

#: Exit status of the command for each verdict, the worst first.
EXIT_STATUS = {Outcome.MISSED: 1, Outcome.NOT_ENOUGH_EVIDENCE: 3, Outcome.MET: 0}

#: A ratio of median to deadline outside these bounds suggests a wrong deadline or unit.
FAR_ABOVE, FAR_BELOW = 100, 2e-3


class Verdicts(Answers[Verdict]):
    """Verdicts of configurations; `exit_status` is 1 if any is MISSED, else 3 if any lacks
    evidence, else 0."""

    @property
    def exit_status(self) -> int:
        outcomes = {each.outcome for each in self.answers}
        for outcome, status in EXIT_STATUS.items():
            if outcome in outcomes:
                return status
        return 0

    @property
    def conclusion(self) -> str:
        """How many configurations meet the deadline, what others lack, and the largest network that
        meets it."""
        return self._texts.conclusion(self)

    def largest(
        self,
        by: str = "flops",
        places: Iterable[int] | None = None,
        undecided: bool = False,
    ) -> int | None:
        """The place of the largest network (`by`: see `size_of`) that is MET, or `undecided` and
        may be MET in a new recording, of all or of some `places`; or None.

        Of one that was recorded beside several loads the worst counts. Of networks of equal size it
        is one that is MET, and of these that with the smallest maximum.
        """
        asked = range(len(self)) if places is None else list(places)
        found = []
        for network in by_network(self.runs[place] for place in asked):
            place = min((asked[each] for each in network), key=lambda each: self[each].urgency)
            answer = self[place]
            met = answer.outcome == Outcome.MET
            if met or (undecided and answer.trials_needed):
                size = size_of(self.runs[place].configuration.workload, by)
                if size is not None:
                    found.append((size, met, -(answer.max_us or math.inf), -place))
        return -max(found)[-1] if found else None

    @property
    def frame(self) -> pd.DataFrame:
        """A row per configuration, the largest maximum first.

        `miss_rate_upper_percent`: one-sided upper bound of the miss rate. `trials_needed`: length
        of a new recording, if the verdict is NOT ENOUGH EVIDENCE and a recording could prove MET.
        """
        frame = super().frame.astype({"trials_needed": "Int64"})
        return frame.sort_values("max_us", ascending=False, na_position="last", ignore_index=True)

    def _row(self, answer: Verdict) -> dict:
        high = answer.bounds.miss_rate_high
        return {
            "verdict": answer.outcome,
            "max_us": answer.max_us,
            "n": answer.n,
            "misses": answer.misses,
            "miss_rate_upper_percent": None if high is None else 100 * high,
            "effective_n": answer.effective.n,
            "trials_needed": answer.trials_needed,
            "because": "; ".join(answer.reasons),
        }


def verdict(
    runs: RunsSource,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = quantiles.DEFAULT_CONFIDENCE,
    *,
    burst_length: float = 1.0,
    burst_ms: float | None = None,
) -> Verdicts:
    """Test whether a percentile of the latency of each configuration meets the deadline, at this
    confidence.

    `runs`: the result of `load`, or a path, recordings or groups. MET must hold for bursts of
    misses of up to `burst_length` calls, averaged over misses, or of `burst_ms` by the time from
    call to call. A configuration that failed has the verdict NOT ENOUGH EVIDENCE. Raises
    `UsageError` if an argument is out of range, or a configuration has fewer than 2 trials after
    warm-up.
    """
    # What is asked is checked before files are read.
    question = Question(deadline_us, percentile, confidence, burst_length, burst_ms)
    runs = runs_to_judge(runs, bounds=True)
    measured = [group for group in runs if group.failure is None]
    asked = [(group.plain.rounds, question, group.until) for group in measured]
    judged = iter(computed(judged_of, asked, [group.n for group in measured]))
    verdicts = tuple(
        with_excess(next(judged), group.rounds)
        if group.failure is None
        else failed(group.failure, question)
        for group in runs
    )
    return Verdicts(runs, verdicts, (*runs.remarks, *_far_deadline(runs, question.deadline_us)))


def provable(runs: RunsSource, deadline_us: float) -> Verdicts | None:
    """The verdicts at the highest percentile that each of the recordings can prove, p99 if they are
    too short for any.

    None if no configuration failed or has two trials. `runs` and errors: as for `verdict`.
    """
    runs = as_runs(runs)
    judged = tuple(group for group in runs if group.failure or group.n > 1)
    if not judged:
        return None
    percentile = evidence_percentile(min((group.n for group in judged if group.n), default=0))
    return verdict(replace(runs, groups=judged), deadline_us, percentile or "99")


def _far_deadline(runs: Runs, deadline_us: float) -> list[str]:
    """A warning if all medians are so far from the deadline that it, or the unit of a table, may be
    wrong.

    Networks of a grid can differ by more than that: the nearest median decides. There is no warning
    if reading a table gave one about the unit already.
    """
    far = []
    for group in runs:
        if group.failure is None:
            ratio = group.median_ns / 1e3 / deadline_us
            if FAR_BELOW <= ratio <= FAR_ABOVE:
                return []
            if not runs.own and not ABSURD_BELOW_NS <= group.median_ns <= ABSURD_ABOVE_NS:
                return []
            far.append((abs(math.log(ratio)), ratio, group.name))
    if not far:
        return []
    _, ratio, name = min(far)
    doubt = f"{runs.how.get('unit', 'us')} the right unit"
    if runs.own:
        doubt = f"{short_number(deadline_us)} us the right deadline"
    return [f"the median of {name} is {ratio:.3g} times the deadline: is {doubt}?"]


#: Of one configuration its rounds, what is tested, and `until` of `judge`.
Asked = tuple[Sequence[Round], Question, float | None]


def judge(rounds: Sequence[Round], question: Question, until: float | None = None) -> Verdict:
    """Test whether the percentile of the latency of all rounds (one per process) meets the
    deadline.

    The number of trials must be fixed before they are recorded: appending trials and testing again
    inflates false METs (9 % after 3 tests). If the miss rate is exactly the allowed one, MET occurs
    in at most 1 - confidence of recordings whose misses are independent, or come in bursts of
    geometric lengths of at most `burst_length` calls on average, and MISSED in as many if bursts
    are short (`bursts.py` says for which this was simulated).

    `until`: the length of bursts for which a recording was to be decided; then `sequential.py`
    decides. Raises `UsageError` if there are no trials after warm-up, or a latency is not finite
    and positive.
    """
    return with_excess(judged_of((rounds, question, until)), rounds)


def with_excess(verdict: Verdict, rounds: Sequence[Round]) -> Verdict:
    """The verdict, if it is MISSED with what the misses spent more time on."""
    if verdict.outcome != Outcome.MISSED or verdict.known_to:
        return verdict
    rounds = timed_rounds(rounds)
    latency_ns = np.concatenate([round_.timed_ns for round_ in rounds])
    late = latency_ns > limit_ns(verdict.question.deadline_us)
    return replace(verdict, miss_excess=Spent(rounds).excess(late, ~late))


def judged_of(asked: Asked) -> Verdict:
    """`judge` without `miss_excess`."""
    rounds, question, until = asked
    return verdict_of(measure(rounds, until).at(question))


def outcomes_at(asked: tuple[Asked, Sequence[float]]) -> list[Outcome]:
    """The outcomes of `judge` at several deadlines in us; what does not depend on the deadline is
    measured once."""
    (rounds, question, until), deadlines_us = asked
    measured = measure(rounds, until)
    return [
        decide(measured.at(replace(question, deadline_us=deadline_us))).outcome
        for deadline_us in deadlines_us
    ]


def verdict_of(seen: AtDeadline) -> Verdict:
    """Decide, plan a new recording, explain."""
    measured, question = seen.measured, seen.question
    decision = decide(seen)
    new = new_recording(seen, decision.outcome)
    reasons = list(decision.against)
    if decision.outcome == Outcome.NOT_ENOUGH_EVIDENCE:
        reasons += lacking(seen, decision, new)
    misses, n = seen.effective
    slow = measured.slow if decision.proven == Outcome.MET else None
    evidence = processes = firm = None
    if seen.evidence:
        evidence = EValues(
            min(each.log_met for each in seen.evidence), sequential.log_missed(seen.evidence)
        )
    else:
        processes = processes_of(seen.timed, seen.places, question.share, question.confidence)
    if measured.ordered and seen.certain == seen.misses:
        firm = firm_statistics(seen.places, [each.n for each in seen.rounds])
    known_to = None
    if measured.pooled.edges:
        known_to = "step" if measured.ordered else "bin"
    return Verdict(
        outcome=decision.outcome,
        question=question,
        reasons=tuple(reasons),
        n=seen.n,
        misses=seen.misses,
        certain_misses=seen.certain,
        max_us=quantiles.finite(measured.pooled.bounds[1].max_us),
        max_with_warmup_us=quantiles.finite(
            max(each.round.edge(1).most_ns for each in seen.rounds) / 1e3
        ),
        percentile_us=quantiles.finite(
            quantiles.percentile(measured.pooled.ordered_ns, question.share) / 1e3
        ),
        bounds=seen.bounds,
        effective=Effective(n, misses, at_effective_size(seen), fixed_number(seen)),
        bursts=Bursts(
            tau=seen.tau,
            independent_misses=seen.misses / seen.tau,
            assumed_length=seen.assumed_length if decision.outcome == Outcome.MET else None,
            slow=slow,
            slow_longer=slow is not None and slow.longer_than(seen.assumed_length),
        ),
        new_recording=new,
        evidence=evidence,
        processes=processes,
        dependence=seen.dependence,
        firm_statistics=firm,
        known_to=known_to,
        not_judged=measured.not_judged,
        rounds=tuple(map(stated, seen.rounds)),
    )


def lacking(seen: AtDeadline, decision: Decision, new: NewRecording) -> list[str]:
    """Why the number of trials does not suffice, unless something else prevents MET."""
    if seen.evidence and decision.proven == Outcome.NOT_ENOUGH_EVIDENCE:
        return undecided(seen)
    if new.trials is None or fixed_number(seen) == Outcome.NOT_ENOUGH_EVIDENCE:
        return [too_few(seen, new)]
    return []


def stated(each: RoundAtDeadline) -> VerdictRound:
    """What the verdict states of a round."""
    counted = VerdictRound(
        each.number, each.n, each.misses, quantiles.finite(each.trials.bounds[1].max_us)
    )
    course = each.segments
    if course is None:
        return counted
    return replace(
        counted,
        steady_state=course.steady_state,
        drift=course.drift,
        segments=len(course.segments),
        levels=course.levels,
    )


def failed(reason: object, question: Question) -> Verdict:
    """The verdict for a configuration without trials: NOT ENOUGH EVIDENCE, with the reason; more
    would not help."""
    return Verdict(question=question, reasons=(str(reason),))


def evidence_percentile(n: int, confidence: float = quantiles.DEFAULT_CONFIDENCE) -> str | None:
    """The highest of 99, 99.9, 99.99, 99.999 that n trials without a miss prove; None below 299
    trials at 95 %."""
    for percentile in ("99.999", "99.99", "99.9", "99"):
        if quantiles.proves_below(0, n, 1 - quantiles.share_of(percentile), confidence):
            return percentile
    return None
