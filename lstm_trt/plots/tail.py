"""How often an answer takes longer, against latency in µs: the tail of one configuration, log-log.

One axis is latency in µs, where the deadline stands, the other multiples of the median, where
clusters stand. A band holds what the trials prove of the share: its exact upper and lower bound,
each one-sided. Below the evidence line that upper bound falls no further: there n trials prove nothing.

One network with calls that arrive in different ways: its tails in µs, beside those of the machine alone.

At a fixed rate latency counts from when a call was due, so that a late call makes the next ones
late; after a pause a runtime may answer slower. An empty step with the same arrivals shows what
of that is the machine's: its timers, its scheduler, its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lstm_trt.config.configuration import ARRIVALS
from lstm_trt.config.errors import UsageError
from lstm_trt.plots import tables
from lstm_trt.plots.style import (
    BACKGROUND,
    DASHES,
    DEADLINE,
    GREY,
    Picture,
    kind_colors,
    log_ticks,
    number,
    percent,
    plain,
    sheet,
    style,
    whole,
)
from lstm_trt.store.samples import Group, Sample

TAIL_COLOR = "#0173b2"

#: The control run: the machine alone.
CONTROL = {"color": "0.45", "linewidth": 1.4, "linestyle": (0, (3, 1))}

#: Of so many of the slowest trials each is a step of its own; below them a line of so many points.
EXACT, POINTS = 1000, 1500

#: A deadline this many times outside the latencies is told at the edge and not drawn.
FAR = 30


@dataclass(frozen=True)
class Judged:
    """What was asked of the tail: no more than `allowed` above `deadline_us`."""

    deadline_us: float
    allowed: float


def exceedance(latency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Latencies, ascending, and how many trials took longer than each; thinned, the slowest ones never."""
    ordered = np.sort(latency)
    n = len(ordered)
    above = np.arange(n - 1, -1, -1)
    if n > EXACT + 2 * POINTS:
        tail = np.geomspace(EXACT, n - 1, POINTS).astype(int)
        even = np.linspace(EXACT, n - 1, POINTS).astype(int)
        kept = np.unique(np.r_[np.arange(EXACT), tail, even])[::-1]
        return ordered[n - 1 - kept], kept
    return ordered, above


def draw_tail(
    ax: Axes,
    rounds_us: Sequence[np.ndarray],
    *,
    median_us: float,
    confidence: float,
    asked: Judged | None = None,
    control_us: np.ndarray | None = None,
    clusters: Sequence = (),
    looks: Sequence[dict] = (),
    worth: float = 1.0,
) -> None:
    """Draw the tail of the pooled rounds, and a thin line a round where there are several.

    `rounds_us`: latencies after warm-up, µs, at least one. `control_us`: latencies of the control
    run; since an empty step has another median, its excess over its own median is put on
    `median_us`. `worth`: effective trials / trials, which widens the band upwards.
    """
    pooled = np.concatenate(rounds_us)
    n = len(pooled)
    evidence = 1 - (1 - confidence) ** (1 / (n * worth))
    lows, highs = [float(pooled.min())], [float(pooled.max())]
    if control_us is not None and len(control_us):
        moved = median_us + control_us - np.median(control_us)
        highs.append(float(moved.max()))
        _line(ax, moved, "control: an empty step's excess in µs", {**CONTROL, "gid": "control"})
    if len(rounds_us) > 1:
        for index, part in enumerate(rounds_us):
            look = {"color": TAIL_COLOR, "linewidth": 0.7, "alpha": 0.55, "gid": f"round:{index}"}
            _line(ax, part, f"each of {len(rounds_us)} rounds" if index == 0 else "_", look)
    look = {"color": TAIL_COLOR, "linewidth": 1.8, "gid": "tail"}
    _line(ax, pooled, f"{'all ' * (len(rounds_us) > 1)}{whole(n)} trial{'s' * (n > 1)}", look)
    ax.plot(pooled.max(), 1 / n, color=TAIL_COLOR, marker="o", markersize=5.5, linestyle="none", gid="max")
    _axes(ax, lows, highs, n, evidence, asked)
    _band(ax, pooled, confidence, worth)
    _evidence(ax, pooled, evidence, asked, worth)
    if asked:
        _asked(ax, asked, pooled)
    for cluster, look in zip(clusters, looks, strict=True):
        edges = (cluster.low * median_us, cluster.high * median_us)
        ax.axvspan(*edges, 0.97, 1, color=look["color"], linewidth=0, zorder=3, gid="cluster")
    _multiples(ax, median_us)


def _line(ax: Axes, latency_us: np.ndarray, label: str, look: dict) -> None:
    value, above = exceedance(latency_us)
    share = above / len(latency_us)
    share[-1] = 1 / len(latency_us)  # 0 has no place on a log axis
    ax.plot(np.r_[value[0], value], np.r_[1.0, share], drawstyle="steps-post", label=label, **look)


def _band(ax: Axes, pooled: np.ndarray, confidence: float, worth: float) -> None:
    """Exact bounds of the share (Clopper and Pearson) at every point.

    Dependence lowers what the trials are worth to the upper bound, and leaves the lower one: as in
    the verdict, it can withhold a MET and takes back no MISSED.
    """
    from scipy.special import betaincinv

    value, above = exceedance(pooled)
    if len(value) > 800:
        kept = np.unique(np.r_[np.linspace(0, len(value) - 101, 700).astype(int), len(value) - 100 : len(value)])
        value, above = value[kept], above[kept]
    value, above = np.r_[value, ax.get_xlim()[1]], np.r_[above, 0]  # beyond the maximum none was seen
    n = len(pooled)
    rest = np.maximum(n - above, 1e-9)
    high = np.where(above >= n, 1.0, betaincinv(above * worth + 1, rest * worth, confidence))
    low = np.where(above <= 0, 0.0, betaincinv(np.maximum(above, 1e-9), rest + 1, 1 - confidence))
    edge = ax.fill_between(value, np.maximum(low, 1e-12), high, step="post", color=TAIL_COLOR, alpha=0.18, linewidth=0)
    edge.set_gid("band")
    edge.set_label(f"where the true share lies, each bound at {100 * confidence:g} %")


def _axes(ax: Axes, lows, highs, n: int, evidence: float, asked: Judged | None) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = min(lows), max(highs)
    if asked and low / FAR < asked.deadline_us < high * FAR:
        low, high = min(low, asked.deadline_us), max(high, asked.deadline_us)
    room = (high / low) ** 0.07
    low, high = (low / room**0.5, high * room) if high / low > 1.02 else (low / 1.1, high * 1.1)
    ax.set_xlim(low, high)
    latency_ticks(ax.xaxis, low, high)
    least = min([1 / n, evidence / 2] + ([asked.allowed / 2] if asked else []))
    ax.set_ylim(0.5 * least, 1.5)
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: share_tick(value)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("latency [µs] (log)", labelpad=2)
    ax.set_ylabel("share of trials that take longer (log)")


def _evidence(ax: Axes, pooled: np.ndarray, evidence: float, asked: Judged | None, worth: float) -> None:
    """The share that is still possible where nothing was seen."""
    n, level = len(pooled), min(evidence, 1.0)
    ax.axhline(level, color=GREY, linewidth=1.1, linestyle=(0, (1, 1.5)), zorder=1.4, gid="evidence")
    above = bool(asked) and asked.allowed < level < 0.4  # at the top edge there is no room above
    told = f"n = {whole(n)}" + (f" (worth {whole(round(n * worth))})" if worth < 0.995 else "")
    _told(ax, f"below, {told} prove{'s' if n == 1 else ''} nothing", level, above, pooled)


def _asked(ax: Axes, asked: Judged, pooled: np.ndarray) -> None:
    """The corner that the line must stay out of: later than the deadline, more often than allowed."""
    low, high = ax.get_xlim()
    ax.axhline(asked.allowed, color="black", linewidth=1.1, zorder=1.5, gid="allowed")
    # On the other side of its line than the words of the evidence line are of theirs.
    evidence = next(line.get_ydata()[0] for line in ax.get_lines() if line.get_gid() == "evidence")
    _told(ax, f"allowed: {share_tick(100 * asked.allowed)} %", asked.allowed, asked.allowed >= evidence, pooled)
    if low < asked.deadline_us < high:
        ax.axvline(asked.deadline_us, gid="deadline", **DEADLINE)
        top = ax.get_ylim()[1]
        corner = {"color": "#d55e00", "alpha": 0.13, "zorder": 0.3, "linewidth": 0, "gid": "late"}
        ax.fill_between([asked.deadline_us, high], asked.allowed, top, label="late more often than allowed", **corner)
        right = np.log(asked.deadline_us / low) < 0.5 * np.log(high / low)
        place = {"textcoords": "offset points", "va": "top", "ha": "left" if right else "right", "bbox": BACKGROUND}
        words = f"deadline\n{number(asked.deadline_us)} µs"
        ax.annotate(words, (asked.deadline_us, top), (4 if right else -4, -5), size=9, color="black", **place)
    else:
        late = asked.deadline_us <= low
        words = f"◀ deadline {number(asked.deadline_us)} µs" if late else f"deadline {number(asked.deadline_us)} µs ▶"
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top", "bbox": BACKGROUND}
        place |= {"ha": "left" if late else "right", "gid": "outside"}
        ax.annotate(words, (0 if late else 1, 1), (5 if late else -5, -5), size=9, color="black", **place)


def _told(ax: Axes, words: str, level: float, above: bool, pooled: np.ndarray) -> None:
    """Words on a level, on the side that the tail leaves free, and behind it."""
    low, high = ax.get_xlim()
    crossed = float(np.quantile(pooled, 1 - min(level, 1.0), method="inverted_cdf"))
    left = level > 0.4 or np.log(crossed / low) > 0.5 * np.log(high / low)
    place = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "ha": "left" if left else "right"}
    place |= {"va": "bottom" if above else "top", "bbox": BACKGROUND, "zorder": 1.6}
    ax.annotate(words, (0 if left else 1, level), (5 if left else -5, 3 if above else -3), size=9, color="0.2", **place)


def latency_ticks(axis, low: float, high: float) -> None:
    """Plain numbers of a log axis, about eight, also where the whole axis is less than a factor of 2."""
    if high / low > 12:
        log_ticks(axis, low, high)
        return
    ticks = MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high)
    if high / low > 2.5:
        ticks = [sub * 10.0**power for power in range(-9, 13) for sub in (1, 1.5, 2, 3, 4, 5, 7)]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(NullLocator())


def multiple_ticks(low: float, high: float) -> list[float]:
    """Multiples of the median between two, those first that people ask for, none within a twentieth of another."""
    steps = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)
    if high / low < 1.35:
        steps = (1, *MaxNLocator(5, steps=(1, 2, 5, 10)).tick_values(low, high))
    kept: list[float] = []
    for value in sorted(steps, key=lambda value: value not in (1, 1.25, 2, 10, 100)):
        if low <= value <= high and all(abs(np.log(value / other)) > 0.05 * np.log(high / low) for other in kept):
            kept.append(value)
    return sorted(kept)


def _multiples(ax: Axes, median_us: float) -> None:
    low, high = (edge / median_us for edge in ax.get_xlim())
    second = ax.secondary_xaxis("top", functions=(lambda us: us / median_us, lambda ratio: ratio * median_us))
    second.xaxis.set_major_locator(FixedLocator(multiple_ticks(low, high)))
    second.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{plain(value)}×"))
    second.xaxis.set_minor_locator(NullLocator())
    second.set_xlabel(f"multiples of the median, {number(median_us)} µs", labelpad=4)
    second.tick_params(axis="x", length=3)


def share_tick(value: float) -> str:
    return f"{value:.10f}".rstrip("0").rstrip(".")


def arrival_tails(
    groups: Sequence[Group], deadline_us: float | None = None, names: Sequence[str] | None = None, title: str = ""
) -> Picture:
    """Share of calls that take longer, against latency in µs, a line a group; the control runs in a panel of their own.

    `names` stand in the legend, how the calls arrived if not given. All rounds of a group are one
    line. Raises `UsageError` where no group has timed trials.
    """
    tables.check_deadline(deadline_us)
    if names is None:
        groups = sorted(groups, key=_order)
        names = [_name(group) for group in groups]
    shown = [(group, name) for group, name in zip(groups, names, strict=True) if group.n]
    if not shown:
        raise UsageError("none of these recordings has trials after warm-up")
    networks = [np.concatenate([sample.timed_ns for sample in group.samples]) / 1000 for group, _ in shown]
    controls = [_control_us(group) for group, _ in shown]
    alone = any(control is not None for control in controls)
    counts = sorted({group.n for group, _ in shown})
    notes = [f"n = {whole(counts[0])}" + (f" to {whole(counts[-1])}" if len(counts) > 1 else "") + " trials a line."]
    if alone:
        notes[0] += (
            " Right: an empty step with the same arrivals, what the machine adds by itself; in µs, not multiples."
        )
    with style():
        picture, body = sheet(title or f"How calls arrive: {_network(shown[0][0])}", notes, 3.5 + 0.19 * len(shown))
        axes = np.atleast_1d(body.subplots(1, 2 if alone else 1, sharey=True, width_ratios=(1.5, 1) if alone else None))
        looks = zip(kind_colors(len(shown)), DASHES * len(shown), strict=False)
        for (_, name), network, control, (color, dash) in zip(shown, networks, controls, looks, strict=False):
            words = f"{name}: median {number(float(np.median(network)))} µs, maximum {number(float(network.max()))} µs"
            if deadline_us:
                late = int((network > deadline_us).sum())
                words += f", late {whole(late)} ({percent(late / len(network))})"
            look = {"color": color, "linestyle": dash}
            _draw_arrivals(axes[0], network, look, words, f"network:{name}")
            if control is not None:
                _draw_arrivals(axes[1], control, look, "_", f"control:{name}")
        _axis(axes[0], networks, deadline_us, "latency [µs] (log)")
        axes[0].set_ylabel("share of calls that take longer (log)")
        if alone:
            axes[0].set_title("the network", loc="left")
            _axis(axes[1], [control for control in controls if control is not None], deadline_us, "latency [µs] (log)")
            axes[1].set_title("the machine alone", loc="left")
        handles, labels = axes[0].get_legend_handles_labels()
        body.legend(handles, labels, loc="outside lower left", ncols=1, labelspacing=0.3)
    return picture


def replay_tails(group: Group, period_us: float, deadline_us: float | None = None) -> Picture:
    """A closed-loop recording as it was, and with a call due every `period_us`; see `analysis.replay`.

    Raises `UsageError` where it cannot be replayed at that rate.
    """
    from lstm_trt.analysis.replay import replay_group, waiting_ns

    replay_group(group, period_us, deadline_us)  # refuses what cannot be replayed
    timed = [sample.timed_ns for sample in group.samples if len(sample.timed_ns)]
    due = tuple(Sample.of(one + waiting_ns(one, 1000 * period_us)) for one in timed)
    names = ("as recorded, in a closed loop", f"replayed, a call due every {period_us:g} µs")
    groups = (Group(group.name, tuple(map(Sample.of, timed))), Group(group.name, due))
    return arrival_tails(groups, deadline_us, names, f"At a fixed rate: {_network(group)}")


def _name(group: Group) -> str:
    return group.name if group.configuration is None else group.configuration.protocol.arrival_words


def _network(group: Group) -> str:
    configuration = group.configuration
    return group.name if configuration is None else f"{configuration.name} on {configuration.runtime}"


def _order(group: Group) -> tuple:
    """Closed, periodic, paused; the most exact wait first."""
    if group.configuration is None:
        return (0,)
    protocol = group.configuration.protocol
    waits = ("none", "spin", "sleep", "os")
    return (1, ARRIVALS.index(protocol.arrival), protocol.gap_s, waits.index(protocol.wait))


def _control_us(group: Group) -> np.ndarray | None:
    found = [sample.control_ns for sample in group.samples if sample.control_ns is not None and len(sample.control_ns)]
    return np.maximum(np.concatenate(found), 1) / 1000 if found else None


def _draw_arrivals(ax: Axes, latency_us: np.ndarray, look: dict, label: str, gid: str) -> None:
    value, above = exceedance(latency_us)
    share = np.maximum(above, 1) / len(latency_us)
    ax.plot(np.r_[value[0], value], np.r_[1.0, share], drawstyle="steps-post", **look, label=label, gid=gid)
    ax.plot(value[-1], share[-1], color=look["color"], marker="o", markersize=4.5, linestyle="none", gid=f"max:{gid}")


def _axis(ax: Axes, parts: Sequence[np.ndarray], deadline_us: float | None, label: str) -> None:
    low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
    if deadline_us and low / 3 < deadline_us < high * 3:
        low, high = min(low, deadline_us), max(high, deadline_us)
    room = max((high / low) ** 0.04, 1.05)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low / room, high * room)
    latency_ticks(ax.xaxis, low / room, high * room)
    ax.set_ylim(0.6 / max(len(part) for part in parts), 1.4)
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: share_tick(value)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)
    if deadline_us and ax.get_xlim()[0] < deadline_us < ax.get_xlim()[1]:
        ax.axvline(deadline_us, label=f"deadline {number(deadline_us)} µs", gid="deadline", **DEADLINE)
