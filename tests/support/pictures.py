"""Reads figures back from their artists: text, lines by their look, cells of a map, rows of a table."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
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


def parts_of(figure) -> Iterator:
    """The parts of a figure, each before its own parts."""
    for part in figure.subfigs:
        yield part
        yield from parts_of(part)


def table_texts(figure) -> list[tuple[Text, Text]]:
    """Rows of the small table of a page, from the top: the texts of name and value."""
    found = []
    for part in parts_of(figure):
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


def shown_texts(figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its box in pixels: titles, notes, labels of axes and ticks, legends, cells."""
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
    assert all(text.get_size() >= 8 for text in shown)
    return [(text.get_text(), text.get_window_extent()) for text in shown]


#: Least height and width of a panel in pixels.
LEAST_PANEL = 240


def legends_of(figure) -> list:
    return [legend for part in (figure, *parts_of(figure)) for legend in part.legends]


def assert_nothing_is_cut_off(figure) -> None:
    figure.draw_without_rendering()
    boxes = [("legend", legend.get_window_extent()) for legend in legends_of(figure)]
    boxes += [(ax.get_title(loc="left"), ax.get_tightbbox()) for ax in figure.axes if ax.get_visible()]
    boxes += shown_texts(figure)
    sheet = figure.bbox.padded(1)
    outside = [name for name, box in boxes if not (sheet.contains(*box.min) and sheet.contains(*box.max))]
    assert not outside, f"cut off: {outside}"


def assert_readable(figure) -> None:
    """Nothing is cut off or lies on the title and notes; no text is small, or overlaps another by more than two pixels.

    No text and no legend covers data. Panels with a title, unlike histograms and colour bars, are at least 240 pixels
    high and wide.
    """
    assert_nothing_is_cut_off(figure)
    texts = shown_texts(figure)
    panels = [ax for ax in figure.axes if ax.get_visible()]
    legends = legends_of(figure)
    head = min(text.get_window_extent().y0 for text in figure.subfigs[0].texts if text.get_text())
    for ax in panels:
        assert ax.get_tightbbox().y1 <= head + 1
        assert not ax.get_title(loc="left") or min(ax.bbox.size) >= LEAST_PANEL, ax.bbox.size.round()
        assert_nothing_is_covered(ax, [*filter(None, [ax.get_legend()]), *legends])
    edges = np.array([box.extents for _, box in texts])
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


def assert_nothing_is_covered(ax: Axes, legends: list) -> None:
    """No text in the axes and no legend lies over a point that is drawn from data, or on a deadline."""
    texts = [text for text in ax.texts if text.get_visible() and text.get_text().strip()]
    points, (heights, places) = drawn_points(ax), deadline_places(ax)
    for artist in [*texts, *legends]:
        box = artist.get_window_extent().padded(-1)
        covered = ((points > box.min) & (points < box.max)).all(axis=1)
        name = artist.get_text() if isinstance(artist, Text) else "legend"
        assert not covered.any(), f"{name!r} covers {covered.sum()} points"
        if box.overlaps(ax.bbox):
            assert not any(box.y0 < height < box.y1 for height in heights), f"{name!r} lies on a deadline"
            assert not any(box.x0 < place < box.x1 for place in places), f"{name!r} lies on a deadline"


def brief(texts: list[str], most: int = 12) -> str:
    """All of a few texts; of many the first and the last, and a number that changes with any of them."""
    if len(texts) <= most:
        return " ".join(texts)
    rest = zlib.crc32(" ".join(texts).encode())
    return f"{len(texts)}: {' '.join(texts[:4])} ... {' '.join(texts[-2:])} ({rest:08x})"


def places(numbers) -> list[str]:
    """Pairs of numbers with four digits; what is but an error of rounding is 0."""
    pairs = np.ma.filled(np.ma.asarray(numbers, dtype=float), np.nan).reshape(-1, 2)
    pairs[np.abs(pairs) < 1e-9] = 0
    return [f"{x:.4g},{y:.4g}" for x, y in pairs]


def corners(patch: Patch) -> np.ndarray:
    """The lower left and the upper right of a patch, in the units of its axes."""
    return patch.get_path().transformed(patch.get_patch_transform()).get_extents().get_points()


def look_of(artist: Line2D | Patch) -> str:
    """How a line or patch looks."""
    if isinstance(artist, Patch):
        return f"{to_hex(artist.get_facecolor(), True)} {artist.get_hatch() or ''}".strip()
    looks = [to_hex(artist.get_color()), artist.get_linewidth(), artist.get_drawstyle()]
    looks += [f"{length:.3g}" for length in artist._dash_pattern[1] or ()]
    if artist.get_marker() not in ("None", ""):
        looks += [artist.get_marker(), artist.get_markersize(), to_hex(artist.get_markerfacecolor())]
    return " ".join(str(look) for look in looks if look != "default")


def words_of(artist) -> str:
    """The text or the label of an artist in one line; empty if matplotlib made it."""
    words = artist.get_text() if isinstance(artist, Text) else str(artist.get_label())
    return "" if words.startswith("_") else words.replace("\n", " / ")


def told_artists(artists: Iterable[Line2D | Patch], numbers: Callable) -> Iterator[str]:
    """A line for the artists of each look and label: where they are."""
    found: dict[str, list[str]] = {}
    for artist in filter(Artist.get_visible, artists):
        found.setdefault(f"{words_of(artist)!r} {look_of(artist)}", []).extend(places(numbers(artist)))
    for name, shown in found.items():
        yield f"  {name}: {brief(shown)}"


def told_legend(legend) -> Iterator[str]:
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        yield f"legend {words_of(text)!r} {look_of(handle)}"


def told_axes(ax: Axes) -> Iterator[str]:
    """The names, scales, limits and ticks of axes, and what is drawn in them."""
    yield f"panel {ax.get_title(loc='left')!r}"
    for axis in (ax.xaxis, ax.yaxis):
        ends = ", ".join(f"{end:.4g}" for end in axis.get_view_interval())
        ticks = "|".join(map(words_of, axis.get_majorticklabels()))
        yield f"  {axis.axis_name} {words_of(axis.label)!r} {axis.get_scale()} ({ends}): {ticks}"
    yield from told_artists(ax.lines, Line2D.get_xydata)
    yield from told_artists(ax.patches, corners)
    for each in ax.collections:
        outlines = [place for path in each.get_paths() for place in places(path.vertices)]
        colors = brief([to_hex(color, True) for color in each.get_facecolor()])
        yield f"  {type(each).__name__} {colors}: {brief(outlines)}"
    for text in filter(Artist.get_visible, ax.texts):
        (place,) = places(getattr(text, "xy", text.get_position()))
        yield f"  {place} {words_of(text)!r} {text.get_weight()} {to_hex(text.get_color())}"
    if ax.get_legend():
        yield from told_legend(ax.get_legend())


def told(figure) -> str:
    """What a picture says whatever its layout: its texts, and of each panel what is drawn from data."""
    said = [figure.title, *figure.notes, figure.alt]
    for part in list(parts_of(figure))[1:]:
        said += filter(None, [" | ".join(words_of(text) for text in part.texts)])
        said += [line for legend in part.legends for line in told_legend(legend)]
    for ax in filter(Artist.get_visible, figure.axes):
        said += told_axes(ax)
    return "\n".join(said) + "\n"
