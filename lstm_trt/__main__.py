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

from lstm_trt import __version__, commands, commands_record, commands_soak, commands_tails, commands_versions
from lstm_trt import commands_house as house
from lstm_trt import commands_networks as networks
from lstm_trt.errors import LabError, UsageError
from lstm_trt.literature import command as literature

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_STOPPED = 1, 2, 70, 130
_ENVIRONMENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


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

    def command(name: str, run, summary: str, example: str, formats: tuple[str, ...] = ("text", "json")):
        sub = subcommands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--format", choices=formats, default=formats[0], help="how the answer is printed")
        sub.set_defaults(run=run)
        return sub

    command("doctor", house.doctor, house.DOCTOR_SUMMARY, house.DOCTOR_EXAMPLE)

    sub = command("cache", house.cache, house.CACHE_SUMMARY, house.CACHE_EXAMPLE)
    house.cache_arguments(sub)

    sub = command("export", networks.export, networks.EXPORT_SUMMARY, networks.EXPORT_EXAMPLE)
    networks.export_arguments(sub)

    sub = command("build", networks.build, networks.BUILD_SUMMARY, networks.BUILD_EXAMPLE)
    networks.build_arguments(sub)

    sub = command("record", commands_record.record, commands_record.RECORD_SUMMARY, commands_record.RECORD_EXAMPLE)
    commands_record.record_arguments(sub)

    sub = command("sweep", commands_record.sweep, commands_record.SWEEP_SUMMARY, commands_record.SWEEP_EXAMPLE)
    commands_record.sweep_arguments(sub)

    sub = command("watch", commands_soak.watch, commands_soak.WATCH_SUMMARY, commands_soak.WATCH_EXAMPLE)
    commands_soak.watch_arguments(sub)

    sub = command("consolidate", house.consolidate, house.CONSOLIDATE_SUMMARY, house.CONSOLIDATE_EXAMPLE)
    house.consolidate_arguments(sub)

    for name in ("summarize", "verdict", "outliers", "compare", "replay"):
        told = [getattr(commands_tails, f"{name.upper()}_{part}") for part in ("SUMMARY", "EXAMPLE")]
        formats = ("table", "csv", "json") if name == "summarize" else ("text", "json")
        sub = command(name, getattr(commands_tails, name), *told, formats)
        getattr(commands_tails, f"{name}_arguments")(sub)

    sub = command("scaling", commands.scaling, commands.SCALING_SUMMARY, commands.SCALING_EXAMPLE)
    commands.scaling_arguments(sub)

    sub = command("literature", literature.literature, literature.SUMMARY, literature.EXAMPLE, ("text", "csv", "json"))
    literature.literature_arguments(sub)

    told = [commands_versions.SUMMARY, commands_versions.EXAMPLE, commands_versions.FORMATS]
    sub = command("versions", commands_versions.versions, *told)
    commands_versions.versions_arguments(sub)

    sub = command("rerun", commands.rerun, commands.RERUN_SUMMARY, commands.RERUN_EXAMPLE)
    commands.rerun_arguments(sub)
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
