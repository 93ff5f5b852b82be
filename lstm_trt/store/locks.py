"""Advisory lock: one writer per output folder; released when the process exits, even if it is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lstm_trt.config.errors import UsageError

LOCK_FILE = ".lstm_trt.lock"

#: `folder_in_use` holds the lock for a moment, so a writer tries again for this time.
_PATIENCE_S, _POLL_S = 0.1, 0.01


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raises `UsageError` if another process holds it."""
    lock = FileLock(folder / LOCK_FILE, timeout=_PATIENCE_S, poll_interval=_POLL_S)
    try:
        lock.acquire()
    except Timeout:
        holder = (folder / LOCK_FILE).read_text(errors="replace").strip() or "unknown"
        raise UsageError(
            f"{folder} is in use by another sweep or recording (process {holder}):"
            " wait until it ends, or choose another --out"
        ) from None
    try:
        with suppress(OSError):  # the disk is full; the lock is held all the same
            (folder / LOCK_FILE).write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


def folder_in_use(folder: Path) -> bool:
    """Whether a writer holds the lock of the folder now; raises nothing.

    Tests with a shared lock on the same file, because filelock cannot test without acquiring. Several processes can
    test at the same time.
    """
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
