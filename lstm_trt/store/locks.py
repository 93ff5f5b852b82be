"""One campaign a folder: a lock that the kernel lets go of when its holder dies, however that happens."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lstm_trt.config.errors import UsageError

LOCK_FILE = ".lstm_trt.lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder for one campaign; raises `UsageError` where another process has it."""
    path = folder / LOCK_FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES) and not _free_after_all(handle):
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                raise UsageError(
                    f"{folder} is in use by another sweep or recording (process {holder}):"
                    " wait for it, or choose another --out"
                ) from None
            # A file system without locks: go on without one.
        with suppress(OSError):  # a full disk; the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _free_after_all(handle: int) -> bool:
    """Whether the lock can be had within 0.1 s: `watch` holds it for a moment to see whether it is free."""
    for _ in range(5):
        time.sleep(0.02)
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def folder_in_use(folder: Path) -> bool:
    """Whether a campaign holds the folder at this moment; raises nothing."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(handle)
