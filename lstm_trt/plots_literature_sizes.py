"""A family of workloads over its sizes: a document's figures on the left, today's on the right, both axes logarithmic.

Lines of equal slope cost alike as the size grows, whatever the machine. Failures stand in a strip
above, each at its size with its word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from lstm_trt.errors import UsageError
from lstm_trt.literature.standing import Side, said
from lstm_trt.plots_literature import FAMILIES, family_color
from lstm_trt.plots_style import DASHES, MARKERS, Picture, kind_colors, log_ticks, multiple, number, sheet, style

#: Share of a panel's height for the words of failures.
STRIP = 0.16
SHORT = {"out of mem": "mem", "didn't run": "no run", "recursion depth": "recursion", "stack overflow": "stack"}


def over_size(
    then: Mapping[int, Side], now: Mapping[int, Side], axis: str, title: str, notes: Sequence[str] = ()
) -> Picture:
    """Time of a batch in ms against a size, a line an implementation; `then` and `now`: size -> side.

    Behind each line's name stands how it grows: the time at its largest size over that at its
    smallest. Raises `UsageError` where both are empty.
    """
    panels = [sides for sides in (then, now) if sides]
    if not panels:
        raise UsageError("there is nothing to draw: neither published figures nor recordings")
    sizes = sorted({size for sides in panels for size in sides})
    most = max(len({one.implementation for side in sides.values() for one in side.entries}) for sides in panels)
    lines = [said(list(sides.values())) for sides in panels]
    with style():
        picture, body = sheet(title, [*lines, *notes], 3.3 + 0.19 * most)
        axes = np.atleast_1d(body.subplots(1, len(panels)))
        for ax, sides in zip(axes, panels, strict=True):
            _panel(ax, sides, sizes)
            ax.set_title(next(iter(sides.values())).name, loc="left")
            ax.set_xlabel(f"{axis} (log)")
            ax.legend(loc="upper left", bbox_to_anchor=(-0.12, -0.17), borderaxespad=0, labelspacing=0.3, fontsize=8.5)
        axes[0].set_ylabel("time of a batch [ms] (log)")
    return picture


def _panel(ax: Axes, sides: Mapping[int, Side], sizes: Sequence[int]) -> None:
    titles = dict.fromkeys(one.title for side in sides.values() for one in side.entries)
    times = [1e3 * one.seconds for side in sides.values() for one in side.ranked] or [1.0]
    looks = _looks(list(titles))
    failed: dict[int, list[str]] = {}
    for title in titles:
        found = {size: one for size, side in sides.items() for one in side.entries if one.title == title}
        good = sorted((size, 1e3 * one.seconds) for size, one in found.items() if one.seconds is not None)
        for size, one in found.items():
            if one.status == "failed":
                failed.setdefault(size, []).append(SHORT.get(one.reason, "failed"))
        grows = f": {multiple(good[-1][1] / good[0][1])} from {good[0][0]} to {good[-1][0]}" if len(good) > 1 else ""
        grows = grows or (f": {number(good[0][1])} ms" if good else ": failed")
        x, y = zip(*good, strict=True) if good else ((), ())
        ax.plot(x, y, label=title + grows, markersize=4.5, linewidth=1.3, **looks[title])
    low, high = min(times) / 1.3, max(times) * 1.3
    ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_ylim(low, high * (high / low) ** (STRIP / (1 - STRIP) if failed else 0))
    log_ticks(ax.yaxis, low, high)
    ax.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    shown = [sizes[-1]]  # from the largest down, what does not touch
    for size in reversed(sizes[:-1]):
        if math.log(shown[-1] / size) > 0.055 * math.log(sizes[-1] / sizes[0] * 1.6):
            shown.append(size)
    ax.set_xticks(shown, [str(size) for size in shown])
    ax.set_xticks([], minor=True)
    if failed:
        strip = Rectangle((0, 1 - STRIP), 1, STRIP, transform=ax.transAxes, color="#fbeaea", zorder=0.5, linewidth=0)
        ax.add_patch(strip)
        for size, words in failed.items():
            text = "\n".join(f"{word} {words.count(word)}" for word in dict.fromkeys(words))
            place = {"xycoords": ax.get_xaxis_transform(), "ha": "center", "va": "top", "size": 7.5, "color": "#a22"}
            ax.annotate("✕ " + text, (size, 0.99), **place)


def _looks(titles: list[str]) -> dict[str, dict]:
    """A colour a framework where it has one of its own, a dash and a marker each within it."""
    counts: dict[str, int] = {}
    others = [title for title in titles if title.split()[0] not in FAMILIES]
    taken = {to_hex(family_color(title)) for title in titles if title not in others}
    free = [color for color in kind_colors(10) if to_hex(color) not in taken]
    colors = {title: free[place % len(free)] for place, title in enumerate(others)}
    looks = {}
    for title in titles:
        color = colors.get(title) or family_color(title)
        place = counts[color] = counts.get(color, -1) + 1
        marker = MARKERS[place % len(MARKERS)]
        looks[title] = {"color": color, "marker": marker, "linestyle": DASHES[place % len(DASHES)]}
    return looks


def table_of(rows: Sequence[tuple[str, Side | None, Side | None]], title: str, notes: Sequence[str] = ()) -> Picture:
    """Many shapes, a line each: the document's times as hollow marks, today's as full ones, in ms.

    `rows`: (what to call it, the document's side, today's side). Words for what failed stand at
    the left edge.
    """
    rows = [row for row in rows if row[1] or row[2]]
    if not rows:
        raise UsageError("there is nothing to draw: neither published figures nor recordings")
    both = [side for row in rows for side in row[1:] if side]
    titles = list(dict.fromkeys(one.title for side in both for one in side.entries))
    looks = {title: look | {"linestyle": "none"} for title, look in _looks(titles).items()}
    times = [1e3 * one.seconds for side in both for one in side.ranked] or [1.0]
    low, high = min(times) / 1.4, max(times) * 1.4
    lines = [said(sides) for place in (1, 2) if (sides := [row[place] for row in rows if row[place]])]
    with style():
        picture, body = sheet(title, [*lines, *notes], 1.2 + 0.22 * len(rows) + 0.19 * ((len(titles) * 2 + 2) // 3))
        ax = body.subplots()
        ax.set_xscale("log")
        ax.set_xlim(low, high)
        for place, (_, then, now) in enumerate(rows):
            for side, fill in ((then, "white"), (now, None)):
                for one in side.ranked if side else ():
                    name = f"{'document: ' if fill else 'today: '}{one.title}"
                    look = looks[one.title] | ({"markerfacecolor": fill} if fill else {})
                    ax.plot([1e3 * one.seconds], [place], label=name, markersize=5.5, **look)
            failed = [
                f"{one.title.removesuffix(', eager')}{' (document)' if side is then else ''}: {one.reason}"
                for side in (then, now)
                for one in (side.entries if side else ())
                if one.status in ("failed", "no figure")
            ]
            if failed:
                words = "✕ " + (failed[0] if len(failed) == 1 else f"{len(failed)} failed, {failed[0]}")
                words = words if len(words) < 62 else words[:61] + "…"
                ax.annotate(
                    words, (0, place), (3, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                    ha="left", va="center", size=7.5, color="#a22",
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
                )  # fmt: skip
        ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        log_ticks(ax.xaxis, low, high)
        ax.set_xlabel("time of a run [ms] (log)")
        handles, labels = ax.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        body.legend(
            unique.values(), unique.keys(), loc="outside lower left", ncols=3, labelspacing=0.3, fontsize=8,
            columnspacing=1.0, handletextpad=0.3,
        )  # fmt: skip
    return picture
