"""Labels of the fields that distinguish configurations, and the command that records one."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import one_of
from lstm_trt.config.fields import About, Tells, about, identity_fields
from lstm_trt.config.workload import Workload

#: What is known of the fields of every configuration but those of its workload, by name.
FIELDS = about(Configuration) | about(Options) | about(Protocol)

#: Loads have a text instead of names and commands (`flat`).
FIELDS["beside"] = replace(FIELDS["beside"], default=None, values={None: "quiet"})

#: Fields that are put together from others, and are shown by their value alone.
_PLAIN = ("framework", "version", "arrivals", "length", "workload")

#: Characters of a machine's fingerprint in a label.
FINGERPRINT = 12


def telling(*tells: Tells, of: Mapping[str, About] = FIELDS) -> tuple[str, ...]:
    """Names of the fields that tell configurations apart in one of these ways."""
    return tuple(name for name, field in of.items() if field.tells in tells)


#: Fields that tell configurations apart, and that those with the default leave out; a load of the
#: same name can have another command.
LEFT_OUT = (
    *(name for name in telling(Tells.SYSTEM, of=about(Protocol)) if FIELDS[name].added),
    "load_commands",
)

#: Fields of the loads: their text, and what it says or stands for.
OF_LOADS = ("beside", "beside_on", "load_commands")


def flat(configuration: Configuration) -> dict[str, object]:
    """All fields of a configuration in one dictionary; None for unused ones of the protocol.

    `LEFT_OUT` are there only if they are not the default, `beside` as text.
    """
    protocol = configuration.protocol
    fields = {
        **configuration.workload.label_fields,
        **{name: getattr(configuration, name) for name in about(Configuration)},
        **configuration.options.as_dict(),
        **identity_fields(protocol),
    }
    if protocol.beside:
        fields["beside"] = protocol.beside_text
        fields["load_commands"] = ", ".join(map("=".join, protocol.beside))
    return fields


def with_version(runtime: str, version: str) -> str:
    """A runtime with its version: `onnxruntime 1.31.1`, `generated C (kernel 6), gcc 12.2.0`."""
    text = version_text(runtime, version)
    return text if runtime == "c" else f"{runtime} {text}"


def version_text(runtime: str, version: str) -> str:
    """A version as people read it: that of the runtime `c` is a number of its own, and the
    compiler."""
    kernel, comma, compiler = version.partition(", ")
    return f"generated C (kernel {kernel}){comma}{compiler}" if runtime == "c" else version


def differing(fields: Sequence[Mapping[str, object]]) -> list[str]:
    """Names of the fields that differ between the dictionaries, in their order."""
    names = dict.fromkeys(itertools.chain(*fields))
    return [name for name in names if len({str(item.get(name)) for item in fields}) > 1]


def cell_text(field: About, value: Any) -> str:
    """A value of a field in a table."""
    known = {True: "yes", False: "no", None: "-", **(field.values or {})}
    return known[value] if value is None or isinstance(value, bool) else str(value)


def known_text(name: str, value: Any) -> str:
    """A value of the field with this name, in a table."""
    return cell_text(FIELDS.get(name, About()), value)


def field_text(name: str, value: object) -> str:
    """One field of a label: `fp16`, `threads 2`, `machine 0a1b2c3d4e5f`; empty if there is no
    value."""
    if value is None or value == "":
        return ""
    field = FIELDS.get(name, About(heading=name.replace("_", " "), plain=name in _PLAIN))
    shown = cell_text(field, value) if field.values else str(value)
    if name == "machine":
        shown = shown[:FINGERPRINT]
    return shown if field.plain else f"{field.heading} {shown}"


def labels(fields: Sequence[Mapping[str, object]], enough: bool = False) -> list[str]:
    """For each dictionary the text of the fields that differ; with `enough`, only of those that
    tell more apart. What the text of the loads says is shown only then."""
    texts = [""] * len(fields)
    for name in differing(fields):
        more = [field_text(name, item.get(name)) for item in fields]
        longer = [", ".join(filter(None, pair)) for pair in zip(texts, more, strict=True)]
        is_said = name in OF_LOADS and name != "beside"
        if not (enough or is_said) or len(set(longer)) > len(set(texts)):
            texts = longer
    return texts


def record_command(
    configuration: Configuration, out: str | Path, rounds: int | str | None = None
) -> str | None:
    """The shell command that records this configuration, `rounds` times if given; defaults are left
    out.

    `rounds` can also be the name of a shell variable, `$round`.

    None for a kind of workload that no command records.
    """
    line = configuration.workload.command(configuration, out, rounds)
    if line is not None or configuration.workload.flags is None:
        return line
    command = "sweep" if rounds else "record"
    return command_line(
        [configuration.workload.PROGRAM, command, *_flags(configuration)], out, rounds
    )


def of_length(configuration: Configuration, trials: int = 1) -> Configuration:
    """With this number of trials: two recordings must share everything else, but their lengths may
    differ."""
    protocol = replace(configuration.protocol, trials=trials, for_s=None)
    return replace(configuration, protocol=protocol)


def without_loads(configuration: Configuration) -> Configuration:
    """The same with nothing beside the trials."""
    protocol = replace(configuration.protocol, beside=(), beside_on=Protocol.beside_on)
    return replace(configuration, protocol=protocol)


def load_text(configuration: Configuration) -> str:
    """What runs beside the trials: `beside stream`, `quiet`."""
    text = configuration.protocol.beside_text
    return f"beside {text}" if text else "quiet"


def can_alternate(a: Configuration, b: Configuration) -> bool:
    """Whether rounds of both can alternate: one command each records them, without a change by hand
    in between."""
    return record_command(a, "") != record_command(b, "")


def record_both_command(
    a: Configuration, b: Configuration, out: str | Path, rounds: int
) -> str | None:
    """The shell commands, on several lines, that record rounds of both and compare them.

    The rounds alternate, into a folder for each side. If both sides have the same command, they
    differ in something that the user has to change in between, and one side is recorded after the
    other. None if no command records one of them.
    """
    alternate = can_alternate(a, b)
    folders = [str(Path(out) / side) for side in "ab"]
    number = "$round" if alternate else rounds
    first = record_command(a, folders[0], number)
    second = record_command(b, folders[1], number)
    if first is None or second is None:
        return None
    both = f"{first}\n# then change what differs between A and B\n{second}\n"
    if alternate:
        both = f"for round in $(seq {rounds}); do\n  {first} &&\n  {second} || break\ndone\n"
    return both + shlex.join(["lstm-trt", "compare", *folders])


def versions_command(
    library: str,
    versions: Sequence[str],
    configuration: Configuration,
    out: str | Path,
    rounds: int,
) -> str:
    """The shell command that records alternating rounds of one configuration under versions of a
    library."""
    words = [configuration.workload.PROGRAM, "versions", library, *versions]
    # The default of --warmup depends on the workload.
    words += _flags(configuration, ("trials", "warmup"))
    return command_line(words, out, rounds)


def _flags(configuration: Configuration, shown: Sequence[str] = ("trials",)) -> list[str]:
    """The flags that select a configuration; fields with their default are left out, unless they
    are `shown`."""
    words = []
    for flag, values in (configuration.workload.flags or {}).items():
        words += [flag, *values]
    if configuration.mode != Configuration.mode:
        words += ["--mode", configuration.mode]
    words += ["--runtime", configuration.runtime]
    for settings in (configuration.options, configuration.protocol):
        for name, field in about(type(settings)).items():
            value = getattr(settings, name)
            default = "none" if name == "wait" else field.default  # of closed arrivals
            if field.flag and value is not None and (value != default or name in shown):
                if isinstance(value, tuple):
                    words += [f"{field.flag}={'='.join(pair)}" for pair in value]
                    continue
                text = f"{value:.15g}" if isinstance(value, float) else str(value)
                words += [field.flag] if isinstance(value, bool) else [field.flag, text]
    return words


def command_line(words: Sequence[str], out: str | Path, rounds: int | str | None) -> str:
    """These words, `--rounds` (a number or a shell variable) and `--out` as a shell command."""
    line = shlex.join(words)
    if rounds:
        line += f" --rounds {rounds}"
    return f"{line} --out {shlex.quote(str(out))}"


#: Measures of size for "largest", and their names in texts.
SIZES = {"flops": "multiply-adds", "parameters": "parameters", "sequence": "time steps"}


def size_of(workload: Workload, by: str = "flops") -> int | None:
    """Multiply-adds of one forward pass (half of `flops`), trained parameters, or time steps; None
    if unknown."""
    if one_of("size", by, SIZES) == "flops":
        return None if workload.flops is None else workload.flops // 2
    return workload.parameters if by == "parameters" else workload.axes["sequence"]
