"""CUDA for the runtimes: PyCUDA for context, memory, stream and events, cuda-bindings for graphs.

A `Session` makes the device's primary context current on this thread, the very context
that PyTorch and TensorRT use (`pycuda.autoinit` would make a second one), and owns what
is acquired through it: a stream, pinned and device buffers, a captured graph. `close`
frees all of it in the reverse order, also when something failed half-way.

The primary context stays retained until the process ends, as it does with PyTorch:
making it anew takes a fifth of a second, and `Context.detach` of PyCUDA 2026.1 leaves a
released primary context current on the thread. Importing this module loads neither.

`EventClocks` are the device clocks of every runtime that has events to record. A trial
takes four events from a pool and records them around its copies and its computation;
between blocks, when the trials are over, `read` turns them into nanoseconds. So
nothing is asked of the driver inside a trial but to record.
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
from typing import NamedTuple

import numpy as np

from lstm_trt.config.errors import BuildFailed, LabError, MemoryExhausted, RunFailed, RuntimeUnavailable

PYCUDA_REMEDY = "conda install -c conda-forge pycuda, or where the CUDA toolkit is: pip install pycuda"

BINDINGS_REMEDY = "pip install cuda-bindings"

DRIVER_REMEDY = "on a machine with an NVIDIA GPU: install its driver, until `nvidia-smi` lists the GPU"


#: A stream that does not wait for the legacy default stream (CU_STREAM_NON_BLOCKING).
_NON_BLOCKING = 1

_SPIN = 1  # CU_CTX_SCHED_SPIN

_SCHEDULING = {0: "automatic: spins, as contexts are fewer than cores", 1: "spins", 2: "yields", 4: "blocks"}

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class CaptureRefused(BuildFailed):
    """Work on a stream could not be captured as a graph; the stream is usable as before."""


class Missing(NamedTuple):
    """Something that a run on a GPU needs and that is not here; `what` is a noun: "GPU driver"."""

    what: str
    remedy: str


class CudaUnavailable(RuntimeUnavailable):
    """CUDA cannot be used here, for want of `missing`."""

    def __init__(self, missing: Missing) -> None:
        super().__init__("cuda", f"no {missing.what}", missing.remedy)
        self.missing = missing


def missing() -> list[Missing]:
    """What a run on a GPU lacks here; empty where nothing does. Never raises, makes no context."""
    lacks, loads = [], []
    for module, name, load, remedy in (
        ("pycuda", "pycuda", _driver, PYCUDA_REMEDY),
        ("cuda.bindings", "cuda-bindings", _bindings, BINDINGS_REMEDY),
    ):
        if _is_installed(module):
            loads.append(load)
        else:
            lacks.append(Missing(name, remedy))
    try:
        gpu_name()
        for load in loads:  # only now: without a driver it could not succeed
            load()
    except CudaUnavailable as error:
        lacks.append(error.missing)
    return lacks


def gpu_name() -> str:
    """Name of CUDA's device 0, asked of the driver itself; raises `CudaUnavailable` without driver or GPU."""
    try:
        library = _libcuda()
    except OSError:
        raise CudaUnavailable(Missing("GPU driver", DRIVER_REMEDY)) from None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    status = library.cuInit(0) or library.cuDeviceGet(ctypes.byref(device), 0)
    status = status or library.cuDeviceGetName(name, len(name), device)
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        reason = text.value.decode() if text.value else f"error {status}"
        raise CudaUnavailable(Missing(f"GPU that the driver sees ({reason})", DRIVER_REMEDY))
    return name.value.decode()


def scheduling() -> str:
    """How this context's host thread waits for the device: the scheduling bits of cuCtxGetFlags, named."""
    flags = ctypes.c_uint()
    try:
        known = _libcuda().cuCtxGetFlags(ctypes.byref(flags)) == 0
    except (OSError, AttributeError):
        known = False
    return _SCHEDULING.get(flags.value & 7, "unknown") if known else "unknown"


@dataclass(frozen=True)
class Graph:
    """A captured graph: `launch()` enqueues it on the session's stream; `nodes` it consists of, None where unknown."""

    launch: Callable[[], None]
    nodes: int | None


class Session:
    """The primary context, current on this thread until `close`, and what was acquired since.

    Belongs to the thread that made it. Raises `RuntimeUnavailable` without PyCUDA,
    driver or GPU, `MemoryExhausted` where the context does not fit.
    """

    def __init__(self) -> None:
        self._driver = _driver()
        self._held = ExitStack()
        with self._memory("a CUDA context"):
            context = _primary()
            context.push()
        self._held.callback(self._driver.Context.pop)
        self.stream = None
        _open.append(self)
        try:
            with self._memory("a stream"):
                self.stream = self._driver.Stream(_NON_BLOCKING)
            self._held.callback(self._drop_stream)
        except BaseException:
            self.close()
            raise

    def hold(self, release: Callable[[], object]) -> None:
        """Have `close` call `release()`, before what was acquired earlier is freed."""
        self._held.callback(release)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """A C-ordered array in page-locked host memory; it must not be touched after `close`."""
        with self._memory(f"a pinned host buffer of {shape}"):
            array = self._driver.pagelocked_empty(shape, dtype)
        self._held.callback(array.base.free)
        return array

    def device(self, size_bytes: int) -> int:
        """Address of a device buffer, aligned for every type."""
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

    def new_event(self) -> object:
        """An event that takes time stamps; waiting for it spins, since it is made without BLOCKING_SYNC."""
        with self._memory("an event"):
            return self._driver.Event()

    @staticmethod
    def elapsed_ms(first: object, later: object) -> float:
        """Milliseconds on the device between two events that are both over."""
        return first.time_till(later)

    def compute_capability(self) -> tuple[int, int]:
        """(9, 0) for sm_90."""
        return self._driver.Context.get_device().compute_capability()

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) of the device, all processes together."""
        return self._driver.mem_get_info()

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """What `enqueue()` puts on the stream, as a graph. It must have run once outside capture and be over.

        Raises `CaptureRefused` with the reason, `MemoryExhausted`; capture has ended then.
        """
        bindings = _bindings()
        stream = bindings.CUstream(self.stream.handle)
        # Of this thread alone: what a library's own threads allocate meanwhile does no harm.
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked("cuStreamBeginCapture", *bindings.cuStreamBeginCapture(stream, mode))
        refusal: Exception | None = None
        try:
            enqueue()
        except Exception as error:
            refusal = error
        finally:
            status, graph = bindings.cuStreamEndCapture(stream)  # ends it in every case
            if not status:
                self._held.callback(bindings.cuGraphDestroy, graph)
        if refusal is not None:
            raise CaptureRefused(_line(refusal)) from refusal
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
        """Wait for the stream and free everything, the latest first; may be called twice."""
        if self in _open:
            _open.remove(self)
            with suppress(Exception):  # a device in error frees all the same
                self.stream.synchronize()
        self._held.close()

    def _drop_stream(self) -> None:
        self.stream = None  # PyCUDA destroys it with the last reference

    @contextmanager
    def _memory(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._driver.MemoryError as error:
            raise MemoryExhausted(f"no memory for {what}: {error}") from error


#: Sessions that are not closed, for `_leave`.
_open: list[Session] = []


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _driver() -> ModuleType:
    """`pycuda.driver`; raises `CudaUnavailable`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that header and driver differ is in the error's text as well
            import pycuda.driver
    except Exception as error:
        raise CudaUnavailable(Missing(f"pycuda that loads ({_line(error)})", PYCUDA_REMEDY)) from error
    return pycuda.driver


def _bindings() -> ModuleType:
    """`cuda.bindings.driver`; raises `CudaUnavailable`."""
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise CudaUnavailable(Missing(f"cuda-bindings that load ({_line(error)})", BINDINGS_REMEDY)) from error
    return driver


def _checked(name: str, status: int, value: object = None, failure: type[LabError] = CaptureRefused) -> object:
    """`value` of a call of cuda-bindings; raises `MemoryExhausted` or `failure` where it failed."""
    if not status:
        return value
    _, text = _bindings().cuGetErrorString(status)
    message = f"{name} failed: {text.decode() if text else int(status)}"
    raise MemoryExhausted(message) if int(status) == _OUT_OF_MEMORY else failure(message)


@cache
def _primary() -> object:
    """The retained primary context of device 0, asked to spin while it waits; `scheduling` says what holds."""
    gpu_name()  # its message for a missing driver is better than PyCUDA's
    driver = _driver()
    driver.init()
    with suppress(OSError, AttributeError):
        _libcuda().cuDevicePrimaryCtxSetFlags_v2(0, _SPIN)
    context = driver.Device(0).retain_primary_context()
    atexit.register(_leave, context)
    return context


def _leave(context: object) -> None:
    """Close what is open: PyCUDA aborts a process that ends with a context pushed."""
    for session in reversed(_open[:]):
        session.close()
    context.detach()


#: Trials between two readings of the device clocks that need no new events; a trial
#: that makes the pool grow is slower, and `event_pool` in the facts shows it.
POOL_TRIALS = 2048


class EventClocks:
    """Events of the trials since the last reading, from a pool.

    `every`: events around the copies too. `new_event()` makes an event with
    `record(stream)`; `elapsed_ms(first, later)` gives the milliseconds between two.
    `enqueue_ns` is the host's time a trial until all its work is enqueued.
    """

    def __init__(
        self,
        new_event: Callable[[], object],
        stream: object,
        every: bool,
        elapsed_ms: Callable[[object, object], float] = lambda first, later: first.elapsed_time(later),
    ) -> None:
        self._new_event, self._stream, self._every, self._elapsed_ms = new_event, stream, every, elapsed_ms
        self._sets: list[tuple] = []
        self._used = 0
        self.enqueue_ns: list[int] = []
        self._grow(POOL_TRIALS)

    @property
    def size(self) -> int:
        """Trials that the pool holds."""
        return len(self._sets)

    def take(self) -> tuple:
        """Four events of the next trial: before copy in, before compute, after compute, after copy out."""
        if self._used == len(self._sets):
            self._grow(max(1, len(self._sets)))
        events = self._sets[self._used]
        self._used += 1
        return events

    def restart(self) -> None:
        """Forget the trials so far."""
        self._used = 0
        self.enqueue_ns.clear()

    def read(self) -> dict[str, np.ndarray]:
        """int64 nanoseconds a trial, and a fresh start; the trials must be over (a step waits for its end)."""
        sets, elapsed_ms = self._sets[: self._used], self._elapsed_ms
        columns = {"enqueue_ns": list(self.enqueue_ns)}
        columns["compute_ns"] = [elapsed_ms(before, after) * 1e6 for _, before, after, _ in sets]
        if self._every:
            columns["h2d_ns"] = [elapsed_ms(first, before) * 1e6 for first, before, _, _ in sets]
            columns["d2h_ns"] = [elapsed_ms(after, last) * 1e6 for _, _, after, last in sets]
        self.restart()
        return {name: np.rint(values).astype(np.int64) for name, values in columns.items()}

    def release(self) -> None:
        """Let go of the events and of the stream."""
        self.restart()
        self._sets.clear()
        self._stream = None

    def _grow(self, trials: int) -> None:
        for _ in range(trials):
            inner = [self._new_event(), self._new_event()]
            outer = [self._new_event(), self._new_event()] if self._every else [None, None]
            events = (outer[0], *inner, outer[1])
            for event in filter(None, events):
                event.record(self._stream)  # the driver makes an event when it is first recorded
            self._sets.append(events)
