"""Command lines, of which `lstm-trt` is one: parse, call, print. Each command is one call of the
package.
"""

import argparse
import errno
import gc
import os
import resource
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from lstm_trt import __version__, registry
from lstm_trt.config import stop
from lstm_trt.config.errors import (
    LabError,
    MemoryExhausted,
    UsageError,
    file_errors,
    nearest,
    printable,
)
from lstm_trt.config.format import WIDTH, decimal, table_lines, terminal_width, wrapped
from lstm_trt.machine.linux import open_standard_streams

EXIT_FAILED = 1
EXIT_BUG = 70
EXIT_STOPPED = 130
EXIT_PIPE = 141  # as a shell shows SIGPIPE

#: Exit status -> what it means.
EXIT_STATUSES = {
    0: "done; `verdict`: MET; `compare`: SAME, FASTER or FEWER misses",
    EXIT_FAILED: "nothing could be recorded, memory ran out, or a notebook failed;"
    " `verdict`: MISSED; `compare`: SLOWER or MORE misses",
    2: "an error in the input, explained in one line",
    3: "a recording that cannot be read, or a selected value that is not recorded, beside others;"
    " `verdict`: NOT ENOUGH EVIDENCE; `compare`: AMBIGUOUS",
    EXIT_BUG: "a bug, with its traceback",
    EXIT_STOPPED: "stopped by Ctrl-C or SIGTERM",
    EXIT_PIPE: "the reader of the output closed the pipe",
}

#: Address space that reading and judging recordings takes, mostly for libraries.
LEAST_BYTES = 10**9

#: Errors of the machine (full disk, no permission), which are not bugs.
_ENVIRONMENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of descriptions and examples, wrapped at the terminal's width; breaks no name
    at a hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            wrapped(line, width) if line.startswith(" ") else textwrap.fill(line, width)
            for line in text.splitlines()
        )


class _Parser(argparse.ArgumentParser):
    def __init__(self, **how: Any) -> None:
        super().__init__(formatter_class=_Formatter, **how)
        for kind in (int, float):
            self.register("type", kind, lambda text, kind=kind: kind(decimal(text)))

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ):
        """As argparse; an unknown option of a command is reported before arguments that are
        missing."""
        if self._subparsers is None:
            known = self._option_string_actions
            for word in args or ():
                name = word.partition("=")[0]
                if name.startswith("--") and not any(each.startswith(name) for each in known):
                    self.error(f"unrecognized arguments: {word}{nearest(name, known)}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = ", ".join(map(str, action.choices))
            hint = f"{nearest(value, action.choices)}: choose from {choices}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


@dataclass(frozen=True)
class Program:
    """A program; `commands()` gives them by their names. `first_steps` is printed without a
    command."""

    name: str
    description: str
    commands: Callable[[], Mapping[str, registry.Command]]
    first_steps: str = ""


FIRST_STEPS = """\
Measure LSTM inference latency and test it against a deadline:
  what works?    lstm-trt doctor
  one network:   lstm-trt record --layers 2 --hidden 64 --sequence 64 --trials 5000 --out recordings
  in time?       lstm-trt verdict recordings --deadline-us 1000
  why late?      lstm-trt outliers recordings
  several:       lstm-trt sweep --layers 1 2 --hidden 32 64 --sequence 64 --out sweep
  see them:      lstm-trt summarize sweep --figures figures
  your network:  lstm-trt inspect model.onnx
  all commands:  lstm-trt --help
  one of them:   lstm-trt COMMAND --help, which ends with an example"""

PROGRAM = Program(
    "lstm-trt",
    "Measure LSTM inference latency per runtime and test it against a deadline.",
    registry.commands,
    FIRST_STEPS,
)


def build_parser(command: str | None = None, program: Program = PROGRAM) -> argparse.ArgumentParser:
    """A parser with the names of all commands and the arguments of `command`, the only module that
    is imported."""
    name = program.name
    commands = program.commands()
    parser = _Parser(
        prog=name,
        usage=f"{name} [-h] [--version] COMMAND ...",
        description=program.description,
        epilog=f"{_command_list(commands)}\n\n"
        f"{name} COMMAND --help shows a command's options and an example.",
    )
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    choices = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog=name, help=argparse.SUPPRESS
    )
    for each, about in commands.items():
        subparser = choices.add_parser(each)
        if each == command:
            module = registry.imported(about.module)
            formats = getattr(module, "FORMATS", ("text", "json", "csv", "md"))
            subparser.description = f"{about.summary[0].upper()}{about.summary[1:]}."
            subparser.epilog = f"example:\n  {module.EXAMPLE}"
            subparser.add_argument(
                "--format",
                choices=formats,
                default=formats[0],
                help=f"output format (default {formats[0]})",
            )
            subparser.set_defaults(run=module.run)
            module.add_arguments(subparser)
    return parser


def _command_list(commands: Mapping[str, registry.Command]) -> str:
    """The commands with their summaries, by group."""
    lines = table_lines(None, [(name, about.summary) for name, about in commands.items()], indent=2)
    groups: dict[str, list[str]] = {}
    for about, line in zip(commands.values(), lines, strict=True):
        groups.setdefault(about.group, []).append(line)
    return "\n\n".join("\n".join([f"{group}:", *lines]) for group, lines in groups.items())


def parse(given: Sequence[str], program: Program = PROGRAM) -> argparse.Namespace:
    """Parse a command line; in the result `run` is the command's function and `given` the words of
    the command line.

    Raises `UsageError` for invalid arguments, and `SystemExit` after --help, --version and the
    first steps.
    """
    if program.first_steps and not given:
        show(program.first_steps)
        raise SystemExit(0)
    command = next((word for word in given if not word.startswith("-")), None)
    arguments, unknown = build_parser(command, program).parse_known_args(given)
    if unknown:
        raise UsageError(
            f"unrecognized arguments: {' '.join(unknown)}; see {program.name} {command} --help"
        )
    arguments.given = [program.name, *given]
    return arguments


def main(given: Sequence[str] | None = None, program: Program = PROGRAM) -> int:
    """Run one command; returns the exit status."""
    with _ended_by_signals():
        return _run(given, program)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Meanwhile SIGTERM and SIGHUP end a command as Ctrl-C does; afterwards a process just ends."""
    stop.asked.clear()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop.stop)}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # of nohup
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop.stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(given: Sequence[str] | None, program: Program) -> int:
    open_standard_streams()
    gc.set_threshold(200_000, 20, 100)  # thousands of recordings are many objects, which all stay
    try:
        check_address_space()
        with file_errors("use the working folder", "; change to another one"):
            os.getcwd()  # it may have been deleted
        arguments = parse(sys.argv[1:] if given is None else given, program)
        status = arguments.run(arguments) or 0
        sys.stdout.flush()
        return status
    except LabError as error:
        return _refuse(program, error, error.exit_status)
    except MemoryError as error:
        return _refuse(
            program, f"not enough memory: {error}".rstrip(": "), MemoryExhausted.exit_status
        )
    except KeyboardInterrupt:
        show(f"{program.name}: stopped", sys.stderr)
        return EXIT_STOPPED
    except BrokenPipeError:
        _silence(sys.stdout)
        return EXIT_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _ENVIRONMENT_ERRORS:
            return _refuse(program, error, LabError.exit_status)
        traceback.print_exc()
        print(
            f"{program.name}: this is a bug in lstm_trt; please report the lines above",
            file=sys.stderr,
        )
        return EXIT_BUG


def check_address_space() -> None:
    """Raise `MemoryExhausted` below `LEAST_BYTES`: OpenBLAS would wait for memory for ever, which
    no signal ends."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_BYTES:
        allowed = f"this process may have {limit // 10**6} MB of address space (ulimit -v)"
        raise MemoryExhausted(
            f"not enough memory: {allowed}, and at least {LEAST_BYTES // 10**6} MB are needed"
        )


def show(answer: Any, file: Any = None) -> None:
    """Print a text, or the text of an object, wrapped at the width of a terminal; control
    characters as escapes.

    Names in files of the user may contain them. Standard error may be full or closed: the result
    does not depend on it.
    """
    file = file or sys.stdout
    width = terminal_width(file)
    before = WIDTH.set(width)
    try:
        text = "\n".join(map(printable, str(answer).split("\n")))
        print(wrapped(text, width) if width else text, file=file, flush=True)
    except OSError:
        if file is not sys.stderr:
            raise
        _silence(file)
    finally:
        WIDTH.reset(before)


def _silence(stream: Any) -> None:
    """Write to /dev/null what a stream still has to write, since its reader closed the pipe or its
    disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refuse(program: Program, error: Exception | str, status: int) -> int:
    show(f"{program.name}: {' '.join(str(error).split())}", sys.stderr)
    return status
