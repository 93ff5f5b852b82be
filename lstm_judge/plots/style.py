"""The common style of all figures: sheet, title, notes, axes, colours and number formats.

Figures are made without pyplot, so that none stays open and no display is needed. A sheet is 9.2
inches wide: shown at 900 pixels in a README, 9 points are 12 pixels.
"""

import itertools
import math
import re
import textwrap
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import seaborn
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis, YAxis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import Locator, MaxNLocator

from lstm_judge.plots import FORMATS
from lstm_judge.read import numbers
from lstm_trt.config import format as text
from lstm_trt.config.errors import UsageError, file_errors, one_of
from lstm_trt.config.fields import as_list
from lstm_trt.store.files import write_whole

#: Between thousands.
THIN_SPACE = "\u2009"


def apart(shown: str) -> str:
    """A number as text with its thousands apart, as all figures have it."""
    return re.sub(
        r"(?<![\d.])\d{4,}", lambda digits: f"{int(digits[0]):,}".replace(",", THIN_SPACE), shown
    )


def number(value: float | None, digits: int = 3) -> str:
    """As `format.number`."""
    return apart(text.number(value, digits))


def whole(value: float | None) -> str:
    """A whole number."""
    return number(value, 1)


def count(value: int, noun: str) -> str:
    """As `format.count`."""
    return apart(text.count(value, noun))


def percent(share: float | None) -> str:
    """As `format.percent`."""
    return apart(text.percent(share))


def multiple(ratio: float) -> str:
    """As `numbers.multiple`."""
    return apart(numbers.multiple(ratio, "×"))


WIDTH_IN = 9.2

DPI = 130

GREY = "0.45"

DEADLINE = {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 1.1, "zorder": 1.5}

FAILED = {
    "linestyle": "none",
    "marker": "x",
    "markersize": 5.5,
    "markeredgewidth": 1.5,
    "zorder": 5,
}

#: Behind text that may cross a line.
BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}

#: Those of seaborn's palette "colorblind" without grey, and without those too light for text.
COLORS = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#56b4e9")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h", "<", ">", "d", "8", "H")

#: Runtime -> its place in `kind_colors` and `MARKERS`; relatives have a darker colour. Others get
#: other places.
RUNTIMES = {
    "onnxruntime": 0,
    "pytorch": 1,
    "c": 2,
    "tensorrt": 3,
    "openvino": 4,
    "torch-compile": 8,
    "torchscript": 12,
    "pytorch-cudagraph": 5,
    "tensorrt-rtx": 10,
}

DASHES = ("-", (0, (5, 1.6)), (0, (1.6, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))

#: From more sizes on an axis on, they have neither markers on the lines nor ticks of their own.
MOST_MARKED = 40

#: Multiples of the median at which the founding document saw clusters of outliers.
GUIDES = (1.25, 2.0)

#: Above this ratio of largest to smallest a latency axis is logarithmic.
LOG_FROM = 20


class Picture(Figure):
    """A figure that Jupyter displays without pyplot; `title`, `notes` and `summary` are those of
    its `figure`."""

    title: str = ""
    notes: tuple[str, ...] = ()
    summary: str = ""

    @property
    def alt(self) -> str:
        """Alternative text: what the figure shows, and its main result."""
        return (
            f"{self.title}{'' if self.title.endswith('?') else '.'}"
            f" {self.summary or ' '.join(self.notes[:1])}"
        ).strip()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        # Twice: JupyterLab and nbconvert show no alternative text of a PNG, LaTeX and PDF no HTML.
        png = b64encode(image_bytes(self)).decode("ascii")
        html = f'<img src="data:image/png;base64,{png}" alt="{escape(self.alt)}">'
        return {"text/html": html, "image/png": png, "text/plain": self.alt}


def image_bytes(picture: Picture, form: str = "png") -> bytes:
    """The whole picture in one of `FORMATS`, at the size of its layout.

    The same PNG each time. Matplotlib's layout of several panels is the same but for the last bits,
    which the names of clip paths in an SVG show.
    """
    metadata = {
        "png": {"Description": picture.alt},
        "svg": {"Title": picture.alt, "Date": None},  # screen readers read the title
        "pdf": {"Title": picture.title, "Subject": picture.alt, "CreationDate": None},
    }
    buffer = BytesIO()
    with style():  # some settings are read while drawing
        picture.savefig(buffer, format=form, dpi=DPI, metadata=metadata[form])
    return buffer.getvalue()


#: A function that draws a figure when it is needed.
Draw = Callable[[], Picture]


def write_pictures(
    pictures: Mapping[str, Draw], folder: str | Path, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """Draw each of `pictures` (name -> function that draws it) into `folder`, in each format;
    returns the paths.

    Files are written atomically. Raises `UsageError` for an unknown format, and if the folder
    cannot be written.
    """
    formats = list(dict.fromkeys(as_list(formats)))
    for form in formats:
        one_of("file format", form, FORMATS)
    folder = Path(folder)
    paths = []
    with file_errors(f"write figures to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in pictures.items():
            for form in formats:
                path = folder / f"{name}.{form}"
                # Drawn once for each: a second layout of one picture differs slightly.
                write_whole(path, image_bytes(draw(), form))
                paths.append(path)
    return paths


@contextmanager
def style() -> Iterator[None]:
    """Apply the settings of all figures; the previous settings are restored afterwards."""
    look: Any = seaborn.axes_style("whitegrid") | {
        "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib: the same figure everywhere
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.labelsize": 9.5,
        "axes.edgecolor": "0.6",
        "axes.linewidth": 0.8,
        "hatch.linewidth": 0.8,
        "grid.color": "0.9",
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "svg.hashsalt": "lstm_trt",  # ids that do not change from file to file
        "text.parse_math": False,  # reasons and device names may contain $
        "xtick.bottom": True,
        "ytick.left": True,
        "xtick.major.size": 3,
        "ytick.major.size": 3,
        "xtick.color": "0.6",
        "ytick.color": "0.6",
        "xtick.labelcolor": "0.15",
        "ytick.labelcolor": "0.15",
    }
    with matplotlib.style.context(["default", look]):  # whatever the user's own settings are
        yield


@contextmanager
def figure(
    title: str, notes: Sequence[str], body_height_in: float, summary: str = ""
) -> Iterator[tuple[Picture, SubFigure]]:
    """An empty figure with its title and notes, and the part below them to draw in, with the
    settings of all figures.

    `summary` is the main result in one sentence, for the alternative text; without it, that is the
    first note.
    """
    with style():
        title = with_micro(title)
        notes = [with_micro(note) for note in notes if note]
        title_lines = wrapped(title, 12, "bold") or [""]
        note_lines = [line for note in notes for line in wrapped(note)]
        title_in = 0.12 + 0.235 * len(title_lines)
        head_in = title_in + 0.165 * len(note_lines)
        picture = Picture(
            figsize=(WIDTH_IN, head_in + body_height_in),
            dpi=DPI,
            layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05, wspace=0.02, hspace=0.03),
        )
        parts: Any = picture.subfigures(2, 1, height_ratios=(head_in, body_height_in))
        head, body = parts
        left = 0.1 / WIDTH_IN
        head.text(
            left,
            1 - 0.12 / head_in,
            "\n".join(title_lines),
            size=12,
            weight="bold",
            va="top",
            ha="left",
        )
        head.text(
            left,
            1 - title_in / head_in,
            "\n".join(note_lines),
            size=9,
            color="0.3",
            va="top",
            ha="left",
        )
        picture.title = title
        picture.notes = tuple(notes)
        picture.summary = with_micro(summary)
        yield picture, body


def with_micro(label: str) -> str:
    """A text with the unit us as figures write it: µs."""
    return re.sub(r"\bus\b", "µs", label)


def wrapped(label: str, size: float = 9, weight: str = "normal") -> list[str]:
    """A text in lines that fit a sheet."""
    width_in = WIDTH_IN - 0.3
    for characters in range(int(18 * width_in), 0, -1):
        lines = textwrap.wrap(label, characters)
        if all(text_size(line, size, weight)[0] <= 72 * width_in for line in lines):
            break
    return lines


def whole_range(numbers: Iterable[int]) -> str:
    """The smallest and largest of some counts: 1 000, or 400 to 1 000."""
    ascending = sorted(numbers)
    return " to ".join(map(whole, dict.fromkeys((ascending[0], ascending[-1]))))


def plain(value: float, _place: float = 0) -> str:
    """The number of a tick without trailing zeros."""
    return apart(f"{value:.10g}")


def folded(label: str, width: int = 18) -> str:
    """A long label on several lines, so that a legend stays narrow."""
    return "\n".join(textwrap.wrap(label, width, **text.WHOLE_WORDS))


def size_colors(count: int) -> list:
    """Sequential colours, without the yellow that is hard to see on white."""
    places = np.linspace(0, 0.86, max(count, 2))[:count]
    return [matplotlib.colormaps["viridis"](place) for place in places]


def kind_colors(count: int) -> list[Any]:
    """Colours for categories, safe for the colour-blind; of more than `COLORS` these follow again,
    darker."""
    turns = (divmod(place, len(COLORS)) for place in range(count))
    return [tuple(np.multiply(to_rgb(COLORS[index]), 0.55**turn)) for turn, index in turns]


def kind_looks(count: int) -> list[dict]:
    """Colour and marker of categories."""
    return [
        {"color": color, "marker": marker}
        for color, marker in zip(kind_colors(count), itertools.cycle(MARKERS), strict=False)
    ]


def runtime_looks(names: Iterable[str]) -> dict[str, dict]:
    """Colour and marker of each runtime; of those not in `RUNTIMES` a hash of the name chooses, no
    two the same."""
    looks = kind_looks(len(MARKERS))
    rest = [place for place in range(len(MARKERS)) if place not in RUNTIMES.values()]
    places = {name: RUNTIMES[name] for name in names if name in RUNTIMES}
    for name in sorted({*names} - {*places}):
        start = zlib.crc32(name.encode()) % len(rest)
        order = rest[start:] + rest[:start]
        free = [place for place in order if place not in places.values()]
        places[name] = (free or order)[0]
    return {name: looks[places[name]] for name in names}


#: Least height of the axes of a panel: 240 pixels; of a line of its title, and of the names below
#: it.
PANEL_IN, TITLE_IN, NAMES_IN = 1.95, 0.2, 0.45

#: Rows of panels in a figure, at most; further ones need a page of their own.
MOST_ROWS = 4


@contextmanager
def facets(  # noqa: PLR0913
    title: str,
    notes: Sequence[str],
    blocks: Sequence[Sequence[str]],
    names: tuple[str, str],
    handles: Sequence[Line2D | Patch] = (),
    *,
    ax: Axes | None = None,
    columns: int | None = None,
    panel_in: float = PANEL_IN,
    below: int = 0,
    summary: str = "",
    sharex: bool = True,
) -> Iterator[tuple[Picture, list[Axes]]]:
    """Panels with these titles in rows of `columns`, a new row for each of the `blocks`.

    Afterwards the axes are named (x, y), and the legend is drawn: beside the panels, or in `below`
    columns below them. With `ax`, the only panel is drawn into these axes of the user, with its
    legend inside and without title and notes; then the user's figure stands for the picture. Raises
    `UsageError` if there are several panels and `ax`.
    """
    if ax is not None:
        with _only_panel(ax, blocks, names, handles) as figure_of_user:
            yield figure_of_user, [ax]
        return
    columns = columns or columns_of(max(map(len, blocks)))
    rows = sum(math.ceil(len(block) / columns) for block in blocks)
    lines = max(panel.count("\n") for panel in itertools.chain(*blocks))
    names_in = NAMES_IN * (len(blocks) if sharex else rows)
    height_in = max(rows * (panel_in + TITLE_IN * (lines + 1.6)) + names_in + 0.15, 3.5)
    labels = [str(handle.get_label()) for handle in handles]
    if below and labels:
        height_in += 0.2 * math.ceil(len(labels) / legend_columns(labels, below))
    else:
        height_in = max(height_in, 0.4 + 0.19 * sum(1 + label.count("\n") for label in labels))
    with figure(title, notes, height_in, summary=summary) as (picture, body):
        axes = _titled(
            body.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=True), blocks, sharex
        )
        yield picture, axes
        name_axes(axes, *names)
        if below and handles:
            legend_below(body, handles, below)
        elif handles:
            body.legend(
                handles=handles, loc="outside right upper", handlelength=2.6, labelspacing=0.4
            )


def _titled(grid: np.ndarray, blocks: Sequence[Sequence[str]], sharex: bool) -> list[Axes]:
    """The panels with a title; those that fill up the last row of a block are not shown."""
    rows = iter(grid)
    columns = grid.shape[1]
    axes = []
    for block in blocks:
        for first in range(0, len(block), columns):
            for place, panel in enumerate(next(rows), first):
                panel.set_visible(place < len(block))
                panel.tick_params(labelbottom=not sharex or place + columns >= len(block))
                if place < len(block):
                    panel.set_title(block[place], loc="left")
                    axes.append(panel)
    return axes


@contextmanager
def _only_panel(
    ax: Axes,
    blocks: Sequence[Sequence[str]],
    names: tuple[str, str],
    handles: Sequence[Line2D | Patch],
) -> Iterator[Any]:
    """Axes of the user while the only panel of a figure is drawn into them; yields their figure."""
    panels = [*itertools.chain(*blocks)]
    if len(panels) > 1:
        raise UsageError(
            f"axes of one's own hold one panel, but this figure has {len(panels)}:"
            f" select what one of them shows ({text.listed(panels)})"
        )
    with style():
        ax.set_title(panels[0], loc="left")
        yield ax.get_figure(root=True)
        x, y = names
        ax.set_xlabel(x + scale_text(ax.xaxis))
        ax.set_ylabel(y + scale_text(ax.yaxis))
        if handles:
            ax.legend(handles=handles)


def name_axes(axes: Iterable[Axes], x: str, y: str) -> None:
    """Label the x and y axes of panels that have tick labels; a logarithmic scale is named."""
    for ax in axes:
        if ax.xaxis.get_tick_params().get("labelbottom", True):
            ax.set_xlabel(x + scale_text(ax.xaxis), labelpad=2)
        place: Any = ax.get_subplotspec()
        if place.is_first_col():
            ax.set_ylabel(y + scale_text(ax.yaxis), labelpad=2)


def scale_text(axis: Axis) -> str:
    """What the label of an axis says of its scale."""
    transform: Any = axis.get_transform()
    return "" if axis.get_scale() != "log" else " (log2)" if transform.base == 2 else " (log)"


def legend_columns(
    labels: Iterable[str], most: int, width_in: float = WIDTH_IN, size: float = 9
) -> int:
    """Number of columns of a legend, at most so many, that fit a width."""
    widest = max(text_size(label, size)[0] for label in labels)
    return max(1, min(most, int(72 * width_in / (widest + 40))))


def legend_below(body: SubFigure, handles: Iterable[Artist], ncols: int = 1, **layout) -> None:
    """A legend below all panels with each label once, in at most `ncols` columns."""
    unique = {str(handle.get_label()): handle for handle in handles}
    ncols = legend_columns(
        unique, ncols, body.bbox.width / body.figure.dpi, layout.get("fontsize", 9)
    )
    layout = {"loc": "outside lower left", "labelspacing": 0.3, "ncols": ncols, **layout}
    body.legend(list(unique.values()), list(unique), **layout)


def handles_of(ax: Axes) -> list[Artist]:
    """What has a label in the axes."""
    return ax.get_legend_handles_labels()[0]


def entry(label: str, **look) -> Line2D:
    """A legend entry."""
    return Line2D([], [], label=label, **look)


def heading(label: str) -> Line2D:
    """A legend entry without a mark: the heading of those that follow it, or an empty line."""
    return entry(label, linestyle="none")


def deadline(
    deadline_us: float | None, *draw: Callable[..., Line2D], name: str = "deadline "
) -> list[Line2D]:
    """Draw a deadline, if there is one, with functions such as `ax.axhline`; returns its entry in a
    legend."""
    if not deadline_us:
        return []
    look = {"label": f"{name}{number(deadline_us)} µs", **DEADLINE}
    for line in draw:
        line(deadline_us, **look)
    return [entry(**look)]


def size_handles(name: str, colors: Mapping[int, tuple]) -> list[Line2D]:
    """Legend entries for the sizes of an axis, the largest on top, which is the usual order of the
    lines."""
    sizes = spread(list(colors))
    if len(sizes) < len(colors):
        name += f"\n({len(sizes)} of {len(colors)})"
    handles = [entry(str(size), color=colors[size], marker="o", markersize=4) for size in sizes]
    return [heading(name), *reversed(handles), heading(" ")]


def latency_axis(axes: Sequence[Axes], numbers: Iterable[float], room_below: float = 0.0) -> None:
    """Set scale and limits of a shared y axis with latencies.

    `room_below` is the share of the height that is kept free at the bottom, for failure marks.
    """
    numbers = [value for value in numbers if np.isfinite(value) and value > 0] or [1.0, 10.0]
    low = min(numbers)
    high = max(numbers)
    below = room_below / (1 - room_below)
    for ax in axes:
        if high / low > LOG_FROM:
            floor = low / 1.25
            top = 1.35 * high
            log_axis(ax.yaxis, floor, top)
            ax.set_ylim(floor * (floor / top) ** below, top)
        else:
            floor = 0
            top = 1.08 * high
            ax.set_ylim(-top * below, top)
            set_ticks(ax.yaxis, even_ticks(0, top), 0, top)
        if room_below:
            ax.axhspan(ax.get_ylim()[0], floor, color="0.94", zorder=0.5, linewidth=0)


def set_ticks(
    axis: Axis,
    ticks: Iterable[float],
    low: float,
    high: float,
    write: Callable[[float], str] = plain,
) -> None:
    """Set those major ticks from `low` to `high` that fit, if not all then the first ones; no minor
    ticks.

    `write` returns their labels.
    """
    label_ticks(axis, {float(tick): write(tick) for tick in ticks if low <= tick <= high})
    axis.set_ticks([], minor=True)


def label_ticks(axis: Axis, labels: Mapping[float, str]) -> None:
    """Set those major ticks (place -> label) of which the labels fit, the first ones first."""
    axis.set_major_locator(FittingTicks(labels))
    axis.set_major_formatter(lambda value, _: labels.get(value, ""))


def even_ticks(low: float, high: float) -> np.ndarray:
    """About six round numbers at equal distances."""
    return np.asarray(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high))


def log_axis(axis: XAxis | YAxis, low: float, high: float) -> None:
    """Make an axis logarithmic, from `low` to `high`, with about eight ticks.

    These are 1, 2, 5 of each decade, others where they fit, fewer over many decades, even ones
    below a factor of 2.5.
    """
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    ratio = high / low
    subs = (1,)
    if ratio <= 1e4:
        subs = (1, 3)
    if ratio <= 1e3:
        subs = (1, 2, 5)
    if ratio <= 12:
        subs = (1, 2, 5, 3, 4, 7, 1.5)
    powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    set_ticks(
        axis, (even_ticks(low, high) if ratio <= 2.5 else np.outer(subs, powers).flat), low, high
    )


def beside(
    ax: Axes, label: str, place: tuple[float, float], offset: tuple[float, float], **look
) -> Annotation:
    """Write a text beside a place, `offset` points to the right and above of it (or left, below);
    centred at 0."""
    across, along = (int(np.sign(way)) for way in offset)
    sides = {"ha": ("center", "left", "right")[across], "va": ("center", "bottom", "top")[along]}
    return ax.annotate(
        label, place, offset, textcoords="offset points", **{"size": 9, **sides, **look}
    )


def guides(levels: Sequence[float], *axes: Axes) -> None:
    """Dashed lines at the `levels` of `GUIDES` within axes side by side, labelled at the right edge
    of the last."""
    low, high = axes[-1].get_ylim()
    for level, ratio in zip(levels, GUIDES, strict=True):
        if low < level < high:
            for ax in axes:
                ax.axhline(level, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            beside(
                axes[-1],
                f"{ratio:g}×",
                (1, level),
                (3, 0),
                color="0.3",
                xycoords=axes[-1].get_yaxis_transform(),
            )


def columns_of(total: int) -> int:
    """Number of columns for `total` panels."""
    return min(total, 2 if total in (2, 4) else 3)


#: Most values of an axis that have a panel or an entry in the legend each; further ones are
#: thinned.
MOST_SHOWN = 12


def spread(items: Sequence[Any], most: int = MOST_SHOWN) -> list[Any]:
    """At most so many of the items, at equal distances, with the first and the last."""
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in places]


@lru_cache(maxsize=4096)
def text_size(label: str, size: float = 9, weight: str = "normal") -> tuple[float, float]:
    """Width and height of a text in points."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(size, DPI)
    widths = []
    for line in label.split("\n"):
        font.set_text(line)
        widths.append(font.get_width_height()[0] / 64 * 72 / DPI)  # pixels in 26.6 fixed point
    return max(widths), size * (1.2 * len(widths) - 0.2)


class FittingTicks(Locator):
    """Those ticks of which the labels fit side by side; `labels`: place -> label, the most
    important first.

    The locators of matplotlib do not look at labels: those of measured sizes, and around 0 of an
    asinh axis, would overlap.
    """

    def __init__(self, labels: Mapping[float, str]) -> None:
        self._labels = labels

    def __call__(self) -> list[float]:
        """The places of the ticks at the present size of the axes."""
        axis: Any = self.axis
        way = "xy".index(axis.axis_name)
        scale = 72 / axis.get_figure(root=True).dpi
        kept: dict[float, tuple[float, float]] = {}
        for tick, label in self._labels.items():
            middle = axis.axes.transData.transform((tick, tick))[way] * scale
            half = text_size(label)[way] / 2 + 1
            if all(abs(middle - other) >= half + near for other, near in kept.values()):
                kept[tick] = (middle, half)
        return sorted(kept)


def round_first(sizes: Sequence[int]) -> list[int]:
    """The sizes ordered by the largest round number that divides them: a power of two if 4 divides
    all."""
    steps = [mantissa * 10**power for power in range(9) for mantissa in (1, 2, 5)]
    if math.gcd(*sizes) % 4 == 0:
        steps = [2**power for power in range(30)]
    return sorted(sizes, key=lambda size: -max(step for step in steps if size % step == 0))


def size_ticks(
    axis: Axis, sizes: Sequence[int], places: Sequence[float] = (), labels: Sequence[str] = ()
) -> None:
    """Label the sizes on an axis, at `places` if these are not the sizes themselves, without
    overlaps."""
    ticks = zip(places or sizes, labels or map(str, sizes), strict=True)
    tick = dict(zip(sizes, ticks, strict=True))
    label_ticks(axis, dict(tick[size] for size in round_first(sizes)))


def size_axis(ax: Axes, sizes: Sequence[int], log2: bool) -> None:
    """Set limits, a tick at every measured size, and labels that do not overlap."""
    if log2:
        ax.set_xscale("log", base=2)
    scale: Any = ax.xaxis.get_transform()
    low, high = scale.transform((sizes[0], sizes[-1]))
    margin = 0.06 * ((high - low) or 1.0)
    ax.set_xlim(scale.inverted().transform((low - margin, high + margin)))
    size_ticks(ax.xaxis, sizes)
    ax.set_xticks(sizes if len(sizes) <= MOST_MARKED else [], [], minor=True)
    ax.tick_params(axis="x", which="minor", length=2, bottom=True)
