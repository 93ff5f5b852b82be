"""Trials over time, and on the same axis what was measured beside them: times off the core, page
faults, interrupts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import SubFigure

from lstm_judge.outliers.text import CAUSE_NAMES
from lstm_judge.plots import points as data, style
from lstm_judge.plots.style import Picture, count, number, whole
from lstm_judge.plots.trials import BULK_COLOR, DOT, cluster_looks
from lstm_judge.read.rounds import Round
from lstm_judge.statistics.excess import PARTS, parts_of
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import UsageError
from lstm_trt.machine import counters

#: What is not drawn below the latencies, since it is most of them.
MOST_OF_A_CALL = ("on_core", "not_split")

#: Panels: the values of calls, and of blocks.
TIMES, BLOCKS = "time [µs]", "per block"


def timeline(runs: Any) -> Picture:
    """Latencies over time; below, the times that calls were preempted, waited, or began late, page
    faults, interrupts.

    Page faults are those of each call, interrupts those of each block of trials; a block during
    which other programs used the processor is shaded. `runs` is the result of `load`, or a path,
    recordings or groups, with one configuration; of several rounds the one with the longest call is
    drawn. Raises `UsageError` if there is no round with these measurements.
    """
    group = data.one_group(runs)
    measured = [round_ for round_ in group.rounds if round_.switches and len(round_.timed_ns)]
    if not measured:
        raise UsageError(
            f"{group.name}: no round with times off the core; earlier versions did not measure them"
        )
    slowest: Any = max(measured, key=lambda round_: round_.timed_ns.max())
    notes = [
        f"Round {slowest.round}: n = {whole(len(slowest.timed_ns))} after warm-up, which is drawn"
        f" too; maximum {number(slowest.timed_ns.max() / 1000)} µs;"
        f" {count(len(slowest.blocks), 'block')} of trials.",
        data.describe_systems(data.points_of(group)),
    ]
    missing = slowest.switches["missing"]
    if missing:
        notes.append(f"Times off the core were not measured: {missing}.")
    with style.figure(f"Timeline: {group.name}", notes, 6.4) as (picture, body):
        _draw(body, slowest, group.configuration)
    return picture


def _draw(body: SubFigure, round_: Any, configuration: Configuration) -> None:
    axes = body.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2, 1, 1)})
    seconds = (round_.start_ns - round_.start_ns[0]) / 1e9
    latency_us = round_.latency_ns / 1000
    axes[0].plot(seconds, latency_us, **DOT, markersize=3, color=BULK_COLOR)
    style.latency_axis(axes[:1], latency_us)
    panels = {"latency [µs]": {}, **_beside(round_)}
    looks = iter(cluster_looks(sum(map(len, panels.values()))))
    for ax, (label, kinds) in zip(axes, panels.items(), strict=True):
        for name, values in kinds.items():
            there = values > 0
            look = next(looks)
            if label == BLOCKS:
                ax.plot(seconds[there], values[there], color=look["color"], label=name)
            else:
                ax.plot(
                    seconds[there],
                    values[there],
                    **look,
                    label=f"{name}: {count(int(there.sum()), 'call')}",
                    linestyle="none",
                    markersize=3,
                )
        if label == TIMES:
            style.latency_axis([ax], np.concatenate([[], *kinds.values()]))
        ax.set_ylim(bottom=None if ax.get_yscale() == "log" else 0)
        ax.set_ylabel(label + style.scale_text(ax.yaxis))
        for first, last in _disturbed(round_, configuration):
            ax.axvspan(
                seconds[first], seconds[last], color="0.88", zorder=0, label="other programs ran"
            )
    axes[-1].set_xlim(0, seconds[-1])
    axes[-1].set_xlabel("time since the first call [s]")
    style.legend_below(body, [handle for ax in axes for handle in style.handles_of(ax)], ncols=4)


def _beside(round_: Round) -> dict[str, dict[str, np.ndarray]]:
    """What was measured beside the latencies: panels, with the values of each call by name."""
    times = {}
    for kind, values in parts_of(round_, "off_core_ns" in round_.off_core).items():
        if kind not in MOST_OF_A_CALL:
            times[PARTS[kind][0]] = values / 1000
    return {
        TIMES: times,
        "faults": {
            CAUSE_NAMES[name]: round_.causes[name] for name in ("minor_faults", "major_faults")
        },
        BLOCKS: round_.of_blocks(("interrupts", "softirqs")),
    }


def _disturbed(round_: Any, configuration: Configuration) -> Iterator[tuple[int, int]]:
    """First and last row of each block during which other programs than the loads used the pinned
    cores or another one; a load used as much CPU time per second in each block."""
    cores = len(configuration.options.cores)
    on_pinned = configuration.protocol.beside_on == "same-core"
    busy = sum(load["cpu_ns"] / load["wall_ns"] for load in round_.loads)
    first = 0
    for block in round_.blocks:
        last = first + block["rows"] - 1
        wall_ns = int(round_.start_ns[last] - round_.start_ns[first] + round_.latency_ns[last])
        others = counters.others([block], wall_ns, cores, round(busy * wall_ns), on_pinned)
        if others is not None and not others["alone"]:
            yield first, last
        first = last + 1
