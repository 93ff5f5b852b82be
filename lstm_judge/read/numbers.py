"""Numbers and tables of judgements as text: ratios, changes, errors, and bounds, which are rounded
to the safe side.

`lstm_trt/config/format.py` has what measurements are shown in.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lstm_trt.config.format import WIDTH, cells_in_columns, in_unit, table_lines, without_zeros


def multiple(ratio: float, sign: str = "x") -> str:
    """A ratio: 1x, 1.004x, 1.13x, 9.98x, 12.3x, 134x."""
    if not math.isfinite(ratio):
        return "?"
    if ratio == 1:
        return f"1{sign}"
    decimals = 3 if abs(ratio - 1) < 0.01 else 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{ratio:.{decimals}f}{sign}"


def rate(period_us: float) -> str:
    """The frequency of a period in microseconds: 1000 -> 1 kHz."""
    scaled, unit = in_unit(1e6 / period_us, {"MHz": 1e6, "kHz": 1e3, "Hz": 1})
    return f"{scaled:.4g} {unit}"


def signed_percent(share: float) -> str:
    """A relative difference: +3.0 %, -12.4 %."""
    return f"{100 * share:+.1f} %"


def scientific(value: float) -> str:
    """Two digits and a power of ten: 2.5e-03; 0 is written as such."""
    return f"{value:.1e}" if value else "0"


def percent_at_most(share: float | None) -> str:
    """An upper bound, rounded up to three significant digits."""
    return _bound(share, math.ceil)


def percent_at_least(share: float | None) -> str:
    """A lower bound, rounded down to three significant digits."""
    return _bound(share, math.floor)


def _bound(share: float | None, rounded: Callable[[float], int]) -> str:
    if not share:
        return "-" if share is None else "0 %"
    digits = max(0, 2 - math.floor(math.log10(100 * share)))
    scale = 10.0**digits
    return f"{without_zeros(f'{rounded(100 * share * scale) / scale:.{digits}f}')} %"


def percent_certified(percentage: float | None) -> str:
    """A percentage near 100 without its sign, rounded down to two digits of its distance to 100:
    99.7009 -> 99.7."""
    if percentage is None or percentage <= 0:
        return "0" if percentage is not None else "-"
    missing = 100 - percentage
    if missing <= 0:
        return "100"
    digits = max(0, 1 - math.floor(math.log10(missing)))
    scale = 10**digits
    # Add a little before rounding down: 99.9 in floating point is slightly below 99.9.
    return without_zeros(f"{math.floor(percentage * scale + 1e-9) / scale:.{digits}f}")


def table(
    header: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    *,
    drop: Sequence[str] = (),
    **layout: Any,
) -> str:
    """Aligned columns with two spaces between them, one line per row; other arguments as in
    `table_lines`.

    If a terminal is narrower than the table, the columns `drop` are left out, the first one first,
    as many as necessary; a line at the end names them.
    """
    names = list(header or ())
    lines = table_lines(names, rows, **layout)
    dropped = []
    for name in drop:
        if _widest(names, rows, lines) <= (WIDTH.get() or sys.maxsize):
            break
        rows = [_without_cell(row, names.index(name), len(names)) for row in rows]
        names.remove(name)
        dropped.append(name)
        lines = table_lines(names, rows, **layout)
    if dropped:
        lines.append(
            f"columns not shown: {', '.join(dropped)}; a wider terminal or --format json shows them"
        )
    return "\n".join(lines)


def _widest(header: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> int:
    """Characters of the longest line; those that end in free text do not count."""
    sizes = zip(lines, [header, *rows], strict=True)
    return max(len(line) for line, row in sizes if len(row) == len(header))


def _without_cell(row: Sequence[str], place: int, size: int) -> Sequence[str]:
    """A row of a table of `size` columns without one of them."""
    in_row = place < cells_in_columns(row, size)
    return [*row[:place], *row[place + 1 :]] if in_row else row
