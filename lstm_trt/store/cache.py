"""The cache on disk, `$XDG_CACHE_HOME/lstm_trt`, of limited size; `lstm-trt cache` shows and clears
it.

An entry is one file, written atomically. A second file holds the SHA-256 of its content; if the two
disagree, the entry is made again. So is one that another user can have written, since some of them
are loaded as code.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import UsageError, file_errors
from lstm_trt.store.files import write_whole
from lstm_trt.store.temporary import remove_abandoned

DEFAULT_LIMIT_BYTES = 2 * 2**30

#: What to do where the cache cannot be written.
HINT = "; set XDG_CACHE_HOME to a writable folder with enough space"


def folder() -> Path:
    """Folder of the cache; this does not create it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "lstm_trt"


def limit_bytes() -> int:
    """Maximum size of the cache: `LSTM_TRT_CACHE_MB`, by default 2 GiB."""
    text = os.environ.get("LSTM_TRT_CACHE_MB", "")
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"LSTM_TRT_CACHE_MB must be a whole number of MB, not {text!r}")
    return int(text) * 10**6


def sha256(content: bytes) -> str:
    """SHA-256 of the content, 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


class Uncounted(NamedTuple):
    """Folders inside the cache that do not count towards its limit: what one of them is, and the
    folder of all."""

    what: str
    folder: Callable[[], Path]

    def folders(self) -> list[Path]:
        """Those that exist."""
        return sorted(path for path in self.folder().glob("*") if path.is_dir())


class CachedFile(NamedTuple):
    """One cached file; `kind` is the name of its folder, `used_at` is in seconds since 1970."""

    used_at: float
    kind: str
    path: Path
    size_bytes: int


class Entry(NamedTuple):
    """A file of the cache with the SHA-256 of its content, and whether it was there already."""

    path: Path
    sha256: str
    cached: bool


#: What a file is kept under: a name, or the JSON values that its content depends on.
Key = str | Mapping[str, Any]


def _path(kind: str, key: Key, suffix: str) -> Path:
    name = key if isinstance(key, str) else sha256(canonical_json(key).encode())
    return folder() / kind / f"{name}{suffix}"


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def make_folder(kind: str) -> None:
    """Make a folder in the cache if it is missing, and let nobody but this user and root into the
    cache.

    Raises `UsageError` if that is not possible: it belongs to another user, or is in a file system
    without permissions.
    """
    whole = folder()
    with file_errors(f"write the cache {whole / kind}", HINT):
        whole.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole.chmod(0o700)
        if not _is_own(whole.stat()):
            raise PermissionError(errno.EPERM, "another user can write into it")
        (whole / kind).mkdir(mode=0o700, exist_ok=True)


def _is_own(status: os.stat_result) -> bool:
    """Whether nobody but this user and root can have written a file, or can write into a folder."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def fetch(kind: str, key: Key, suffix: str, make: Callable[[], bytes]) -> Entry:
    """The file for `key`, made by `make` if it is missing or damaged; raises `UsageError` as `keep`
    does."""
    return stored(kind, key, suffix) or keep(kind, key, suffix, make())


def stored(kind: str, key: Key, suffix: str) -> Entry | None:
    """The file for `key`; None if it is missing or damaged, or another user can have written it."""
    path = _path(kind, key, suffix)
    with suppress(OSError):
        digest = _digest_path(path).read_text().strip()
        with path.open("rb") as file:
            own = _is_own(folder().stat()) and _is_own(os.fstat(file.fileno()))
            if own and sha256(file.read()) == digest:
                os.utime(file.fileno())  # the least recently used entries are removed first
                return Entry(path, digest, True)
    return None


def keep(kind: str, key: Key, suffix: str, content: bytes) -> Entry:
    """Write or replace the file for `key`; raises `UsageError` as `make_folder`, or if it cannot be
    written."""
    path = _path(kind, key, suffix)
    digest = sha256(content)
    digest_path = _digest_path(path)
    make_folder(kind)
    with file_errors(f"write the cache {path.parent}", HINT):
        # The digest is written last: an entry without one is invalid.
        digest_path.unlink(missing_ok=True)
        write_whole(path, content)
        path.chmod(0o600)
        write_whole(digest_path, digest.encode())
    trim(keep=path)
    return Entry(path, digest, False)


def entries() -> list[CachedFile]:
    """All cached files, least recently used first."""
    found = []
    for path in folder().glob("*/*"):
        with suppress(OSError):  # another process has removed it
            status = path.stat()
            if path.suffix not in (".sha256", ".tmp") and stat.S_ISREG(status.st_mode):
                found.append(CachedFile(status.st_mtime, path.parent.name, path, status.st_size))
    return sorted(found)


def remove(path: Path) -> None:
    """Delete a cached file and its digest, if present."""
    _digest_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def trim(keep: Path | None = None) -> None:
    """Remove the least recently used entries, except `keep`, until the size is within the limit."""
    present = entries()
    limit = limit_bytes()
    total = sum(entry.size_bytes for entry in present)
    for entry in present:
        if total > limit and entry.path != keep:
            remove(entry.path)
            total -= entry.size_bytes


def clear() -> None:
    """Remove all entries."""
    for entry in entries():
        remove(entry.path)
    for place in folder().glob("*"):
        remove_abandoned(place)
