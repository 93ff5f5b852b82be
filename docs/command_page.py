"""Writes the parts of docs/commands.md that are made from the code: `python docs/command_page.py`.

In the page a comment above each list or table names the function that makes it: `<!-- made: runtimes -->`.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from lstm_literature.commands import COMMANDS
from lstm_trt import registry
from lstm_trt.cli.main import EXIT_STATUSES
from lstm_trt.runtimes import load_runtime

PAGE = Path(__file__).with_name("commands.md")
PROJECT = tomllib.loads((PAGE.parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

#: The comment above a list or table; then its lines.
MADE = re.compile(r"(<!-- made: (\w+) -->\n\n)(?:[|*].*\n)*")

#: Extra of pyproject.toml -> what it is for.
PURPOSES = {
    "record": "recording, ONNX files",
    "c": "a C compiler, if there is none",
    "openvino": "the runtime `openvino`",
    "tensorrt": "the runtime `tensorrt`, for a driver with CUDA 13; `make gpu` asks the driver",
    "rtx": "the runtime `tensorrt-rtx`, for a driver with CUDA 13",
    "pycuda": "drives the GPU instead of cuda-bindings",
    "frameworks": "benchmarks from the literature",
    "cluster": "sweeps on several machines",
    "lab": "notebooks",
    "types": "`make types`",
    "docs": "`make docs`",
    "dev": "tests and linters",
}


def table(*rows: tuple[str, ...]) -> str:
    """A table in Markdown; its first row is the heading."""
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    lines.insert(1, "| --- " * len(rows[0]) + "|\n")
    return "".join(lines)


def described(meanings: Mapping[str, str]) -> str:
    """A list in Markdown: name -> what it is."""
    return "".join(f"* `{name}`: {meaning}\n" for name, meaning in meanings.items())


def lstm_trt() -> str:
    """The commands of lstm-trt."""
    return described({name: command.summary for name, command in registry.commands().items()})


def lstm_literature() -> str:
    """The commands of lstm-literature."""
    return described({name: command.summary for name, command in COMMANDS.items()})


def exit_statuses() -> str:
    """The exit statuses of all commands."""
    rows = [(str(status), meaning) for status, meaning in EXIT_STATUSES.items()]
    return table(("exit status", "meaning"), *rows)


def extra_of(distribution: str) -> str:
    """The first extra that installs a package; `record`, which all recording needs, where none names it."""
    for extra, requirements in EXTRAS.items():
        if distribution in [requirement.split(">=")[0] for requirement in requirements]:
            return extra
    return "record"


def runtimes() -> str:
    """The devices and precisions of each runtime, and the extra that installs it."""
    rows = [("runtime", "devices and precisions", "pip extra")]
    for name in sorted(registry.table("RUNTIMES")):
        runtime = load_runtime(name)
        devices = [f"{device}: {', '.join(runtime.PRECISIONS[device])}" for device in runtime.DEVICES]
        rows.append((f"`{name}`", "; ".join(devices), f"`{extra_of(runtime.DISTRIBUTION)}`"))
    return table(*rows)


def extras() -> str:
    """What each extra is for."""
    return described({extra: PURPOSES[extra] for extra in EXTRAS})


def with_made(text: str) -> str:
    """The text of the page with the lists and tables that the code has."""
    makers = {each.__name__: each for each in (lstm_trt, lstm_literature, exit_statuses, runtimes, extras)}
    return MADE.sub(lambda found: found[1] + makers[found[2]](), text)


if __name__ == "__main__":
    PAGE.write_text(with_made(PAGE.read_text()))
