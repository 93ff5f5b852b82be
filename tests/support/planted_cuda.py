"""Mock objects for tests without a GPU: the CUDA driver, and the parts of TensorRT that need a GPU.

A `MockDriver` replaces `pycuda.driver`, `cuda.bindings.driver` and libcuda. It counts what is
acquired and released, copies bytes, and can be set to fail at any call. It checks the order of
calls and the release of resources, not the behaviour of a real driver.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from types import SimpleNamespace

import numpy as np

from lstm_trt.export.to_onnx import INPUT, OUTPUT


class Resource:
    """A resource acquired from the driver; released once, or with its last reference."""

    def __init__(self, driver, kind, by_reference=False, **values):
        self.driver, self.kind = driver, kind
        self.__dict__.update(values)
        driver.acquire(kind)
        self.alive = True
        if by_reference:
            weakref.finalize(self, driver.release, kind)

    def free(self):
        assert self.alive, f"{self.kind} was released twice"
        self.alive = False
        self.driver.release(self.kind)


class MockDriver:
    """A mock CUDA driver. `calls`: names of the calls so far; `live`: resources that are not released yet."""

    PYCUDA = (
        "init", "Device.retain_primary_context", "Context.pop", "Stream", "Event", "pagelocked_empty", "mem_alloc",
        "mem_get_info", "memcpy_htod_async", "memcpy_dtoh_async", "memcpy_dtod_async", "memset_d8_async",
        "Stream.synchronize", "Event.record", "Event.time_till",
    )  # fmt: skip
    BINDINGS = (
        "CUstream", "CUstreamCaptureMode", "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate",
        "cuGraphGetNodes", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy", "cuGetErrorString",
    )  # fmt: skip

    class Error(Exception):
        """Stands for pycuda.driver.Error."""

    class OutOfMemory(Error):
        """Stands for pycuda.driver.MemoryError, which is not Python's."""

    def __init__(self):
        self.calls, self.live, self.cu_init = [], {}, 0
        self.fails, self.code, self.free_bytes = None, 700, 1 << 30
        self.pushed, self.memory, self.capturing, self.ticks = 0, {}, None, itertools.count(1)
        self.trt = None

    def acquire(self, kind):
        self.live[kind] = self.live.get(kind, 0) + 1

    def release(self, kind):
        self.live[kind] -= 1
        self.calls.append(f"free {kind}")

    def call(self, name):
        """Records a call; fails as set by `fails` = (name, nth call from now)."""
        self.calls.append(name)
        if self.fails and self.fails[0] == name:
            self.fails = (name, self.fails[1] - 1) if self.fails[1] > 1 else None
            if self.fails is None:
                reasons = {2: "out of memory", 900: "operation not permitted when stream is capturing"}
                error = self.OutOfMemory if self.code == 2 else self.Error
                raise error(f"{name} failed: {reasons.get(self.code, 'an illegal memory access was encountered')}")

    def status(self, name, *values):
        try:
            self.call(name)
        except self.Error:
            return (self.code, *(None for _ in values))
        return (0, *values)

    def left(self):
        gc.collect()
        gc.freeze()  # what lives on is not looked at again: collecting takes most of the time otherwise
        return {kind: count for kind, count in self.live.items() if count}

    # pycuda.driver

    def pycuda_driver(self):
        stream = lambda flags: (self.call("Stream"), self._stream(flags))[1]  # noqa: E731
        return SimpleNamespace(
            __name__="pycuda.driver",
            Error=self.Error,
            MemoryError=self.OutOfMemory,
            init=lambda: self.call("init"),
            Device=lambda index: SimpleNamespace(retain_primary_context=self._context),
            Context=SimpleNamespace(pop=self._pop),
            Stream=stream,
            Event=self._event,
            pagelocked_empty=self._pinned,
            mem_alloc=self._device,
            mem_get_info=lambda: (self.free_bytes, 1 << 34),
            memcpy_htod_async=lambda address, array, stream: self._copy("copy in", address, array, True),
            memcpy_dtoh_async=lambda array, address, stream: self._copy("copy out", address, array, False),
        )

    def _context(self):
        self.call("retain")
        return SimpleNamespace(push=self._push, detach=lambda: None)

    def _push(self):
        self.call("push")
        self.pushed += 1

    def _pop(self):
        self.calls.append("pop")
        self.pushed -= 1
        assert self.pushed >= 0

    def _stream(self, flags):
        assert flags == 1, "the stream would wait for the default stream"
        stream = Resource(self, "stream", by_reference=True, handle=4711)
        stream.synchronize = self._synchronize
        return stream

    def _synchronize(self):
        self.call("wait")
        assert self.capturing is None, "a wait inside a capture"

    def _event(self):
        self.call("Event")
        event = Resource(self, "event", by_reference=True)
        at = SimpleNamespace(us=None)
        event.record = lambda stream: setattr(at, "us", next(self.ticks))
        event.time_till = lambda later: (later.at.us - at.us) * 1e-3
        event.at = at
        return event

    def _pinned(self, shape, dtype):
        self.call("pinned")
        return np.zeros(shape, dtype).view(Pinned).owned_by(Resource(self, "pinned"))

    def _device(self, size_bytes):
        self.call("device")
        if size_bytes > self.free_bytes:
            raise self.OutOfMemory("cuMemAlloc failed: out of memory")
        allocation = Allocation(self, "device")
        self.memory[int(allocation)] = np.zeros(size_bytes, np.uint8)
        return allocation

    def _copy(self, name, address, array, to_device):
        self.call(name)
        flat = np.asarray(array).reshape(-1).view(np.uint8)
        assert flat.size == self.memory[address].size
        if to_device:
            self.memory[address][:] = flat
        else:
            flat[:] = self.memory[address]

    # cuda.bindings.driver

    def bindings(self):
        return SimpleNamespace(
            CUstream=int,
            CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
            cuGetErrorString=lambda status: (0, {2: b"out of memory"}.get(status, b"planted")),
            cuStreamBeginCapture=self._begin,
            cuStreamEndCapture=self._end,
            cuGraphInstantiate=self._instantiate,
            cuGraphGetNodes=lambda graph: (0, [], len(graph.work)),
            cuGraphLaunch=self._launch,
            cuGraphDestroy=lambda graph: (graph.free(), (0,))[1],
            cuGraphExecDestroy=lambda executable: (executable.free(), (0,))[1],
        )

    def _begin(self, stream, mode):
        result = self.status("begin capture")
        self.capturing = [] if not result[0] else None
        return result

    def _end(self, stream):
        work, self.capturing = self.capturing, None
        result = self.status("end capture", None)
        return result if result[0] else (0, Resource(self, "graph", work=work))

    def _instantiate(self, graph, flags):
        result = self.status("instantiate", None)
        return result if result[0] else (0, Resource(self, "executable", work=graph.work))

    def _launch(self, executable, stream):
        result = self.status("launch")
        if not result[0]:
            for work in executable.work:
                work()
        return result

    # libcuda, as ctypes sees it

    def libcuda(self):
        def name(buffer, size, device):
            buffer.value = b"Planted GPU"
            return 0

        def error_string(status, place):
            place._obj.value = b"no CUDA-capable device is detected"

        def attribute(place, name, device):
            place._obj.value = {75: 8, 76: 9}[name]
            return 0

        return SimpleNamespace(
            cuInit=lambda flags: self.cu_init,
            cuDeviceGetPCIBusId=lambda buffer, size, device: setattr(buffer, "value", b"0000:01:00.0") or 0,
            cuDriverGetVersion=lambda place: setattr(place._obj, "value", 13000) or 0,
            cuDeviceGetAttribute=attribute,
            cuDeviceGet=lambda place, index: 0,
            cuDeviceGetName=name,
            cuGetErrorString=error_string,
            cuCtxGetFlags=lambda place: setattr(place._obj, "value", 8 | 1) or 0,
            cuDevicePrimaryCtxSetFlags_v2=lambda device, flags: self.calls.append(f"scheduling {flags}") or 0,
        )


class Pinned(np.ndarray):
    """An array with the allocation as its `base`, as in PyCUDA."""

    def owned_by(self, allocation):
        self.allocation = allocation
        return self

    @property
    def base(self):
        return self.allocation


class Allocation(Resource):
    def __int__(self):
        return id(self)


class MockTensorRt:
    """The parts of TensorRT's module that the step uses; an engine computes the sum of the features."""

    __version__ = "0.0.1"
    ProfilingVerbosity = SimpleNamespace(NONE=0)
    CudaGraphStrategy = SimpleNamespace(DISABLED="disabled")
    DynamicShapesKernelSpecializationStrategy = SimpleNamespace(EAGER="eager")
    nptype = staticmethod(lambda data_type: data_type)

    def __init__(self, driver, shape):
        self.driver = driver
        self.sizes = {INPUT: (shape.sequence, shape.batch, shape.features), OUTPUT: (shape.sequence, shape.batch, 1)}
        self.data_type = np.float32
        self.refuses, self.capturable, self.takes_kernels = None, True, True
        self.stored = []

    def Runtime(self, logger):
        runtime = Resource(self.driver, "runtime", by_reference=True)
        this = weakref.ref(runtime)
        runtime.deserialize_cuda_engine = lambda plan: None if self.refuses == "engine" else self.engine(this())
        return runtime

    def engine(self, runtime):
        engine = Resource(self.driver, "engine", by_reference=True, runtime=runtime)
        engine.num_io_tensors, engine.num_layers, engine.num_aux_streams = 2, 3, 0
        engine.device_memory_size_v2 = 1 << 40 if self.refuses == "context: memory" else 512
        engine.get_tensor_name = (INPUT, OUTPUT).__getitem__
        engine.get_tensor_dtype = lambda tensor: self.data_type
        engine.create_runtime_config = self.config
        places = {}

        def execute(handle):
            assert handle == 4711
            self.driver.call("enqueue")
            if self.refuses == "enqueue":
                return False
            if self.driver.capturing is None:
                compute()
            else:
                self.driver.capturing.append(compute)
            return True

        def compute():
            numbers = self.driver.memory[places[INPUT]].view(self.data_type).reshape(self.sizes[INPUT])
            self.driver.memory[places[OUTPUT]][:] = numbers.sum(2, dtype=self.data_type).reshape(-1).view(np.uint8)

        def create(config=None):
            if (self.refuses or "").startswith("context"):
                return None
            context = Resource(self.driver, "context", by_reference=True, config=config)
            context.set_input_shape = lambda tensor, sizes: sizes == self.sizes[tensor] and self.refuses != "shape"
            context.get_tensor_shape = lambda tensor: self.sizes[tensor]
            context.set_tensor_address = lambda tensor, at: (
                self.refuses != "address" and not places.update({tensor: at})
            )
            context.is_stream_capturable = lambda handle: self.capturable
            context.execute_async_v3 = execute
            return context

        engine.create_execution_context = create
        return engine

    def config(self):
        def made():
            kernels = SimpleNamespace(serialize=lambda: b"compiled kernels")
            kernels.deserialize = lambda content: self.stored.append(content) or self.takes_kernels
            return kernels

        return SimpleNamespace(create_runtime_cache=made, set_runtime_cache=lambda kernels: True)
