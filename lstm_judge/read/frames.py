"""Frames for people: columns of numbers, and the table that Jupyter shows."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from lstm_trt.config.format import count, value_text
from lstm_trt.config.libraries import pd

#: Most rows and columns of a table in Jupyter.
MOST_ROWS = 20
MOST_COLUMNS = 16

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


def html_table(lines: Iterable[str], frame: pd.DataFrame) -> str:
    """Lines of text, escaped, above the first `MOST_ROWS` rows of a table; HTML.

    Numbers have four digits. Columns without any value are left out; of more than `MOST_COLUMNS`
    those with one value in all rows are a line of text.
    """
    table = frame.map(value_text)
    table = table.loc[:, ~table.isin(("", NO_VALUE)).all()]
    same = table.nunique() == 1
    said = list(lines)
    if len(table) > 1 and len(table.columns) > MOST_COLUMNS:
        values = (f"{name} {value}" for name, value in table.loc[:, same].iloc[0].items())
        said.append(f"the same in all rows: {', '.join(values)}")
        table = table.loc[:, ~same]
    with pd.option_context("display.max_colwidth", None):
        shown = table.head(MOST_ROWS).to_html(index=False, border=0)
    if len(table) > MOST_ROWS:
        shown += f"\n<p>... {count(len(table) - MOST_ROWS, 'more row')}</p>"
    return f"<p>{'<br>'.join(map(escape, said))}</p>\n{shown}"
