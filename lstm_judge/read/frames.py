"""Frames for people: columns of numbers, and the table that Jupyter shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from lstm_trt.config.format import count, value_text
from lstm_trt.config.libraries import pd

#: Most rows and columns of a table in Jupyter.
MOST_ROWS = 20
MOST_COLUMNS = 8

#: Letters of a cell that stays on one line; a column with longer ones is text, which begins at the
#: left.
LONGEST_LINE = 40

#: What `value_text` says where there is no value.
NO_VALUE = "-"


def numeric(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame without `object` columns of numbers: NaN if not known, `<NA>` of integers.

    A column without any value is a column of NaN.
    """
    kinds = {"integer": "Int64", "boolean": "boolean", "empty": "float64"}
    kinds |= dict.fromkeys(("floating", "mixed-integer-float", "decimal"), "float64")
    types = {}
    for name, column in frame.items():
        kind = pd.api.types.infer_dtype(column, skipna=True)
        if column.dtype == object and kind in kinds:
            types[name] = kinds[kind]
    return frame.astype(types)


def html_table(lines: Iterable[str], frame: pd.DataFrame, least: Sequence[str] = ()) -> str:
    """Lines of text, escaped, above the first `MOST_ROWS` rows of a table; HTML.

    Numbers have four digits. Columns without any value are left out; of more than `MOST_COLUMNS`
    those with one value in all rows are a line of text, and then the `least` important are only
    named, the first one first. A single row with more than that is a line for each value.
    """
    table = frame.map(value_text)
    table = table.loc[:, ~table.isin(("", NO_VALUE)).all()]
    same = table.nunique() == 1
    said = list(lines)
    if len(table) > 1 and len(table.columns) > MOST_COLUMNS:
        values = (f"{name} {value}" for name, value in table.loc[:, same].iloc[0].items())
        said.append(f"the same in all rows: {', '.join(values)}")
        table = table.loc[:, ~same]
        beyond = max(0, len(table.columns) - MOST_COLUMNS)
        left_out = [name for name in least if name in table][:beyond]
        if left_out:
            said.append(f"not shown: {', '.join(left_out)}")
            table = table.drop(columns=left_out)
    rows = table.head(MOST_ROWS)
    if len(rows) == 1 and len(rows.columns) > MOST_COLUMNS:
        rows = rows.T.reset_index().set_axis(["column", "value"], axis=1)
    line, text = map(_styled, ("white-space: nowrap", "text-align: left"))
    shown = {}
    for name, column in rows.items():
        heading, cell = (text, text) if column.map(len).max() > LONGEST_LINE else (escape, line)
        shown[heading(str(name).replace("_", " "))] = column.map(cell)
    with pd.option_context("display.max_colwidth", None):
        html = pd.DataFrame(shown).to_html(index=False, border=0, escape=False)
    if len(table) > MOST_ROWS:
        html += f"\n<p>... {count(len(table) - MOST_ROWS, 'more row')}</p>"
    return f"<p>{'<br>'.join(map(escape, said))}</p>\n{html}"


def _styled(style: str) -> Callable[[str], str]:
    return lambda text: f'<div style="{style}">{escape(text)}</div>'
