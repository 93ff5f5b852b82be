"""Errors of frameworks become one line: out of memory, or build failed."""

from __future__ import annotations

import pytest

from lstm_trt.config.configuration import PRECISIONS
from lstm_trt.config.errors import (
    BuildFailed,
    MemoryExhausted,
    UsageError,
    building,
    first_line,
    is_memory_error,
    nearest,
    one_of,
)


def wrapped(inner: str) -> RuntimeError:
    error = RuntimeError("backend='inductor' raised:")
    error.__cause__ = RuntimeError(inner)
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), MemoryExhausted),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nmore"), MemoryExhausted),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), MemoryExhausted),
        (RuntimeError("OOM when allocating tensor with shape[1]"), MemoryExhausted),
        (wrapped("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryExhausted),
        (wrapped("no such thing"), BuildFailed),
        (OSError("libx.so: cannot allocate memory in static TLS block"), BuildFailed),
        (ValueError("no\nsuch thing"), BuildFailed),
    ],
)
def test_an_error_becomes_one_line_of_its_class(error, kind):
    with pytest.raises(kind) as caught, building("some", "cell (forward)"):
        raise error
    assert "\n" not in str(caught.value) and "some" in str(caught.value) and "cell (forward)" in str(caught.value)
    assert caught.value.__cause__ is error
    assert is_memory_error(error) == (kind is MemoryExhausted)


def test_own_errors_are_passed_on_unchanged():
    with pytest.raises(UsageError, match="passes as it is"), building("some", "cell"):
        raise UsageError("passes as it is")


def test_the_first_line_includes_the_second_after_a_colon():
    assert first_line(RuntimeError("raised:\n\n  CppCompileError: no g++\nmore")) == "raised: CppCompileError: no g++"
    assert first_line(RuntimeError("no\nmore")) == "no" and first_line(KeyError()) == "KeyError"


def test_a_mistyped_name_gets_the_nearest_one():
    assert nearest("fp61", PRECISIONS) == " (did you mean 'fp16'?)" and nearest("parsec", ("us", "ms")) == ""
    with pytest.raises(UsageError, match=r"unknown precision 'fp61' \(did you mean 'fp16'\?\): choose from fp32, "):
        one_of("precision", "fp61", PRECISIONS)


def test_a_message_is_one_line_whatever_names_are_in_it():
    """Of a damaged file, or made to change the colours or the title of a terminal."""
    assert (
        str(UsageError("give --size batc\n=N for 'µ ü 批' \x1b[31m")) == r"give --size batc\n=N for 'µ ü 批' \x1b[31m"
    )
    assert str(UsageError("\udcff \u2028")) == r"\udcff \u2028"  # of a file name that is not UTF-8
