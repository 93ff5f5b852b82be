"""Advisory locks, released when the process exits, even if it is killed.

- `folder_lock`: one writer per output folder.
- `timing_lock`: one recording at a time per core and device of this machine, since two would
  disturb each other.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lstm_trt.config.errors import UsageError
from lstm_trt.config.libraries import psutil

LOCK_FILE = ".lstm_trt.lock"

#: `folder_in_use` holds the lock for a moment, so a writer tries again for this time.
_PATIENCE_S = 0.1
_POLL_S = 0.01


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raises `UsageError` if another process holds it."""
    lock = FileLock(folder / LOCK_FILE, timeout=_PATIENCE_S, poll_interval=_POLL_S)
    try:
        held = lock.acquire()
    except Timeout:
        with (folder / LOCK_FILE).open() as file:
            in_use = f"{folder} is in use by another sweep or recording ({_holder(file.fileno())})"
        raise UsageError(f"{in_use}: wait until it ends, or choose another --out") from None
    except OSError as error:
        raise UsageError(
            f"cannot lock {folder}: {error}; remove this file, or choose another --out"
        ) from None
    with held:
        state_holder(folder)
        yield


def state_holder(folder: Path, total: int | str = "") -> None:
    """Write into the lock file of a folder, which this process holds, its id and how many
    recordings there will be."""
    with suppress(OSError):  # the disk is full; the lock is held all the same
        (folder / LOCK_FILE).write_text(f"{os.getpid()} {total}\n")


def stated_total(folder: Path) -> int | None:
    """How many recordings the last holder of a folder's lock has stated; None if it has not."""
    with suppress(OSError, ValueError, IndexError):
        return int((folder / LOCK_FILE).read_text().split()[1])


def folder_in_use(folder: Path) -> bool:
    """Whether a writer holds the lock of the folder now; raises nothing.

    Tests with a shared lock on the same file, because filelock cannot test without acquiring.
    Several processes can test at the same time.
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


#: How often a wait of limited time looks whether a lock is free.
_LOOK_S = 0.5


@contextmanager
def timing_lock(
    resources: Iterable[str],
    wait: bool | float = True,
    waiting: Callable[[str], None] = lambda holder: None,
) -> Iterator[list[str]]:
    """Hold the locks of `resources`, such as `core-3`, while trials are timed; gives a line for
    each that has no lock.

    If another process holds one of them, `waiting(holder)` is called and this process waits for it:
    until it ends, or for at most `wait` seconds, or with False not at all. Raises `UsageError` if
    it is still held then.
    """
    folder = Path(os.environ.get("LSTM_TRT_LOCKS", TIMING_LOCKS))
    without: list[str] = []
    with ExitStack() as held:
        # In one order, so that two processes cannot wait for each other.
        for resource in sorted(resources):
            name = resource.replace("-", " ")
            path = folder / f"lstm_trt-{resource}.lock"
            try:
                handle = _opened(path)
                held.callback(os.close, handle)
                if _locked(handle, wait=False):
                    continue
                holder = _holder(handle)
                if wait:
                    waiting(holder)
                if not _locked(handle, wait):
                    remedy = "leave out --no-wait or --wait-limit to wait for it"
                    in_use = f"another recording uses {name} ({holder})"
                    raise UsageError(f"{in_use}: wait until it ends, or {remedy}")
            except OSError as error:
                reason = f"{name} is not locked ({path}: {error.strerror})"
                remedy = "remove this file, or set LSTM_TRT_LOCKS to another folder"
                without.append(f"{reason}, and others may have used it: {remedy}")
        yield without


def _locked(handle: int, wait: bool | float) -> bool:
    """Lock an open file, within `wait` seconds unless that is True; whether it is locked."""
    if wait is True:
        # The kernel wakes this process: polling would disturb the trials that it waits for.
        fcntl.flock(handle, fcntl.LOCK_EX)
        return True
    end = time.monotonic() + wait
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if not time.monotonic() < end:  # or it is NaN
            return False
        time.sleep(_LOOK_S)


def _holder(handle: int) -> str:
    """The process that holds the lock of an open file, as the kernel lists it, its program, user
    and beginning."""
    status = os.fstat(handle)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, psutil.Error):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 4711 00:18:42 0 EOF
            if fields[1] == "FLOCK" and place in fields:
                process = psutil.Process(int(fields[4]))
                began = datetime.fromtimestamp(process.create_time())
                who = f"process {process.pid}, {process.name()} of {process.username()}"
                return f"{who}, since {began:%Y-%m-%d %H:%M:%S}"
    return "a process that is not visible here"


def _opened(path: Path) -> int:
    """Open a lock file, never for writing, and create it if needed.

    The folder is shared with other users, who may plant a link to another file there: links are not
    followed, and nothing is written. In a folder like /dev/shm Linux refuses to create over another
    user's file (fs.protected_regular).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileExistsError):
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(handle, 0o666)  # regardless of the umask; versions before 0.2 write into it
        return handle
    return os.open(path, flags)
