"""Recordings on disk: the one door to writing, reading, validating and consolidating them.

A recording is one self-contained Parquet file (`store_schema.py`, `store_files.py`), a long
one a series of such files, a campaign a folder of them (`store_folders.py`); many become
two files (`store_pairs.py`).
"""

from __future__ import annotations
