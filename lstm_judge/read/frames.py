"""Frames for people: columns of numbers, and the table that Jupyter shows."""

from collections.abc import Iterable
from html import escape

from lstm_trt.config.libraries import pd


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
    """Lines of text, escaped, above a table; HTML."""
    above = "<br>".join(map(escape, lines))
    return f"<p>{above}</p>\n{frame.to_html(index=False, na_rep='')}"
