"""The same analysis of many configurations, in child processes if it takes long."""

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from tqdm import tqdm

from lstm_trt.config.errors import MemoryExhausted
from lstm_trt.config.format import terminal_width
from lstm_trt.machine.linux import allowed_cores
from lstm_trt.machine.process import Child

#: Trials that are analyzed first, from which the time of the others is estimated, and those that a
#: child gets at once.
FIRST = 50_000
MOST = 500_000

#: Below this time child processes would not help.
LONG_S = 1.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def computed(
    look: Callable[[Item], Result], items: Sequence[Item], trials: Sequence[int]
) -> list[Result]:
    """What `look` returns for each of the items, which have this many trials; in child processes if
    it takes long.

    There is a child for each allowed core; `look`, items and results must be picklable. A terminal
    shows the progress. Raises what `look` raises, `MemoryExhausted` if a child was killed.
    """
    first, *others = list(_chunks(trials)) or [range(0)]
    found: list[Any] = [None] * len(items)
    with (
        ExitStack() as cleaning,
        tqdm(
            total=len(items),
            unit=" configurations",
            delay=LONG_S,
            leave=False,
            disable=terminal_width(sys.stderr) is None,
        ) as bar,
    ):

        def compute(places: Iterable[int]) -> None:
            for place in places:
                found[place] = look(items[place])
                bar.update()

        began = time.perf_counter()
        compute(first)
        rate_s = (time.perf_counter() - began) / max(sum(trials[: first.stop]), 1)
        left_s = rate_s * sum(trials[first.stop :])
        cores = min(len(allowed_cores()), len(others))
        if cores < 2 or left_s < LONG_S:
            compute(itertools.chain(*others))
            return found
        idle: list[Any] = []
        for _ in range(cores):
            child = Child("from lstm_judge.statistics.parallel import serve; serve()")
            cleaning.callback(child.close)
            idle.append(child.connection)
        under_way: dict[Connection, range] = {}
        while others or under_way:
            for child in idle[: len(others)]:
                chunk = others.pop(0)
                child.send((look, items[chunk.start : chunk.stop]))
                under_way[child] = chunk
            idle = wait(list(under_way))
            for child in idle:
                chunk = under_way.pop(child)
                found[chunk.start : chunk.stop] = _answer(child)
                bar.update(len(chunk))
    return found


def _answer(child: Connection) -> list:
    """The results that a child sends; raises as `computed`."""
    try:
        answer = child.recv()
    except (EOFError, OSError):
        raise MemoryExhausted(
            "a process of the analysis ended: if memory ran out, analyze fewer recordings at once"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _chunks(trials: Sequence[int]) -> Iterator[range]:
    """Ranges of items with about `FIRST` trials, and then `MOST`."""
    start, sum_, most = 0, 0, FIRST
    for place, n in enumerate(trials):
        if place > start and sum_ + n > most:
            yield range(start, place)
            start, sum_, most = place, 0, MOST
        sum_ += n
    if start < len(trials):
        yield range(start, len(trials))


def serve() -> None:
    """Main program of a child: it answers (function, arguments) with the list of what is returned,
    or with what is raised."""
    connection = Connection(int(sys.argv[-1]))
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            function, arguments = connection.recv()
            try:
                answer = list(map(function, arguments))
            except Exception as error:
                answer = error
            connection.send(answer)
