"""Tables from elsewhere as columns: CSV, Parquet, JSON (trexec's `--exportTimes`), one number a line.

Files are read whole by pyarrow, a million rows within a second. What it cannot read, and what
holds a cell that is no time, is read again cell by cell (`times_tables.py`), to accept it
(spaces, thousands, blank rows) or to name its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from lstm_trt.errors import UsageError, first_line
from lstm_trt.samples_cells import LONGEST_NUMBER, Table
from lstm_trt.samples_names import find_times, split_unit
from lstm_trt.times_tables import BLANKS, csv_columns, foreign_parquet, separator_of

#: Beyond this a text is no name of a column.
LONGEST_NAME = 200
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


def read_table(path: Path) -> Table | None:
    """The columns of a file from elsewhere; None where it is a recording of this lab.

    Raises `UsageError` in one line for what cannot be read.
    """
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    try:
        with path.open("rb") as file:
            start = file.read(4)
            parquet = start == b"PAR1" or path.suffix.lower() in (".parquet", ".pq")
            content = None if parquet else start + file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    if content is None:
        table = foreign_parquet(path)
        return None if table is None else _of_arrow(str(path), table.column_names, table.columns)
    if not content.strip():
        raise UsageError(f"{path} is empty")
    if b"\0" in content[:65536]:
        raise UsageError(f"{path} is no text, Parquet or JSON file: save the table as CSV (UTF-8)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8: save the table as CSV (UTF-8)") from None
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl") or (text.lstrip()[0] in "[{" and suffix not in (".csv", ".tsv")):
        return _of_json(path, text)
    return _of_text(path, text)


def _of_arrow(where: str, names: Sequence[str], columns: Sequence, **more) -> Table:
    """A table of the columns that have a name; the first of those with the same one."""
    if any(len(str(name)) > LONGEST_NAME for name in names):
        raise UsageError(
            f"{where}: its first line holds no names of columns, but text of {max(map(len, names))} letters"
        )
    found: dict[str, pa.Array] = {}
    repeated = set()
    for name, column in zip((" ".join(str(name).split()) for name in names), columns, strict=True):
        if not name:
            continue
        if name in found:
            repeated.add(name)
            continue
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        found[name] = whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole
    table = Table(where, found, frozenset(repeated), **more)
    if not table.rows:
        raise UsageError(f"{where} has no rows")
    return table


def _of_json(path: Path, text: str) -> Table:
    """A list of objects, an object a line, an object of lists, or a list of numbers."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise UsageError(f"{path} is not JSON: {first_line(error)}") from None
    if isinstance(value, dict):
        lists = {name: cells for name, cells in value.items() if isinstance(cells, list) and cells}
        if len({len(cells) for cells in lists.values()}) != 1:
            raise UsageError(f"{path} is JSON, but no list of objects with a time each (as of trtexec --exportTimes)")
        return _of_arrow(str(path), list(lists), [_typed(cells) for cells in lists.values()])
    if not isinstance(value, list) or not value:
        raise UsageError(f"{path} is JSON, but no list of objects with a time each (as of trtexec --exportTimes)")
    if not any(isinstance(one, dict) for one in value):
        return Table(str(path), {"": _typed(value)}, named=False, raw={"": value})
    wrong = next((place for place, one in enumerate(value) if not isinstance(one, dict)), None)
    if wrong is not None:
        raise UsageError(f"{path}, row {wrong + 1}: {str(value[wrong])[:40]!r} among objects: give each row its names")
    names = list(dict.fromkeys(name for one in value for name in one))
    raw = {name: [one.get(name) for one in value] for name in names}
    return _of_arrow(str(path), names, [_typed(cells) for cells in raw.values()], raw=raw)


def _of_text(path: Path, text: str) -> Table:
    """One number a line, or CSV; lines that begin with # before the rest are comments."""
    comments, place = [], 0
    for line in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n|$)", text):
        if line[0].strip() and not line[0].lstrip().startswith("#"):
            place = line.start()
            first = line[0].strip()
            break
        comments.append(line[0].strip().lstrip("#").strip())
        if line.end() >= len(text):
            raise UsageError(f"{path} holds comments and no numbers")
    if not first.isprintable() and "\t" not in first:
        raise UsageError(f"{path} is no text, Parquet or JSON file: save the table as CSV (UTF-8)")
    if _is_number(first.partition("#")[0]):
        return _of_lines(path, text, comments)
    separator = separator_of(first)
    cells = [cell.strip() for cell in first.split(separator)]
    if all(_is_number(cell) for cell in cells if cell) or all(_is_number(cell) for cell in first.split()):
        raise UsageError(
            f"{path} begins with {first[:40]!r}: its first line must hold the names of the columns, or the file one"
            " number a line"
        )

    def again() -> Table:
        # As many line ends as before, so that lines keep their numbers.
        columns, lines = csv_columns("\n" * len(text[:place].splitlines()) + text[place:], path)
        named = [name.strip() for name in columns]  # a second column of one name has a space behind its name
        return _of_arrow(str(path), named, [_typed(cells) for cells in columns.values()], lines=lines, raw=columns)

    if separator not in first and len(first.split()) > 1:
        rest = text[place:].splitlines()
        if len(rest) > 1 and len(rest[1].split()) == len(first.split()):
            raise UsageError(f"{path} separates its columns by spaces: save the table as CSV, with commas")
    # Spreadsheets leave rows of separators below a table.
    stop = text.find("\n", len(text.rstrip(f"{separator} \t\r\n")))
    return _fast(path, text[place : stop + 1 if stop >= 0 else None], separator, again) or again()


def _fast(path: Path, text: str, separator: str, again: Callable[[], Table]) -> Table | None:
    """The table as pyarrow reads it, None where it cannot."""
    from pyarrow import csv

    content = text.encode()
    try:
        found = csv.read_csv(
            pa.BufferReader(content),
            # One block: types are told from the whole file, not from its beginning.
            read_options=csv.ReadOptions(block_size=min(len(content) + 1, 2**30)),
            parse_options=csv.ParseOptions(delimiter=separator),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except pa.ArrowException:
        return None
    if not found.num_rows:
        return None
    return _of_arrow(str(path), found.column_names, found.columns, again=again)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_lines(path: Path, text: str, comments: Sequence[str]) -> Table:
    """One number a line; what follows a # is a comment."""
    every = text.splitlines()
    if "#" in text:
        every = [line.partition("#")[0] for line in every]
    lines = [place for place, line in enumerate(every, 1) if line.strip()]
    cells = [every[place - 1].strip() for place in lines]
    header = comments[-1] if comments else ""
    # numpy.savetxt writes the header "# latency_us"; "# deadline 10 ms" says nothing of the column.
    unit = split_unit(header)[1] if header and find_times([header]) == [header] and len(header.split()) < 3 else None
    try:
        # An array of text is as wide as its longest cell.
        values = np.array(cells).astype(np.float64) if max(map(len, cells)) <= LONGEST_NUMBER else cells
    except ValueError:
        values = cells  # told by line when it is read
    return Table(str(path), {"": pa.array(values)}, lines=lines, named=False, unit=unit, raw={"": cells})


def _typed(cells: Sequence) -> pa.Array:
    """Cells of JSON or CSV as whole numbers, numbers, truths, or text."""
    plain = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    plain = [None if isinstance(cell, str) and cell.casefold() in BLANKS else cell for cell in plain]
    texts = [cell for cell in plain if isinstance(cell, str)]
    if texts:
        if all(text.casefold() in _TRUTHS for text in texts) and len(texts) + plain.count(None) == len(plain):
            return pa.array([None if cell is None else _TRUTHS[cell.casefold()] for cell in plain])
        for kind in (int, float):
            try:
                return pa.array([None if cell is None else kind(cell) for cell in plain])
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                continue
    try:
        return pa.array(plain)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in plain])
