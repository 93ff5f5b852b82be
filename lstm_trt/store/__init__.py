"""Recordings on disk, and the cache.

A recording is one self-contained Parquet file (`schema`, `files`); a long recording is a series of
such files. A campaign is a folder of recordings (`folders`, `locks`), which can be consolidated
into two files (`consolidated`).
"""
