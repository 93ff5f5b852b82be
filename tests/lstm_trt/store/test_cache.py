"""The cache of files: what another user can have written is not loaded, but made anew."""

from __future__ import annotations

import os
import stat

import pytest

from lstm_trt.config.errors import UsageError
from lstm_trt.store import cache

OWN = b"made by this user"
PLANTED = b"planted by another user"


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """An entry of the cache with another content and its right sum, as another user could have planted it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.keep("c", "key", ".so", PLANTED).path


def given_to_another_user(monkeypatch, *paths) -> None:
    """These are another user's; root gives them away, anybody else becomes another user."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, 12345, -1)
    else:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)


def modes(path) -> list[int]:
    """The permissions of an entry, its folder, and the cache."""
    return [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_this_user_can_read_or_write_what_is_kept(tmp_path, monkeypatch, umask):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    before = os.umask(umask)
    try:
        path = cache.keep("c", "key", ".so", OWN).path
    finally:
        os.umask(before)
    assert modes(path) == [0o600, 0o700, 0o700]
    assert cache.stored("c", "key", ".so") == (path, cache.sha256(OWN), True)


@pytest.mark.parametrize("place", ["file", "cache"])
@pytest.mark.parametrize("writable", [0o020, 0o002])
def test_what_others_can_write_is_made_anew(entry, place, writable):
    """From an earlier version, or an unusual umask."""
    changed = entry if place == "file" else cache.folder()
    changed.chmod(0o700 | writable)
    again = cache.fetch("c", "key", ".so", lambda: OWN)
    assert not again.cached and again.path.read_bytes() == OWN
    assert modes(entry) == [0o600, 0o700, 0o700]


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_of_another_user_or_a_link_to_one_is_made_anew(entry, monkeypatch, tmp_path, linked):
    file = entry.rename(tmp_path / "elsewhere") if linked else entry
    if linked:
        entry.symlink_to(file)
    given_to_another_user(monkeypatch, file)
    assert cache.stored("c", "key", ".so") is None
    if os.geteuid() == 0:
        again = cache.fetch("c", "key", ".so", lambda: OWN)
        assert not again.cached and entry.read_bytes() == OWN and entry.stat().st_uid == 0


def test_a_cache_of_another_user_is_refused(entry, monkeypatch):
    given_to_another_user(monkeypatch, cache.folder())
    assert cache.stored("c", "key", ".so") is None
    with pytest.raises(UsageError, match=r"cannot write the cache .*; set XDG_CACHE_HOME"):
        cache.keep("c", "key", ".so", OWN)
    assert entry.read_bytes() == PLANTED
