"""Tables in `data/measured/`, and those of pages that show some of their rows and columns.

In a page a comment above a table names a file, the rows if not all are shown, and a column for each one of the table:
`<!-- data/measured/a.csv, trials 5000: misses, met_percent -->`. The head of the table is the page's own.
`.venv/bin/python -m tests.support.measured` writes the rows again.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data/measured"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: The comment and the head of a table; then its rows.
TABLE = re.compile(
    r"(<!-- (?P<file>data/measured/\S+\.csv)(?:, (?P<column>\w+) (?P<value>.+?))?: (?P<shown>.+) -->\n\n?\|.*\n\|.*\n)"
    r"(?:\|.*\n)*"
)


def print_rows(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as CSV, each as soon as it is there."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if number == 0:
            writer.writerow(row)
        writer.writerow(row.values())
        sys.stdout.flush()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table_of(match: re.Match[str]) -> str:
    """The table that a comment asks for."""
    rows = read(ROOT / match["file"])
    if match["column"]:
        rows = [row for row in rows if row[match["column"]] == match["value"]]
    shown = match["shown"].split(", ")
    lines = [f"| {' | '.join(row[name] or '-' for name in shown)} |\n" for row in rows]
    return match[1] + "".join(lines)


def with_tables(text: str) -> str:
    """A page with the rows that the files have."""
    return TABLE.sub(table_of, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
