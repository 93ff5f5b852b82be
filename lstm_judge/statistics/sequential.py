"""Verdict at any time: evidence that stays valid however often it is looked at (`--until decided`).

A test at a fixed number of trials is false in 5 % of recordings at that number; repeated after each
block it is false far more often. What is computed here are e-values: under the hypothesis that one
tests, it ever reaches 1 / (1 - confidence) with at most the probability 1 - confidence, over all
looks together (Ville's inequality). Misses are taken as ok calls and bursts in turn: p is the miss
rate, p0 the allowed one, m the mean length of a burst.

- MET tests "p is p0 or more, and m at most B", with B from the user. z^k / rho(z)^n for k misses in
  n calls is a supermartingale for every 0 <= z < 1, if rho(z) is the largest eigenvalue of the
  chain's matrix of transitions with each miss weighted by z. It is largest for p = p0 and m = B,
  where it is taken; for rare misses it is 1 - p0 (1 - z) / (B - (B - 1) z), the value of the
  compound Poisson law of `bursts.polya_aeppli`. Averaged over the values of z that are the best for
  `RATES`. It uses the number of misses and not their pattern, so fewer never decide later. Lengths
  L of mean m with the generating function G need not be geometric. What is needed is that (1 -
  G(z)) / m is at least (1 - z) / (B - (B - 1) z) for these z, and S = E[L^2] / m <= B is enough,
  where S is the length of the burst in which a miss lies, averaged over misses: `bursts.py` has the
  reason, (1 - G(z)) / m >= (1 - z^S) / S.
- MISSED tests "p is p0 or less", for geometric bursts of any mean: the likelihood of the
  transitions, mixed over beta laws of both of their rates, over its largest value under the
  hypothesis (universal inference: Wasserman, Ramdas and Balakrishnan, PNAS 117, 2020). In bad
  states in which only some calls miss, that alone is often false; so the misses must also decide as
  independent ones if each burst counts as one (`bursts.autocorrelation_time`), `LEAST_BURSTS` of
  them at least. docs/evidence.md has the rates of false verdicts that were simulated.

Of several rounds each stops by its own evidence. The verdict (`outcome_of`) is MET if each round
is. MISSED is decided by all calls together (`log_missed`): if one round were enough, R rounds would
have R chances of a false MISSED.

It needs no scipy, since the process that records looks with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics import bursts, quantiles
from lstm_trt.config.configuration import Protocol

#: The rates, relative to the allowed one, for which the values of z are the best: z = 0 for the
#: first.
RATES = (0.0, 0.02, 0.1, 0.4)

#: First parameter of the beta law of a burst beginning after an ok call; its mean is about the
#: allowed rate. That of a burst ending after a miss is uniform.
BEGIN = 0.5

#: MISSED needs this number of misses, each burst counted as one.
LEAST_BURSTS = 10


#: Relative tolerance above the deadline, for the rounding of unit conversions.
ROUNDING = 4 * np.finfo(np.float64).eps


def limit_ns(deadline_us: float) -> float:
    """The deadline in ns, above which a call is a miss: exact in decimals, plus the tolerance
    `ROUNDING`."""
    return float(Fraction(repr(deadline_us)) * 1000) * (1 + ROUNDING)


@dataclass
class Evidence:
    """Evidence from the calls of one process so far; `add` more of them, in order.

    `allowed`: the allowed miss rate; `burst_length`: B, in calls, at least 1; `late_ns`: above this
    a call misses. `until_ok`: numbers of calls and of misses until the last ok call.
    """

    allowed: float
    burst_length: float
    confidence: float = quantiles.DEFAULT_CONFIDENCE
    late_ns: float = math.inf
    n: int = 0
    misses: int = 0
    looks: int = 0
    transitions: np.ndarray = field(default_factory=lambda: np.zeros((2, 2), int))
    until_ok: tuple[int, int] = (0, 0)
    _last: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    _places: list[np.ndarray] = field(default_factory=lambda: [np.empty(0, int)])

    @classmethod
    def of(cls, protocol: Protocol) -> Evidence:
        """For recordings with `until`."""
        allowed = float(1 - quantiles.share_of(protocol.percentile or 0))
        return cls(allowed, protocol.burst_length or 1, late_ns=limit_ns(protocol.deadline_us or 0))

    def look(self, latency_ns: np.ndarray) -> bool:
        """Add the latencies of a block; returns whether the verdict is decided now."""
        self.add(latency_ns > self.late_ns)
        self.looks += 1
        return self.outcome != Outcome.NOT_ENOUGH_EVIDENCE

    def as_dict(self) -> dict:
        """JSON values, for the provenance of the recording."""
        names = ("n", "misses", "looks", "outcome", "log_met", "log_missed")
        return {name: getattr(self, name) for name in names}

    def add(self, missed: np.ndarray) -> None:
        """`missed`: whether each of the following calls missed."""
        if not missed.all():
            last_ok = len(missed) - int(np.argmin(missed[::-1]))
            misses = int(np.count_nonzero(missed[:last_ok]))
            self.until_ok = (self.n + last_ok, self.misses + misses)
        calls = np.concatenate([self._last, missed])
        self.transitions += np.bincount(2 * calls[:-1] + calls[1:], minlength=4).reshape(2, 2)
        self._last = calls[-1:]
        self._places.append(np.flatnonzero(missed) + self.n)
        self.n += len(missed)
        self.misses += len(self._places[-1])

    @property
    def outcome(self) -> Outcome:
        """The verdict at this look."""
        return outcome_of([self])

    @property
    def log_met(self) -> float:
        """Natural logarithm of the e-value against a miss rate of the allowed one or more; that of
        the last ok call."""
        return log_met(*self.until_ok, self.allowed, self.burst_length)

    @property
    def log_missed(self) -> float:
        """Natural logarithm of the e-value against a miss rate of the allowed one or less; at most
        0 for few bursts."""
        return log_missed([self])

    def log_missed_of(self, tau: float) -> float:
        """The same if so many misses, and calls, count as one."""
        k = self.misses / tau
        n = self.n / tau
        prior = BEGIN, BEGIN / self.allowed
        rate = min(self.allowed, k / n) if n else 0.0
        of_bursts = _log_mixed((k, n - k), prior) - _log_likelihood((k, n - k), rate)
        found = min(of_bursts, self._log_transitions)
        return found if k >= LEAST_BURSTS else min(found, 0.0)

    @property
    def _log_transitions(self) -> float:
        """That of the chain of ok calls and misses."""
        (ok_ok, begun), (ended, gone_on) = self.transitions.tolist()
        # A stationary beginning misses with the allowed chance at most. This part of the mixture is
        # that only: enough to decide where every call misses, which for the chain is one burst.
        whole = min(0.5, 1.05 * self.allowed / (1 - self.confidence))
        if self.n and self.misses == self.n:
            return math.log(whole / self.allowed)
        begin, end = self._likeliest(ok_ok, begun, ended, gone_on)
        of_begin = _log_mixed((begun, ok_ok), (BEGIN, BEGIN / self.allowed))
        of_begin -= _log_likelihood((begun, ok_ok), begin)
        of_end = _log_mixed((ended, gone_on), (1.0, 1.0)) - _log_likelihood((ended, gone_on), end)
        return math.log(1 - whole) + of_begin + of_end

    def _likeliest(self, ok_ok: int, begun: int, ended: int, gone_on: int) -> tuple[float, float]:
        """The chances a, b that a burst begins and ends, of the largest likelihood with a rate up
        to the allowed one.

        The rate a / (a + b) is at most that for a <= c b. Either the free maximum is there, or the
        largest value lies on a = c b, at the smaller root of a quadratic.
        """
        c = self.allowed / (1 - self.allowed)
        begin = begun / (begun + ok_ok) if begun + ok_ok else 0.0
        end = ended / (ended + gone_on) if ended + gone_on else 1.0
        if begin > c * end:
            changes = begun + ended
            square = c * (changes + ok_ok + gone_on)
            linear = changes * (1 + c) + c * ok_ok + gone_on
            root = math.sqrt(max(linear**2 - 4 * square * changes, 0.0))
            end = min(1.0, 2 * changes / (linear + root))
            begin = c * end
        return begin, end


def log_met(n: int, misses: float, allowed: float, burst_length: float) -> float:
    """Natural logarithm of the e-value for MET of a number of misses in n calls, the last of which
    is ok."""
    log_z, log_rhos = _of_rates(allowed, burst_length)
    of_misses = misses * log_z if misses else 0.0
    return float(np.logaddexp.reduce(of_misses - n * log_rhos) - math.log(len(RATES)))


@lru_cache
def _of_rates(allowed: float, burst_length: float) -> tuple[np.ndarray, np.ndarray]:
    """For each of `RATES` the logarithms of its z, and of rho there."""
    with np.errstate(divide="ignore"):
        rarity = np.array(RATES) ** -0.5
        root = np.sqrt(rarity**2 + 4 * burst_length * (burst_length - 1))
        z = (2 * burst_length / (rarity + root)) ** 2
        return np.log(z), log_rho(z, allowed, burst_length)


def log_rho(z: np.ndarray, allowed: float, burst_length: float) -> np.ndarray:
    """Logarithm of the larger eigenvalue at the allowed rate: of bursts of this mean, or of
    independent misses."""
    end = 1 / burst_length
    begin = allowed / (1 - allowed) * end
    half = (1 - begin + (1 - end) * z) / 2
    chain = half + np.sqrt(np.maximum(half**2 - z * (1 - begin - end), 0))
    return np.log(np.maximum(chain, 1 - allowed * (1 - z)))


def _log_mixed(counts: tuple[float, float], prior: tuple[float, float]) -> float:
    """Logarithm of the likelihood of two counts, mixed over a beta law of the first chance."""

    def log_beta(a: float, b: float) -> float:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    return log_beta(prior[0] + counts[0], prior[1] + counts[1]) - log_beta(*prior)


def _log_likelihood(counts: tuple[float, float], chance: float) -> float:
    """Logarithm of the likelihood of two counts at a chance of the first; 0 times minus infinity is
    0."""
    first, second = counts
    of_first = first * math.log(chance) if first else 0.0
    return of_first + (second * math.log(1 - chance) if second else 0.0)


def pooled(rounds: Sequence[Evidence]) -> Evidence:
    """All calls of several rounds, for MISSED only: no transition leads from one round to the
    next."""
    return replace(
        rounds[0],
        n=sum(each.n for each in rounds),
        misses=sum(each.misses for each in rounds),
        transitions=np.sum([each.transitions for each in rounds], axis=0),
    )


def log_missed(rounds: Sequence[Evidence]) -> float:
    """Natural logarithm of the e-value for MISSED of all rounds together."""
    places = [np.concatenate(each._places) for each in rounds]
    tau = bursts.autocorrelation_time(places, [each.n for each in rounds])
    return pooled(rounds).log_missed_of(tau)


def outcome_of(rounds: Sequence[Evidence]) -> Outcome:
    """The verdict of several processes: MET if each of them is, MISSED if all calls together prove
    it."""
    needed = -math.log(1 - rounds[0].confidence)
    if all(each.log_met >= needed for each in rounds):
        return Outcome.MET
    # The second part takes longer.
    if pooled(rounds)._log_transitions >= needed and log_missed(rounds) >= needed:
        return Outcome.MISSED
    return Outcome.NOT_ENOUGH_EVIDENCE


def trials_until_met(
    misses: int, n: int, allowed: float, burst_length: float, confidence: float
) -> int | None:
    """Trials after which MET is decided at this rate of misses; None above 1e9."""

    def decides(trials: int) -> bool:
        log_e_value = log_met(trials, trials * misses / n, allowed, burst_length)
        return log_e_value >= -math.log(1 - confidence)

    if not decides(quantiles.LONGEST):
        return None
    return bisect_left(range(quantiles.LONGEST), True, key=decides)
