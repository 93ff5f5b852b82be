"""Latency tails: the share of trials that take longer than each latency, on log-log axes, one step
line per round.

A cluster of slow trials is a steep drop at its latency; the plateau before the drop is at its
share. A line ends at the maximum, at 1/n. The evidence line is the share that an event may still
have if it never occurred in n trials, at the given confidence; n trials give no evidence below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from lstm_judge.outliers.answer import Outliers
from lstm_judge.plots import points as data, style
from lstm_judge.plots.style import GREY, Picture, count, multiple, number, percent, whole
from lstm_judge.plots.trials import cluster_looks
from lstm_judge.read.labels import OF_LOADS, load_text
from lstm_judge.read.rounds import Group, Round, by_network
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.replay import replay_group, waiting_ns
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, Ordered, rate_bounds
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_judge.verdict.answer import Verdict
from lstm_trt.config.configuration import ARRIVALS
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import listed, short_number

TAIL_COLOR = "#0173b2"

#: Number of slowest trials that are drawn exactly, and number of points for the other trials.
EXACT, POINTS = 1000, 1500

#: A deadline that differs from all latencies by this factor is stated at the edge instead of drawn.
FAR = 30

#: Number of tails that `choose_tails` selects from a sweep.
TAILS = 6


def exceedance(ordered: Ordered) -> tuple[np.ndarray, np.ndarray]:
    """Of ascending latencies some, ascending, and the number of trials above each; the slowest are
    all there."""
    n = len(ordered)
    above = np.arange(n)
    if n > EXACT + POINTS:
        above = np.unique(np.r_[above[:EXACT], np.geomspace(EXACT, n - 1, POINTS).astype(int)])
    return ordered[n - 1 - above][::-1], above[::-1]


def evidence_share(n: float, confidence: float = DEFAULT_CONFIDENCE) -> float:
    """Upper bound on the share of an event that never occurred in n independent trials: about 3/n
    at 95 %."""
    return rate_bounds(0, n, confidence)[1]


def draw_line(ax: Axes, ordered: Ordered, label: str, look: dict) -> None:
    """Draw the tail of one round as steps, with a `marker` at its maximum."""
    value, above = exceedance(ordered)
    ax.plot(
        np.r_[value[0], value],
        np.r_[1.0, np.maximum(above, 1) / len(ordered)],  # a log axis cannot show 0
        label=label,
        drawstyle="steps-post",
        markevery=[len(value)],
        markersize=5.5,
        **look,
    )


def share_axis(ax: Axes, least: float) -> None:
    """Set up a logarithmic y axis with the share of trials, down to about `least`."""
    ax.set_yscale("log")
    ax.set_ylim(0.5 * least, 1.5)
    style.set_ticks(ax.yaxis, 10.0 ** np.arange(0, -16, -1), 0.5 * least, 1.5, short_number)
    ax.set_ylabel("share of trials that take longer (log)")


def latency_axis(
    ax: Axes, numbers: Iterable[float], deadline_us: float | None = None, far: float = FAR
) -> None:
    """Set up a logarithmic x axis that spans the numbers, and a deadline if it is not far from
    them."""
    numbers = list(numbers)
    if deadline_us and min(numbers) / far < deadline_us < max(numbers) * far:
        numbers.append(deadline_us)
    low = min(numbers)
    high = max(numbers)
    room = max((high / low) ** 0.07, 1.05)
    style.log_axis(ax.xaxis, low / room**0.5, high * room)
    ax.set_xlabel("latency [µs] (log)", labelpad=2)


def tails(
    runs: Any,
    *,
    deadline_us: float | None = None,
    relative: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Picture:
    """Share of trials that take longer than a latency, log-log: a line per configuration; of a
    single one, per round.

    `runs` is the result of `load`, or a path, recordings or groups. Latencies are multiples of the
    median of the middle round, or in µs with `relative=False`, to compare arrivals. Control runs,
    if any, have their own panel on the right, in µs: an empty step with the same arrivals shows the
    delays of the machine itself. With a deadline the legend states the number of misses. With
    `ax` the tails are drawn into these axes, without the control runs. Raises `UsageError` if no
    configuration has trials after warm-up.
    """
    data.check_deadline(deadline_us)
    groups = [group for group in as_runs(runs) if group.n]
    if not groups:
        raise UsageError("none of these recordings has trials after warm-up")
    shown = list(map(Tail, groups, map(style.with_micro, _names(groups)), _looks(groups)))
    if ax is not None:
        with style.style():
            _draw_tails(ax, shown, deadline_us, relative)
            ax.legend()
        figure_of_user: Any = ax.get_figure(root=True)
        return figure_of_user
    controls = [tail for tail in shown if tail.control_us is not None]
    worst = max(shown, key=lambda tail: data.reach(tail.group))
    with style.figure(
        title or f"Latency tails{', as multiples of the median' if relative else ''}",
        _notes(groups, deadline_us, bool(controls)),
        4.3 + 0.19 * len(shown),
        summary=f"The largest latency is {multiple(data.reach(worst.group))} the median of its"
        f" round ({worst.name}).",
    ) as (picture, body):
        widths = [1.7, 1] if controls else [1]
        panels = body.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
        _draw_tails(panels[0], shown, deadline_us, relative)
        if controls:
            panels[0].set_title("network", loc="left")
            panels[1].set_title("control run (empty step)", loc="left")
            for tail in controls:
                draw_line(panels[1], np.sort(tail.control_us), "_", tail.look | {"linewidth": 1.2})
            latency_axis(panels[1], np.concatenate([tail.control_us for tail in controls]))
        style.legend_below(body, style.handles_of(panels[0]))
    return picture


def _notes(groups: Sequence[Group], deadline_us: float | None, controls: bool) -> list[str]:
    """What is drawn, and how it is read, for the head of the figure."""
    own = [group for group in groups if group.configuration]
    several = any(len(data.trials_of(group)) > 1 for group in groups)
    return [
        f"n = {style.whole_range(group.n for group in groups)} trials per line, after warm-up"
        f"{', of all rounds' if several else ''}. A steep drop is a cluster of slow trials;"
        " the plateau before it shows its share.",
        # The legend names loads.
        data.describe_systems(data.points_of(own), without=OF_LOADS) if own else "",
        "Dotted: an event that never occurred in n trials may still have that share"
        " (95 % confidence)."
        + (f" Misses: above {number(deadline_us)} µs." if deadline_us else ""),
        "Right: an empty step with the same arrivals, which shows the delays of the machine itself."
        if controls
        else "",
    ]


@dataclass(frozen=True)
class Tail:
    """The trials of a configuration, how they are drawn, and those of an empty step beside them."""

    group: Group
    name: str
    look: dict

    @property
    def rounds(self) -> tuple[Trials, ...]:
        return data.trials_of(self.group)

    @property
    def control_us(self) -> Any:
        return control_us(self.group)


def _draw_tails(ax: Axes, shown: Sequence[Tail], deadline_us: float | None, relative: bool) -> None:
    """Draw the tail of each configuration, and of each round if there is one configuration."""
    ends: list[float] = []
    for tail in shown:
        pooled = Trials.of(*timed_rounds(tail.group.rounds))
        median_us = median_low(each.median_us for each in tail.rounds)
        unit_us = median_us if relative else 1.0
        largest_us = max(each.max_us for each in tail.rounds)
        label = (
            f"{tail.name}: median {number(median_us)} µs, max {number(largest_us)} µs"
            f" ({multiple(largest_us / median_us)})"
        )
        if deadline_us:
            misses = sum(len(each.above(1e3 * deadline_us)[0]) for each in tail.rounds)
            label += f", misses {whole(misses)} of {whole(pooled.n)} ({percent(misses / pooled.n)})"
        draw_line(ax, pooled.ordered_us / unit_us, label, tail.look)
        if len(shown) == 1:
            draw_rounds(ax, tail.rounds, unit_us)
        ends += [pooled.statistic("min_us") / unit_us, largest_us / unit_us]
    lengths = {tail.group.n for tail in shown}
    share_axis(ax, 1 / max(lengths))
    evidence_lines(ax, lengths)
    ax.axhspan(0, evidence_share(max(lengths)), color="0.95", zorder=0)
    if relative:
        latency_axis(ax, ends)  # the legend states the misses of a deadline
        ax.set_xlabel("latency / median (log)")
        return
    latency_axis(ax, ends, deadline_us, 3)
    low, high = ax.get_xlim()
    if deadline_us and low < deadline_us < high:
        style.deadline(deadline_us, ax.axvline)


def _looks(groups: Sequence[Group]) -> list[dict]:
    """The looks of lines: those of the runtimes if the groups differ by runtime, else of their
    places."""
    runtimes = [group.configuration.runtime for group in groups if group.configuration]
    if len(set(runtimes)) == len(groups):
        return list(style.runtime_looks(runtimes).values())
    return style.kind_looks(len(groups))


def draw_rounds(ax: Axes, rounds: Sequence[Trials], unit_us: float = 1.0) -> None:
    """Draw the tail of each round, if there are several, the first one dark, the last one light."""
    if len(rounds) < 2:
        return
    label = f"each of {len(rounds)} rounds, first dark, last light"
    for each, color in zip(rounds, style.size_colors(len(rounds)), strict=True):
        draw_line(
            ax,
            each.ordered_us / unit_us,
            label,
            {"color": color, "linewidth": 0.8, "zorder": 1.9},
        )
        label = "_"


def evidence_lines(
    ax: Axes, lengths: Collection[float], confidence: float = DEFAULT_CONFIDENCE, name: str = "n"
) -> None:
    """Draw a dotted line per recording length, of those that differ by more than 20 %; the legend
    calls them `name`."""
    apart: list[float] = []
    for n in sorted(lengths):
        if not apart or n > 1.2 * apart[-1]:
            apart.append(n)
    for n in apart:
        ax.axhline(
            evidence_share(n, confidence),
            color=GREY,
            linewidth=1.1,
            linestyle=(0, (1, 1.5)),
            zorder=1.4,
            label=f"no evidence below, {name} = {', '.join(whole(round(n)) for n in apart)}",
        )


def _names(groups: Sequence[Group]) -> list[str]:
    """The arrivals, or the loads if nothing else differs, of one network that was recorded with
    several; else the names of the groups."""
    configurations = [group.configuration for group in groups]
    if (
        None not in configurations
        and len({(each.workload, each.runtime) for each in configurations}) == 1
    ):
        arrivals = [each.protocol.arrival_text for each in configurations]
        if len(by_network(groups)) == 1:
            arrivals = list(map(load_text, configurations))
        if 1 < len(set(arrivals)) == len(groups):
            return arrivals
    return [group.name or "all trials" for group in groups]


def _arrival_order(group: Group) -> tuple[int, str]:
    """Sort key: recordings from elsewhere, closed, periodic, paused."""
    if group.configuration is None:
        return -1, ""
    protocol = group.configuration.protocol
    return ARRIVALS.index(protocol.arrival), protocol.arrival_text


def arrival_tails(runs: Any, *, deadline_us: float | None = None) -> Picture:
    """The latency tails in µs of one network with different arrivals, see `tails`.

    At a fixed rate latency counts from the time a call was due, so that a slow call delays the next
    ones; after a pause a runtime may be slower. The control runs show the contribution of the
    machine.
    """
    groups = sorted(as_runs(runs), key=_arrival_order)
    return tails(
        groups,
        deadline_us=deadline_us,
        relative=False,
        title=f"Latency tails by arrival: {_network(groups[0]) if groups else ''}",
    )


def loads(runs: Any, *, deadline_us: float | None = None) -> Picture:
    """The latency tails in µs of one network quiet and beside each load, see `tails`.

    Raises `UsageError` unless there are recordings of one network, with several loads.
    """
    runs = [group for group in as_runs(runs) if group.n]
    networks = by_network(runs)
    if len(networks) != 1 or len(networks[0]) < 2:
        names = listed((runs[places[0]].name for places in networks), 3)
        raise UsageError(
            f"this figure compares the loads of one network, not of {names}: select one with where,"
            " and record it quiet and with --beside NAME=COMMAND"
        )
    groups = [runs[place] for place in networks[0]]
    return tails(
        groups,
        deadline_us=deadline_us,
        relative=False,
        title=f"Latency tails by load: {_network(groups[0])}",
    )


def replay_tails(group: Group, period_us: float, *, deadline_us: float | None = None) -> Picture:
    """The tail of a closed-loop recording, and its replay with a call due every `period_us`; see
    `analysis.replay`.

    Raises `UsageError` if it cannot be replayed at that rate.
    """
    replay_group(group, period_us, deadline_us)  # raises if it cannot be replayed
    timed = [round_.timed_ns for round_ in group.rounds if len(round_.timed_ns)]
    due = [latency_ns + waiting_ns(latency_ns, 1000 * period_us) for latency_ns in timed]
    named = {
        "recorded in a closed loop": timed,
        f"replayed with a call every {period_us:g} µs": due,
    }
    groups = [
        replace(group, name=name, rounds=tuple(map(Round.of, rounds)))
        for name, rounds in named.items()
    ]
    return tails(
        groups,
        deadline_us=deadline_us,
        relative=False,
        title=f"Replay at a fixed rate: {_network(group)}",
    )


def choose_tails(runs: Any) -> Runs:
    """Select the configuration with the largest maximum / median, then others spread evenly over
    the medians."""
    runs = as_runs(runs)
    timed = [group for group in runs if group.n]
    if not timed:
        return runs
    worst = max(timed, key=data.reach)
    rest = [group for group in timed if group is not worst]
    rest.sort(key=lambda group: min(each.median_us for each in data.trials_of(group)))
    return as_runs([worst, *style.spread(rest, TAILS - 1)])


def _network(group: Group) -> str:
    return group.configuration.title if group.configuration else group.name


def control_us(group: Group) -> np.ndarray | None:
    """Latencies of the control runs of all rounds, in µs; None if there are none."""
    found = [round_.control_ns for round_ in group.rounds if round_.control_ns is not None]
    together = np.concatenate([np.empty(0), *found])
    return np.maximum(together, 1) / 1000 if len(together) else None


def draw_tail(
    part: SubFigure, group: Group, outliers: Outliers | None, verdict: Verdict | None = None
) -> None:
    """Draw the tail of one configuration: all rounds pooled, a thin line per round, and the exact
    bounds.

    The lower axis is latency in µs, with the deadline; the upper one multiples of the median, with
    the clusters. The band is the exact interval of the true share. Since an empty step has a
    different median, the control run is drawn as its excess over its own median, added to the
    median of the group. A `verdict` gives deadline, allowed share and confidence, and its effective
    sample size widens the band upwards.
    """
    ax = part.subplots()
    rounds = data.trials_of(group)
    pooled = Trials.of(*timed_rounds(group.rounds))
    question = verdict.question if verdict else None
    confidence = question.confidence if question else DEFAULT_CONFIDENCE
    effective_n = min(pooled.n, verdict.effective.n) if verdict else pooled.n
    allowed = 1 - question.percentile / 100 if question else 1.0
    control = control_us(group)
    ends = [pooled.statistic("min_us"), pooled.max_us]
    if control is not None:
        control = pooled.median_us + control - np.median(control)
        ends.append(control.max())

    look = {"color": TAIL_COLOR, "linewidth": 1.8, "marker": "o"}
    draw_line(
        ax,
        pooled.ordered_us,
        f"{'all ' if len(rounds) > 1 else ''}{count(pooled.n, 'trial')}",
        look,
    )
    draw_rounds(ax, rounds)
    share_axis(ax, min(1 / pooled.n, evidence_share(effective_n, confidence) / 2, allowed / 2))
    latency_axis(ax, ends, question.deadline_us if question else None)
    _band(ax, pooled.ordered_us, confidence, effective_n / pooled.n)
    evidence_lines(
        ax, [effective_n], confidence, ("effective n" if effective_n < 0.995 * pooled.n else "n")
    )
    handles = _deadline(ax, question.deadline_us, allowed) if question else []
    if control is not None:
        look = {"color": GREY, "linewidth": 1.4, "linestyle": (0, (3, 1))}
        draw_line(ax, np.sort(control), "empty step: excess over its median", look)
    if outliers:
        _clusters(ax, outliers, pooled.median_us)
    _multiples(ax, pooled.median_us)
    style.legend_below(part, [*style.handles_of(ax), *handles], ncols=2, columnspacing=1.2)


def _clusters(ax: Axes, outliers: Outliers, median_us: float) -> None:
    """Mark the clusters at the top, in their colours."""
    for cluster, look in zip(outliers.clusters, cluster_looks(len(outliers.clusters)), strict=True):
        ax.axvspan(
            (cluster.low * median_us),
            (cluster.high * median_us),
            0.97,
            1,
            color=look["color"],
            linewidth=0,
            zorder=3,
        )


def _band(ax: Axes, pooled_us: Ordered, confidence: float, effective_share: float) -> None:
    """Draw the exact bounds of the share (Clopper and Pearson) at every point.

    Dependence reduces the sample size of the upper bound only: as in the verdict, it can prevent
    MET but does not revoke MISSED.
    """
    n = len(pooled_us)
    value, above = exceedance(pooled_us)
    above = np.r_[above, 0]  # no trial lies beyond the maximum
    effective = effective_share * above
    lows = [rate_bounds(count, n, confidence)[0] for count in above]
    highs = [rate_bounds(count, effective_share * n, confidence)[1] for count in effective]
    ax.fill_between(
        np.r_[value, ax.get_xlim()[1]],
        np.maximum(lows, 1e-12),
        highs,
        color=TAIL_COLOR,
        alpha=0.18,
        linewidth=0,
        step="post",
        label=f"exact bounds, {100 * confidence:g} % each",
    )


def _deadline(ax: Axes, deadline_us: float, allowed: float) -> list[Line2D]:
    """Draw the allowed share and the deadline, and shade the region that the tail must not enter;
    returns the entry of a deadline that lies outside."""
    ax.axhline(
        allowed,
        color="black",
        linewidth=1.1,
        zorder=1.5,
        label=f"allowed: {short_number(100 * allowed)} %",
    )
    low, high = ax.get_xlim()
    if not low < deadline_us < high:
        return style.deadline(
            deadline_us,
            name=f"beyond the {'left' if deadline_us <= low else 'right'}: deadline ",
        )
    style.deadline(deadline_us, ax.axvline)
    ax.fill_between(
        [deadline_us, high],
        allowed,
        ax.get_ylim()[1],
        label="more misses than allowed",
        color="#d55e00",
        alpha=0.13,
        zorder=0.3,
        linewidth=0,
    )
    return []


def _multiples(ax: Axes, median_us: float) -> None:
    """Add the upper axis with multiples of the median."""
    scales: Any = (lambda us: us / median_us, lambda ratio: ratio * median_us)
    second = ax.secondary_xaxis("top", functions=scales)
    style.log_axis(second.xaxis, *(edge / median_us for edge in ax.get_xlim()))
    second.set_xlabel(f"multiple of the median ({number(median_us)} µs)", labelpad=4)
    second.tick_params(axis="x", length=3)
