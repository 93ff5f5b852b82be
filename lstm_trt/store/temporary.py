"""Temporary files and folders, of which those that a killed process left are removed by the next
one.

Each is under a lock (flock) that its process holds while it lives. A process id would tell nothing:
containers that share a folder number their processes apart.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path

#: How the names end: other programs keep temporary files in the same folders.
SUFFIX = ".lstm_trt.tmp"


def temporary_file(target: Path) -> AbstractContextManager[Path]:
    """An empty file beside `target`, to be written and renamed to it; removed unless it was.

    Raises OSError (disk full, no permission).
    """
    return _temporary(target.parent, target.name, Path.touch)


def temporary_folder() -> AbstractContextManager[Path]:
    """A new folder among the temporary files of the system (TMPDIR), removed at the end; raises
    OSError."""
    return _temporary(Path(tempfile.gettempdir()), "run", partial(Path.mkdir, mode=0o700))


@contextmanager
def _temporary(folder: Path, stem: str, make: Callable[[Path], None]) -> Iterator[Path]:
    _remove_once(folder)
    # The name is known before it is there: a signal at any moment from here on leaves nothing.
    path = _named(folder, stem)
    handle: int | None = None
    try:
        try:
            while handle is None:
                path = _named(folder, stem)
                make(path)
                handle = _locked(path)
            yield path
        finally:
            _remove_if_there(path)
    except KeyboardInterrupt:  # a signal, perhaps while it was removed
        _remove_if_there(path)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _named(folder: Path, stem: str) -> Path:
    return folder / f".{stem[:40]}.{secrets.token_hex(8)}{SUFFIX}"


def _remove_if_there(path: Path) -> None:
    """Remove it unless it was renamed, or could not be made."""
    with suppress(OSError):
        _remove(path)


def _locked(path: Path) -> int | None:
    """A handle that holds the lock of a new file or folder; None if it was removed as abandoned
    before."""
    access = os.O_RDONLY if path.is_dir() else os.O_RDWR  # as NFS asks for
    try:
        handle = os.open(path, access | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # a file system without locks, where nothing is removed
        fcntl.flock(handle, fcntl.LOCK_EX)
    if path.exists():
        return handle
    os.close(handle)
    return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders in `folder` of processes that were killed: those whose
    lock is free."""
    for path in folder.glob(f".*.{'[0-9a-f]' * 16}{SUFFIX}"):
        with suppress(OSError):  # in use, of another user, or already removed
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(handle)


#: The same once per process: looking through a folder takes longer than writing a file into it.
_remove_once = cache(remove_abandoned)
