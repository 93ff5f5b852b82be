"""How often other answers than verdicts are false: `.venv/bin/python benchmarks/answer_rates.py --table NAME`.

`--table compared-misses`: comparisons of miss rates. `in-turns`: two equal sides that are recorded one after the other.
`breaks`: breaks of straight growth. `causes`: events that are named as the cause of slow calls.
`levels`: calls that alternate between levels. `clocks`: clusters and periods where the clock is coarse.
Prints CSV, as `data/measured/answer-*.csv` have it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from lstm_judge.compare.answer import Question as ComparisonQuestion
from lstm_judge.compare.compare import compare_groups
from lstm_judge.outcomes import Change, Outcome, SteadyState
from lstm_judge.read.rounds import Group, Round
from lstm_judge.scaling import scaling
from lstm_judge.statistics import causes, quantiles
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import judge
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.shape import LstmShape
from tests.support.measured import print_rows
from tests.support.planted_latencies import ALTERNATIONS, BODIES, MEDIAN_NS, at_levels, explain, moving, plant, quick

Rows = Iterator[dict[str, object]]

#: Comparisons: calls of a process, miss rates of B over those of A, and the answers that are counted.
COMPARED = 3000
TIMES = (1, 2, 5, 20)
MISSES = (Change.SAME, Change.FEWER, Change.MORE)

#: Planted breaks of growth, and calls of a round with planted causes.
RISES = (0.0, 0.3, 0.6)
CALLS = 5000

#: Time of a call and step of its clock, in us.
CLOCKS = ((5, 1), (1, 0.1), (100, 1))


def percent(found: float, recordings: int) -> str:
    return f"{100 * found / recordings:.1f}"


def missing_groups(rng: np.random.Generator, rates: tuple[float, float], spread: float, rounds: int) -> list[Group]:
    """A and B with these miss rates of 1 ms; the rate of a process is log-normal around them."""
    sides = []
    for rate in rates:
        each = rate * rng.lognormal(-(spread**2) / 2, spread, rounds)
        late = rng.random((rounds, COMPARED)) < each[:, None]
        sides.append(Group("one", tuple(Round.of(np.where(missed, 2e6, 1e5)) for missed in late)))
    return sides


def compared_misses(rng: np.random.Generator, recordings: int) -> Rows:
    """Comparisons of miss rates."""
    question = ComparisonQuestion(deadline_us=1000)
    for rounds, rate, spread, times in itertools.product((5, 10), (0.001, 0.01), (0.0, 0.3, 1.0), TIMES):
        pairs = [missing_groups(rng, (rate, times * rate), spread, rounds) for _ in range(recordings)]
        found = Counter(compare_groups(a, b, question).misses.change for a, b in pairs)
        row = {
            "processes_a_side": rounds,
            "miss_rate_of_a_percent": f"{100 * rate:g}",
            "spread_of_processes_percent": f"{100 * spread:g}",
            "rate_of_b_over_a": times,
        }
        yield row | {f"{change.lower()}_percent": percent(found[change], recordings) for change in MISSES}


def in_turns(rng: np.random.Generator, recordings: int) -> Rows:
    """Equal sides on a machine that becomes 10 % slower while they are recorded: called FASTER or SLOWER."""
    shape = LstmShape(1, 8, 4)
    sides = [Configuration(shape, runtime, "1.0", "cpu") for runtime in ("onnxruntime", "c")]
    for rounds in (1, 5, 10):
        wrong, told = Counter(), 0
        for number in range(2 * recordings):
            places = np.arange(2 * rounds)
            places = places.reshape(2, rounds) if number % 2 else places.reshape(rounds, 2).T
            groups = []
            for configuration, starts in zip(sides, places, strict=True):
                levels = 1e5 * (1 + 0.1 * starts / (2 * rounds)) * rng.lognormal(0, 0.005, rounds)
                recorded = [
                    Round.of(level * rng.lognormal(0, 0.01, 200), started_unix_ns=int(start))
                    for level, start in zip(levels, starts, strict=True)
                ]
                groups.append(Group("one", tuple(recorded), configuration=configuration))
            found = compare_groups(*groups, ComparisonQuestion())
            differs = found.median.change in (Change.FASTER, Change.SLOWER)
            wrong[number % 2] += differs
            told += differs and number % 2 and "order" in str(found.differences) and found.command is not None
        yield {
            "processes_a_side": rounds,
            "in_turns_percent": percent(wrong[0], recordings),
            "a_before_b_percent": percent(wrong[1], recordings),
            "of_these_with_the_order_named_percent": f"{100 * told / wrong[1]:.0f}" if wrong[1] else "",
        }


def break_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Breaks of straight growth, with processes that differ by 5 %."""
    sizes = np.array([32, 64, 128, 200, 256])
    for rounds in (1, 5, 10):
        for rise in RISES:
            untested = tested = 0
            for _ in range(recordings):
                times_us = (50 + 2 * sizes) * np.where(sizes >= 200, 1 + rise, 1)
                rounds_us = times_us[:, None] * rng.lognormal(0, 0.05, (len(sizes), rounds))
                medians_us = [quantiles.median(each) for each in rounds_us]
                untested += scaling.break_of(sizes.tolist(), medians_us) is not None
                tested += rounds > 1 and scaling.break_of(sizes.tolist(), medians_us, list(rounds_us)) is not None
            yield {
                "processes_a_size": rounds,
                "more_from_200_on_percent": f"{100 * rise:g}",
                "found_untested_percent": percent(untested, recordings),
                "found_percent": percent(tested, recordings) if rounds > 1 else "",
            }


def early(rng: np.random.Generator, count: int) -> np.ndarray:
    """About `count` marked calls, most of them among the first 500."""
    chance = np.exp(-np.arange(CALLS) / 500)
    return rng.random(CALLS) < count * chance / chance.sum()


def states(rng: np.random.Generator, count: int, length: int, density: float) -> np.ndarray:
    """Calls of `count` states of this length, of which this share is marked."""
    marked = np.zeros(CALLS, bool)
    for start in rng.integers(0, CALLS - length, count):
        marked[start : start + length] = True
    return marked & (rng.random(CALLS) < density)


def share_of(rng: np.random.Generator, slow: np.ndarray, inside: float, outside: float) -> np.ndarray:
    """Events in these shares of the slow and of the other calls."""
    return rng.random(CALLS) < np.where(slow, inside, outside)


def cause_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Events that are named as the cause of slow calls."""
    for (slow_text, events_text), (slow_of, events_of) in CAUSES.items():
        for rounds in (1, 3):
            named = 0
            for _ in range(recordings):
                recorded, labels = [], []
                for _ in range(rounds):
                    slow = slow_of(rng)
                    counts = events_of(rng, slow).astype(np.int64)
                    recorded.append(Round.of(np.where(slow, 1.25e5, 1e5), causes={"minor_faults": counts}))
                    labels.append(np.where(slow, 0, causes.BULK))
                named += bool(causes.find_causes(recorded, labels, {0: (2e4, 3e4)})[0])
            yield {
                "slow_calls": slow_text,
                "events": events_text,
                "rounds": rounds,
                "named_percent": percent(named, recordings),
            }


#: Planted slow calls, and events: independent of them first, then causes of them.
CAUSES: dict[tuple[str, str], tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]] = {
    ("1 %", "independent, 2 %"): (
        lambda rng: rng.random(CALLS) < 0.01,
        lambda rng, slow: rng.random(CALLS) < 0.02,
    ),
    ("60, early", "independent, 60, early too"): (lambda rng: early(rng, 60), lambda rng, slow: early(rng, 60)),
    ("8 bursts of 20", "independent, 8 bursts of 30"): (
        lambda rng: states(rng, 8, 20, 1),
        lambda rng, slow: states(rng, 8, 30, 1),
    ),
    ("half of the calls of 2 states of 600", "independent, of 2 states of 600"): (
        lambda rng: states(rng, 2, 600, 0.5),
        lambda rng, slow: states(rng, 2, 600, 1),
    ),
    ("half of the first 200 to 400 calls", "independent, all of the first 200 to 400"): (
        lambda rng: (np.arange(CALLS) < rng.integers(200, 400)) & (rng.random(CALLS) < 0.5),
        lambda rng, slow: np.arange(CALLS) < rng.integers(200, 400),
    ),
    ("2 %", "in 10 % of them, in 1 % of others"): (
        lambda rng: rng.random(CALLS) < 0.02,
        lambda rng, slow: share_of(rng, slow, 0.1, 0.01),
    ),
    ("0.1 %", "in all of them, in no other"): (
        lambda rng: rng.random(CALLS) < 0.001,
        lambda rng, slow: slow,
    ),
    ("60, early", "in 30 % of them, and 60, early too"): (
        lambda rng: early(rng, 60),
        lambda rng, slow: share_of(rng, slow, 0.3, 0) | early(rng, 60),
    ),
    ("8 bursts of 20", "in all of them"): (lambda rng: states(rng, 8, 20, 1), lambda rng, slow: slow),
    ("half of the calls of 2 states of 600", "in all calls of these states"): (
        lambda rng: states(rng, 2, 600, 0.5),
        lambda rng, slow: np.convolve(slow, np.ones(9), "same") > 0,
    ),
}


def level_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Calls that alternate between levels, 10 000 trials each; MET at 1.025 times the slowest level and p99.5."""
    n = 10_000
    for kind, rising in [(kind, 0.0) for kind in ALTERNATIONS] + [("two levels, runs of 50", 0.05)]:
        flat = right = met = 0
        for _ in range(recordings):
            kinds = ALTERNATIONS[kind](rng, n)
            latency_ns = moving(at_levels(rng, kinds), drift=rising, step=0)
            found = quick([Round.of(latency_ns)])
            flat += found.steady_state == SteadyState.FLAT
            multiples = [round(cluster.multiplier, 1) for cluster in found.clusters]
            right += multiples == [1 + level for level in range(1, kinds.max() + 1)]
            deadline_us = 1.025 * MEDIAN_NS / 1e3 * (1 + int(kinds.max()))
            met += judge([Round.of(latency_ns)], Question(deadline_us, "99.5")).outcome == Outcome.MET
        name = f"{kind}, rising by 5 %" if rising else kind
        yield {
            "calls": name,
            "flat_percent": percent(flat, recordings),
            "clusters_at_the_planted_multiples_percent": percent(right, recordings),
            "met_percent": percent(met, recordings),
        }


def clock_rates(rng: np.random.Generator, recordings: int) -> Rows:
    """Coarse clocks, 2000 trials each: a cluster or a period that is none; 2 % of the calls at twice the time found."""
    n = 2000
    for (call_us, step_us), body in itertools.product(CLOCKS, ("normal 5 %", "exponential 5 %")):
        wrong = right = 0
        for _ in range(recordings):
            latency_us = BODIES[body](rng, n) * call_us / MEDIAN_NS
            slow_us, _ = plant(rng, latency_us, ((2.0, 0.02),))
            read_ns = [np.round(each / step_us) * step_us * 1e3 for each in (latency_us, slow_us)]
            plain, planted = (explain([Round.of(each)]) for each in read_ns)
            wrong += bool(plain.clusters) or (plain.tail is not None and plain.tail.period_ms is not None)
            right += [round(cluster.multiplier, 1) for cluster in planted.clusters] in ([1.9], [2.0], [2.1])
        yield {
            "call_us": call_us,
            "clock_us": step_us,
            "body": body,
            "named_though_none_percent": percent(wrong, recordings),
            "slow_calls_found_percent": percent(right, recordings),
        }


#: `data/measured/answer-NAME.csv`: what is called with the random numbers and the number of recordings of a cell.
TABLES = {
    "compared-misses": compared_misses,
    "in-turns": in_turns,
    "breaks": break_rates,
    "causes": cause_rates,
    "levels": level_rates,
    "clocks": clock_rates,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=int, default=300, help="per cell (default 300)")
    parser.add_argument("--table", choices=TABLES, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print_rows(TABLES[arguments.table](np.random.default_rng(arguments.seed), arguments.recordings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
