"""Trials over time, and on the same axis what was measured beside them: times off the core, page
faults, interrupts."""

from typing import Any

import numpy as np

from lstm_judge.outliers.text import CAUSE_NAMES
from lstm_judge.plots import points as data, style
from lstm_judge.plots.style import Picture, count, number, whole
from lstm_judge.plots.trials import BULK_COLOR, cluster_looks
from lstm_judge.statistics.excess import PARTS, parts_of
from lstm_trt.config.errors import UsageError
from lstm_trt.machine import counters

#: What is not drawn below the latencies, since it is most of them.
MOST_OF_A_CALL = ("on_core", "not_split")


def timeline(
    runs: Any, *, round_number: int | None = None, deadline_us: float | None = None
) -> Picture:
    """Latencies over time; below, the times that calls were preempted, waited, or began late, page
    faults, interrupts.

    Page faults are those of each call, interrupts those of each block of trials; a block during
    which other programs used the processor is shaded. `runs` is the result of `load`, or a path,
    recordings or groups, with one configuration; of several rounds the one with the longest call is
    drawn, unless `round_number` is given. Raises `UsageError` if there is no such round with these
    measurements.
    """
    data.check_deadline(deadline_us)
    group = data.one_group(runs)
    rounds = [round_ for round_ in group.rounds if round_.switches and len(round_.timed_ns)]
    rounds = [round_ for round_ in rounds if round_number in (None, round_.round)]
    if not rounds:
        raise UsageError(
            f"{group.name}: no round with times off the core; earlier versions did not measure them"
        )
    round_: Any = max(rounds, key=lambda round_: round_.timed_ns.max())
    seconds, spans = (
        (round_.start_ns - round_.start_ns[0]) / 1e9,
        _shared(round_, group.configuration),
    )
    shown = {
        "time [µs]": {
            PARTS[kind][0]: values / 1000
            for kind, values in parts_of(round_, "off_core_ns" in round_.off_core).items()
            if kind not in MOST_OF_A_CALL
        },
        "faults": {
            CAUSE_NAMES[name]: round_.causes[name] for name in ("minor_faults", "major_faults")
        },
        "per block": round_.of_blocks(("interrupts", "softirqs")),
    }
    notes = [
        f"Round {round_.round}: n = {whole(len(round_.timed_ns))} after warm-up, which is drawn too; maximum"
    ]
    notes[0] += (
        f" {number(round_.timed_ns.max() / 1000)} µs; {count(len(round_.blocks), 'block')} of trials."
    )
    notes += [f"Times off the core were not measured: {round_.switches['missing']}."] * bool(
        round_.switches["missing"]
    )
    notes.append(data.describe_systems(data.points_of(group)))
    looks = iter(cluster_looks(sum(map(len, shown.values()))))
    with style.figure(f"Timeline: {group.name}", notes, 6.4) as (picture, body):
        axes = body.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2, 1, 1)})
        axes[0].plot(
            seconds,
            round_.latency_ns / 1000,
            ".",
            markersize=3,
            markeredgewidth=0,
            color=BULK_COLOR,
        )
        style.latency_axis(axes[:1], (round_.latency_ns / 1000).tolist())
        axes[0].set_ylabel("latency [µs]" + style.scale_text(axes[0].yaxis))
        style.deadline(deadline_us, axes[0].axhline)
        for ax, (label, kinds) in zip(axes[1:], shown.items(), strict=True):
            for (name, values), look in zip(kinds.items(), looks, strict=False):
                there = values > 0
                calls = f": {count(int(there.sum()), 'call')}" * (ax is not axes[3])
                mark = {"marker": ""} if ax is axes[3] else {"linestyle": "none", "markersize": 3}
                ax.plot(seconds[there], values[there], **look | mark, label=f"{name}{calls}")
            ax.set_ylim(bottom=0)
            if ax is axes[1]:
                style.latency_axis(
                    [ax], [time_us for values in kinds.values() for time_us in values.tolist()]
                )
            ax.set_ylabel(label + style.scale_text(ax.yaxis))
        for ax in axes:
            for first, last in spans:
                ax.axvspan(
                    seconds[first],
                    seconds[last],
                    color="0.88",
                    zorder=0,
                    label="other programs ran",
                )
        axes[3].set_xlim(0, seconds[-1])
        axes[3].set_xlabel("time since the first call [s]")
        style.legend_below(
            body, [handle for ax in axes for handle in style.handles_of(ax)], ncols=4
        )
    return picture


def _shared(round_: Any, configuration: Any) -> list[tuple[int, int]]:
    """First and last row of each block during which other programs used the pinned cores or another
    one."""
    ends = np.cumsum([block["rows"] for block in round_.blocks])
    spans = []
    for block, end in zip(round_.blocks, ends, strict=True):
        first, last = int(end - block["rows"]), int(end - 1)
        wall_ns = int(round_.start_ns[last] - round_.start_ns[first] + round_.latency_ns[last])
        if (counters.others([block], wall_ns, len(configuration.options.cores)) or {"alone": True})[
            "alone"
        ] is False:
            spans.append((first, last))
    return spans
