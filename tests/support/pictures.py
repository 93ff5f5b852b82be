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
    (mesh,) = ax.collections
    areas = mesh.get_array()
    hatches = {patch.get_xy(): patch.get_hatch() for patch in ax.patches}
    found = {}
    for i, column in enumerate(columns):
        for j, row in enumerate(rows):
            patch = Rectangle((i, j), 1, 1, facecolor=areas[j, i], hatch=hatches.get((i, j)))
            found[column, row] = texts.get((i, j)), patch
    return found


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


def draw_once(figure) -> None:
    """Lay the figure out, which takes long, unless that has been done."""
    if not getattr(figure, "laid_out", False):
        figure.draw_without_rendering()
        figure.laid_out = True


def assert_nothing_is_cut_off(figure) -> None:
    """All text and axes are within the sheet and below the notes, and no text is too small."""
    draw_once(figure)
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
    draw_once(figure)
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
    """No text is cut off at the edge, overlaps another by more than two pixels, or covers data; panels are large."""
    assert_nothing_is_covered(figure)
    assert_panels_are_large(figure)
    texts = shown_texts(figure)
    edges = np.array([box.extents for _, box in texts])
    sheet = figure.bbox.padded(1)
    outside = [name for name, box in texts if not (sheet.contains(*box.min) and sheet.contains(*box.max))]
    assert not outside, f"cut off: {outside}"
    assert all(text.get_size() >= 8 for text in figure.findobj(Text) if text.get_text())
    low, high = np.maximum(edges[:, None, :2], edges[None, :, :2]), np.minimum(edges[:, None, 2:], edges[None, :, 2:])
    pairs = np.argwhere(np.triu((high - low > 2).all(axis=2), 1))
    assert not len(pairs), f"{len(pairs)} overlap: {[(texts[i][0], texts[j][0]) for i, j in pairs[:5]]}"


def drawn_points(ax: Axes) -> np.ndarray:
    """Places in pixels of what is drawn from data: markers, and points along lines 3 pixels apart; not guides."""
    found = [np.empty((0, 2))]
    for line in ax.lines:
        if not (line.get_visible() and line.get_transform() == ax.transData):
            continue  # guides and deadlines go across the axes
        path = line.get_transform().transform_path(line.get_path())
        places = path.vertices[np.isfinite(path.vertices).all(axis=1)]
        found.append(places)
        if line.get_linestyle() not in ("None", "none", ""):
            found.append(points_between(places))
    places, inside = np.concatenate(found), ax.bbox.padded(2)
    return places[((places >= inside.min) & (places <= inside.max)).all(axis=1)]


def points_between(places: np.ndarray) -> np.ndarray:
    """Points from each place to the next, 3 pixels apart and at most 2000, without the places themselves."""
    ways = np.diff(places, axis=0)
    counts = np.minimum(2000, np.hypot(*ways.T) / 3).astype(int)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    shares = (number + 1) / np.repeat(counts + 1, counts)
    return np.repeat(places[:-1], counts, axis=0) + np.repeat(ways, counts, axis=0) * shares[:, None]


def deadline_places(ax: Axes) -> tuple[list[float], list[float]]:
    """Where deadlines cross the axes, in pixels: of horizontal lines the height, of vertical ones the place."""
    lines = [line for line in ax.lines if line.get_color() == "black" and line.is_dashed() and line.get_visible()]
    ends = [line.get_transform().transform(line.get_xydata()) for line in lines]
    return [e[0, 1] for e in ends if e[0, 1] == e[-1, 1]], [e[0, 0] for e in ends if e[0, 0] == e[-1, 0]]


def assert_nothing_is_covered(figure) -> None:
    """No text and no legend lies over a point that is drawn from data, or on a deadline."""
    draw_once(figure)
    for ax in (ax for ax in figure.axes if ax.get_visible()):
        texts = [text for text in ax.texts if text.get_visible() and text.get_text().strip()]
        legends = [each for each in (ax.get_legend(), *figure.legends) if each is not None]
        parts = list(figure.subfigs)
        while parts:
            part = parts.pop()
            parts += part.subfigs
            legends += part.legends
        points, (heights, places) = drawn_points(ax), deadline_places(ax)
        for artist in [*texts, *legends]:
            box = artist.get_window_extent().padded(-1)
            covered = ((points > box.min) & (points < box.max)).all(axis=1)
            name = artist.get_text() if isinstance(artist, Text) else "legend"
            assert not covered.any(), f"{name!r} covers {covered.sum()} points"
            if box.overlaps(ax.bbox):
                assert not any(box.y0 < height < box.y1 for height in heights), f"{name!r} lies on a deadline"
                assert not any(box.x0 < place < box.x1 for place in places), f"{name!r} lies on a deadline"


#: Least height and width of a panel in pixels.
LEAST_PANEL = 240


def assert_panels_are_large(figure) -> None:
    """Panels, beside which there are no histograms and colour bars, are at least 240 pixels high and wide."""
    draw_once(figure)
    panels = [ax for ax in figure.axes if ax.get_visible() and ax.get_title(loc="left")]
    sizes = {ax.get_title(loc="left"): ax.bbox.size for ax in panels}
    small = {name: size.round() for name, size in sizes.items() if min(size) < LEAST_PANEL}
    assert not small, small
