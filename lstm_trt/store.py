"""Recordings on disk: the one door to writing, reading, validating and consolidating them.

A recording is one self-contained Parquet file (`store_schema.py`, `store_files.py`), a long
one a series of such files, a campaign a folder of them (`store_folders.py`); many become
two files (`store_pairs.py`).
"""

from __future__ import annotations

from lstm_trt.store_files import make_folder, put, read, read_failure, write, write_failure
from lstm_trt.store_folders import Contents, contents, finished, read_many, read_parts, set_aside_damaged, tidy
from lstm_trt.store_pairs import CONFIGS_FILE, LSTM_FIELDS, TRIALS_FILE, consolidate
from lstm_trt.store_schema import (
    COLUMNS,
    CONTROL_COLUMNS,
    METADATA_KEY,
    REQUIRED,
    SCHEMA_VERSION,
    Failure,
    Recording,
    validate,
)

__all__ = [
    "COLUMNS",
    "CONFIGS_FILE",
    "CONTROL_COLUMNS",
    "LSTM_FIELDS",
    "METADATA_KEY",
    "REQUIRED",
    "SCHEMA_VERSION",
    "TRIALS_FILE",
    "Contents",
    "Failure",
    "Recording",
    "consolidate",
    "contents",
    "finished",
    "make_folder",
    "put",
    "read",
    "read_failure",
    "read_many",
    "read_parts",
    "set_aside_damaged",
    "tidy",
    "validate",
    "write",
    "write_failure",
]
