"""What tells configurations apart, as fields and as labels, and the command that records one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import LstmShape

#: Fields whose value says by itself what it is; of the others the name stands before it.
PLAIN_FIELDS = ("runtime", "framework", "precision", "device", "device_name", "version", "arrivals", "length")

#: Characters of a machine's fingerprint in a label.
FINGERPRINT = 12

#: Flags of which a sweep takes several values, so that it interleaves them.
SWEPT_FLAGS = ("--layers", "--hidden", "--sequence", "--batch", "--features", "--directions", "--runtime")


def configuration_fields(configuration: Configuration) -> dict[str, object]:
    """All that was configured, flat: workload, mode, runtime, device, options, protocol; None where unused."""
    plain = configuration.as_dict()
    names = ("mode", "runtime", "runtime_version", "device_name")
    return {
        **plain["workload"],
        **{name: plain[name] for name in names},
        **plain["options"],
        **asdict(configuration.protocol),
    }


def differing(fields: Sequence[Mapping[str, object]]) -> list[str]:
    """Names of the fields that have not the same value in all of them, in their order."""
    names = dict.fromkeys(name for each in fields for name in each)
    return [name for name in names if len({str(each.get(name)) for each in fields}) > 1]


def field_text(name: str, value: object) -> str:
    """One field of a label: `fp16`, `threads 2`, `machine 0a1b2c3d4e5f`; empty where there is no value."""
    if value is None or value == "":
        return ""
    if name == "machine":
        value = str(value)[:FINGERPRINT]
    return f"{value}" if name in PLAIN_FIELDS else f"{name.replace('_', ' ')} {value}"


def labels(fields: Sequence[Mapping[str, object]], enough: bool = False) -> list[str]:
    """For each, the text of the fields in which they differ; with `enough` only the first that tell all apart."""
    texts = [""] * len(fields)
    for name in differing(fields):
        if enough and len(set(texts)) == len(fields):
            break
        more = [field_text(name, each.get(name)) for each in fields]
        texts = [", ".join(filter(None, pair)) for pair in zip(texts, more, strict=True)]
    return texts


def record_command(configuration: Configuration, out: str | Path, rounds: int | None = None) -> str | None:
    """The shell line that records this configuration, `rounds` times if given; what has its default is left out.

    None for a kind of workload that no command records.
    """
    line = configuration.workload.command(configuration, out, rounds)
    if line is None and not isinstance(configuration.workload, LstmShape):
        return None
    return _command("sweep" if rounds else "record", _flags(configuration), out, rounds) if line is None else line


def record_both_command(a: Configuration, b: Configuration, out: str | Path, rounds: int) -> str | None:
    """The shell line that records rounds of both, interleaved where one sweep can, else one after the other.

    None where no command records one of them.
    """
    lines = dict.fromkeys(record_command(side, out, rounds) for side in (a, b))
    if None in lines:
        return None
    if any(side.workload.command(side, out, rounds) is not None for side in (a, b)):
        return " && ".join(lines)
    first, second, defaults = _flags(a), _flags(b), _defaults()
    differ = [flag for flag in first.keys() | second.keys() if first.get(flag) != second.get(flag)]
    if len(differ) == 1 and differ[0] in SWEPT_FLAGS:
        flag = differ[0]
        both = [values for flags in (first, second) for values in flags.get(flag, (defaults.get(flag),))]
        return _command("sweep", {**first, flag: tuple(both)}, out, rounds)
    return " && ".join(lines)


def versions_command(
    library: str, versions: Sequence[str], configuration: Configuration, out: str | Path, rounds: int
) -> str:
    """The shell line that records rounds of one configuration under versions of a library, in turns."""
    return _command("versions", _flags(configuration), out, rounds, (library, *versions))


def _flags(configuration: Configuration) -> dict[str, tuple[str, ...]]:
    """Flag -> its values, in the order in which people give them; what has its default is left out."""
    defaults = _defaults()
    flags = {flag: (text,) for flag, text in _flag_texts(configuration).items() if defaults.get(flag) != text}
    return flags | ({"--graph": ()} if configuration.options.graph else {})


def _flag_texts(configuration: Configuration) -> dict[str, str]:
    options, protocol = configuration.options, configuration.protocol
    values = {**configuration.workload.axes, "runtime": configuration.runtime}
    values |= {name: getattr(options, name) for name in ("precision", "threads", "device", "device_clocks")}
    names = ("trials", "warmup", "seed", "arrival", "period_us", "pause_ms", "wait")
    values |= {name: getattr(protocol, name) for name in names}
    return {
        f"--{name.replace('_', '-')}": f"{value:.15g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _defaults() -> dict[str, str]:
    """What `record` and `sweep` do without being asked, but for what a reader wants to see: sizes, device, trials."""
    usual = Configuration(LstmShape(1, 1, 1), "", "", "", Options(), Protocol())
    shown = ("--layers", "--hidden", "--sequence", "--batch", "--runtime", "--device", "--trials")
    return {flag: text for flag, text in _flag_texts(usual).items() if flag not in shown}


def _command(
    name: str, flags: Mapping[str, tuple[str, ...]], out: str | Path, rounds: int | None, names: Sequence[str] = ()
) -> str:
    arguments = [text for flag, values in flags.items() for text in (flag, *values)]
    arguments += ["--rounds", str(rounds)] if rounds else []
    return shlex.join(["lstm-trt", name, *names, *arguments, "--out", str(out)])
