"""Recordings on disk, latencies in memory, tables made elsewhere, and the cache.

A recording is one self-contained Parquet file (`schema`, `files`), a long one a series of such files, a campaign a
folder of them (`folders`, `locks`); many become two files (`consolidated`). Analysis and plots take latencies
(`samples`) from recordings and from tables (`tables`, `foreign`) in one form (`runs`).
"""

from __future__ import annotations
