"""What the page to explore draws: configurations by the fields in which they differ, their
neighbours, and their calls in order.

Numbers are written as far as they can be seen in a drawing, since a page has thousands of them.
"""

from __future__ import annotations

import itertools
import math
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from lstm_judge.compare.answer import Comparison, Question
from lstm_judge.compare.compare import compare_groups
from lstm_judge.compare.text import results
from lstm_judge.outliers.answer import Outliers
from lstm_judge.outliers.outliers import OutlierAnswers
from lstm_judge.plots.heatmap import MAP_AXES
from lstm_judge.plots.points import AXIS_NAMES
from lstm_judge.plots.style import spread
from lstm_judge.plots.trials import calls_of
from lstm_judge.read.labels import FIELDS, FINGERPRINT, known_text
from lstm_judge.read.rounds import Group, in_order
from lstm_judge.read.runs import Runs, group_fields
from lstm_judge.statistics.causes import BULK
from lstm_judge.statistics.parallel import computed
from lstm_judge.verdict import question as verdict
from lstm_trt.config.fields import About
from lstm_trt.config.format import frame_cells

#: Fields by which a reader finds a configuration, the axes of the first map before the others; they
#: are kept wherever configurations differ in them, other fields only if they tell more apart.
KEPT = (*MAP_AXES, "workload", "runtime", "precision", "mode", "machine")

#: Most neighbours on each side of a configuration along a field whose values are no numbers.
MOST_BESIDE = 4

#: Most calls of a configuration that are drawn in order, and of all of a page.
MOST_CALLS = 1000
MOST_CALLS_OF_PAGE = 250_000

#: Places along an axis of a drawing, which two bytes hold.
STEPS = 65_535


@dataclass(frozen=True)
class Dimension:
    """A field in which configurations differ: its values, ascending, and of each configuration the
    place of its value."""

    name: str
    values: Sequence[Any]
    places: Sequence[int]

    @property
    def label(self) -> str:
        """What a reader calls it: `hidden size`, `runtime`."""
        if self.name in AXIS_NAMES:
            return AXIS_NAMES[self.name]
        return FIELDS.get(self.name, About()).heading or self.key.replace("_", " ")

    @property
    def key(self) -> str:
        """Its name in `Runs.where`."""
        return self.name.removeprefix("size ")

    @property
    def texts(self) -> list[str]:
        """Its values as a reader sees them."""
        texts = [known_text(self.name, value) for value in self.values]
        return [text[:FINGERPRINT] for text in texts] if self.name == "machine" else texts

    @property
    def arguments(self) -> list[str]:
        """What selects each value in a call of `Runs.where`."""
        if self.key.isidentifier():
            return [f"{self.key}={value!r}" for value in self.values]
        return [f"**{ {self.key: value}!r}" for value in self.values]

    @property
    def reach(self) -> int:
        """How far the neighbours of a configuration are along it."""
        return 1 if all(isinstance(value, Real) for value in self.values) else MOST_BESIDE


def dimensions(runs: Runs) -> list[Dimension]:
    """The fields in which the configurations differ, `KEPT` first, the identity last."""
    fields = [group_fields(group) for group in runs]
    names = dict.fromkeys((*KEPT, *itertools.chain(*fields)))
    if len({each.get("machine") for each in fields} - {None}) == 1:
        del names["machine"]  # that of a failure may not be known
    found = []
    told: list[Any] = [()] * len(fields)
    for name in sorted(names, key=lambda name: name == "config_id"):
        default = FIELDS[name].default if name in FIELDS else None
        values = [each.get(name, default) for each in fields]
        different = {repr(value): value for value in values}
        longer = list(zip(told, map(repr, values), strict=True))
        if len(different) > 1 and (name in KEPT or len(set(longer)) > len(set(told))):
            told = longer
            ordered = sorted(different, key=lambda text: in_order(different[text]))
            places = [ordered.index(repr(value)) for value in values]
            found.append(Dimension(name, [different[text] for text in ordered], places))
    return found


def neighbours(found: Sequence[Dimension]) -> Iterator[tuple[int, int, int]]:
    """Of each configuration those that differ from it in one dimension only, and by little: (its
    place, the dimension, the place of the other)."""
    for number, dimension in enumerate(found):
        reach = dimension.reach
        lines: dict[tuple, list[int]] = defaultdict(list)
        for place in range(len(dimension.places)):
            others = tuple(each.places[place] for each in found if each is not dimension)
            lines[others].append(place)
        for line in lines.values():
            line.sort(key=dimension.places.__getitem__)
            for start, place in enumerate(line):
                for other in line[max(start - reach, 0) : start + reach + 1]:
                    if other != place:
                        yield place, number, other


#: Places of A and B -> what `compare` says of them.
Pairs = Mapping[tuple[int, int], Comparison]


def compared_neighbours(runs: Runs, tails: OutlierAnswers, question: verdict.Question) -> Pairs:
    """The comparisons of all neighbours whose calls have an order, with the deadline and the
    confidence of this question."""
    asked = Question(confidence=question.confidence, deadline_us=question.deadline_us)
    pairs = []
    for a, _, b in neighbours(dimensions(runs)):
        if isinstance(tails[a], Outliers) and isinstance(tails[b], Outliers):
            pairs.append((a, b))
    # Each group once, since it is sent to another process with all its pairs.
    plain = [group.plain for group in runs]
    items = [(plain[a], plain[b], asked) for a, b in pairs]
    answers = computed(_compared, items, [a.n + b.n for a, b, _ in items])
    return dict(zip(pairs, answers, strict=True))


def _compared(asked: tuple[Group, Group, Question]) -> Comparison:
    return compare_groups(*asked)


def beside(
    found: Sequence[Dimension], pairs: Pairs
) -> tuple[Mapping[int, list[list[Any]]], list[str]]:
    """The neighbours of each configuration, and the results of all comparisons, each once.

    A neighbour is a dimension and a place, and if both were compared the place of the result and
    the ratios.
    """
    said: dict[str, int] = {}
    near: dict[int, list[list[Any]]] = defaultdict(list)
    for place, number, other in neighbours(found):
        entry: list[Any] = [number, other]
        comparison = pairs.get((place, other))
        if comparison is not None:
            entry += [said.setdefault(results(comparison), len(said)), _ratios(comparison)]
        near[place].append(entry)
    return near, list(said)


def _ratios(comparison: Comparison) -> str:
    """`median 1.56 (1.52 to 1.6), p99 1.39`: B / A, with the interval over rounds."""
    texts = []
    for change in (comparison.median, comparison.tail):
        if change.percentile is not None:
            name = "median" if change.percentile == 50 else f"p{change.percentile:g}"
            text = f"{name} {change.ratio.estimate:.3g}"
            if change.ratio.low is not None and change.ratio.high is not None:
                text += f" ({change.ratio.low:.3g} to {change.ratio.high:.3g})"
            texts.append(text)
    return ", ".join(texts)


def short(value: float | None) -> float | None:
    """A number with four digits."""
    return None if value is None else float(f"{value:.4g}")


def clusters(tails: OutlierAnswers) -> dict[str, Any]:
    """The table of clusters: its header, and the rows of each configuration."""
    header, rows = frame_cells(tails.clusters.drop(columns="network"))
    left = iter(rows)
    found = [list(itertools.islice(left, len(getattr(each, "clusters", ())))) for each in tails]
    return {"header": header, "rows": found}


def calls(runs: Runs, tails: OutlierAnswers) -> list[dict[str, Any]] | None:
    """The calls of each configuration in order; None if they would be too many for a page."""
    if sum(min(group.n, MOST_CALLS) for group in runs) > MOST_CALLS_OF_PAGE:
        return None
    return [_calls(group, found) for group, found in zip(runs, tails, strict=True)]


def _calls(group: Group, found: Any) -> dict[str, Any]:
    """The calls after warm-up of all rounds, by cluster: -1 is the bulk, -2 the tail.

    `calls`: of each call two bytes for its place on the axis of x, and two for its latency between
    `low` and `high` in us on a log scale, in base64. Of many calls those outside the bulk are kept
    before the others.
    """
    if not isinstance(found, Outliers):
        return {}
    every = calls_of(group, found)
    place, latency_us, labels = (
        values[~every.warm] for values in (every.place, every.latency_us, every.labels)
    )
    low, high = latency_us.min(), latency_us.max()
    share = np.log(latency_us / low) / max(math.log(high / low), 1e-9)
    points = np.stack([place / max(place[-1], 1), share], axis=1)
    packed = np.rint(STEPS * points).astype("<u2")
    kept = spread(np.flatnonzero(labels != BULK).tolist(), MOST_CALLS)
    kept += spread(np.flatnonzero(labels == BULK).tolist(), MOST_CALLS - len(kept))
    by_cluster = {
        label: b64encode(packed[kept][labels[kept] == label].tobytes()).decode()
        for label in np.unique(labels).tolist()
    }
    return {
        "low": short(low),
        "high": short(high),
        "rounds": len(found.rounds),
        "calls": by_cluster,
    }
