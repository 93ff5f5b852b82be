"""Numbers and tables as text: one formatter per unit, and the text table.

Used by command output, messages and figures, so that a value is rounded the same way everywhere.
Values that are not finite are shown as `?`. All is plain ASCII (`us`). While a command prints to a
terminal, `WIDTH` is set; otherwise tables are as wide as their cells need.
"""

import math
import os
import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from lstm_trt.config.errors import printable

#: Width of the terminal that is printed to, in characters; None if it is none.
WIDTH: ContextVar[int | None] = ContextVar("WIDTH", default=None)

#: A terminal of fewer columns gets what a pipe gets.
LEAST_COLUMNS = 40

#: File formats of figures.
FIGURE_FORMATS = ("png", "svg", "pdf")

#: How `textwrap` breaks lines at spaces only.
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}

#: Escape sequences of colours in a terminal.
_COLOUR = re.compile("\033\\[[0-9]*m")

#: A number, size or id: `12.5`, `2x64-s64-b1`, `0a1b2c3d`.
_WITH_DIGIT = re.compile(r"[\w.-]*\d[\w.-]*")

#: A number as CSV and JSON have it: decimal, in ASCII, without separators.
_NUMBER = re.compile(r"(?ai)\s*[+-]?(\d+(\.\d*)?|\.\d+|inf|infinity|nan)(e[+-]?\d+)?\s*")

#: How a text begins that a spreadsheet computes.
_COMPUTED = re.compile(r"[=+\-@\t\n].")

#: Minimum width in characters of a wrapped column.
LEAST_WIDTH = 6

#: Maximum number of names in one message; the others are counted.
MOST_LISTED = 20

#: What Markdown could take as markup.
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~#]")

#: A cell of a right-aligned column: a number with an optional mark or unit, `-`, `?`, or empty.
NUMBER = re.compile(r"([-+]?\d+(\.\d+)?(e[-+]?\d+)?[*x×%]?( (us|ms|s|min|MB|%))?)?|[-?]")


def terminal_width(file: Any) -> int | None:
    """Columns of the terminal to which `file` writes; None for a pipe, for None, and for a terminal
    used like a pipe.

    That is one with fewer than `LEAST_COLUMNS`, or without control sequences (TERM=dumb): it gets
    whole lines without colours or progress.
    """
    if file is None or not file.isatty() or os.environ.get("TERM") == "dumb":
        return None
    columns = shutil.get_terminal_size().columns
    return columns if columns >= LEAST_COLUMNS else None


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, and never fewer than the integer part: 1.23, 12.3, 123, 12345,
    1.00."""
    if value is None or not math.isfinite(value):
        return "?"
    decimals = max(0, digits - 1 - _exponent(value, digits))
    return f"{value:.{decimals}f}"


def decimal(text: str) -> str:
    """The text of a decimal number; raises `ValueError` for others: 0x64, 1_100, digits that are
    not ASCII."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a decimal number")
    return text


def csv_text(frame: Any) -> str:
    """A DataFrame as CSV; texts that a spreadsheet would compute have an apostrophe before them."""
    return frame.rename(columns=_not_computed).map(_not_computed).to_csv(index=False)


def _not_computed(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", "\n")  # which pandas puts in quotes
    return f"'{text}" if _COMPUTED.match(text) and not _NUMBER.fullmatch(text) else text


def short_number(value: float, digits: int = 10) -> str:
    """At most `digits` digits, without trailing zeros: 99.9, 1000, 0.5. For values that a user
    chose."""
    if 1e-4 <= abs(value) < 10.0**digits:
        return without_zeros(f"{value:.{digits}f}")
    return f"{value:.{digits}g}"


def microseconds(value_us: float | None) -> str:
    """A latency without its unit, for a column in us: two decimals below 10 us, none from 10 000
    us, `-` for None."""
    if value_us is None:
        return "-"
    decimals = 2 if abs(value_us) < 9.995 else 1 if value_us < 10_000 else 0
    return f"{value_us:z.{decimals}f}"


def latency(value_us: float, digits: int = 4) -> str:
    """A time given in microseconds, in a suitable unit: 84.12 us, 1.235 ms, 2 s."""
    scaled, unit = in_unit(value_us, {"s": 1e6, "ms": 1e3, "us": 1})
    return f"{scaled:.{digits}g} {unit}"


def duration(seconds: float) -> str:
    """A duration in whole seconds: 8 s, 1 min 15 s, 2 h 05 min; 0 s for negative values."""
    whole = max(0, round(seconds))
    hours = whole // 3600
    minutes = whole // 60 % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def in_unit(value: float, units: Mapping[str, float]) -> tuple[float, str]:
    """The value in the first of the units, each with its size, that it reaches, or in the last; and
    that unit."""
    reached = [unit for unit, size in units.items() if value >= size]
    unit = reached[0] if reached else list(units)[-1]
    return value / units[unit], unit


def percent(share: float | None) -> str:
    """A share as percentage, one decimal above 1 %, two significant digits below: 12.3 %, 2.0 %,
    0.30 %, 0.0033 %."""
    return f"{percent_number(share)} %"


def percent_number(share: float | None) -> str:
    """As `percent`, without the sign: for the first of two bounds, or a column with the sign in its
    heading."""
    if share is None or not math.isfinite(share):
        return "?"
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}"
    return f"{value:.{1 - _exponent(value, 2)}f}" if abs(value) >= 1e-6 else f"{value:.1e}"


def count(number: int, noun: str) -> str:
    """`1 trial`, `12 trials`, `no trials`, `2 misses`."""
    if number != 1:
        noun += "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number if number else 'no'} {noun}"


def bytes_text(size: int) -> str:
    """Decimal units, three significant digits: 512 B, 4.10 kB, 1.21 MB, 4.40 GB."""
    scaled, unit = in_unit(size, {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1})
    return f"{number(scaled, 1 if unit == 'B' else 3)} {unit}"


def listed(items: Iterable[object], most: int = MOST_LISTED, comma: str = ", ") -> str:
    """`a, b, c`; beyond `most` items the others are counted; `none` if empty."""
    texts = list(map(str, items))
    if not texts:
        return "none"
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return comma.join(texts[:most]) + more


def warning_lines(warnings: Iterable[str]) -> list[str]:
    """A line per kind of warning: of those that differ only in numbers, sizes and ids, the first,
    and their number."""
    kinds: dict[str, list[str]] = {}
    for warning in warnings:
        kinds.setdefault(_WITH_DIGIT.sub("", warning), []).append(warning)
    lines = []
    for first, *others in kinds.values():
        more = f" ({len(others)} more of this kind)" if others else ""
        lines.append(f"warning: {first}{more}")
    return lines


def wrapped(text: str, width: int) -> str:
    """The text with its lines broken at words, to at most `width` characters; a longer word is kept
    whole.

    Continuation lines are indented, up to the first gap of two spaces if the line has one after its
    first word. The lines of a command end with a backslash, so that it can be copied.
    """
    lines = []
    for line in text.split("\n"):
        fits = len(_COLOUR.sub("", line)) <= width
        lines.append(line if fits else _wrapped_line(line, width))
    return "\n".join(lines)


def _wrapped_line(line: str, width: int) -> str:
    # Where a line may not be broken, a NUL stands for the space.
    end = "\n"
    if line.lstrip().startswith("lstm-trt "):  # breaks before its options only
        end = " \\\n"
        width -= 2
        line = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace(" ", "\0"), line)
        line = re.sub(r"(?<=\S) (?!-)", "\0", line)
    line = re.sub(r"(?<=\d) (?=%|(us|ms|s)\b)", "\0", line)
    indent = len(line) - len(line.lstrip())
    gap = re.match(r" *\S+ {2,}", line)
    hanging = gap.end() if gap and gap.end() <= width // 2 else indent + 2
    parts = textwrap.wrap(
        line.lstrip(),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * hanging,
        **WHOLE_WORDS,
    )
    return end.join(parts).replace("\0", " ")


def table_lines(
    header: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[str] = (),
    right: Collection[str] = (),
    width: int | None = None,
    wrap: bool = False,
    indent: int = 0,
) -> list[str]:
    """The header (if any) and the rows as aligned text, one string each.

    Columns of numbers are aligned to the right, others to the left, unless `left` or `right` names
    the column. A `*` after a number does not move it. If a row has fewer cells than the header, its
    last cell is free text, such as the reason of a failure, and does not count for the column
    widths.

    With `wrap` the last column is wrapped onto several lines, of at most `width` characters
    (default: `WIDTH`).
    """
    width = width or WIDTH.get()
    headings = [header] if header else []
    lines = [list(map(printable, row)) for row in (*headings, *rows)]
    names = header or [""] * max(map(len, rows), default=0)
    size = len(names)
    start = indent
    for place in range(size):
        column = [line for line in lines if place < cells_in_columns(line, size)]
        cells = [line[place] for line in column]
        if wrap and width and place == size - 1:
            cells = [_wrapped_cell(cell, start, width) for cell in cells]
        else:
            name = names[place]
            are_numbers = all(map(NUMBER.fullmatch, cells[len(headings) :]))
            cells = _aligned(cells, name in right or (are_numbers and name not in left))
        for line, cell in zip(column, cells, strict=True):
            line[place] = cell
        start += max(map(len, cells), default=0) + 2
    return [(" " * indent + "  ".join(line)).rstrip() for line in lines]


def cells_in_columns(row: Sequence[str], size: int) -> int:
    """The cells of a row that are in columns: the last one of fewer than `size` is free text."""
    return size if len(row) == size else len(row) - 1


def _aligned(cells: Sequence[str], to_right: bool) -> list[str]:
    """The cells of a column in one width; the digits of numbers with and without `*` line up."""
    if to_right and any(cell.endswith("*") for cell in cells):
        cells = [cell if cell.endswith("*") else f"{cell} " for cell in cells]
    widest = max(map(len, cells), default=0)
    return [cell.rjust(widest) if to_right else cell.ljust(widest) for cell in cells]


def _wrapped_cell(cell: str, start: int, width: int) -> str:
    """A cell that begins at the character `start` of a line, on lines of up to `width`."""
    parts = textwrap.wrap(cell, max(LEAST_WIDTH, width - start), break_on_hyphens=False)
    return f"\n{' ' * start}".join(parts)


def value_text(value: object) -> str:
    """A value as it stands in a table: `-` if there is none, a float with four digits unless it is
    whole."""
    if not isinstance(value, float):
        return "-" if str(value) in ("None", "<NA>") else str(value)
    if math.isnan(value):
        return "-"
    return short_number(value) if value.is_integer() else number(value, 4)


def frame_cells(frame: Any) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a DataFrame as text."""
    names = [str(name).replace("_", " ") for name in frame.columns]
    return names, [list(map(value_text, row)) for row in frame.itertuples(False)]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    shown = [list(map(escaped, row)) for row in (header, *rows)]
    shown.insert(1, ["---"] * len(header))
    return "".join(f"| {' | '.join(row)} |\n" for row in shown)


def escaped(text: str) -> str:
    """A text that Markdown shows as it stands, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", printable(text))


def _exponent(value: float, digits: int) -> int:
    """Decimal exponent after rounding to `digits`: 1 for 9.996 with three digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def without_zeros(text: str) -> str:
    """A decimal number without zeros at the end of its decimals."""
    return text.rstrip("0").rstrip(".") if "." in text else text
