"""Limits in time and memory for reading an ONNX file, calls of its network included.

How often a loop runs can depend on what it computes, so that it may never end.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from lstm_trt.config.errors import MemoryExhausted, TimeLimitReached
from lstm_trt.config.libraries import onnxruntime
from lstm_trt.machine.linux import available_memory_bytes

T = TypeVar("T")

#: Time in s that reading a file may take.
LIMIT_S = 120.0

#: Time in s between two looks at a call, and how long it may take to end; the share of the memory
#: available at the first look that it must leave, since an operator that doubles its input is not
#: ended before it is done. Most calls end before that look, which takes longer than many of them.
LOOK_S = 0.2
PATIENCE_S = 5.0
LEFT = 0.5

#: When the time for reading is over, by `time.monotonic`.
_END: ContextVar[float] = ContextVar("_END", default=math.inf)


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends what is done inside after `LIMIT_S`: raises `TimeLimitReached` in `check_time`, or at
    the latest here."""
    token = _END.set(min(_END.get(), time.monotonic() + LIMIT_S))
    try:
        yield
    finally:
        try:
            check_time()  # also in place of an error that the limit has caused
        finally:
            _END.reset(token)


def check_time() -> None:
    """Raise `TimeLimitReached` if the time for reading is over."""
    if time.monotonic() > _END.get():
        raise TimeLimitReached(
            f"reading the ONNX file took longer than {LIMIT_S:g} s: a loop in it may never end"
        )


def run(work: Callable[[Any], T]) -> T:
    """The result of calls of ONNX Runtime, which are ended when the time or the memory is over, and
    by Ctrl-C.

    `work` passes the options that it is given to each of its calls. It runs in a thread of its own,
    since this one cannot be interrupted in a call. Raises `TimeLimitReached`, `MemoryExhausted`,
    and the package's own classes.
    """
    options: Any = onnxruntime.RunOptions()
    answer: Future[T] = Future()
    least = 0.0
    Thread(target=_answer, args=(answer, partial(work, options)), daemon=True).start()
    try:
        while True:
            with suppress(TimeoutError):
                return answer.result(LOOK_S)
            check_time()
            available = available_memory_bytes()
            least = least or LEFT * available
            if available < least:
                raise MemoryExhausted("a call of the network takes more memory than there is")
    finally:
        options.terminate = True  # of calls that still run
        wait([answer], PATIENCE_S)


def _answer(answer: Future, call: Callable[[], Any]) -> None:
    try:
        answer.set_result(call())
    except Exception as error:  # of any class
        answer.set_exception(error)
