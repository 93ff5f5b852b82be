"""PyTorch modules of users as ONNX: what the exporter says, of which a message has only the reason."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from lstm_trt.config.errors import ExportFailed, first_line, one_line
from lstm_trt.config.libraries import torch
from lstm_trt.export.to_onnx import export_module
from lstm_trt.store import cache


def exported(module: torch.nn.Module, example: tuple[torch.Tensor, ...], name: str, **options: Any) -> bytes:
    """`export_module`; raises `ExportFailed` with the path of a file that has all that the exporter said, which can be
    pages."""
    with tempfile.TemporaryFile() as said:
        try:
            with _printed_into(said):
                return export_module(module, example, name, reason=_reason, **options)
        except ExportFailed as error:
            said.seek(0)
            text = said.read() + f"\n{error.__cause__}".encode()
            log = cache.keep("exporter", cache.sha256(text), ".txt", text).path
            raise ExportFailed(f"{error}; the exporter's own text: {log}") from None


@contextmanager
def _printed_into(file: IO[bytes]) -> Iterator[None]:
    """Standard output goes into this file, also that of PyTorch's C++ code, which prints a graph when it fails."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _reason(error: BaseException) -> str:
    """What failed in an export, without PyTorch's graphs and stacks.

    Of a part that PyTorch interprets, the last line says why it failed.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines and "TorchScript interpreter" in lines[0] else first_line(error)
    return one_line(reason.partition("  [Caused by")[0])
