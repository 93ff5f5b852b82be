"""The part of `pycuda.driver` that `_cuda` uses, over cuda-bindings alone, for machines where PyCUDA cannot be built.

Names, arguments and ownership are those of PyCUDA. Copies, launches and event records add 0.1 to 0.3 us of host time
each on top of PyCUDA's, so the layer in use is in the provenance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda.bindings import driver as cu  # pyright: ignore[reportAttributeAccessIssue]  it has no types

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Error(Exception):
    """A call of the driver failed."""


class MemoryError(Error):
    """The device or host has not enough memory."""


def _checked(name: str, result: tuple) -> Any:
    """The value of a call of cuda-bindings, a tuple if there are several; raises `Error`."""
    status, *values = result
    if status:
        _, text = cu.cuGetErrorString(status)
        kind = MemoryError if int(status) == _OUT_OF_MEMORY else Error
        raise kind(f"{name} failed: {text.decode() if text else int(status)}")
    return values[0] if len(values) == 1 else tuple(values)


def init() -> None:
    _checked("cuInit", cu.cuInit(0))


class Device:
    def __init__(self, place: int) -> None:
        self.handle = _checked("cuDeviceGet", cu.cuDeviceGet(place))

    def compute_capability(self) -> tuple[int, int]:
        names = cu.CUdevice_attribute
        wanted = (
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
        major, minor = (_checked("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(name, self.handle)) for name in wanted)
        return major, minor

    def retain_primary_context(self) -> Context:
        return Context(_checked("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(self.handle)), self.handle)


class Context:
    def __init__(self, handle: Any, device: Any) -> None:
        self._context, self._device = handle, device

    @property
    def handle(self) -> int:
        """The address of the context, as PyCUDA has it."""
        return int(self._context)

    def push(self) -> None:
        _checked("cuCtxPushCurrent", cu.cuCtxPushCurrent(self._context))

    @staticmethod
    def pop() -> None:
        _checked("cuCtxPopCurrent", cu.cuCtxPopCurrent())

    @staticmethod
    def get_device() -> Device:
        return Device(int(_checked("cuCtxGetDevice", cu.cuCtxGetDevice())))

    def detach(self) -> None:
        cu.cuDevicePrimaryCtxRelease(self._device)


class Stream:
    """Destroyed with its last reference."""

    def __init__(self, flags: int = 0) -> None:
        self._stream = _checked("cuStreamCreate", cu.cuStreamCreate(flags))
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        status = cu.cuStreamSynchronize(self._stream)
        if status[0]:
            _checked("cuStreamSynchronize", status)

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            cu.cuStreamDestroy(self._stream)


class Event:
    """Destroyed with its last reference."""

    def __init__(self, flags: int = 0) -> None:
        self._event = _checked("cuEventCreate", cu.cuEventCreate(flags))

    def record(self, stream: Stream) -> None:
        status = cu.cuEventRecord(self._event, stream._stream)
        if status[0]:
            _checked("cuEventRecord", status)

    def time_till(self, later: Event) -> float:
        return _checked("cuEventElapsedTime", cu.cuEventElapsedTime(self._event, later._event))

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            cu.cuEventDestroy(self._event)


class _Pinned:
    """Owner of page-locked memory, through which numpy sees it."""

    def __init__(self, size: int) -> None:
        self._pointer = _checked("cuMemHostAlloc", cu.cuMemHostAlloc(size, 0))
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._pointer, False), "version": 3}

    def free(self) -> None:
        if self._pointer:
            cu.cuMemFreeHost(self._pointer)
            self._pointer = 0


class _Array(np.ndarray):
    """`address` is read once, since `array.ctypes.data` takes longer than the copy's call."""

    address: int
    owner: _Pinned

    @property
    def base(self) -> _Pinned:
        return self.owner


def pagelocked_empty(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    dtype = np.dtype(dtype)
    owner = _Pinned(int(np.prod(shape)) * dtype.itemsize)
    array = np.asarray(owner).view(dtype).reshape(shape).view(_Array)
    array.owner, array.address = owner, array.ctypes.data
    return array


class mem_alloc:
    def __init__(self, size: int) -> None:
        self._pointer = _checked("cuMemAlloc", cu.cuMemAlloc(size))

    def __int__(self) -> int:
        return int(self._pointer)

    def free(self) -> None:
        cu.cuMemFree(self._pointer)


def mem_get_info() -> tuple[int, int]:
    return _checked("cuMemGetInfo", cu.cuMemGetInfo())


def memcpy_htod_async(address: int, array: _Array, stream: Stream) -> None:
    status = cu.cuMemcpyHtoDAsync(address, array.address, array.nbytes, stream._stream)
    if status[0]:
        _checked("cuMemcpyHtoDAsync", status)


def memcpy_dtoh_async(array: _Array, address: int, stream: Stream) -> None:
    status = cu.cuMemcpyDtoHAsync(array.address, address, array.nbytes, stream._stream)
    if status[0]:
        _checked("cuMemcpyDtoHAsync", status)


def memcpy_dtod_async(to: int, source: int, size: int, stream: Stream) -> None:
    status = cu.cuMemcpyDtoDAsync(to, source, size, stream._stream)
    if status[0]:
        _checked("cuMemcpyDtoDAsync", status)


def memset_d8_async(address: int, value: int, count: int, stream: Stream) -> None:
    _checked("cuMemsetD8Async", cu.cuMemsetD8Async(address, value, count, stream._stream))
