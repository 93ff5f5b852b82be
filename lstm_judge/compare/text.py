"""Comparisons as text. No code parses it."""

import statistics
from collections.abc import Callable, Sequence

from lstm_judge.compare.compare import (
    ClusterPair,
    Comparison,
    Comparisons,
    ComparisonSeries,
    NotCompared,
)
from lstm_judge.read.numbers import multiple, table
from lstm_judge.statistics.quantiles import ROUNDS
from lstm_trt.config.format import count, listed, microseconds, percent, value_text


def text(comparisons: Comparisons) -> str:
    """What differs between all of both sides, the comparisons, and what is on one side only."""
    differ = [
        f"{name}: {of_a} in A, {of_b} in B\n"
        for name, (of_a, of_b) in comparisons.pairs.differ.items()
    ]
    parts, alone = [], {}
    for place, (_, *groups) in enumerate(comparisons.pairs.pairs):
        if None in groups:
            answer = comparisons[place]
            alone.setdefault(answer.reason, []).append(answer.name)
        else:
            parts.append(_at(comparisons, place))
    parts += [f"{reason}: {listed(names, 8, '; ')}" for reason, names in alone.items()]
    return "".join(differ) + "\n\n".join(parts)


def cells(answers: Comparisons | ComparisonSeries) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: both results of each configuration, with the ratios B / A."""
    rows = []
    for comparisons in answers if isinstance(answers, ComparisonSeries) else [answers]:
        for (_, a, b), answer in zip(comparisons.pairs.pairs, comparisons.answers, strict=True):
            row = [next(filter(None, (b, a))).name, comparisons.other.source]
            if isinstance(answer, NotCompared):
                rows.append([*row, "-", "-", "-", "-", answer.reason])
                continue
            values = [
                answer.median,
                answer.median_ratio,
                answer.tail,
                answer.tail_ratio,
                answer.tail_percentile,
            ]
            if answer.misses is not None:
                values += [answer.misses.change, answer.misses.miss_rate_ratio]
            rows.append([*row, *map(value_text, values)])
    header = ["configuration", "B", "median", "B / A", "tail", "B / A", "percentile"]
    if any(len(row) > len(header) for row in rows):
        header += ["misses", "B / A"]
    return header, [row + [""] * (len(header) - len(row)) for row in rows]


def _at(comparisons: Comparisons, place: int) -> str:
    answer, pairs = comparisons[place], comparisons.pairs
    if isinstance(answer, NotCompared):
        return f"{answer.name}: {answer.reason}"
    _, *groups = pairs.pairs[place]
    sides = zip((comparisons.runs.source, comparisons.other.source), groups, strict=True)
    names = [
        f"{group.name} in {source}" if pairs.several else source
        for source, group in sides
        if group is not None
    ]
    return comparison_text(answer, *(("A", "B") if names[0] == names[1] else names))


def comparison_text(comparison: Comparison, a_name: str = "A", b_name: str = "B") -> str:
    """Several lines: the two results, ratios, reasons, clusters, other differences, and what to
    record."""
    sides = [
        letter if name == letter else f"{letter} ({name})"
        for letter, name in (("B", b_name), ("A", a_name))
    ]
    results = f"median {comparison.median}, tail {comparison.tail}"
    if comparison.misses is not None:
        results += f", misses {comparison.misses.change}"
    lines = [f"{results}: {sides[0]} compared with {sides[1]}"]
    of_a, of_b = (count(rounds, "process") for rounds in (comparison.rounds_a, comparison.rounds_b))
    lines += [
        _ratios(comparison),
        f"  {of_a} of A, n = {comparison.n_a}; {of_b} of B, n = {comparison.n_b}",
    ]
    lines += [f"  {reason}" for reason in comparison.reasons]
    if comparison.misses is not None:
        rates = (comparison.misses.miss_rate_rounds_a, comparison.misses.miss_rate_rounds_b)
        of_a, of_b = (_middle(each, percent) for each in rates)
        lines.append(f"  miss rate: {of_a} in A, {of_b} in B")
    lines += _changed_clusters(comparison)
    if comparison.differences:
        lines.append("other differences, which may be the cause:")
        lines += [f"  {difference}" for difference in comparison.differences]
    return "\n".join(lines + _rounds_to_record(comparison))


def _ratios(comparison: Comparison) -> str:
    rows = [
        (
            "median",
            comparison.median_us_rounds_a,
            comparison.median_us_rounds_b,
            comparison.median_ratio,
        )
    ]
    if comparison.tail_percentile is not None:
        tail = f"p{comparison.tail_percentile:g}"
        rows.append(
            (tail, comparison.tail_us_rounds_a, comparison.tail_us_rounds_b, comparison.tail_ratio)
        )
    rows.append(("max", (comparison.max_us_a,), (comparison.max_us_b,), None))
    cells = [
        (name, _middle(a), _middle(b), "" if ratio is None else f"{ratio:.3f}")
        for name, a, b, ratio in rows
    ]
    return table(("us", "A", "B", "B / A"), cells, right=("A", "B"), indent=2)


def _middle(values: Sequence[float], text: Callable[[float], str] = microseconds) -> str:
    """The middle one of the processes, and the range of several."""
    middle, least, most = map(text, (statistics.median_low(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least} to {most})"


def _changed_clusters(comparison: Comparison) -> list[str]:
    if comparison.clusters_kept is None:
        return []
    kinds = {
        "gone": comparison.clusters_gone,
        "new": comparison.clusters_new,
        "on both sides": comparison.clusters_kept,
        "a cluster on one side only, possibly by chance": comparison.clusters_unclear,
    }
    lines = [
        f"  {label}: {', '.join(map(_pair, pairs))}" for label, pairs in kinds.items() if pairs
    ]
    few = min(comparison.rounds_a, comparison.rounds_b) < ROUNDS
    caveat = (
        f" (with fewer than {ROUNDS} processes per side, a cluster can be new or gone by chance)"
    )
    caveat *= bool(few and (comparison.clusters_gone or comparison.clusters_new))
    head = f"clusters, share of the trials in A -> in B{caveat}:"
    return [head, *lines] if lines else ["no clusters"]


def _pair(pair: ClusterPair) -> str:
    return f"{percent(pair.share_a)} -> {percent(pair.share_b)} at {multiple(pair.multiplier)}"


def _rounds_to_record(comparison: Comparison) -> list[str]:
    if not comparison.rounds_needed and comparison.command is None:
        too_short = comparison.tail_percentile is None
        return ["to decide the tail, record more trials in each process"] if too_short else []
    if comparison.command is None:
        more = f"to decide it, record at least {comparison.rounds_needed} processes per side, alternating"
        return [
            f"{more}, with the number of the process in a column `round`, or a file for each and --one-group"
        ]
    why = (
        "to decide it"
        if comparison.rounds_needed
        else "to rule out that the machine changed in between"
    )
    return [
        f"{why}, record new rounds and compare those:",
        *(f"  {line}" for line in comparison.command.splitlines()),
    ]
