"""Frames for people: columns of numbers, and the table that Jupyter shows."""

from collections.abc import Iterable
from html import escape

from lstm_trt.config.format import count, value_text
from lstm_trt.config.libraries import pd

#: Most rows of a table in Jupyter.
MOST_ROWS = 20

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

    Numbers have four digits, and columns without any value are left out.
    """
    above = "<br>".join(map(escape, lines))
    shown = frame.head(MOST_ROWS).map(value_text)
    shown = shown.loc[:, ~shown.isin(("", NO_VALUE)).all()]
    with pd.option_context("display.max_colwidth", None):
        table = shown.to_html(index=False, border=0)
    if len(frame) > MOST_ROWS:
        table += f"\n<p>... {count(len(frame) - MOST_ROWS, 'more row')}</p>"
    return f"<p>{above}</p>\n{table}"
