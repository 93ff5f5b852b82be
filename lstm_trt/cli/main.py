"""The command line `lstm-trt`: parse, call, print. Everything it does is one call in the package.

Exit status: 0 done; 1 nothing could be recorded, a notebook failed, or a deadline is missed; 2 a mistake in the
input, told in one line; 3 not enough evidence for a verdict; 70 a bug, with its traceback; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from lstm_trt import __version__
from lstm_trt.cli import (
    commands,
    commands_house,
    commands_networks,
    commands_record,
    commands_soak,
    commands_tails,
    commands_versions,
    literature,
)
from lstm_trt.cli.common import EXIT_BUG, EXIT_STOPPED, EXIT_USAGE
from lstm_trt.config.errors import LabError, UsageError

_ENVIRONMENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


#: Name -> the module with the function of that name, its `_arguments`, and SUMMARY, EXAMPLE and FORMATS by name.
COMMANDS = {
    **dict.fromkeys(("doctor", "cache"), commands_house),
    **dict.fromkeys(("export", "build"), commands_networks),
    **dict.fromkeys(("record", "sweep"), commands_record),
    "watch": commands_soak,
    "consolidate": commands_house,
    **dict.fromkeys(("summarize", "verdict", "outliers", "compare", "replay"), commands_tails),
    "scaling": commands,
    "literature": literature,
    "versions": commands_versions,
    "rerun": commands,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="lstm-trt",
        description="Which LSTM, on which runtime, answers in time, how sure that is, and what makes the late answers"
        " late.",
    )
    parser.add_argument("--version", action="version", version=f"lstm-trt {__version__}")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    for name, module in COMMANDS.items():
        summary, example = (getattr(module, f"{name.upper()}_{part}") for part in ("SUMMARY", "EXAMPLE"))
        formats = getattr(module, f"{name.upper()}_FORMATS", ("text", "json"))
        sub = subcommands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--format", choices=formats, default=formats[0], help="how the answer is printed")
        sub.set_defaults(run=getattr(module, name))
        getattr(module, f"{name}_arguments", lambda parser: None)(sub)
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if given is None else given)
    signal.signal(signal.SIGTERM, _stop)
    try:
        arguments = build_parser().parse_args(given)
        arguments.given = given
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except LabError as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("lstm-trt: stopped", file=sys.stderr)
        return EXIT_STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 0
    except OSError as error:
        if error.errno in _ENVIRONMENT_ERRORS:
            return _complain(error)
        return _bug()
    except Exception:
        return _bug()


def _stop(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _complain(error: Exception) -> int:
    print(f"lstm-trt: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_USAGE


def _bug() -> int:
    import traceback

    traceback.print_exc()
    print("lstm-trt: this is a bug in lstm_trt; please report the lines above", file=sys.stderr)
    return EXIT_BUG


if __name__ == "__main__":
    sys.exit(main())
