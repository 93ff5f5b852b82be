"""The same analysis of many configurations, in child processes if it takes long."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from tqdm import tqdm

from lstm_trt.config.errors import MemoryExhausted
from lstm_trt.config.format import terminal_width
from lstm_trt.machine.linux import allowed_cores
from lstm_trt.machine.process import Child

#: Trials that are analyzed first, from which the time of the others is estimated, and at most in
#: one call of `look`.
FIRST, MOST = 50_000, 500_000

#: Below this time child processes would not help.
LONG_S = 1.0

#: Of several configurations: what one call of `look` takes and returns, an entry each, picklable.
Look = Callable[[list], list]


def computed(look: Look, items: Sequence[Any], trials: Sequence[int]) -> list:
    """What `look` returns for the items, which have this many trials each; in child processes if it
    takes long.

    There is a child for each allowed core; a terminal shows the progress. Raises what `look`
    raises, `MemoryExhausted` if a child was killed.
    """
    first, *others = list(_chunks(trials)) or [range(0)]
    found: list[Any] = [None] * len(items)
    with ExitStack() as cleaning:
        bar = tqdm(
            total=len(items),
            unit=" configurations",
            delay=LONG_S,
            leave=False,
            disable=terminal_width(sys.stderr) is None,
        )
        cleaning.callback(bar.close)

        def keep(chunk: range, results: list) -> None:
            found[chunk.start : chunk.stop] = results
            bar.update(len(chunk))

        began = time.perf_counter()
        if first:
            keep(first, look(list(items[: first.stop])))
        rate_s = (time.perf_counter() - began) / max(sum(trials[: first.stop]), 1)
        left_s = rate_s * sum(trials[first.stop :])
        cores = min(len(allowed_cores()), len(others))
        children: list[Any] = []
        for _ in range(cores if cores > 1 and left_s > LONG_S else 0):
            child = Child("from lstm_judge.statistics.parallel import serve; serve()")
            cleaning.callback(child.close)
            children.append(child.connection)
        under_way: dict[Any, range] = {}
        for chunk in others:
            some = list(items[chunk.start : chunk.stop])
            if not children:
                keep(chunk, look(some))
                continue
            child = next((each for each in children if each not in under_way), None) or _answered(
                under_way, keep
            )
            child.send((look, some))
            under_way[child] = chunk
        while under_way:
            _answered(under_way, keep)
    return found


def _answered(under_way: dict[Any, range], keep: Callable[[range, list], None]) -> Any:
    """The connection of the next child that answers, after `keep` of its answer."""
    connection: Any = wait(list(under_way))[0]
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        remedy = "if memory ran out, analyze fewer recordings at once"
        raise MemoryExhausted(f"a process of the analysis ended: {remedy}") from None
    if isinstance(answer, Exception):
        raise answer
    keep(under_way.pop(connection), answer)
    return connection


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
    """Main program of a child that calls functions: it answers (function, argument) with what is
    returned or raised."""
    connection = Connection(int(sys.argv[-1]))
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            function, argument = connection.recv()
            try:
                answer = function(argument)
            except Exception as error:
                answer = error
            connection.send(answer)
