"""What trials in order are drawn from: rounds laid one after the other, and what each colour stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt import plots_tables as tables
from lstm_trt.errors import UsageError
from lstm_trt.plots_style import kind_colors, multiple, percent, whole

if TYPE_CHECKING:
    from lstm_trt.analysis.outliers_values import Outliers
    from lstm_trt.samples import Group

OUTLIER_COLOR, BODY_COLOR = "#d55e00", "#0173b2"
#: Labels of `Outliers.labels` that are no cluster.
BODY, OTHER = -1, -2
CLUSTER_MARKS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Stretch:
    """One round, a row a call: place on the x axis, latency, warm-up, and a label a row as `Outliers.labels` has them.

    `levels` are (place, level in µs) at both ends of each segment.
    """

    name: str
    place: np.ndarray
    latency_us: np.ndarray
    warm: np.ndarray
    labels: np.ndarray
    levels: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Kind:
    """What one colour stands for."""

    label: int
    words: str
    look: dict


def kinds_of(outliers: Outliers | None, stretches: Sequence[Stretch]) -> list[Kind]:
    """Body, clusters and other outliers, as the legend names them; what has no trial is left out."""
    counts: dict[int, int] = {}
    for stretch in stretches:
        for label, count in zip(*np.unique(stretch.labels[~stretch.warm], return_counts=True), strict=True):
            counts[int(label)] = counts.get(int(label), 0) + int(count)
    if outliers is None:
        names = {BODY: ("trial", {"color": BODY_COLOR}), OTHER: ("outlier", {"color": OUTLIER_COLOR})}
        return [Kind(label, words, look) for label, (words, look) in names.items() if counts.get(label)]
    kinds = [Kind(BODY, f"body: {trial_words(counts.get(BODY, 0))}", {"color": BODY_COLOR})]
    for index, (cluster, look) in enumerate(zip(outliers.clusters, cluster_looks(len(outliers.clusters)), strict=True)):
        words = f"{multiple(cluster.multiplier)}: {trial_words(cluster.count)}, {percent(cluster.share)}"
        kinds.append(Kind(index, words, look))
    kinds.append(Kind(OTHER, f"other outliers: {trial_words(counts.get(OTHER, 0))}", {"color": "0.25"}))
    return [kind for kind in kinds if counts.get(kind.label)]


def cluster_looks(count: int) -> list[dict]:
    """Colour and marker of each cluster; none has the blue of the body."""
    colors = kind_colors(count + 1)[1:]
    return [{"color": colors[i], "marker": CLUSTER_MARKS[i % len(CLUSTER_MARKS)]} for i in range(count)]


def trial_words(count: int) -> str:
    return f"{whole(count)} trial{'s' if count != 1 else ''}"


def stretches_of(group: Group, outliers: Outliers | None) -> list[Stretch]:
    """All rounds of a group, one after the other, with gaps between them; rounds without timed trials are left out."""
    kept = [index for index, sample in enumerate(group.samples) if len(sample.timed_ns)]
    rows = sum(len(group.samples[index].latency_ns) for index in kept)
    stretches, offset = [], 0
    for index, place in enumerate(kept):
        sample = group.samples[place]
        places = offset + np.arange(len(sample.latency_ns))
        stretches.append(
            stretch_of(f"round {sample.round}", places, sample.latency_ns / 1000, sample.warmup, outliers, index)
        )
        offset += len(places) + max(round(0.015 * rows), 1)
    return stretches


def stretch_of(
    name: str, place: np.ndarray, latency_us: np.ndarray, warm: np.ndarray, outliers: Outliers | None, index: int
) -> Stretch:
    """A round to draw, the `index`-th of the findings; without these what lies outside 1.5 x IQR is an outlier.

    Raises `UsageError` where the findings are of other trials.
    """
    labels, levels = np.full(len(place), BODY), ()
    timed = np.flatnonzero(~warm)
    if outliers is None:
        labels[timed[tables.spread(latency_us[timed]).is_outlier]] = OTHER
    else:
        found = len(outliers.labels[index]) if index < len(outliers.labels) else 0
        if found != len(timed):
            raise UsageError(f"the findings are of {found} trials, {name} has {len(timed)} after warm-up")
        labels[timed] = outliers.labels[index]
        level_us = outliers.levels_ns[index] / 1000
        ends = [end for segment in outliers.rounds[index].segments for end in (segment.start, segment.stop - 1)]
        levels = tuple((float(place[timed[end]]), float(level_us[end])) for end in ends)
    return Stretch(name, np.asarray(place), latency_us, np.asarray(warm, dtype=bool), labels, levels)
