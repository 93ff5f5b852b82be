"""The command `doctor`."""

import argparse

from lstm_trt.cli.common import print_answer
from lstm_trt.recorder import doctor

EXAMPLE = "lstm-trt doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`doctor` has no arguments except --format."""


def run(arguments: argparse.Namespace) -> None:
    """Run `doctor`."""
    print_answer(doctor.examine(), arguments.format)
