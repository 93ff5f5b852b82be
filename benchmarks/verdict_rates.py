"""How often a verdict is false on planted misses: `.venv/bin/python benchmarks/verdict_rates.py` (10 minutes).

Recordings of each kind of misses (`tests/support/planted_misses.py`) at the allowed rate of 0.1 %, and at twice that,
are judged at 95 % confidence. The table has the percentage that is called MISSED by the plain count of misses and by
the verdict, which counts a burst as one; and at 100 000 trials the percentage called MET for bursts of up to 20 calls.

`--table until-decided`: each recording looks after every 1000 trials and stops when it is decided for bursts of up to
calls, at the latest after 200 000. It has, for multiples of the allowed rate, the percentage that is called MET
and MISSED, and the mean number of trials. `--figure FILE.png` draws the evidence of some recordings over their trials.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from lstm_trt.analysis import bursts, causes, compare, quantiles, scaling
from lstm_trt.analysis.outcomes import Change, Outcome
from lstm_trt.analysis.sequential import Evidence
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.shape import LstmShape
from lstm_trt.store.samples import Group, Latencies
from tests.support.planted_misses import KINDS

ALLOWED = Fraction(1, 1000)
BURSTS, CONFIDENCE, LOOK, MOST = 20.0, 0.95, 1000, 200_000
RATES = (0.0, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0)
TRIALS = (5000, 20_000, 50_000)

#: Comparisons: calls of a process, miss rates of B over those of A, and the answers that are counted.
COMPARED, TIMES = 3000, (1, 2, 5, 20)
#: Planted breaks of growth, and calls of a round with planted causes.
RISES, CALLS = (0.0, 0.3, 0.6), 5000
MISSES = (Change.SAME, Change.FEWER, Change.MORE)


def fixed_rates(rng: np.random.Generator, recordings: int) -> Iterator[str]:
    """Lines of the table for numbers of trials that are fixed beforehand."""
    heads = [f"{n}: plain / verdict / at twice the rate" for n in TRIALS]
    yield "| misses | " + " | ".join(heads) + " | MET for bursts of 20, 100000 |"
    yield "| --- |" + " --- |" * (len(heads) + 1)
    for kind, places in KINDS.items():
        cells = []
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
            shares = [f"{100 * each / recordings:.1f}" for each in (found[0], found[1], found[3])]
            cells.append(" / ".join(shares))
        met = sum(
            bursts.proves_below(len(places(rng, 100_000, float(ALLOWED))), 100_000, ALLOWED, 0.95, 20)
            for _ in range(recordings)
        )
        yield f"| {kind} | " + " | ".join([*cells, f"{100 * met / recordings:.1f}"]) + " |"


def looks(rng: np.random.Generator, kind: str, times: float) -> Iterator[Evidence]:
    """The evidence of one recording after each block."""
    missed = np.zeros(MOST, bool)
    if times:
        missed[KINDS[kind](rng, MOST, times * float(ALLOWED))] = True
    evidence = Evidence(float(ALLOWED), BURSTS, CONFIDENCE)
    for block in missed.reshape(-1, LOOK):
        evidence.add(block)
        yield evidence


def decided(rng: np.random.Generator, kind: str, times: float) -> tuple[Outcome, int]:
    """The verdict of one recording, and after how many trials."""
    for evidence in looks(rng, kind, times):
        if (outcome := evidence.outcome) != Outcome.NOT_ENOUGH_EVIDENCE:
            break
    return outcome, evidence.n


def decided_rates(rng: np.random.Generator, recordings: int) -> Iterator[str]:
    """Lines of the table for recordings that stop when they are decided."""
    yield "| misses | " + " | ".join(f"{times:g} times the allowed rate" for times in RATES[1:]) + " |"
    yield "| --- |" + " --- |" * len(RATES[1:])
    for kind in KINDS:
        cells = []
        for times in RATES[1:]:
            found = [decided(rng, kind, times) for _ in range(recordings)]
            shares = [100 * sum(outcome == each for outcome, _ in found) / recordings for each in Outcome]
            named = dict(zip(Outcome, shares, strict=True))
            mean = np.mean([trials for _, trials in found]) / 1000
            cells.append(f"{named[Outcome.MET]:.1f} / {named[Outcome.MISSED]:.1f} / {mean:.0f} 000")
        yield f"| {kind} | " + " | ".join(cells) + " |"


def missing_groups(rng: np.random.Generator, rates: tuple[float, float], spread: float, rounds: int) -> list[Group]:
    """A and B with these miss rates of 1 ms; the rate of a process is log-normal around them."""
    sides = []
    for rate in rates:
        each = rate * rng.lognormal(-(spread**2) / 2, spread, rounds)
        late = rng.random((rounds, COMPARED)) < each[:, None]
        sides.append(Group("one", tuple(Latencies.of(np.where(missed, 2e6, 1e5)) for missed in late)))
    return sides


def compared_misses(rng: np.random.Generator, recordings: int) -> Iterator[str]:
    """Lines of the table for comparisons of miss rates."""
    question = compare.Question(deadline_us=1000)
    yield (
        "| processes a side, miss rate of A, spread of processes | "
        + " | ".join(f"B / A {times:g}" for times in TIMES)
        + " |"
    )
    yield "| --- |" + " --- |" * len(TIMES)
    for rounds, rate, spread in itertools.product((5, 10), (0.001, 0.01), (0.0, 0.3, 1.0)):
        cells = []
        for times in TIMES:
            asked = [(*missing_groups(rng, (rate, times * rate), spread, rounds), question) for _ in range(recordings)]
            found = Counter(each.misses.change for each in compare.compared(asked, clusters=False))
            cells.append(" / ".join(f"{100 * found[change] / recordings:.1f}" for change in MISSES))
        yield f"| {rounds}, {100 * rate:g} %, {100 * spread:g} % | " + " | ".join(cells) + " |"


def in_turns(rng: np.random.Generator, recordings: int) -> Iterator[str]:
    """Lines of the table for equal sides on a machine that becomes 10 % slower while they are recorded."""
    shape = LstmShape(1, 8, 4)
    sides = [Configuration(shape, runtime, "1.0", "cpu") for runtime in ("onnxruntime", "c")]
    yield "| processes a side | in turns | A before B | of these with the order and the commands to record in turns |"
    yield "| --- | --- | --- | --- |"
    for rounds in (1, 5, 10):
        wrong, told = Counter(), 0
        for number in range(2 * recordings):
            places = np.arange(2 * rounds)
            places = places.reshape(2, rounds) if number % 2 else places.reshape(rounds, 2).T
            groups = []
            for configuration, starts in zip(sides, places, strict=True):
                levels = 1e5 * (1 + 0.1 * starts / (2 * rounds)) * rng.lognormal(0, 0.005, rounds)
                samples = [
                    Latencies.of(level * rng.lognormal(0, 0.01, 200), started_unix_ns=int(start))
                    for level, start in zip(levels, starts, strict=True)
                ]
                groups.append(Group("one", tuple(samples), configuration=configuration))
            (found,) = compare.compared([(*groups, compare.Question())], clusters=False)
            differs = found.median in (Change.FASTER, Change.SLOWER)
            wrong[number % 2] += differs
            told += differs and number % 2 and "order" in str(found.differences) and found.command is not None
        share = f"{100 * told / wrong[1]:.0f} %" if wrong[1] else "-"
        yield f"| {rounds} | {100 * wrong[0] / recordings:.1f} | {100 * wrong[1] / recordings:.1f} | {share} |"


def break_rates(rng: np.random.Generator, recordings: int) -> Iterator[str]:
    """Lines of the table for breaks of straight growth, with processes that differ by 5 %."""
    sizes = np.array([32, 64, 128, 200, 256])
    yield "| processes a size | " + " | ".join(f"{100 * rise:g} % more from 200 on" for rise in RISES) + " |"
    yield "| --- |" + " --- |" * len(RISES)
    for rounds in (1, 5, 10):
        cells = []
        for rise in RISES:
            untested = tested = 0
            for _ in range(recordings):
                times_us = (50 + 2 * sizes) * np.where(sizes >= 200, 1 + rise, 1)
                rounds_us = times_us[:, None] * rng.lognormal(0, 0.05, (len(sizes), rounds))
                medians_us = [quantiles.median(each) for each in rounds_us]
                untested += scaling.break_of(sizes.tolist(), medians_us) is not None
                tested += rounds > 1 and scaling.break_of(sizes.tolist(), medians_us, list(rounds_us)) is not None
            after = f"{100 * tested / recordings:.1f}" if rounds > 1 else "not tested"
            cells.append(f"{100 * untested / recordings:.1f} / {after}")
        yield f"| {rounds} | " + " | ".join(cells) + " |"


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


def cause_rates(rng: np.random.Generator, recordings: int) -> Iterator[str]:
    """Lines of the table for events that are named as the cause of slow calls."""
    yield "| slow calls | events | 1 round | 3 rounds |"
    yield "| --- | --- | --- | --- |"
    for (slow_text, events_text), (slow_of, events_of) in CAUSES.items():
        cells = []
        for rounds in (1, 3):
            named = 0
            for _ in range(recordings):
                samples, labels = [], []
                for _ in range(rounds):
                    slow = slow_of(rng)
                    counts = events_of(rng, slow).astype(np.int64)
                    samples.append(Latencies.of(np.where(slow, 1.25e5, 1e5), causes={"minor_faults": counts}))
                    labels.append(np.where(slow, 0, causes.BULK))
                named += bool(causes.find_causes(samples, labels, {0: (2e4, 3e4)})[0])
            cells.append(f"{100 * named / recordings:.1f}")
        yield f"| {slow_text} | {events_text} | " + " | ".join(cells) + " |"


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
            points = [(seen.n / 1000, seen.log_met, seen.log_missed) for seen in looks(rng, kind, times)]
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


#: Tables of docs/evidence.md: what is called with the random numbers and the number of recordings of a cell.
TABLES = {
    "fixed": fixed_rates,
    "until-decided": decided_rates,
    "compared-misses": compared_misses,
    "in-turns": in_turns,
    "breaks": break_rates,
    "causes": cause_rates,
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
    for line in TABLES[arguments.table](rng, arguments.recordings):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
