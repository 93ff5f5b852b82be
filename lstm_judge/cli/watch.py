"""The command `watch`."""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from lstm_judge.watch import follow
from lstm_trt.cli.common import deadline_argument
from lstm_trt.cli.main import show
from lstm_trt.config.format import terminal_width

EXAMPLE = "lstm-trt watch soak --deadline-us 1000"

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `watch`."""
    add = parser.add_argument
    add("path", type=Path, metavar="DIR", help="output folder of a running record or sweep")
    deadline_argument(parser, "count latencies above this deadline")
    add("--once", action="store_true", help="print one line and exit")


def run(arguments: argparse.Namespace) -> None:
    """Run `watch`."""
    as_json = arguments.format == "json"
    rewrite = terminal_width(sys.stdout) and not (as_json or arguments.once)
    shown: Any = None
    snapshot: Any = None
    try:
        for snapshot in follow(arguments.path, arguments.deadline_us):
            if rewrite:
                line = str(snapshot)[: shutil.get_terminal_size().columns - 1]
                print(f"\r{line}\x1b[K", end="", flush=True)
            elif shown != (snapshot.state, snapshot.files):
                print(json.dumps(snapshot.as_dict()), flush=True) if as_json else show(snapshot)
            shown = (snapshot.state, snapshot.files)
            if arguments.once:
                break
    finally:
        if rewrite:
            print(flush=True)
    if not as_json and snapshot.ending(arguments.path):
        show(snapshot.ending(arguments.path))
