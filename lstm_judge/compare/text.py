"""Comparisons as text. No code parses it."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from lstm_judge.compare.answer import Comparison, Comparisons, ComparisonSeries, NotCompared
from lstm_judge.compare.pairing import Pair
from lstm_judge.read.labels import known_text
from lstm_judge.read.numbers import table
from lstm_trt.config.format import count, listed, microseconds, percent, value_text


def text(comparisons: Comparisons) -> str:
    """What differs between all of both sides, the comparisons, and what is on one side only."""
    differ = ""
    for name, (of_a, of_b) in comparisons.pairs.differ.items():
        differ += f"{name}: {known_text(name, of_a)} in A, {known_text(name, of_b)} in B\n"
    parts = []
    alone: dict[str, list[str]] = {}
    for both, answer in comparisons.items():
        if isinstance(answer, Comparison):
            parts.append(comparison_text(answer, *_names(comparisons, both)))
        elif both.on_both_sides:
            parts.append(f"{answer.name}: {answer.reason}")
        else:
            alone.setdefault(answer.reason, []).append(answer.name)
    parts += [f"{reason}: {listed(names, 8, '; ')}" for reason, names in alone.items()]
    return differ + "\n\n".join(parts)


def headline(comparisons: Comparisons) -> str:
    """The answer in one line: the results of the only configuration, or the number of each."""
    compared = [answer for answer in comparisons if isinstance(answer, Comparison)]
    if len(comparisons) == 1 or not compared:
        return str(comparisons).partition("\n")[0]
    texts = []
    for name in ("median", "tail"):
        changes = Counter(getattr(answer, name).change for answer in compared)
        counted = listed(f"{number} {change}" for change, number in changes.most_common())
        texts.append(f"{name} {counted}")
    return f"{count(len(compared), 'configuration')} of B compared with A: {'; '.join(texts)}"


def _names(comparisons: Comparisons, both: Pair) -> tuple[str, str]:
    """What the text calls the sides of a pair."""
    name_a = comparisons.runs.source
    name_b = comparisons.other.source
    if comparisons.pairs.several and both.a is not None and both.b is not None:
        name_a = f"{both.a.name} in {name_a}"
        name_b = f"{both.b.name} in {name_b}"
    return ("A", "B") if name_a == name_b else (name_a, name_b)


def cells(answers: Comparisons | ComparisonSeries) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: both results of each configuration, with the ratios B / A."""
    rows = []
    for comparisons in answers if isinstance(answers, ComparisonSeries) else [answers]:
        for both, answer in comparisons.items():
            row = [both.name, comparisons.other.source]
            if isinstance(answer, NotCompared):
                rows.append([*row, "-", "-", "-", "-", answer.reason])
                continue
            for change in (answer.median, answer.tail):
                row += [str(change.change), value_text(change.ratio.estimate)]
            row.append(value_text(answer.tail.percentile))
            if answer.misses is not None:
                row += [str(answer.misses.change), value_text(answer.misses.ratio.estimate)]
            rows.append(row)
    header = ["configuration", "B", "median", "median B / A", "tail", "tail B / A", "percentile"]
    if any(len(row) > len(header) for row in rows):
        header += ["misses", "misses B / A"]
    return header, [row + [""] * (len(header) - len(row)) for row in rows]


def comparison_text(comparison: Comparison, a_name: str = "A", b_name: str = "B") -> str:
    """Several lines: the two results, ratios, reasons, other differences, and what to record."""
    side_a = "A" if a_name == "A" else f"A ({a_name})"
    side_b = "B" if b_name == "B" else f"B ({b_name})"
    a = comparison.a
    b = comparison.b
    misses = comparison.misses
    lines = [
        f"{results(comparison)}: {side_b} compared with {side_a}",
        _ratios(comparison),
        f"  {count(a.rounds, 'process')} of A, n = {a.n};"
        f" {count(b.rounds, 'process')} of B, n = {b.n}",
        *(f"  {reason}" for reason in comparison.reasons),
    ]
    if misses is not None:
        lines.append(
            f"  miss rate: {_middle(misses.a, percent)} in A, {_middle(misses.b, percent)} in B"
        )
    if comparison.differences:
        lines.append("other differences, which may be the cause:")
        lines += [f"  {difference}" for difference in comparison.differences]
    return "\n".join(lines + _rounds_to_record(comparison))


def results(comparison: Comparison) -> str:
    """`median SLOWER, tail AMBIGUOUS`, and if they were compared the misses."""
    text = f"median {comparison.median.change}, tail {comparison.tail.change}"
    if comparison.misses is not None:
        text += f", misses {comparison.misses.change}"
    return text


def _ratios(comparison: Comparison) -> str:
    rows = []
    for change in (comparison.median, comparison.tail):
        if change.percentile is not None:
            name = "median" if change.percentile == 50 else f"p{change.percentile:g}"
            rows.append(
                (name, _middle(change.a_us), _middle(change.b_us), f"{change.ratio.estimate:.3f}")
            )
    rows.append(("max", microseconds(comparison.a.max_us), microseconds(comparison.b.max_us), ""))
    return table(("us", "A", "B", "B / A"), rows, right=("A", "B"), indent=2)


def _middle(values: Sequence[float], text: Callable[[float], str] = microseconds) -> str:
    """The middle one of the processes, and the range of several."""
    middle = text(statistics.median_low(values))
    return middle if len(values) == 1 else f"{middle} ({text(min(values))} to {text(max(values))})"


def _rounds_to_record(comparison: Comparison) -> list[str]:
    needed = comparison.rounds_needed
    if comparison.command is not None:
        why = "to decide it" if needed else "to rule out that the machine changed in between"
        lines = [f"  {line}" for line in comparison.command.splitlines()]
        return [f"{why}, record new rounds and compare those:", *lines]
    if needed:
        return [
            f"to decide it, record at least {needed} processes per side, alternating, with the"
            " number of the process in a column `round`, or a file for each and --one-group"
        ]
    if comparison.tail.percentile is None:
        return ["to decide the tail, record more trials in each process"]
    return []
