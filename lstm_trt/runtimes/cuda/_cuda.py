"""CUDA for the runtimes: PyCUDA for context, memory, stream and events, cuda-bindings for graphs.

Where PyCUDA is not installed or cannot be loaded, cuda-bindings do all of it (`_cuda_bindings`).

A `Session` makes the device's primary context current on this thread, the same context
that PyTorch and TensorRT use (`pycuda.autoinit` would create a second one), and owns the
resources acquired through it: a stream, pinned and device buffers, a captured graph. `close`
frees all of them in reverse order, also after an error.

The primary context stays retained until the process ends, as with PyTorch: creating it
again takes 0.2 s, and `Context.detach` of PyCUDA 2026.1 leaves a released primary context
current on the thread. Importing this module loads neither PyCUDA nor cuda-bindings.

`EventClocks` are the device clocks of all runtimes that record events. A trial takes four
events from a pool and records them around its copies and its computation; between blocks,
`read` converts them to nanoseconds. So recording events is the only additional driver call
inside a trial.
"""

import atexit
import ctypes
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from lstm_trt.config.errors import (
    BuildFailed,
    MemoryExhausted,
    RunFailed,
    RuntimeUnavailable,
    one_line,
)
from lstm_trt.config.libraries import how_to_install
from lstm_trt.machine import gpu
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.cuda._status import checked

#: A stream that does not wait for the legacy default stream (CU_STREAM_NON_BLOCKING).
_NON_BLOCKING = 1

_SPIN = 1  # CU_CTX_SCHED_SPIN

_SCHEDULING = {
    0: "automatic: spins, since there are fewer contexts than cores",
    1: "spins",
    2: "yields",
    4: "blocks",
}


class CaptureRefused(BuildFailed):
    """Work on a stream could not be captured as a graph; the stream remains usable."""


class CudaUnavailable(RuntimeUnavailable):
    """CUDA cannot be used here because `what` is missing, a noun: "GPU driver"."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__("cuda", f"no {what}", remedy)
        self.what = what


def _remedy() -> str:
    """The command that installs cuda-bindings."""
    return how_to_install("tensorrt", target="gpu")


def missing(remedy: str = "") -> list[CudaUnavailable]:
    """The missing requirements for running on a GPU. Never raises, creates no context.

    `remedy` installs the runtime that asks, and with it cuda-bindings.
    """
    installed = installed_version("cuda-bindings") is not None
    lacks = []
    if not installed:
        lacks.append(CudaUnavailable("cuda-bindings", remedy or _remedy()))
    try:
        gpu.cuda_device()
        if installed:  # after `cuda_device`, since loading needs the driver
            _bindings()
    except gpu.NoCudaDevice as error:
        what = f"GPU visible to the driver ({error})" if error.driver else "GPU driver"
        lacks.append(CudaUnavailable(what, gpu.NO_GPU_REMEDY))
    except CudaUnavailable as error:
        lacks.append(error)
    return lacks


def check_tf32() -> None:
    """Raises `BuildFailed` if this GPU has no TF32, or a variable of the environment disables
    it."""
    device = gpu.cuda_device()
    if device.compute_capability < (8, 0):
        raise BuildFailed(f"tf32 needs compute capability 8.0 or higher: {device.name} is older")
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise BuildFailed(
            "tf32 is disabled by the environment variable NVIDIA_TF32_OVERRIDE=0: unset it"
        )


def scheduling() -> str:
    """How the host thread waits for the device in this context: the scheduling flag of
    cuCtxGetFlags, as text."""
    flags = ctypes.c_uint()
    with suppress(OSError, AttributeError):
        if gpu.libcuda().cuCtxGetFlags(ctypes.byref(flags)) == 0:
            return _SCHEDULING.get(flags.value & 7, "unknown")
    return "unknown"


class Session:
    """The primary context, current on this thread until `close`, and the resources acquired in it.

    Belongs to the thread that created it. Raises `RuntimeUnavailable` without driver,
    bindings or GPU, `MemoryExhausted` if there is not enough memory for the context.
    """

    def __init__(self) -> None:
        self._driver = _driver()
        with ExitStack() as held:
            self._acquire("a CUDA context", lambda: _primary().push())
            held.callback(self._driver.Context.pop)
            self.stream = self._acquire("a stream", self._driver.Stream, _NON_BLOCKING)
            # The stream is destroyed with its last reference.
            held.callback(setattr, self, "stream", None)
            self._held = held.pop_all()
        _open.append(self)

    def hold(self, release: Callable[[], Any]) -> None:
        """Let `close` call `release()`, before it frees what was acquired earlier."""
        self._held.callback(release)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """A C-ordered array in page-locked host memory; it must not be touched after `close`."""
        array = self._acquire(
            f"a pinned host buffer of {shape}", self._driver.pagelocked_empty, shape, dtype
        )
        self._held.callback(array.base.free)
        return array

    def device(self, size_bytes: int) -> int:
        """Address of a new device buffer, aligned for every type."""
        allocation = self._acquire(
            f"a device buffer of {size_bytes} bytes", self._driver.mem_alloc, size_bytes
        )
        self._held.callback(allocation.free)
        return int(allocation)

    def copies(
        self, address: int, array: np.ndarray
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """(to the device, from the device): asynchronous copies of the whole pinned `array` on the
        stream."""
        to_device = self.on_stream("memcpy_htod_async", address, array)
        from_device = self.on_stream("memcpy_dtoh_async", array, address)
        return to_device, from_device

    def on_stream(self, name: str, *arguments: Any) -> Callable[[], None]:
        """A call of the driver's function `name` that puts work on the stream, as a copy between
        device buffers."""
        return partial(getattr(self._driver, name), *arguments, self.stream)

    def new_event(self) -> Any:
        """An event with timing; waiting for it spins, since it is created without BLOCKING_SYNC."""
        return self._acquire("an event", self._driver.Event)

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) memory of the device, for all processes together."""
        return self._driver.mem_get_info()

    def capture(self, enqueue: Callable[[], None]) -> tuple[Callable[[], None], int | None]:
        """The work that `enqueue()` puts on the stream, as a graph. It must have run once outside a
        capture.

        Returns the call that launches the graph on the stream, and its number of nodes, None if
        unknown. Raises `CaptureRefused` with the reason, or `MemoryExhausted`, after ending the
        capture.
        """
        bindings = _bindings()
        call = partial(checked, bindings, failure=CaptureRefused, exhausted=MemoryExhausted)
        stream = bindings.CUstream(self.stream.handle)
        # Thread-local, so that allocations by a library's other threads do not abort the capture.
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", bindings.cuStreamBeginCapture(stream, mode))
        try:
            enqueue()
        except Exception as error:
            raise CaptureRefused(one_line(error)) from error
        finally:
            ended = bindings.cuStreamEndCapture(stream)  # also after an error
            if not ended[0]:
                self._held.callback(bindings.cuGraphDestroy, ended[1])
        graph = call("cuStreamEndCapture", ended)
        executable = call("cuGraphInstantiate", bindings.cuGraphInstantiate(graph, 0))
        self._held.callback(bindings.cuGraphExecDestroy, executable)
        status, _, nodes = bindings.cuGraphGetNodes(graph)
        launch = bindings.cuGraphLaunch

        def run() -> None:
            result = launch(executable, stream)
            if result[0]:
                call("cuGraphLaunch", result, failure=RunFailed)

        return run, None if status else int(nodes)

    def close(self) -> None:
        """Wait for the stream and free everything in reverse order; may be called twice."""
        if self in _open:
            _open.remove(self)
            with suppress(Exception):  # free the resources also if the device reports an error
                self.stream.synchronize()
        self._held.close()

    def _acquire(self, what: str, make: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except self._driver.MemoryError as error:
            raise MemoryExhausted(f"not enough memory for {what}: {error}") from error


#: Open sessions, for `_leave`.
_open: list[Session] = []


def _driver() -> ModuleType:
    """`pycuda.driver`, or `_cuda_bindings` where it cannot be loaded; raises `CudaUnavailable`
    without either."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a mismatch with the driver is also in the error
            import pycuda.driver
    except Exception:  # not installed, or made for another driver
        _bindings()
        from lstm_trt.runtimes.cuda import _cuda_bindings

        return _cuda_bindings
    return pycuda.driver


def driver_layer() -> str:
    """Which library drives the GPU, for the provenance: pycuda or cuda-bindings."""
    return "pycuda" if _driver().__name__.startswith("pycuda") else "cuda-bindings"


def _bindings() -> ModuleType:
    """`cuda.bindings.driver`; raises `CudaUnavailable`."""
    try:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]  it has no types
    except Exception as error:
        raise CudaUnavailable(f"loadable cuda-bindings ({one_line(error)})", _remedy()) from error
    return driver


def spin_while_waiting() -> None:
    """Let the host spin while it waits for the device; call it before the context is created.

    Otherwise the driver chooses, which on Tegra can mean that it sleeps. `scheduling` returns the
    actual setting.
    """
    with suppress(OSError, AttributeError):
        library = gpu.libcuda()
        library.cuInit(0)
        library.cuDevicePrimaryCtxSetFlags_v2(0, _SPIN)


@cache
def _primary() -> Any:
    """The retained primary context of device 0, set to spin while waiting."""
    for lack in missing():  # a clearer error than PyCUDA's
        raise lack
    driver = _driver()
    driver.init()
    spin_while_waiting()
    context = driver.Device(0).retain_primary_context()
    atexit.register(_leave, context)
    return context


def _leave(context: Any) -> None:
    """Close open sessions: PyCUDA aborts a process that ends with a context pushed."""
    for session in reversed(_open[:]):
        session.close()
    context.detach()


#: Initial size of the event pool, in trials between two readings. A trial that has to enlarge
#: the pool is slower; `event_pool` in the facts shows whether this happened.
POOL_TRIALS = 2048


class EventClocks:
    """Events of the trials since the last reading, from a pool.

    `every`: also record events around the copies. `new_event()` creates an event with
    `record(stream)`, whose method `elapsed` gives the milliseconds until a later event:
    "elapsed_time" in PyTorch, "time_till" in PyCUDA. `enqueue_ns`: for each trial, the host time
    until all its work is enqueued.
    """

    def __init__(
        self, new_event: Callable[[], Any], stream: Any, every: bool, elapsed: str = "elapsed_time"
    ) -> None:
        self._new_event = new_event
        self._stream = stream
        self.every = every
        self._elapsed = elapsed
        self._sets: list[tuple] = []
        self._used = 0
        self.enqueue_ns: list[int] = []
        self._grow(POOL_TRIALS)

    @property
    def size(self) -> int:
        """Number of trials for which the pool has events."""
        return len(self._sets)

    def take(self) -> tuple:
        """The next trial's four events: before copy in, before compute, after compute, after copy
        out."""
        if self._used == len(self._sets):
            self._grow(max(1, len(self._sets)))
        events = self._sets[self._used]
        self._used += 1
        return events

    def restart(self) -> None:
        """Discard the trials so far."""
        self._used = 0
        self.enqueue_ns.clear()

    def read(self) -> dict[str, np.ndarray]:
        """int64 nanoseconds per trial; then restarts. The trials must be complete (a step waits for
        its end)."""
        places = {"compute_ns": (1, 2)}
        if self.every:
            places |= {"h2d_ns": (0, 1), "d2h_ns": (2, 3)}
        columns = {"enqueue_ns": np.array(self.enqueue_ns, np.int64)}
        for name, (first, later) in places.items():
            times_ms = []
            for events in self._sets[: self._used]:
                elapsed = getattr(events[first], self._elapsed)
                times_ms.append(elapsed(events[later]))
            columns[name] = np.rint(np.array(times_ms) * 1e6).astype(np.int64)
        self.restart()
        return columns

    def release(self) -> None:
        """Drop the references to the events and the stream."""
        self.restart()
        self._sets.clear()
        self._stream = None

    def _grow(self, trials: int) -> None:
        for _ in range(trials):
            inner = (self._recorded_event(), self._recorded_event())
            outer = (None, None)
            if self.every:
                outer = (self._recorded_event(), self._recorded_event())
            self._sets.append((outer[0], *inner, outer[1]))

    def _recorded_event(self) -> Any:
        """A new event; the driver creates it when it is first recorded."""
        event = self._new_event()
        event.record(self._stream)
        return event


def timed_step(
    copy_in: Callable[[], Any],
    run: Callable[[], Any],
    copy_out: Callable,
    stream: Any,
    clocks: EventClocks | None,
) -> Callable[[], None]:
    """The step of the runtimes on a GPU: copy in, run, copy out, wait; with the events of `clocks`,
    if there are any.

    `run()` returns a tensor of outputs, which is given to `copy_out`, or None if they are always in
    one place.
    """
    wait = stream.synchronize
    if clocks is None:

        def step() -> None:
            copy_in()
            outputs = run()
            if outputs is None:
                copy_out()
            else:
                copy_out(outputs, True)  # True: non_blocking
            wait()

        return step
    # Local names, which a trial looks up in less time than attributes.
    take = clocks.take
    enqueued = clocks.enqueue_ns.append
    every = clocks.every
    clock = time.perf_counter_ns

    def clocked_step() -> None:
        began = clock()
        before_in, before_run, after_run, after_out = take()
        if every:
            before_in.record(stream)
        copy_in()
        before_run.record(stream)
        outputs = run()
        after_run.record(stream)
        if outputs is None:
            copy_out()
        else:
            copy_out(outputs, True)
        if every:
            after_out.record(stream)
        enqueued(clock() - began)
        wait()

    return clocked_step
