"""Fields and labels that distinguish configurations, and the command that records one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import LstmShape

#: Fields that are shown by their value alone; the others are shown with their name.
PLAIN_FIELDS = ("runtime", "framework", "precision", "device", "device_name", "version", "arrivals", "length")

#: Characters of a machine's fingerprint in a label.
FINGERPRINT = 12


def configuration_fields(configuration: Configuration) -> dict[str, object]:
    """All fields of a configuration in one dictionary; protocol fields that are not used are None."""
    plain = configuration.as_dict()
    names = ("mode", "runtime", "runtime_version", "device_name")
    return {
        **configuration.workload.label_fields,
        **{name: plain[name] for name in names},
        **plain["options"],
        **asdict(configuration.protocol),
    }


def differing(fields: Sequence[Mapping[str, object]]) -> list[str]:
    """Names of the fields that differ between the dictionaries, in their order."""
    names = dict.fromkeys(name for item in fields for name in item)
    return [name for name in names if len({str(item.get(name)) for item in fields}) > 1]


def field_text(name: str, value: object) -> str:
    """One field of a label: `fp16`, `threads 2`, `machine 0a1b2c3d4e5f`; empty if there is no value."""
    if value is None or value == "":
        return ""
    if name == "machine":
        value = str(value)[:FINGERPRINT]
    return f"{value}" if name in PLAIN_FIELDS else f"{name.replace('_', ' ')} {value}"


def labels(fields: Sequence[Mapping[str, object]], enough: bool = False) -> list[str]:
    """For each dictionary the text of the fields that differ; with `enough`, only until all labels are distinct."""
    texts = [""] * len(fields)
    for name in differing(fields):
        if enough and len(set(texts)) == len(fields):
            break
        more = [field_text(name, item.get(name)) for item in fields]
        texts = [", ".join(filter(None, pair)) for pair in zip(texts, more, strict=True)]
    return texts


def record_command(configuration: Configuration, out: str | Path, rounds: int | str | None = None) -> str | None:
    """The shell command that records this configuration, `rounds` times if given; defaults are left out.

    `rounds` can also be the name of a shell variable, `$round`.

    None for a kind of workload that no command records.
    """
    line = configuration.workload.command(configuration, out, rounds)
    if line is not None or configuration.workload.flags is None:
        return line
    return _command(configuration, "sweep" if rounds else "record", _flags(configuration), out, rounds)


def record_both_command(a: Configuration, b: Configuration, out: str | Path, rounds: int) -> str | None:
    """The shell commands, on several lines, that record rounds of both and compare them.

    The rounds alternate, into a folder for each side. If both sides have the same command, they differ in something
    that the user has to change in between, and one side is recorded after the other. None if no command records one
    of them.
    """
    alternate = record_command(a, out, rounds) != record_command(b, out, rounds)
    folders = [str(Path(out) / side) for side in "ab"]
    number = "$round" if alternate else rounds
    first, second = (record_command(side, folder, number) for side, folder in zip((a, b), folders, strict=True))
    if first is None or second is None:
        return None
    lines = [first, "# then change what differs between A and B", second]
    if alternate:
        lines = [f"for round in $(seq {rounds}); do", f"  {first} &&", f"  {second} || break", "done"]
    return "\n".join([*lines, shlex.join(["lstm-trt", "compare", *folders])])


def versions_command(
    library: str, versions: Sequence[str], configuration: Configuration, out: str | Path, rounds: int
) -> str:
    """The shell command that records alternating rounds of one configuration under versions of a library."""
    # The default of --warmup depends on the workload.
    flags = _flags(configuration, shown=("--warmup",))
    return _command(configuration, "versions", flags, out, rounds, (library, *versions))


def _flags(configuration: Configuration, shown: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Flag -> its values; defaults are left out, unless they are in `shown`."""
    defaults, options = _defaults(), configuration.options
    texts = _flag_texts(configuration)
    flags = {flag: values for flag, values in texts.items() if flag in shown or defaults.get(flag) != values}
    switches = {"--graph": options.graph, "--no-io-binding": not options.io_binding}
    return flags | {flag: () for flag, given in switches.items() if given}


def _flag_texts(configuration: Configuration) -> dict[str, tuple[str, ...]]:
    options, protocol = configuration.options, configuration.protocol
    values = {"mode": configuration.mode, "runtime": configuration.runtime}
    values |= {name: getattr(options, name) for name in ("precision", "threads", "device", "device_clocks")}
    names = ("trials", "warmup", "seed", "arrival", "period_us", "pause_ms", "wait")
    values |= {name: getattr(protocol, name) for name in names}
    texts = {
        f"--{name.replace('_', '-')}": (f"{value:.15g}" if isinstance(value, float) else str(value),)
        for name, value in values.items()
        if value is not None
    }
    return {**(configuration.workload.flags or {}), **texts}


def _defaults() -> dict[str, tuple[str, ...]]:
    """Defaults of `record` and `sweep`, except for flags that are always shown: sizes, runtime, device, trials."""
    default = Configuration(LstmShape(1, 1, 1), "", "", "", Options(), Protocol())
    shown = ("--layers", "--hidden", "--sequence", "--batch", "--runtime", "--device", "--trials")
    return {flag: texts for flag, texts in _flag_texts(default).items() if flag not in shown}


def _command(
    configuration: Configuration,
    name: str,
    flags: Mapping[str, tuple[str, ...]],
    out: str | Path,
    rounds: int | str | None,
    names: Sequence[str] = (),
) -> str:
    arguments = [text for flag, values in flags.items() for text in (flag, *values)]
    return command_line([configuration.workload.PROGRAM, name, *names, *arguments], out, rounds)


def command_line(words: Sequence[str], out: str | Path, rounds: int | str | None) -> str:
    """These words, `--rounds` (a number or a shell variable) and `--out` as a line for the shell."""
    return shlex.join(words) + (f" --rounds {rounds}" if rounds else "") + f" --out {shlex.quote(str(out))}"
