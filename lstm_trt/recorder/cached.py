"""What the cache holds: files by kind, and what other packages keep there, which does not count
towards its limit."""

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lstm_trt import registry
from lstm_trt.config.format import bytes_text, count
from lstm_trt.store import cache


def _uncounted() -> dict[str, cache.Uncounted]:
    """What other packages keep in the cache, by its name in JSON."""
    return {name: registry.load_entry("CACHES", name) for name in registry.table("CACHES")}


@dataclass(frozen=True)
class CacheContents:
    """Sizes in bytes of what the cache holds: the files of each kind, and each folder that is not
    counted, by its name.

    `removed`: the cache was cleared, and these are its previous contents.
    """

    folder: Path
    limit_bytes: int
    kinds: dict[str, list[int]]
    uncounted: dict[str, list[int]]
    removed: bool = False

    @property
    def sizes(self) -> list[int]:
        """Of all files that count towards the limit."""
        return [size for sizes in self.kinds.values() for size in sizes]

    def as_dict(self) -> dict:
        """JSON values, also of what does not count towards the limit, if there is any."""
        number = "removed" if self.removed else "count"
        beside = {name: _numbers(sizes, number) for name, sizes in self.uncounted.items()}
        if self.removed:
            return {**_numbers(self.sizes, "removed"), **beside}
        return {
            "folder": str(self.folder),
            "bytes": sum(self.sizes),
            "limit_bytes": self.limit_bytes,
            "kinds": {kind: _numbers(sizes, "files") for kind, sizes in self.kinds.items()},
            **beside,
        }

    def __str__(self) -> str:
        beside = [_text(sizes, _uncounted()[name].what) for name, sizes in self.uncounted.items()]
        if self.removed:
            return ", and ".join([f"removed {_text(self.sizes, 'file')}", *beside])
        held = bytes_text(sum(self.sizes))
        limit = bytes_text(self.limit_bytes)
        lines = [f"{self.folder}: {held} of at most {limit}"]
        lines += [f"  {kind}: {_text(sizes, 'file')}" for kind, sizes in self.kinds.items()]
        lines += [f"  {text} (not counted towards the limit)" for text in beside]
        return "\n".join(lines)


def _numbers(sizes: list[int], number: str) -> dict[str, int]:
    """Number and total of sizes in bytes, as JSON values."""
    return {number: len(sizes), "bytes": sum(sizes)}


def _text(sizes: list[int], what: str) -> str:
    """Number and total of sizes in bytes."""
    return f"{count(len(sizes), what)}, {bytes_text(sum(sizes))}"


def cache_contents() -> CacheContents:
    """What the cache holds, including what does not count towards its limit."""
    kinds: dict[str, list[int]] = {}
    for entry in sorted(cache.entries(), key=lambda entry: entry.kind):
        kinds.setdefault(entry.kind, []).append(entry.size_bytes)
    uncounted = {}
    for name, kept in _uncounted().items():
        sizes = [sum(_size(item) for item in folder.rglob("*")) for folder in kept.folders()]
        if sizes:
            uncounted[name] = sizes
    return CacheContents(cache.folder(), cache.limit_bytes(), kinds, uncounted)


def clear_cache() -> CacheContents:
    """Remove everything in the cache; returns what it held."""
    held = replace(cache_contents(), removed=True)
    cache.clear()
    for kept in _uncounted().values():
        for folder in kept.folders():
            shutil.rmtree(folder, ignore_errors=True)
    return held


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
