"""Replays as text. No code parses it."""

from lstm_judge.read.numbers import rate, table
from lstm_judge.replay.replay import Replay, Replays
from lstm_trt.config.format import count, microseconds, percent

NOT_INCLUDED = "runtimes can be slower after a pause, which a replay does not include: --arrival periodic records it"


def text(replays: Replays) -> str:
    """A table for each configuration, and what a replay does not include."""
    return "\n\n".join([*replays.texts(replay_text), NOT_INCLUDED])


def headline(replays: Replays) -> str:
    """The answer in one line: what was replayed."""
    done = [replay for replay in replays if isinstance(replay, Replay)]
    if len(replays) == 1 or not done:
        return str(replays).partition("\n")[0]
    due = f"a call due every {done[0].period_us:g} us ({rate(done[0].period_us)})"
    return f"{count(len(done), 'configuration')} replayed with {due}"


def replay_text(replay: Replay, name: str = "") -> str:
    """A table of the closed loop and the fixed rate, and the delayed calls."""
    trials = count(replay.n, "trial") + (
        f" of {replay.rounds} processes, each separately" * (replay.rounds > 1)
    )
    head = f"{name}: " if name else ""
    sides = (replay.closed, replay.replayed)
    statistics = {"max": "max_us", "p99.9": "p999_us", "p99": "p99_us", "median": "median_us"}
    if asked := replay.closed.percentiles:
        statistics = {"max": "max_us", **{each.heading: each.name for each in asked}}
    values = [side.as_dict() for side in sides]
    rows = [
        (label, *(microseconds(side[field]) for side in values))
        for label, field in statistics.items()
    ]
    limit = "the period" if replay.deadline_us == replay.period_us else f"{replay.deadline_us:g} us"
    rows.append((f"above {limit}", *(str(side.misses) for side in sides)))
    rows.append(("longest run above", *(str(side.longest_run) for side in sides)))
    lines = [
        f"{head}{trials}, replayed with a call due every {replay.period_us:g} us ({rate(replay.period_us)})",
        table(("us", "closed", "at a fixed rate"), rows, indent=2),
        f"utilization {percent(replay.utilisation)} (mean latency / period); {_queued(replay)}",
    ]
    return "\n".join(lines)


def _queued(replay: Replay) -> str:
    if not replay.queued:
        return "no call waited for an earlier one"
    calls, earlier = count(replay.queued, "call"), count(replay.longest_queue, "earlier call")
    wait = f"{microseconds(replay.worst_wait_us)} us"
    return f"{calls} ({percent(replay.queued_share)}) started up to {wait} late, waiting for up to {earlier}"
