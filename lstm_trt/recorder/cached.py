"""What the cache holds: files by kind, and the environments of versions, which do not count towards its limit."""

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lstm_judge import environments
from lstm_trt.config.format import bytes_text, count
from lstm_trt.store import cache


def _environments() -> list[tuple[Path, int]]:
    """The existing environments, with their sizes in bytes."""
    found = sorted(path for path in environments.folder().glob("*") if path.is_dir())
    return [(path, sum(_size(item) for item in path.rglob("*"))) for path in found]


@dataclass(frozen=True)
class CacheContents:
    """Sizes in bytes of what the cache holds: the files of each kind, and each version environment.

    `removed`: the cache was cleared, and these are its previous contents.
    """

    folder: Path
    limit_bytes: int
    kinds: dict[str, list[int]]
    environments: list[int]
    removed: bool = False

    @property
    def sizes(self) -> list[int]:
        """Of all files outside the environments."""
        return [size for sizes in self.kinds.values() for size in sizes]

    def as_dict(self) -> dict:
        """JSON values; `environments` is present only if there are any. They do not count towards the limit."""
        beside = {"environments": _numbers(self.environments, "removed" if self.removed else "count")}
        beside = beside if self.environments else {}
        if self.removed:
            return {**_numbers(self.sizes, "removed"), **beside}
        whole = {"folder": str(self.folder), "bytes": sum(self.sizes), "limit_bytes": self.limit_bytes}
        return {**whole, "kinds": {kind: _numbers(sizes, "files") for kind, sizes in self.kinds.items()}, **beside}

    def __str__(self) -> str:
        beside = _text(self.environments, "version environment")
        if self.removed:
            removed = f"removed {_text(self.sizes, 'file')}"
            return f"{removed}, and {beside}" if self.environments else removed
        lines = [f"{self.folder}: {bytes_text(sum(self.sizes))} of at most {bytes_text(self.limit_bytes)}"]
        lines += [f"  {kind}: {_text(sizes, 'file')}" for kind, sizes in self.kinds.items()]
        lines += [f"  {beside} (not counted towards the limit)"] if self.environments else []
        return "\n".join(lines)


def _numbers(sizes: list[int], number: str) -> dict[str, int]:
    """Number and total of sizes in bytes, as JSON values."""
    return {number: len(sizes), "bytes": sum(sizes)}


def _text(sizes: list[int], what: str) -> str:
    """Number and total of sizes in bytes."""
    return f"{count(len(sizes), what)}, {bytes_text(sum(sizes))}"


def cache_contents() -> CacheContents:
    """What the cache holds, including version environments."""
    kinds: dict[str, list[int]] = {}
    for entry in sorted(cache.entries(), key=lambda entry: entry.kind):
        kinds.setdefault(entry.kind, []).append(entry.size_bytes)
    return CacheContents(cache.folder(), cache.limit_bytes(), kinds, [size for _, size in _environments()])


def clear_cache() -> CacheContents:
    """Remove everything in the cache; returns what it held."""
    held = replace(cache_contents(), removed=True)
    cache.clear()
    for path, _ in _environments():
        shutil.rmtree(path, ignore_errors=True)
    return held


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
