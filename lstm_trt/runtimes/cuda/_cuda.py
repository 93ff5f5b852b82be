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

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lstm_trt.config.errors import BuildFailed, LabError, MemoryExhausted, RunFailed, RuntimeUnavailable, one_line
from lstm_trt.machine import gpu

BINDINGS_REMEDY = "make gpu"

#: A stream that does not wait for the legacy default stream (CU_STREAM_NON_BLOCKING).
_NON_BLOCKING = 1

_SPIN = 1  # CU_CTX_SCHED_SPIN

_SCHEDULING = {0: "automatic: spins, since there are fewer contexts than cores", 1: "spins", 2: "yields", 4: "blocks"}

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class CaptureRefused(BuildFailed):
    """Work on a stream could not be captured as a graph; the stream remains usable."""


class Missing(NamedTuple):
    """A missing requirement for running on a GPU; `what` is a noun: "GPU driver"."""

    what: str
    remedy: str


class CudaUnavailable(RuntimeUnavailable):
    """CUDA cannot be used here because `missing` is missing."""

    def __init__(self, missing: Missing) -> None:
        super().__init__("cuda", f"no {missing.what}", missing.remedy)
        self.missing = missing


def missing() -> list[Missing]:
    """The missing requirements for running on a GPU. Never raises, creates no context."""
    installed = _is_installed("cuda.bindings")
    lacks = [] if installed else [Missing("cuda-bindings", BINDINGS_REMEDY)]
    try:
        gpu_name()
        if installed:  # after `gpu_name`, since loading needs the driver
            _bindings()
    except CudaUnavailable as error:
        lacks.append(error.missing)
    return lacks


def gpu_name() -> str:
    """Name of CUDA's device 0; raises `CudaUnavailable` without driver or GPU."""
    try:
        return gpu.cuda_device().name
    except gpu.NoCudaDevice as error:
        what = f"GPU visible to the driver ({error})" if error.driver else "GPU driver"
        raise CudaUnavailable(Missing(what, gpu.NO_GPU_REMEDY)) from None


def scheduling() -> str:
    """How the host thread waits for the device in this context: the scheduling flag of cuCtxGetFlags, as text."""
    flags = ctypes.c_uint()
    try:
        known = gpu.libcuda().cuCtxGetFlags(ctypes.byref(flags)) == 0
    except (OSError, AttributeError):
        known = False
    return _SCHEDULING.get(flags.value & 7, "unknown") if known else "unknown"


@dataclass(frozen=True)
class Graph:
    """A captured graph: `launch()` enqueues it on the session's stream; `nodes`: their number, None if unknown."""

    launch: Callable[[], None]
    nodes: int | None


class Session:
    """The primary context, current on this thread until `close`, and the resources acquired in it.

    Belongs to the thread that created it. Raises `RuntimeUnavailable` without driver,
    bindings or GPU, `MemoryExhausted` if there is not enough memory for the context.
    """

    def __init__(self) -> None:
        self._driver = _driver()
        self._held = ExitStack()
        with self._memory("a CUDA context"):
            context = _primary()
            context.push()
        self._held.callback(self._driver.Context.pop)
        self.stream: Any = None
        _open.append(self)
        try:
            with self._memory("a stream"):
                self.stream = self._driver.Stream(_NON_BLOCKING)
            self._held.callback(self._drop_stream)
        except BaseException:
            self.close()
            raise

    def hold(self, release: Callable[[], Any]) -> None:
        """Let `close` call `release()`, before it frees what was acquired earlier."""
        self._held.callback(release)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """A C-ordered array in page-locked host memory; it must not be touched after `close`."""
        with self._memory(f"a pinned host buffer of {shape}"):
            array = self._driver.pagelocked_empty(shape, dtype)
        self._held.callback(array.base.free)
        return array

    def device(self, size_bytes: int) -> int:
        """Address of a new device buffer, aligned for every type."""
        with self._memory(f"a device buffer of {size_bytes} bytes"):
            allocation = self._driver.mem_alloc(size_bytes)
        self._held.callback(allocation.free)
        return int(allocation)

    def copies(self, address: int, array: np.ndarray) -> tuple[Callable[[], None], Callable[[], None]]:
        """(to the device, from the device): asynchronous copies of the whole pinned `array` on the stream."""
        return (
            partial(self._driver.memcpy_htod_async, address, array, self.stream),
            partial(self._driver.memcpy_dtoh_async, array, address, self.stream),
        )

    def copy_on_device(self, to: int, source: int, size_bytes: int) -> Callable[[], None]:
        """An asynchronous copy between device buffers on the stream."""
        return partial(self._driver.memcpy_dtod_async, to, source, size_bytes, self.stream)

    def set_to_zero(self, address: int, size_bytes: int) -> Callable[[], None]:
        """Asynchronously sets a device buffer to zero, on the stream."""
        return partial(self._driver.memset_d8_async, address, 0, size_bytes, self.stream)

    def new_event(self) -> Any:
        """An event with timing; waiting for it spins, since it is created without BLOCKING_SYNC."""
        with self._memory("an event"):
            return self._driver.Event()

    @staticmethod
    def elapsed_ms(first: Any, later: Any) -> float:
        """Milliseconds on the device between two completed events."""
        return first.time_till(later)

    def compute_capability(self) -> tuple[int, int]:
        """(9, 0) for sm_90."""
        return self._driver.Context.get_device().compute_capability()

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) memory of the device, for all processes together."""
        return self._driver.mem_get_info()

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """The work that `enqueue()` puts on the stream, as a graph. It must have run once outside a capture.

        Raises `CaptureRefused` with the reason, or `MemoryExhausted`, after ending the capture.
        """
        bindings = _bindings()
        stream = bindings.CUstream(self.stream.handle)
        # Thread-local, so that allocations by a library's other threads do not abort the capture.
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked("cuStreamBeginCapture", *bindings.cuStreamBeginCapture(stream, mode))
        refusal: Exception | None = None
        try:
            enqueue()
        except Exception as error:
            refusal = error
        finally:
            status, graph = bindings.cuStreamEndCapture(stream)  # also after an error
            if not status:
                self._held.callback(bindings.cuGraphDestroy, graph)
        if refusal is not None:
            raise CaptureRefused(one_line(refusal)) from refusal
        _checked("cuStreamEndCapture", status)
        executable = _checked("cuGraphInstantiate", *bindings.cuGraphInstantiate(graph, 0))
        self._held.callback(bindings.cuGraphExecDestroy, executable)
        status, _, nodes = bindings.cuGraphGetNodes(graph)
        launch = bindings.cuGraphLaunch

        def run() -> None:
            status = launch(executable, stream)[0]
            if status:
                _checked("cuGraphLaunch", status, failure=RunFailed)

        return Graph(run, None if status else int(nodes))

    def close(self) -> None:
        """Wait for the stream and free everything in reverse order; may be called twice."""
        if self in _open:
            _open.remove(self)
            with suppress(Exception):  # free the resources also if the device reports an error
                self.stream.synchronize()
        self._held.close()

    def _drop_stream(self) -> None:
        self.stream = None  # PyCUDA destroys the stream with the last reference

    @contextmanager
    def _memory(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._driver.MemoryError as error:
            raise MemoryExhausted(f"not enough memory for {what}: {error}") from error


#: Open sessions, for `_leave`.
_open: list[Session] = []


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _driver() -> ModuleType:
    """`pycuda.driver`, or `_cuda_bindings` where it cannot be loaded; raises `CudaUnavailable` without either."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a mismatch of header and driver is also in the error's text
            import pycuda.driver
    except Exception:  # not installed, or made for another driver
        _bindings()
        return importlib.import_module("lstm_trt.runtimes.cuda._cuda_bindings")
    return pycuda.driver


def driver_layer() -> str:
    """Which library drives the GPU, for the provenance: pycuda or cuda-bindings."""
    return "pycuda" if _driver().__name__.startswith("pycuda") else "cuda-bindings"


def _bindings() -> ModuleType:
    """`cuda.bindings.driver`; raises `CudaUnavailable`."""
    try:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]  it has no types
    except Exception as error:
        raise CudaUnavailable(Missing(f"loadable cuda-bindings ({one_line(error)})", BINDINGS_REMEDY)) from error
    return driver


def _checked(name: str, status: int, value: Any = None, failure: type[LabError] = CaptureRefused) -> Any:
    """`value` returned by a call of cuda-bindings; raises `MemoryExhausted` or `failure` if the call failed."""
    if not status:
        return value
    _, text = _bindings().cuGetErrorString(status)
    message = f"{name} failed: {text.decode() if text else int(status)}"
    raise MemoryExhausted(message) if int(status) == _OUT_OF_MEMORY else failure(message)


def spin_while_waiting() -> None:
    """Let the host spin while it waits for the device; call it before the context is created.

    Otherwise the driver chooses, which on Tegra can mean that it sleeps. `scheduling` returns the actual setting.
    """
    with suppress(OSError, AttributeError):
        library = gpu.libcuda()
        library.cuInit(0)
        library.cuDevicePrimaryCtxSetFlags_v2(0, _SPIN)


@cache
def _primary() -> Any:
    """The retained primary context of device 0, set to spin while waiting."""
    gpu_name()  # raises a clearer error for a missing driver than PyCUDA
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
    `record(stream)`; `elapsed_ms(first, later)` gives the milliseconds between two events.
    `enqueue_ns`: for each trial, the host time until all its work is enqueued.
    """

    def __init__(
        self,
        new_event: Callable[[], Any],
        stream: Any,
        every: bool,
        elapsed_ms: Callable[[Any, Any], float] = lambda first, later: first.elapsed_time(later),
    ) -> None:
        self._new_event, self._stream, self._every, self._elapsed_ms = new_event, stream, every, elapsed_ms
        self._sets: list[tuple] = []
        self._used = 0
        self.enqueue_ns: list[int] = []
        self._grow(POOL_TRIALS)

    @property
    def size(self) -> int:
        """Number of trials for which the pool has events."""
        return len(self._sets)

    def take(self) -> tuple:
        """The next trial's four events: before copy in, before compute, after compute, after copy out."""
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
        """int64 nanoseconds per trial; then restarts. The trials must be complete (a step waits for its end)."""
        sets, elapsed_ms = self._sets[: self._used], self._elapsed_ms
        columns: dict[str, list] = {"enqueue_ns": list(self.enqueue_ns)}
        columns["compute_ns"] = [elapsed_ms(before, after) * 1e6 for _, before, after, _ in sets]
        if self._every:
            columns["h2d_ns"] = [elapsed_ms(first, before) * 1e6 for first, before, _, _ in sets]
            columns["d2h_ns"] = [elapsed_ms(after, last) * 1e6 for _, _, after, last in sets]
        self.restart()
        return {name: np.rint(values).astype(np.int64) for name, values in columns.items()}

    def release(self) -> None:
        """Drop the references to the events and the stream."""
        self.restart()
        self._sets.clear()
        self._stream = None

    def _grow(self, trials: int) -> None:
        for _ in range(trials):
            inner = [self._new_event(), self._new_event()]
            outer = [self._new_event(), self._new_event()] if self._every else [None, None]
            events = (outer[0], *inner, outer[1])
            for event in filter(None, events):
                event.record(self._stream)  # the driver creates an event when it is first recorded
            self._sets.append(events)
