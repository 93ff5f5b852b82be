"""What follows a sweep: its figures, and which networks meet a deadline."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lstm_judge import plots
from lstm_judge.cli.common import conclude as print_conclusion
from lstm_judge.read.runs import load
from lstm_judge.verdict.question import Question
from lstm_trt.cli.common import print_files, verdict_status
from lstm_trt.config.configuration import Protocol


def check(deadline_us: float | None) -> None:
    """Raise `UsageError` for a deadline that cannot be tested."""
    if deadline_us is not None:
        Question(deadline_us)


def conclude(
    arguments: argparse.Namespace,
    folders: Sequence[Path],
    protocol: Protocol,
    deadline_us: float | None,
) -> int:
    """Draw the figures, and print the verdicts, or which networks meet the deadline; returns the
    verdicts' status."""
    runs = load(folders)
    if arguments.figures:
        print_files(
            plots.draw_sweep(runs, arguments.figures, deadline_us, formats=arguments.formats)
        )
    if protocol.until:
        return verdict_status(runs.where(until=protocol.until, deadline_us=deadline_us), protocol)
    print_conclusion(runs, deadline_us, arguments.format)
    return 0
