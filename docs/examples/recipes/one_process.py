"""A warning of all runs: a function of `lstm_judge/read/rounds.py`."""

from collections.abc import Iterable

from lstm_judge.read.rounds import Group
from lstm_trt.config.format import count, listed


def one_process(groups: Iterable[Group]) -> list[str]:
    """A line if configurations were recorded by one process each."""
    alone = [group.name for group in groups if len(group.rounds) == 1]
    if not alone:
        return []
    configurations = count(len(alone), "configuration")
    return [f"{configurations} of one process, record --rounds 5: {listed(alone, 3)}"]
