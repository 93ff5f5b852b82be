"""What `data/published/README.md` says of document 003's times, computed from the rows: the numbers of each sentence.

Each function gets the points of `published.points("003-times")`, or planted ones, and returns the numbers of its
sentence in their order; NaN where a sentence says "all" and a row says otherwise.
"""

from __future__ import annotations

import itertools
import math

import pandas as pd

from lstm_trt.config.shape import PUBLISHED_003

#: The two runs: with all batch sizes, and the one at batch 1 that the document describes.
ALL, DESCRIBED = "results.csv", "results-bs1.csv"

NETWORK = ["layers", "sequence", "hidden"]


def runs(points: pd.DataFrame, batch: int = 1) -> pd.DataFrame:
    """Time in us at one batch size: a row per network, a column per run."""
    return points[points.batch == batch].pivot_table(index=NETWORK, columns="table", values="latency_us")


def slower(one: pd.Series, two: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Ratio of batch 1 to batch 2 from the smallest hidden size on at which batch 1 is slower anywhere; and below."""
    ratio = one / two
    hidden = ratio.index.get_level_values("hidden")
    least = hidden[ratio > 1].min()
    return ratio[hidden >= least], ratio[hidden < least]


def percents(ratio: pd.Series) -> list[int]:
    """By how many per cent the ratios are above 1: the smallest, the largest."""
    return [round(100 * (ratio.min() - 1)), round(100 * (ratio.max() - 1))]


def batch_1_takes_longer(points: pd.DataFrame) -> list[float]:
    wide, narrow = slower(runs(points)[ALL], runs(points, 2)[ALL])
    number = len(wide) if (wide > 1).all() else math.nan
    return [1, 2, number, wide.index.get_level_values("hidden").min(), *percents(wide), len(narrow)]


def batch_1_of_the_other_run(points: pd.DataFrame) -> list[float]:
    two = runs(points, 2)[ALL]
    (wide, _), (same, _) = slower(runs(points)[DESCRIBED], two), slower(runs(points)[ALL], two)
    number = len(wide) if (wide > 1).all() and wide.index.equals(same.index) else math.nan
    return [1, 2, number, *percents(wide)]


def runs_differ(points: pd.DataFrame) -> list[float]:
    times = runs(points)
    ratio = times[DESCRIBED] / times[ALL]
    return [1, round(ratio.min(), 2), round(ratio.max(), 2)]


def wider(points: pd.DataFrame, table: str) -> pd.Series:
    """256 units divided by 200, for each number of layers and length in which both are there."""
    times = runs(points)[table].unstack("hidden")
    return (times[256] / times[200]).dropna()


def kinks(points: pd.DataFrame) -> pd.Series:
    """Of the described run the ratios below 1 at the longest sequence, by layers."""
    longest = wider(points, DESCRIBED).xs(points.sequence.max(), level="sequence")
    return longest[longest < 1]


def wider_is_faster_in_one_run(points: pd.DataFrame) -> list[float]:
    found = kinks(points)
    return [256, *found.round(2), 200, *found.index]


def wider_is_slower_in_the_other(points: pd.DataFrame) -> list[float]:
    longest = wider(points, ALL).xs(points.sequence.max(), level="sequence")
    return [*longest[kinks(points).index].round(2)]


def the_size_that_changed(points: pd.DataFrame) -> list[float]:
    times = runs(points).xs(points.sequence.max(), level="sequence")
    ratio = (times[DESCRIBED] / times[ALL]).unstack("hidden").loc[kinks(points).index].round(2)
    return [200, *ratio[200], 256, *ratio[256]]


def other_pairs(points: pd.DataFrame) -> list[float]:
    both = pd.concat({table: wider(points, table) for table in (DESCRIBED, ALL)}, names=["table"])
    known = both.index.get_level_values("layers").isin(kinks(points).index)
    rest = both[~(known & (both.index.get_level_values("sequence") == points.sequence.max()))]
    (place,) = rest[rest < 1].index
    return [len(rest), 256, round(rest[place], 3), *place[1:]]


def absent(points: pd.DataFrame) -> set[tuple[int, int, int]]:
    grid = itertools.product(PUBLISHED_003.layers, PUBLISHED_003.sequence, PUBLISHED_003.hidden)
    return {*grid} - {*points[NETWORK].itertuples(index=False, name=None)}


def networks_there(points: pd.DataFrame) -> list[float]:
    times = runs(points)
    both = len(times) if times.notna().all(axis=None) else math.nan
    return [both + len(absent(points)), both]


def networks_absent(points: pd.DataFrame) -> list[float]:
    gone = absent(points)
    deepest = max(PUBLISHED_003.layers)
    longest = points[points.layers == deepest].sequence.max()
    rest = {network for network in gone if network[:2] <= (deepest, longest) and network[1] <= longest}
    assert gone - rest == {
        (deepest, sequence, hidden)
        for sequence in PUBLISHED_003.sequence
        for hidden in PUBLISHED_003.hidden
        if sequence > longest
    }
    (length,) = {sequence for _, sequence, _ in rest}
    layers = {size: {depth for depth, _, hidden in rest if hidden == size} for _, _, size in rest}
    (everywhere,) = (size for size in layers if layers[size] == {*PUBLISHED_003.layers})
    (partly,) = layers.keys() - {everywhere}
    least = min(layers[partly])
    assert layers[partly] == {depth for depth in PUBLISHED_003.layers if depth >= least}
    return [deepest, longest, length, everywhere, least, partly]


def empty_cells(points: pd.DataFrame) -> list[float]:
    counts = points[points.table == ALL].groupby("batch").size()
    holes = counts.max() - counts
    return [holes.sum(), *holes[holes > 0].index]


SENTENCES = (
    *(batch_1_takes_longer, batch_1_of_the_other_run, runs_differ, wider_is_faster_in_one_run),
    *(wider_is_slower_in_the_other, the_size_that_changed, other_pairs, networks_there, networks_absent, empty_cells),
)
