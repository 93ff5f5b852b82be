"""Temporary files and folders, of which those that a killed process left are removed by the next one.

Each is under a lock (flock) that its process holds while it lives. A process id would tell nothing: containers that
share a folder number their processes apart.
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
    """A new folder among the temporary files of the system (TMPDIR), removed at the end; raises OSError."""
    return _temporary(Path(tempfile.gettempdir()), "run", partial(Path.mkdir, mode=0o700))


@contextmanager
def _temporary(folder: Path, stem: str, make: Callable[[Path], None]) -> Iterator[Path]:
    _remove_once(folder)
    path, handle = _locked(folder, stem, make)
    try:
        yield path
    finally:
        with suppress(OSError):  # it was renamed
            _remove(path)
        os.close(handle)


def _locked(folder: Path, stem: str, make: Callable[[Path], None]) -> tuple[Path, int]:
    """The path of what `make` makes in `folder`, and a handle that holds its lock."""
    while True:
        path = folder / f".{stem[:40]}.{secrets.token_hex(8)}{SUFFIX}"
        make(path)
        access = os.O_RDONLY if path.is_dir() else os.O_RDWR  # as NFS asks for
        with suppress(FileNotFoundError):  # taken for abandoned before it was locked
            handle = os.open(path, access | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks, where nothing is removed
                fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists():
                return path, handle
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders in `folder` of processes that were killed: those whose lock is free."""
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
