"""The command `cache`."""

import argparse

from lstm_trt.cli.common import print_answer
from lstm_trt.recorder.cached import cache_contents, clear_cache

EXAMPLE = "lstm-trt cache --clear"

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cache`."""
    parser.add_argument("--clear", action="store_true", help="remove everything in the cache")


def run(arguments: argparse.Namespace) -> None:
    """Run `cache`."""
    print_answer(clear_cache() if arguments.clear else cache_contents(), arguments.format)
