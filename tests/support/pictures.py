"""Reads figures back from their artists: text, lines by their look, cells of a map, rows of a table."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def text_of(figure) -> str:
    """All texts of a figure, one per line."""
    return "\n".join(text.get_text().replace("\n", " ") for text in figure.findobj(Text) if text.get_visible())


def lines(figure, **look) -> list[Line2D]:
    """Lines in the axes with this look: names of matplotlib's getters, such as `color`, `marker`, `label`."""
    axes = [figure] if isinstance(figure, Axes) else figure.axes
    found = [line for ax in axes for line in ax.lines]
    return [line for line in found if all(getattr(line, f"get_{name}")() == value for name, value in look.items())]


def labelled(figure, start: str) -> list[Line2D]:
    """Lines whose label starts with this."""
    return [line for line in lines(figure) if str(line.get_label()).startswith(start)]


def only(found: list):
    assert len(found) == 1, found
    return found[0]


def deadlines(figure) -> list[Line2D]:
    """Black dashed lines."""
    return [line for line in lines(figure, color="black") if line.is_dashed()]


def shaded(figure, label: str) -> list[Rectangle]:
    """Spans that have the colour of the span with this label."""
    patches = [patch for ax in figure.axes for patch in ax.patches]
    colors = [patch.get_facecolor() for patch in patches if patch.get_label() == label]
    return [patch for patch in patches if patch.get_facecolor() in colors]


def cells(ax: Axes) -> dict[tuple[int, int], tuple[Text | None, Rectangle]]:
    """(size on x, size on y) -> text and patch of a cell of a heat map."""
    columns, rows = ([int(axis.get_major_formatter()(tick)) for tick in axis.get_majorticklocs()]
                     for axis in (ax.xaxis, ax.yaxis))  # fmt: skip
    texts = {tuple(int(place) for place in text.get_position()): text for text in ax.texts}
    patches = {patch.get_xy(): patch for patch in ax.patches}
    return {
        (column, row): (texts.get((i, j)), patches[i, j])
        for i, column in enumerate(columns)
        for j, row in enumerate(rows)
    }


def table_texts(figure) -> list[tuple[Text, Text]]:
    """Rows of the small table of a page, from the top: the texts of name and value."""
    parts, found = list(figure.subfigs), []
    while parts:
        part = parts.pop(0)
        parts += part.subfigs
        levels: dict[float, list[Text]] = {}
        for text in part.texts:
            levels.setdefault(text.get_position()[1], []).append(text)
        found += [tuple(pair) for pair in levels.values() if len(pair) == 2 and pair[1].get_ha() == "right"]
    return found


def table_rows(figure) -> list[tuple[str, str]]:
    """Rows of the small table of a page: (name, value)."""
    return [(name.get_text(), value.get_text()) for name, value in table_texts(figure)]


def png_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels; fails if the PNG is not complete."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


def assert_nothing_is_cut_off(figure) -> None:
    """All text and axes are within the sheet and below the notes, and no text is too small."""
    figure.draw_without_rendering()
    sheet = figure.bbox.padded(1)
    title, *notes = sorted(
        (text.get_window_extent() for text in figure.subfigs[0].texts if text.get_text()), key=lambda box: -box.y1
    )
    assert all(box.y1 <= title.y0 for box in notes)
    top = min(box.y0 for box in (title, *notes))
    parts = list(figure.subfigs)
    while parts:
        part = parts.pop()
        parts += part.subfigs
        for artist in [*part.texts, *part.legends]:
            box = artist.get_window_extent()
            assert sheet.contains(box.x0, box.y0) and sheet.contains(box.x1, box.y1), artist
    for ax in figure.axes:
        if ax.get_visible():
            box = ax.get_tightbbox()
            assert box.y1 <= top + 1
            assert sheet.contains(box.x0, box.y0) and sheet.contains(box.x1, box.y1), ax.get_xlabel()
    assert all(text.get_size() >= 8 for text in figure.findobj(Text) if text.get_text())


def shown_texts(figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its box in pixels: titles, notes, labels of axes and ticks, legends, cells."""
    figure.draw_without_rendering()
    parts, texts = [figure], []
    while parts:
        part = parts.pop()
        if isinstance(part, Text):
            texts.append(part)
        elif isinstance(part, Axis):
            ticks = part._update_ticks()  # those within the limits
            texts += [part.label, part.offsetText, *(label for tick in ticks for label in (tick.label1, tick.label2))]
        elif part.get_visible():
            parts += part.get_children()
    shown = [text for text in texts if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in shown]


def assert_readable(figure) -> None:
    """No text is cut off at the edge of the figure, and no two texts overlap by more than two pixels."""
    texts = shown_texts(figure)
    edges = np.array([box.extents for _, box in texts])
    sheet = figure.bbox.padded(1)
    outside = [name for name, box in texts if not (sheet.contains(*box.min) and sheet.contains(*box.max))]
    assert not outside, f"cut off: {outside}"
    assert all(text.get_size() >= 8 for text in figure.findobj(Text) if text.get_text())
    low, high = np.maximum(edges[:, None, :2], edges[None, :, :2]), np.minimum(edges[:, None, 2:], edges[None, :, 2:])
    pairs = np.argwhere(np.triu((high - low > 2).all(axis=2), 1))
    assert not len(pairs), f"{len(pairs)} overlap: {[(texts[i][0], texts[j][0]) for i, j in pairs[:5]]}"
