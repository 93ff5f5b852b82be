"""What a replay at a fixed rate found, in words."""

from __future__ import annotations

from lstm_trt.analysis.replay import Replay
from lstm_trt.analysis.summary_rows import microseconds


def words(replay: Replay, name: str = "") -> str:
    """A small table, the closed loop beside the fixed rate, and what became late."""
    head = f"{name}: " if name else ""
    of = f"{replay.n} trials" + (f" of {replay.rounds} processes, each apart" if replay.rounds > 1 else "")
    lines = [f"{head}{of}, replayed with a call due every {replay.period_us:g} us ({rate(replay.period_us)})"]
    rows = [
        (label, *(microseconds(getattr(side, field)) for side in (replay.closed, replay.replayed)))
        for label, field in (("max", "max_us"), ("p99.9", "p999_us"), ("p99", "p99_us"), ("median", "median_us"))
    ]
    limit = "the period" if replay.deadline_us == replay.period_us else f"{replay.deadline_us:g} us"
    rows.append((f"above {limit}", str(replay.closed.misses), str(replay.replayed.misses)))
    rows.append(("longest run above", str(replay.closed.longest_run), str(replay.replayed.longest_run)))
    rows.insert(0, ("us", "closed", "at a fixed rate"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines += [f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows]
    lines.append(f"utilisation {100 * replay.utilisation:.1f} %; {_queued(replay)}")
    lines.append("a runtime that answers slower after a pause is not seen here: record with --arrival periodic")
    return "\n".join(lines)


def rate(period_us: float) -> str:
    """`1000` -> `1 kHz`."""
    hertz = 1e6 / period_us
    for unit, size in (("MHz", 1e6), ("kHz", 1e3)):
        if hertz >= size:
            return f"{hertz / size:.4g} {unit}"
    return f"{hertz:.4g} Hz"


def _queued(replay: Replay) -> str:
    if not replay.queued:
        return "no call waited for an earlier one"
    calls = f"{replay.queued} call{'s' * (replay.queued > 1)} ({_percent(replay.queued_share)})"
    earlier = f"{replay.longest_queue} earlier call{'s' * (replay.longest_queue > 1)}"
    return f"{calls} began late, by up to {microseconds(replay.worst_wait_us)} us, behind up to {earlier}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
