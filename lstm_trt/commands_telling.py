"""How every command tells what it found and how it ended. Importing this loads nothing."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lstm_trt.sweep import Report

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_STOPPED = 1, 2, 70, 130


def print_json(value: object) -> None:
    """A JSON answer on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def warn(warnings: Iterable[str]) -> None:
    """Lines on standard error: standard output may be read by a program."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def tell_files(paths: Iterable[Path]) -> None:
    """The names of figures, on standard error as well, and after the answer where both go to one file."""
    sys.stdout.flush()
    for path in paths:
        print(path, file=sys.stderr)


def draw_recordings(path: Path, folder: Path, deadline_us: float | None) -> None:
    """Draw the figures of the recordings under `path` into `folder`, and tell their names."""
    from lstm_trt import store
    from lstm_trt.plots import draw_sweep
    from lstm_trt.tables import frames

    store.make_folder(folder)
    summary, trials = frames(store.read_many(path))
    tell_files(draw_sweep(summary, trials, folder, deadline_us=deadline_us))


def stopped(given: Sequence[str], before: str = "") -> int:
    """Tell the command that goes on, on standard error; returns the exit status of what Ctrl-C has ended."""
    print(f"stopped; {before}go on with: {shlex.join(['lstm-trt', *given])}", file=sys.stderr)
    return EXIT_STOPPED


def exit_status(report: Report) -> int:
    """Of a sweep that ran to its end: failed where it has no recording at all."""
    return 0 if report.recorded + report.done_before else EXIT_FAILED
