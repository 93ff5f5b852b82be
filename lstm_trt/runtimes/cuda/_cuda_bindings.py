"""The part of `pycuda.driver` that `_cuda` uses, over cuda-bindings alone, for machines where
PyCUDA cannot be built.

Names, arguments and ownership are those of PyCUDA. Copies, launches and event records add 0.1 to
0.3 us of host time each on top of PyCUDA's, so the layer in use is in the provenance.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver as cu  # pyright: ignore[reportAttributeAccessIssue]  it has no types

from lstm_trt.runtimes.cuda._status import checked


class Error(Exception):
    """A call of the driver failed."""


class MemoryError(Error):
    """The device or host has not enough memory."""


_checked = partial(checked, cu, failure=Error, exhausted=MemoryError)


def _call(name: str, *arguments: Any) -> Any:
    """The value of a call of the driver, of one that is not timed."""
    return _checked(name, getattr(cu, name)(*arguments))


def init() -> None:
    _call("cuInit", 0)


class Device:
    def __init__(self, place: int) -> None:
        self._device = _call("cuDeviceGet", place)

    def retain_primary_context(self) -> Context:
        return Context(self._device)


class Context:
    def __init__(self, device: Any) -> None:
        self._device = device
        self._context = _call("cuDevicePrimaryCtxRetain", device)
        self.handle = int(self._context)

    def push(self) -> None:
        _call("cuCtxPushCurrent", self._context)

    @staticmethod
    def pop() -> None:
        _call("cuCtxPopCurrent")

    def detach(self) -> None:
        cu.cuDevicePrimaryCtxRelease(self._device)


class Stream:
    """Destroyed with its last reference."""

    def __init__(self, flags: int = 0) -> None:
        self._stream = _call("cuStreamCreate", flags)
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
        self._event = _call("cuEventCreate", flags)

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
    """Owner of page-locked memory, through which numpy sees it: the `base` of its array."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.size = math.prod(shape) * dtype.itemsize
        self.address = _call("cuMemHostAlloc", self.size, 0)
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (self.address, False),
            "version": 3,
        }

    def free(self) -> None:
        cu.cuMemFreeHost(self.address)


def pagelocked_empty(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    return np.asarray(_Pinned(shape, np.dtype(dtype)))


class mem_alloc:
    def __init__(self, size: int) -> None:
        self._pointer = _call("cuMemAlloc", size)

    def __int__(self) -> int:
        return int(self._pointer)

    def free(self) -> None:
        cu.cuMemFree(self._pointer)


def mem_get_info() -> tuple[int, int]:
    return _call("cuMemGetInfo")


def memcpy_htod_async(address: int, array: np.ndarray, stream: Stream) -> None:
    memory: Any = array.base  # its attributes are read in less time than `array.ctypes.data`
    status = cu.cuMemcpyHtoDAsync(address, memory.address, memory.size, stream._stream)
    if status[0]:
        _checked("cuMemcpyHtoDAsync", status)


def memcpy_dtoh_async(array: np.ndarray, address: int, stream: Stream) -> None:
    memory: Any = array.base
    status = cu.cuMemcpyDtoHAsync(memory.address, address, memory.size, stream._stream)
    if status[0]:
        _checked("cuMemcpyDtoHAsync", status)


def memcpy_dtod_async(to: int, source: int, size: int, stream: Stream) -> None:
    status = cu.cuMemcpyDtoDAsync(to, source, size, stream._stream)
    if status[0]:
        _checked("cuMemcpyDtoDAsync", status)


def memset_d8_async(address: int, value: int, count: int, stream: Stream) -> None:
    _call("cuMemsetD8Async", address, value, count, stream._stream)
