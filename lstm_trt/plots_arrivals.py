"""One network with calls that arrive in different ways: its tails in µs, beside those of the machine alone.

At a fixed rate latency counts from when a call was due, so that a late call makes the next ones
late; after a pause a runtime may answer slower. An empty step with the same arrivals shows what
of that is the machine's: its timers, its scheduler, its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lstm_trt import plots_tables as tables
from lstm_trt.configuration import ARRIVALS
from lstm_trt.errors import UsageError
from lstm_trt.plots_style import DASHES, DEADLINE, Picture, kind_colors, number, percent, sheet, style, whole
from lstm_trt.plots_tail import exceedance, latency_ticks, share_tick
from lstm_trt.samples import Group, Sample


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
            _line(axes[0], network, look, words, f"network:{name}")
            if control is not None:
                _line(axes[1], control, look, "_", f"control:{name}")
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
    from lstm_trt.analysis.replay import replay, waiting_ns

    replay(group, period_us, deadline_us)  # refuses what cannot be replayed
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


def _line(ax: Axes, latency_us: np.ndarray, look: dict, label: str, gid: str) -> None:
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
