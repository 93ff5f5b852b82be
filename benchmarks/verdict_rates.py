"""How often a verdict is false on planted misses: `.venv/bin/python benchmarks/verdict_rates.py` (10 minutes).

Prints CSV, as `data/measured/verdict-*.csv` have it. Without an option it is that of `--table fixed`:

Recordings of each kind of misses (`tests/support/planted_misses.py`) at the allowed rate of 0.1 %, and at twice that,
are judged at 95 % confidence. A row has the percentage that is called MISSED by the plain count of misses and by
the verdict, which counts a burst as one; and at 100 000 trials the percentage called MET for bursts of up to 20 calls.

`--table until-decided`: each recording looks after every 1000 trials and stops when it is decided for bursts of up to
20 calls, at the latest after 200 000. It has, for multiples of the allowed rate, the percentage that is called MET
and MISSED, and the mean number of trials.

`--table rounds`: MISSED of several rounds, if one that is MISSED were enough / by all of them together.
`--table lengths`: MET for laws of the lengths of bursts. `--table processes`: what is said of another process.
`--figure FILE.png` draws the evidence of some recordings over their trials.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from lstm_judge.outcomes import Outcome
from lstm_judge.read.rounds import Round
from lstm_judge.statistics import bursts, processes, quantiles
from lstm_judge.statistics.sequential import Evidence, outcome_of
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize.summarize import percentiles_of
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.text import verdict_text
from lstm_judge.verdict.verdict import judge, judged_of
from tests.support.agreement import contradictions
from tests.support.measured import print_rows
from tests.support.planted_latencies import autoregressive
from tests.support.planted_misses import (
    KINDS,
    LENGTHS_20,
    OUTSIDE_20,
    chance_of_at_most,
    in_bursts,
    means,
    process_latencies,
)

Places = Callable[[np.random.Generator, int, float], np.ndarray]
Rows = Iterator[dict[str, object]]

ALLOWED = Fraction(1, 1000)
BURSTS, CONFIDENCE, LOOK, MOST = 20.0, 0.95, 1000, 200_000
RATES = (0.0, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0)
TRIALS = (5000, 20_000, 50_000)
QUESTION = Question(deadline_us=200)
ROUNDS = (1, 3, 5, 10)
BOUNDED = ("independent", "bursts of 4", "bursts of 20", "log-normal lengths, mean 10")
PROCESS_TRIALS = 3000
STATES = ("bad states of 1000 calls, 5 % of which miss", "bad states of 5000 calls, 2 % of which miss")
OF_ROUNDS = (
    *(("independent", 1), ("bursts of 10", 1), (STATES[0], 1), (STATES[1], 1)),
    *(("bursts of 10", 2), (STATES[0], 2), (STATES[0], 5)),
)


def percent(found: float, recordings: int) -> str:
    return f"{100 * found / recordings:.1f}"


def fixed_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Numbers of trials that are fixed beforehand: MISSED by the plain count and by the verdict, and MET."""
    for kind, places in KINDS.items():
        row: dict[str, object] = {"misses": kind}
        for n in TRIALS:
            found = []
            for times in (1, 2):
                plain = verdict = 0
                for _ in range(recordings):
                    late = places(rng, n, times * float(ALLOWED))
                    if quantiles.proves_above(len(late), n, ALLOWED):
                        plain += 1
                        tau = bursts.autocorrelation_time([late], [n])
                        verdict += quantiles.proves_above(len(late) / tau, n / tau, ALLOWED)
                found += [plain, verdict]
            row[f"plain_missed_of_{n}_percent"] = percent(found[0], recordings)
            row[f"missed_of_{n}_percent"] = percent(found[1], recordings)
            row[f"missed_of_{n}_at_twice_the_rate_percent"] = percent(found[3], recordings)
        met = sum(
            bursts.proves_below_in_bursts(len(places(rng, 100_000, float(ALLOWED))), 100_000, ALLOWED, 0.95, 20)
            for _ in range(recordings)
        )
        row["met_of_100000_percent"] = percent(met, recordings)
        yield row


def looks(rng: np.random.Generator, places: Places, times: float) -> Iterator[Evidence]:
    """The evidence of one recording after each block."""
    missed = np.zeros(MOST, bool)
    if times:
        missed[places(rng, MOST, times * float(ALLOWED))] = True
    evidence = Evidence(float(ALLOWED), BURSTS, CONFIDENCE)
    for block in missed.reshape(-1, LOOK):
        evidence.add(block)
        yield evidence


def ended(rng: np.random.Generator, places: Places, times: float) -> Evidence:
    """The evidence of one recording, or one round, at its end."""
    for evidence in looks(rng, places, times):
        if evidence.outcome != Outcome.NOT_ENOUGH_EVIDENCE:
            break
    return evidence


def decided_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Recordings that stop when they are decided."""
    for kind in KINDS:
        for times in RATES[1:]:
            found = [ended(rng, KINDS[kind], times) for _ in range(recordings)]
            outcomes = [evidence.outcome for evidence in found]
            mean = np.mean([evidence.n for evidence in found]) / 1000
            yield {
                "misses": kind,
                "times_allowed_rate": f"{times:g}",
                "met_percent": percent(outcomes.count(Outcome.MET), recordings),
                "missed_percent": percent(outcomes.count(Outcome.MISSED), recordings),
                "mean_trials": f"{mean:.0f}000",
            }


def with_misses(rng: np.random.Generator, n: int, places: np.ndarray) -> list[Round]:
    """Latencies of about 100 us, with misses of more than 1 ms at these places."""
    latency_ns = rng.gamma(50, 2e3, n)
    latency_ns[places] = 1e6 * (1.01 + rng.exponential(0.1, len(places)))
    return [Round.of(latency_ns)]


def bounds_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """The bounds of miss rate and percentile, at 20 000 trials and the allowed rate."""
    n = 20_000
    for kind in BOUNDED:
        for length in (1.0, 20.0):
            question = Question(1000, "99.9", burst_length=length)
            rounds = [with_misses(rng, n, KINDS[kind](rng, n, float(ALLOWED))) for _ in range(recordings)]
            found = [judged_of((each, question, None)) for each in rounds]
            high = sum(each.bounds.miss_rate_high >= float(ALLOWED) for each in found)
            low = sum(each.bounds.miss_rate_low <= float(ALLOWED) for each in found)
            wrong = sum(bool(list(contradictions(each))) for each in found)
            yield {
                "misses": kind,
                "burst_length": f"{length:g}",
                "upper_bound_holds_percent": percent(high, recordings),
                "lower_bound_holds_percent": percent(low, recordings),
                "bounds_and_verdict_contradict_percent": percent(wrong, recordings),
            }


def slow_levels_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """A level that varies slowly, with the deadline at the true percentile, or far from it."""
    heads = ("met_slow_level_percent", "met_independent_percent", "met_bursts_far_below_percent")
    for n in (3000, 10_000, 30_000):
        slow, rare, clusters = [], [], []
        for _ in range(recordings):
            level = autoregressive(rng, n, math.exp(-1 / 500))
            latency_ns = 1e5 * np.exp(0.02 * level + 0.02 * rng.standard_normal(n))
            slow.append((latency_ns, 100 * math.exp(0.02 * math.sqrt(2) * 3.090232306)))
            rare.append((1e5 * np.exp(0.02 * rng.standard_normal(n)), 100 * math.exp(0.02 * 3.719016485)))
            latency_ns = 1e5 * np.exp(0.02 * rng.standard_normal(n))
            latency_ns[KINDS["bursts of 20"](rng, n, 0.01)] *= 1.5
            clusters.append((latency_ns, 1000.0))
        row: dict[str, object] = {"trials": n}
        for head, kind in zip(heads, (slow, rare, clusters), strict=True):
            asked = [([Round.of(latency_ns)], Question(us, "99.9"), None) for latency_ns, us in kind]
            met = sum(each.outcome == Outcome.MET for each in map(judged_of, asked))
            row[head] = percent(met, recordings)
        yield row


def intervals_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """The intervals of percentiles of 10 000 trials that depend on those before them."""
    n = 10_000
    asked = (("50", "median_us", 0.0), ("90", "p90_us", 1.2815515655), ("99", "p99_us", 2.3263478740))
    heads = [f"{name[:-3]}_in_{answer}_percent" for answer in ("summarize", "verdict") for _, name, _ in asked]
    for rho in (0.0, 0.5, 0.9, 0.99):
        inside = dict.fromkeys(heads, 0)
        for _ in range(recordings):
            latency_ns = 1e5 * np.exp(0.05 * autoregressive(rng, n, rho))
            trials = Trials(latency_ns)
            row = percentiles_of(trials, [trials])
            for percentile, name, at in asked:
                true_us = 100 * math.exp(0.05 * at)
                answer = judge([Round.of(latency_ns)], Question(true_us, percentile))
                found = {"summarize": (row[name[:-3]].low_us, row[name[:-3]].high_us)}
                found["verdict"] = answer.bounds.percentile_low_us, answer.bounds.percentile_high_us
                for kind, (low_us, high_us) in found.items():
                    inside[f"{name[:-3]}_in_{kind}_percent"] += (low_us or 0) <= true_us <= (high_us or math.inf)
        yield {"coefficient": f"{rho:g}"} | {head: percent(found, recordings) for head, found in inside.items()}


def maxima_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """The chance that as many new trials contain a longer one than 2000 trials did."""
    n = 2000
    rising = np.linspace(1, 1.1, 2 * n)
    laws = {
        "independent, clock of 1 ns": lambda: np.round(5e3 * np.exp(0.1 * rng.standard_normal(2 * n))),
        "independent, calls of 5 us, clock of 1 us": lambda: (
            1e3 * rng.choice([4, 5, 6, 7], 2 * n, p=[0.1, 0.8, 0.09, 0.01])
        ),
        "a slowdown of 5 %": lambda: 5e3 * rising * np.exp(0.01 * rng.standard_normal(2 * n)),
    }
    for law, draw_ns in laws.items():
        stated = said = longer = 0
        for _ in range(recordings):
            latency_ns = draw_ns()
            says = "the next n trials" in verdict_text(judge([Round.of(latency_ns[:n])], Question(1000, "99")))
            more = latency_ns[n:].max() > latency_ns[:n].max()
            stated += says
            said += says and more
            longer += more
        yield {
            "latencies": law,
            "stated_percent": percent(stated, recordings),
            "longer_where_stated_percent": percent(said, max(1, stated)),
            "longer_percent": percent(longer, recordings),
        }


def rounds_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Recordings of several rounds, each of which stops when it is decided by itself."""
    for kind, times in OF_ROUNDS:
        found = [[ended(rng, KINDS[kind], times) for _ in range(max(ROUNDS))] for _ in range(recordings)]
        for number in ROUNDS:
            some = [rounds[:number] for rounds in found]
            one = sum(any(each.outcome == Outcome.MISSED for each in rounds) for rounds in some)
            together = sum(outcome_of(rounds) == Outcome.MISSED for rounds in some)
            yield {
                "misses": kind,
                "times_allowed_rate": f"{times:g}",
                "rounds": number,
                "missed_if_one_is_enough_percent": percent(one, recordings),
                "missed_percent": percent(together, recordings),
            }


def drawn(rng: np.random.Generator, number: int, law: np.ndarray) -> np.ndarray:
    """Lengths of bursts with this law."""
    return rng.choice(len(law), number, p=law)


def lengths_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Laws of the lengths of bursts, at the allowed rate, for `--burst-length 20`."""
    needed = {
        misses: bursts.trials_for_in_bursts(misses, ALLOWED, CONFIDENCE, BURSTS) for misses in (*range(50), 80, 150)
    }
    for name, law in (LENGTHS_20 | OUTSIDE_20).items():
        mean, of_misses = means(law)
        worst = max(chance_of_at_most(misses, n * float(ALLOWED), law) for misses, n in needed.items())
        places = in_bursts(mean, partial(drawn, law=law))
        met = sum(ended(rng, places, 1).outcome == Outcome.MET for _ in range(recordings))
        yield {
            "burst_lengths": name,
            "mean": f"{mean:.1f}",
            "averaged_over_misses": f"{of_misses:.0f}",
            "met_fixed_number_worst_percent": f"{100 * worst:.1f}",
            "met_until_decided_percent": percent(met, recordings),
        }


def processes_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Processes whose medians differ; the deadline is the p99.9 of the calls of all of them."""
    for differ, number in itertools.product((0.01, 0.03), (3, 5, 10)):
        others = np.sort(process_latencies(rng, (4000, PROCESS_TRIALS), differ).astype(np.float32))
        late_ns = np.quantile(others, 0.999)
        misses = np.count_nonzero(others > late_ns, axis=1)
        percentiles_us = others[:, math.ceil(0.99 * PROCESS_TRIALS) - 1] / 1e3
        found = []
        for latency_ns in process_latencies(rng, (recordings, number, PROCESS_TRIALS), differ):
            rounds = [Round.of(each, round=place) for place, each in enumerate(latency_ns)]
            timed = [Trials(each) for each in latency_ns]
            places = [process.above(late_ns)[0] for process in timed]
            another = processes.processes_of(timed, places, quantiles.share_of(99), CONFIDENCE)
            found.append(
                [
                    judge(rounds, Question(late_ns / 1e3)).outcome == Outcome.MET,
                    np.mean(others[:, -1] > latency_ns.max()),
                    np.mean(misses <= another.worst_misses) < another.no_more_misses_share,
                    np.mean(percentiles_us <= another.percentile_bound_us) < processes.SHARE,
                ]
            )
        met, larger, fewer, low = (f"{100 * share:.1f}" for share in np.mean(found, axis=0))
        yield {
            "processes": number,
            "medians_differ_by_percent": f"{100 * differ:.0f}",
            "met_percent": met,
            "another_maximum_is_larger_percent": larger,
            "stated_as_at_most_percent": f"{100 / (number + 1):.1f}",
            "fewer_have_no_more_misses_percent": fewer,
            "bound_of_p99_is_too_low_percent": low,
        }


def draw(rng: np.random.Generator, path: Path) -> None:
    """Evidence for both verdicts over the number of trials, of three recordings of each kind."""
    from matplotlib.figure import Figure

    shown = (
        ("no miss", "independent", 0.0, "#1b6ca8"),
        ("a tenth of the allowed rate", "independent", 0.1, "#3f9b6b"),
        ("the allowed rate, in bursts of 20", "bursts of 20", 1.0, "#8a8a8a"),
        ("twice the allowed rate", "independent", 2.0, "#c0392b"),
    )
    figure = Figure((10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for label, kind, times, color in shown:
        for repeat in range(1 if times == 0 else 3):
            points = [(seen.n / 1000, seen.log_met, seen.log_missed) for seen in looks(rng, KINDS[kind], times)]
            trials, *both = np.array(points).T
            for ax, logs in zip(axes, both, strict=True):
                name = label if repeat == 0 else None
                ax.plot(trials, np.exp(np.clip(logs, -7, 8)), color=color, linewidth=1.2, label=name)
    for ax, outcome, place, side in zip(axes, ("MET", "MISSED"), (-3, 203), ("left", "right"), strict=True):
        ax.axhline(1 / (1 - CONFIDENCE), color="black", linestyle="--", linewidth=1)
        ax.annotate(f"{outcome} from 20 on", (place, 24), size=9, ha=side)
        ax.set_yscale("log")
        ax.set_ylim(3e-3, 1500)
        ax.set_title(f"evidence for {outcome}", loc="left")
        ax.set_xlabel("trials [1000]")
    axes[0].set_ylabel("e-value (log)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(shown), frameon=False)
    figure.savefig(path, dpi=110)


def new_trials_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """New recordings, of the lengths that a verdict without enough evidence states."""
    for times in (0.1, 0.3, 0.5, 0.7, 0.9):
        rate = times * float(ALLOWED)
        stated, decided = [], {"trials": [], "trials_for_80_percent": []}
        while len(stated) < recordings:
            latency_ns = np.where(rng.random(5000) < rate, 3e5, 1e5)
            verdict = judge([Round.of(latency_ns)], QUESTION)
            if verdict.outcome != Outcome.NOT_ENOUGH_EVIDENCE or verdict.new_recording.trials_for_80_percent is None:
                continue
            stated.append(verdict.new_recording.chance)
            for name, outcomes in decided.items():
                trials = getattr(verdict.new_recording, name)
                misses = int(rng.binomial(trials, rate))
                outcomes.append(quantiles.proves_below(misses, trials, QUESTION.allowed))
        shares = (decided["trials"], stated, decided["trials_for_80_percent"])
        met, chance, met_with_more = (f"{100 * np.mean(each):.0f}" for each in shares)
        yield {
            "times_allowed_rate": f"{times:g}",
            "met_percent": met,
            "stated_chance_percent": chance,
            "met_with_more_trials_percent": met_with_more,
        }


#: `data/measured/verdict-NAME.csv`: what is called with the random numbers and the number of recordings of a cell.
TABLES = {
    "fixed": fixed_rates,
    "until-decided": decided_rates,
    "rounds": rounds_rates,
    "bounds": bounds_rates,
    "slow-levels": slow_levels_rates,
    "next-maximum": maxima_rates,
    "intervals": intervals_rates,
    "lengths": lengths_rates,
    "processes": processes_rates,
    "new-trials": new_trials_rates,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=int, default=2000, help="per cell (default 2000)")
    parser.add_argument("--table", choices=TABLES, default="fixed")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="only draw the evidence of some recordings")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    if arguments.figure:
        draw(rng, arguments.figure)
        return 0
    print_rows(TABLES[arguments.table](rng, arguments.recordings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
