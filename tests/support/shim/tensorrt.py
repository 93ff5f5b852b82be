"""A stand-in for the package tensorrt 11.4 over the stand-in for the driver.

ONNX Runtime computes. The work is put into the stream with cuLaunchHostFunc, so that its order, captures and copies are
those of the code that calls it. It makes the primary context current as TensorRT does. Environment:

  SHIM_TRT_BUILD=fail       no engine can be built
  SHIM_TRT_NULL=1           the factories of builder and runtime return null, as with a driver that is too old
  SHIM_TRT_SYNCHRONIZES=1   an engine waits for its stream, so that it cannot be captured
  SHIM_TRT_INSPECTOR=FILE   what the engine inspector answers

There is no clock to wait for, so processes that import it warm up shortly.
"""

from __future__ import annotations

import ctypes
import enum
import os
import weakref
from pathlib import Path

import numpy as np

from lstm_trt.recorder import warm_up

__version__ = "11.4.0.106"

HEAD = b"ftrt"

warm_up.SHORTEST_WARM_UP_S = warm_up.WARM_UP_PART_S = 0.005


class _Flag(enum.Enum):
    def __int__(self):
        return self.value


NetworkDefinitionCreationFlag = _Flag("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 1})
BuilderFlag = enum.Enum("BuilderFlag", {"TF32": 1, "DEBUG": 2})
ProfilingVerbosity = enum.Enum("ProfilingVerbosity", {"LAYER_NAMES_ONLY": 0, "NONE": 1, "DETAILED": 2})
MemoryPoolType = enum.Enum("MemoryPoolType", {"WORKSPACE": 0})
LayerInformationFormat = enum.Enum("LayerInformationFormat", {"ONELINE": 0, "JSON": 1})
_LayerType = enum.Enum("LayerType", {"TRIP_LIMIT": 0, "RECURRENCE": 1, "MATRIX_MULTIPLY": 2, "CONSTANT": 3})
_Severity = enum.Enum("Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4})

float32, float16 = np.dtype("f4"), np.dtype("f2")


def nptype(kind):
    return kind.type


class ILogger:
    Severity = _Severity

    def __init__(self):
        pass


#: The first logger that was given, which TensorRT uses for everything.
_loggers: list[ILogger] = []


def _log(severity, text):
    for logger in _loggers[:1]:
        logger.log(severity, text)


def _libcuda():
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    library.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
    return library


def _enter(logger):
    """As the CUDA runtime: the primary context is retained, and made current if none is. Refuses as an old driver."""
    if not _loggers:
        _loggers.append(logger)
    if os.environ.get("SHIM_TRT_NULL"):
        _log(_Severity.ERROR, "[checkMacros.cpp:67: catchCudaError] Error Code 1: Cuda Runtime (In ~StdAllocator)")
        _log(
            _Severity.ERROR,
            "CUDA initialization failure with error: 35. CUDA driver version is insufficient for CUDA runtime version",
        )
        raise TypeError("pybind11::init(): factory function returned nullptr")
    library, current = _libcuda(), ctypes.c_void_p()
    library.cuInit(0)
    library.cuCtxGetCurrent(ctypes.byref(current))
    if not current.value:
        context = ctypes.c_void_p()
        if code := library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
            raise RuntimeError(f"CUDA error {code}")
        library.cuCtxSetCurrent(context)


class _Layer:
    def __init__(self, kind):
        self.type = kind


class _Input:
    def __init__(self, name, shape):
        self.name, self.shape = name, shape


class _Network:
    def __init__(self):
        self.model, self.layers = None, []

    num_layers = property(lambda self: len(self.layers))
    num_inputs = property(lambda self: len(self.model.graph.input))

    def get_layer(self, place):
        return self.layers[place]

    def get_input(self, place):
        value = self.model.graph.input[place]
        return _Input(value.name, tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim))


class OnnxParser:
    num_errors = 0

    def __init__(self, network, logger):
        self.network = network

    def parse(self, content):
        import onnx

        self.network.model = onnx.load_from_string(bytes(content))
        kinds = (_LayerType.TRIP_LIMIT, _LayerType.RECURRENCE, _LayerType.RECURRENCE, _LayerType.MATRIX_MULTIPLY)
        for node in self.network.model.graph.node:
            self.network.layers += [_Layer(kind) for kind in kinds if node.op_type == "LSTM"]
        return True


class ITimingCache:
    def __init__(self, content):
        self.content = bytes(content)

    def serialize(self):
        return self.content or b"timing"


class IBuilderConfig:
    def __init__(self):
        self.flags, self.timing = {BuilderFlag.TF32}, None
        self.profiling_verbosity, self.builder_optimization_level, self.max_aux_streams = None, 3, -1

    def set_flag(self, flag):
        self.flags.add(flag)

    def clear_flag(self, flag):
        self.flags.discard(flag)

    def create_timing_cache(self, content):
        return ITimingCache(content)

    def set_timing_cache(self, timing, ignore_mismatch):
        self.timing = timing
        return True

    def get_timing_cache(self):
        return self.timing

    def set_memory_pool_limit(self, pool, size):
        pass


class Builder:
    def __init__(self, logger):
        _enter(logger)

    def create_network(self, flags=0):
        return _Network()

    def create_builder_config(self):
        return IBuilderConfig()

    def build_serialized_network(self, network, config):
        if os.environ.get("SHIM_TRT_BUILD") == "fail":
            _log(_Severity.ERROR, "Error Code 10: Internal Error (Could not find any implementation for node LSTM_1)")
            return None
        _log(_Severity.WARNING, f"built on the cores {sorted(os.sched_getaffinity(0))}")
        return HEAD + network.model.SerializeToString()


class Runtime:
    def __init__(self, logger):
        _enter(logger)

    def deserialize_cuda_engine(self, plan):
        if bytes(plan[:4]) != HEAD:
            _log(_Severity.ERROR, "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (magic tag mismatch)")
            return None
        try:
            return ICudaEngine(bytes(plan[4:]))
        except Exception:
            _log(
                _Severity.ERROR, "IRuntime::deserializeCudaEngine: Error Code 4: Internal Error (the plan is truncated)"
            )
            return None


class _Inspector:
    def get_engine_information(self, form):
        file = os.environ.get("SHIM_TRT_INSPECTOR")
        return Path(file).read_text() if file else "Layers:\na\nb\n"


class ICudaEngine:
    num_layers, num_aux_streams, device_memory_size_v2 = 5, 0, 512

    def __init__(self, content):
        import onnx

        graph = onnx.load_from_string(content).graph
        self.content = content
        self.shapes = {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.output)
        }
        self.kinds = {
            value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            for value in (*graph.input, *graph.output)
        }
        self.inputs, self.outputs = [value.name for value in graph.input], [value.name for value in graph.output]

    num_io_tensors = property(lambda self: len(self.shapes))

    def get_tensor_name(self, place):
        return list(self.shapes)[place]

    def get_tensor_dtype(self, name):
        return self.kinds[name]

    def create_engine_inspector(self):
        return _Inspector()

    def create_execution_context(self, *config):
        memory = ctypes.c_uint64()
        if _libcuda().cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(self.device_memory_size_v2)):
            _log(_Severity.ERROR, "IExecutionContext: Error Code 2: OutOfMemory (Requested size was 512 bytes.)")
            return None
        return IExecutionContext(self, memory)


class IExecutionContext:
    nvtx_verbosity = ProfilingVerbosity.DETAILED

    def __init__(self, engine, memory):
        import onnxruntime

        self._memory = memory

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(engine.content, options, providers=["CPUExecutionProvider"])
        self._engine, self._addresses, self._library = engine, {}, _libcuda()
        this = weakref.ref(self)  # without a cycle, since nothing is collected in the timed loop
        self._computing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: this()._compute())

    def __del__(self):
        self._library.cuMemFree_v2(self._memory)

    def set_input_shape(self, name, shape):
        return tuple(shape) == self._engine.shapes[name]

    def get_tensor_shape(self, name):
        return self._engine.shapes[name]

    def set_tensor_address(self, name, address):
        self._addresses[name] = address
        return True

    def _view(self, name):
        shape, kind = self._engine.shapes[name], self._engine.kinds[name]
        memory = (ctypes.c_char * (int(np.prod(shape)) * kind.itemsize)).from_address(self._addresses[name])
        return np.frombuffer(memory, kind).reshape(shape)

    def _compute(self):
        names = self._engine.outputs
        found = self._session.run(names, {name: self._view(name) for name in self._engine.inputs})
        for name, values in zip(names, found, strict=True):
            np.copyto(self._view(name), values)

    def execute_async_v3(self, stream):
        if os.environ.get("SHIM_TRT_SYNCHRONIZES") and self._library.cuStreamSynchronize(stream):
            text = "Error Code 1: Cuda Runtime (operation not permitted when stream is capturing)"
            _log(_Severity.ERROR, f"IExecutionContext::enqueueV3: {text}")
            return False
        return self._library.cuLaunchHostFunc(stream, ctypes.cast(self._computing, ctypes.c_void_p), None) == 0
