"""Advisory locks, released when the process exits, even if it is killed.

- `folder_lock`: one writer per output folder.
- `timing_lock`: one recording at a time per core and device of this machine, since two would disturb each other.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
        held = lock.acquire()
    except Timeout:
        holder, *_ = (folder / LOCK_FILE).read_text(errors="replace").split() or ["unknown"]
        in_use = f"{folder} is in use by another sweep or recording (process {holder})"
        raise UsageError(f"{in_use}: wait until it ends, or choose another --out") from None
    with held:
        state_holder(folder)
        yield


def state_holder(folder: Path, total: int | str = "") -> None:
    """Write into the lock file of a folder, which this process holds, its id and how many recordings there will be."""
    with suppress(OSError):  # the disk is full; the lock is held all the same
        (folder / LOCK_FILE).write_text(f"{os.getpid()} {total}\n")


def stated_total(folder: Path) -> int | None:
    """How many recordings the last holder of a folder's lock has stated; None if it has not."""
    with suppress(OSError, ValueError, IndexError):
        return int((folder / LOCK_FILE).read_text().split()[1])


def folder_in_use(folder: Path) -> bool:
    """Whether a writer holds the lock of the folder now; raises nothing.

    Tests with a shared lock on the same file, because filelock cannot test without acquiring. Several processes can
    test at the same time.
    """
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or the file system has no locks
        pass
    return False


#: Folder of the timing locks, shared by all users of the machine; `LSTM_TRT_LOCKS` replaces it.
TIMING_LOCKS = Path("/dev/shm")


@contextmanager
def timing_lock(
    resources: Iterable[str], wait: bool = True, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the locks of `resources`, such as `core-3`, while trials are timed.

    If another process holds one of them, `waiting(holder)` is called once and this process waits; with `wait=False`
    `UsageError` is raised. The kernel wakes the waiting process, because polling would disturb the trials that it waits
    for. Where lock files cannot be made, nothing is locked.
    """
    folder = Path(os.environ.get("LSTM_TRT_LOCKS", TIMING_LOCKS))
    with ExitStack() as held:
        for resource in sorted(resources):  # in one order, so that two processes cannot wait for each other
            try:
                handle = _opened(folder / f"lstm_trt-{resource}.lock")
            except OSError:
                continue
            held.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = f"process {_holder(handle)}"
                if not wait:
                    in_use = f"another recording uses {resource.replace('-', ' ')} ({holder})"
                    raise UsageError(f"{in_use}: wait until it ends, or leave out --no-wait to wait for it") from None
                if waiting:
                    waiting(holder)
                waiting = None
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _holder(handle: int) -> str:
    """The process that holds the lock of an open file, as the kernel lists it."""
    status = os.fstat(handle)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 4711 00:18:42 0 EOF
            if fields[1] == "FLOCK" and place in fields:
                return fields[4]
    return "unknown"


def _opened(path: Path) -> int:
    """Open a lock file, never for writing, and create it if needed.

    The folder is shared with other users, who may plant a link to another file there: links are not followed, and
    nothing is written. In a folder like /dev/shm Linux refuses to create over another user's file
    (fs.protected_regular).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileExistsError):
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(handle, 0o666)  # regardless of the umask; versions before 0.2 write into it
        return handle
    return os.open(path, flags)
