"""What the pages of one configuration have in common: facts under the title, the tail, a card of numbers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from lstm_trt.plots_stretches import cluster_looks
from lstm_trt.plots_style import Picture, number, whole, write_pictures
from lstm_trt.plots_tail import Judged, draw_tail

if TYPE_CHECKING:
    from lstm_trt.analysis.outliers_values import Outliers
    from lstm_trt.samples import Group

CARD_LINE_IN = 0.182
#: Share of the width that the tail has beside the card.
TAIL_TO_CARD = (2.75, 1)
#: Characters of a value that a card's line has room for, and of the whole line.
CARD_VALUE = 34
#: Pages that one command writes at most.
PAGES = 12
LEGEND = ("tail", "round", "band", "late", "control")


def facts(group: Group) -> list[str]:
    """What was measured, where and how, as notes under a title."""
    samples = [sample for sample in group.samples if len(sample.timed_ns)]
    first, configuration = (samples or [None])[0], group.configuration
    notes = []
    if samples:
        counts = f"n = {whole(group.n)} trial{'s' if group.n != 1 else ''} after warm-up"
        counts += f" in {len(samples)} rounds, each a process of its own" if len(samples) > 1 else ""
        largest = max(float(sample.timed_ns.max()) for sample in samples) / 1000
        counts += f"; maximum {number(largest)} µs"
        if first.floor_us:
            counts += f"; floor {number(first.floor_us)} µs, what arithmetic and weight traffic need on this machine"
        notes.append(counts + ".")
    if configuration is not None:
        options = configuration.options
        threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
        words = f"{configuration.runtime} {configuration.runtime_version} ({options.precision}, {threads}) on "
        words += f"{configuration.device_name}; arrivals: {configuration.protocol.arrival_words}"
        notes.append(words)
    elif group.group:
        notes.append(", ".join(f"{key} {value}" for key, value in group.group.items()))
    if first is not None and (first.machine or first.versions):
        told = None if configuration is None else configuration.runtime  # its version stands above
        versions = [f"{name} {version}" for name, version in first.versions.items() if name != told]
        notes.append(", ".join(([f"machine {first.machine}"] if first.machine else []) + versions))
    return notes


def page_tail(
    part,
    group: Group,
    outliers: Outliers | None,
    median_us: float,
    confidence: float,
    asked: Judged | None = None,
    worth: float = 1.0,
) -> None:
    """The tail of all rounds with its legend below."""
    ax = part.subplots()
    samples = [sample for sample in group.samples if len(sample.timed_ns)]
    control = [sample.control_ns for sample in samples if sample.control_ns is not None and len(sample.control_ns)]
    clusters = () if outliers is None else outliers.clusters
    draw_tail(
        ax,
        [sample.timed_ns / 1000 for sample in samples],
        median_us=median_us,
        confidence=confidence,
        asked=asked,
        control_us=np.concatenate(control) / 1000 if control else None,
        clusters=clusters,
        looks=cluster_looks(len(clusters)),
        worth=worth,
    )
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(handles)), key=lambda place: LEGEND.index(handles[place].get_gid().split(":")[0]))
    handles, labels = [handles[place] for place in order], [labels[place] for place in order]
    part.legend(handles, labels, loc="outside lower left", ncols=2, columnspacing=1.2, labelspacing=0.3)


def card_height_in(rows: Sequence[tuple[str, str]]) -> float:
    """What `draw_card` needs."""
    headings = sum(not value for _, value in rows)
    return CARD_LINE_IN * (len(rows) + 0.35 * max(headings - 1, 0) + 0.9)


def draw_card(part, rows: Sequence[tuple[str, str]], height_in: float) -> None:
    """A small table: (name, value); a row without value is a heading. Lines at one distance, from the top."""
    place = height_in - 0.12
    for index, (name, value) in enumerate(rows):
        heading = not value
        place -= CARD_LINE_IN * (1.35 if heading and index else 1)
        level = place / height_in
        part.text(0.02, level, name, size=9, weight="bold" if heading else "normal", color="0.1" if heading else "0.3")
        part.text(0.97, level, value, size=9, ha="right", gid=f"card:{name}")
        if heading:
            under = (place - 0.05) / height_in
            part.add_artist(Line2D([0.02, 0.97], [under, under], color="0.75", linewidth=0.8))


def fold_rows(name: str, value: str) -> list[tuple[str, str]]:
    """A row, or several where the value is too long to stand beside its name."""
    room = CARD_VALUE - len(name)
    if len(value) <= room:
        return [(name, value)]
    return [(name, "\u2009"), *(("", line) for line in textwrap.wrap(value, CARD_VALUE))]


def write_pages(kind: str, pages: Sequence[tuple[str, Callable[[], Picture]]], folder: str | Path) -> list[Path]:
    """Write pages as `<kind>-<name>.png`; pages of one name are numbered."""
    files: dict[str, Callable[[], Picture]] = {}
    for name, draw in pages:
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", name.replace("µ", "u")).strip("-.")[:80]
        stem = "-".join(filter(None, (kind, slug)))
        file, number = f"{stem}.png", 1
        while file in files:
            number += 1
            file = f"{stem}-{number}.png"
        files[file] = draw
    return write_pictures(files, folder)
