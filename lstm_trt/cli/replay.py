"""The command `replay`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.analysis import text
from lstm_trt.analysis.replay import replay
from lstm_trt.cli.common import PATH_HELP, grouped, judgeable, print_json, read, table_arguments
from lstm_trt.config.errors import UsageError

EXAMPLE = "lstm-trt replay recordings --period-us 1000 --deadline-us 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `replay`."""
    add = parser.add_argument
    add("path", type=Path, help=PATH_HELP)
    add("--period-us", type=float, required=True, metavar="US", help="time between the calls of the fixed rate")
    add("--deadline-us", type=float, metavar="US", help="deadline, from the time a call is due (default: the period)")
    table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `replay`; returns the exit status."""
    found = read(arguments, arguments.path)
    judgeable(found)
    answers, texts = [], []
    for group in found.groups:
        try:
            if group.failure is not None:
                raise UsageError(group.failure)
            replayed = replay(group, arguments.period_us, arguments.deadline_us)
        except UsageError as error:
            if len(found.groups) == 1:
                raise
            answers.append({"n": group.n, "failure": str(error)})
            texts.append(f"{group.name}: {error}")
            continue
        answers.append(replayed.as_dict())
        texts.append(text.replay_text(replayed, group.name))
    if all("failure" in answer for answer in answers):
        raise UsageError(answers[0]["failure"])
    print_json(grouped(found, answers)) if arguments.format == "json" else print("\n\n".join(texts))
    return 0
