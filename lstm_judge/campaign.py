"""Data for notebooks, and the largest network that meets a deadline with its confirmation by a new
recording.

A notebook states its shapes and runtimes; `load_or_record` returns their runs, from folders of
recordings or, with `record=True`, from this machine, where missing configurations are recorded
first.

`largest_that_meets` selects the best of many networks. Each MET is wrong with a probability of at
most 1 - confidence, but selection among many networks near the deadline favours those that met it
by chance. `confirm` therefore tests a recording that was not used for the selection. Only the first
confirmation counts; repeating until one passes biases the result.
"""

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from lstm_judge.compare.pairing import later_recording
from lstm_judge.read.labels import of_length, record_command, telling, with_version
from lstm_judge.read.rounds import Group, groups_of
from lstm_judge.read.runs import MOST_MISSING, Incomplete, Runs, as_runs, load
from lstm_judge.verdict.verdict import Verdicts, verdict
from lstm_trt import registry
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import Tells, about, as_list
from lstm_trt.config.format import count, listed, warning_lines, wrapped
from lstm_trt.config.libraries import in_checkout
from lstm_trt.config.shape import Grid
from lstm_trt.config.workload import Workload
from lstm_trt.recorder import pool
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.sweep import plan_configurations, run_sweep
from lstm_trt.runtimes import load_runtime
from lstm_trt.store.consolidated import CONFIGS_FILE, read_configs
from lstm_trt.store.folders import read_many
from lstm_trt.store.schema import Failure, Recording

#: What the protocol of recordings must share with one that is asked for: trials and arrivals.
_TIMING = attrgetter("trials", *telling(Tells.SYSTEM, of=about(Protocol)))

#: What the options of recordings must share with those that are asked for, beside a device.
_PRECISION = attrgetter("precision", "graph")

#: Characters of a line in a notebook.
PAGE = 110


def largest_that_meets(
    runs: Runs,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = 0.95,
    by: str = "flops",
) -> Group | None:
    """The group with the largest network (`by`: see `size_of`) that has the verdict MET; or None.

    Of networks of equal size it is the one with the smallest maximum.
    """
    timed = [group for group in as_runs(runs) if group.configuration and group.n > 1]
    if not timed:
        return None
    answers = verdict(timed, deadline_us, percentile, confidence)
    place = answers.largest(by)
    return None if place is None else answers.runs[place]


def confirm(
    group: Group,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = 0.95,
    *,
    data: str | Path | None = None,
    record: bool = False,
    out: str | Path = "data/local/confirm",
) -> Verdicts:
    """The verdict of the first recording of this configuration that is newer than those of `group`.

    It is looked up in `data`, or with `record` in `out`. With `record` it is recorded if there is
    none, with as many trials as the group. Raises `UsageError` if there is none, with the command
    that records it, for a group from elsewhere, or if this machine or version differs from that of
    the group.
    """
    if group.configuration is None or not group.n:
        raise UsageError(
            f"{group.name or 'this'} was not recorded by this package: it cannot be recorded again"
        )
    configuration = of_length(group.configuration, group.n)
    folder = project_folder(out) if record else None
    if data is not None and not record:
        with suppress(UsageError):  # nothing was recorded there yet
            folder = find_folder(data)
    fresh = _first_fresh(group, folder)
    if record and folder and fresh is None:
        _record(configuration, folder)
        fresh = _first_fresh(group, folder)
    if fresh is None:
        raise UsageError(
            "not confirmed yet: record the selected network again, with as many trials:"
            f" {record_command(configuration, out)}"
        )
    return verdict([fresh], deadline_us, percentile, confidence)


def _first_fresh(group: Group, folder: Path | None) -> Group | None:
    """The oldest matching recording in `folder` from the same machine that started after all of the
    group."""
    if folder is None or not folder.exists():
        return None
    recorded = [item for item in read_many(folder) if isinstance(item, Recording)]
    return later_recording(group, (groups_of([item])[0] for item in recorded))


def _record(configuration: Configuration, folder: Path) -> None:
    own = configuration.workload.command(configuration, folder)
    if own is not None:
        raise UsageError(f"{configuration.name} is recorded with another command: {own}")
    asked = (
        configuration.workload,
        configuration.runtime,
        configuration.protocol,
        replace(configuration.options, cores=()),
    )
    here = describe(*asked, configuration.mode)
    if of_length(here).id != of_length(configuration).id:
        raise UsageError(
            f"{configuration.name} was recorded {_place(configuration)}, but this machine records"
            f" {_place(here)}: record the sweep here first"
        )
    pool.record(*asked, mode=configuration.mode, out=folder)


def _place(configuration: Configuration) -> str:
    """The device, version and cores of a configuration as text."""
    version = with_version(configuration.runtime, configuration.runtime_version)
    return (
        f"on {configuration.device_name} with {version} on cores"
        f" {list(configuration.options.cores)}"
    )


def load_or_record(  # noqa: PLR0913
    data: str | Path | Sequence[str | Path],
    *,
    grids: Sequence[Mapping[str, Sequence[int]]] = (),
    workloads: Sequence[Workload] = (),
    runtimes: Sequence[str] = ("onnxruntime",),
    protocols: Sequence[Protocol] = (),
    options: Options | Sequence[Options] | None = None,
    mode: str | None = None,
    record: bool = False,
    out: str | Path = "data/local/notebooks",
    rounds: int = 1,
    control: bool = False,
    show_progress: bool = True,
    **table: Any,
) -> Runs:
    """The runs of `grids` (each: axis -> values, as `Grid` has them) and of other `workloads` on
    `runtimes`.

    `data` is a folder or file of recordings, or several of them. Recordings must match the trials
    and arrivals of one of `protocols`, and the precision, graph and device of one of `options`
    (`Options.each`), if any are given; without `runtimes` they can be of any. `mode` is by default
    the first of each workload. With `record` all of this is recorded here first, into `out`, which
    resumes if interrupted; `control` adds a control run of an empty step to each. If `data` is a
    table, all of it is loaded; `table` has the arguments of `load` for it. What is asked for and
    not recorded is in `missing` of the runs, and a warning names it. Where a list belongs, a single
    value is a list of one. Raises `UsageError` for unknown names, invalid sizes, and if there are
    no such recordings.
    """
    sources = as_list(data)
    of_grids = (Grid(**grid) for grid in as_list(grids))
    networks = list(dict.fromkeys(itertools.chain(*of_grids, as_list(workloads))))
    choices = [as_list(choice) or [None] for choice in (runtimes, protocols, options or ())]
    if record:
        planned, skipped = plan_configurations(networks, *choices, mode=mode)
        return record_missing(
            planned,
            out,
            rounds=rounds,
            control=control,
            show_progress=show_progress,
            warnings=skipped,
        )
    given = {name: value for name, value in table.items() if value}
    runs = load([find_folder(path) for path in sources], **given)
    if not runs.own:
        return runs
    systems = [System(*each) for each in itertools.product(*choices)]
    return _selected(replace(runs, source=listed(sources, 3)), networks, systems, mode)


class System(NamedTuple):
    """What networks are asked for on; None: on any."""

    runtime: str | None
    protocol: Protocol | None
    options: Options | None

    def has(self, configuration: Configuration) -> bool:
        """Whether it is of this runtime, with these trials and arrivals, precision, graph and
        device."""
        protocol = self.protocol
        options = self.options
        if protocol and _TIMING(configuration.protocol) != _TIMING(protocol):
            return False
        if options and _PRECISION(configuration.options) != _PRECISION(options):
            return False
        if options and options.device not in (None, configuration.options.device):
            return False
        return self.runtime in (None, configuration.runtime)

    @property
    def texts(self) -> list[str]:
        """The runtime, the trials and arrivals, and the precision, where they are asked for."""
        texts = [f"on {self.runtime or 'any runtime'}"]
        if self.protocol:
            texts.append(
                f"with {self.protocol.trials} trials, arrival {self.protocol.arrival_text}"
            )
        if self.options:
            text = f"in {self.options.precision}"
            texts.append(f"{text} with a graph" if self.options.graph else text)
        return texts


def _selected(
    runs: Runs, networks: Sequence[Workload], systems: Sequence[System], mode: str | None
) -> Runs:
    """What of the runs is of these networks on one of the systems; what is missing is named.

    Raises `UsageError` if there is nothing.
    """
    items = []
    asked = set(itertools.product(networks, systems))
    found = set()
    for item in runs.recordings:
        network = item.configuration.workload
        on = {(network, system) for system in systems if system.has(item.configuration)} & asked
        if on and item.configuration.mode == (mode or network.modes[0]):
            items.append(item)
            found |= on
    for runtime in dict.fromkeys(system.runtime for system in systems if system.runtime):
        load_runtime(runtime)  # raises UsageError for an unknown name
    if not items:
        texts = zip(*(system.texts for system in systems), strict=True)
        lacking = " ".join(" or ".join(dict.fromkeys(of_kind)) for of_kind in texts)
        raise UsageError(
            f"{runs.source} has none of these networks {lacking}:"
            " set record = True to record them here"
        )
    missing = _missing(networks, systems, found)
    warnings = list(runs.warnings)
    if missing:
        lacking = (
            f"{len(missing)} of {len(asked)} are not in {runs.source}:"
            f" {listed(missing, MOST_MISSING)}; record = True records them"
        )
        warnings.append(Incomplete(lacking))
    return replace(
        as_runs(items),
        source=runs.source,
        warnings=tuple(warnings),
        unfinished=runs.unfinished,
        missing=missing,
    )


def _missing(
    networks: Sequence[Workload], systems: Sequence[System], found: Collection[tuple]
) -> dict[str, dict]:
    """Name of each network that was not found on a system -> its sizes, and the runtime."""
    shared = set.intersection(*(set(system.texts) for system in systems))
    missing = {}
    for network, system in itertools.product(networks, systems):
        if (network, system) not in found:
            name = " ".join([network.label, *(text for text in system.texts if text not in shared)])
            missing[name] = dict(network.axes)
            if system.runtime:
                missing[name]["runtime"] = system.runtime
    return missing


def gpu_runs(topic: str, **where: Any) -> Runs:
    """The recordings in `data/CARD/TOPIC` for each GPU that was recorded on (`make gpu-session`),
    selected by `where`.

    If there are none, an empty `Runs`, and a line is printed that says how to record them. Raises
    what `load` raises.
    """
    with suppress(UsageError):
        pairs = sorted(find_folder("data").glob(f"*/{topic}/{CONFIGS_FILE}"))
        cards = [pair.parent for pair in pairs if _on_gpu(pair.parent)]
        if cards:
            return load(cards, **where)
    how = " On a machine with one: make gpu-session CALL=1" if in_checkout() else ""
    print(f"No recordings of a GPU here yet (data/CARD/{topic}).{how}")
    return Runs((), f"data/CARD/{topic}")


def _on_gpu(folder: Path) -> bool:
    described = (json.loads(row["configuration"]) for row in read_configs(folder)[0])
    return all(configuration["options"]["device"] == "cuda" for configuration in described)


def own_networks(
    path: str | Path,
    sizes: Mapping[str, int],
    *,
    states: Mapping[str, str] | None = None,
    lengths: Sequence[int] = (),
) -> list[Workload]:
    """An ONNX file as `OnnxNetwork` reads it, at `sizes` and then with each of `lengths` as the
    size of its sequence.

    `path` is looked up as data is (`find_folder`). If the file fixes the length of the sequence,
    there is one network only. Raises `UsageError` for a missing or invalid file, and for unknown or
    missing sizes and states.
    """
    path = find_folder(path)
    network_of = partial(registry.load_entry("API", "OnnxNetwork"), path, states=states or None)
    network = network_of(sizes=sizes)
    symbol = network.facts.time_symbol
    every = [{**sizes, symbol: length} for length in as_list(lengths) if symbol]
    return [network, *(network_of(sizes=each) for each in every)]


def record_missing(configurations: Sequence[Configuration], out: str | Path, **how) -> Runs:
    """Record the configurations that are missing in `out`; `how` is passed to `run_sweep`.

    Raises `UsageError` if it was stopped.
    """
    source = project_folder(out)
    report = run_sweep(configurations, source, **how)
    print(report)
    if report.stopped:
        raise UsageError("stopped; run the cell again to resume")
    ids = {configuration.id for configuration in configurations}
    items = [item for item in read_many(source) if item.configuration.id in ids]
    return replace(as_runs(items), source=str(out))


def show(answer: Any) -> None:
    """Print an answer or a text in a notebook, with lines broken at words: JupyterLab breaks long
    ones anywhere."""
    print(wrapped(str(answer), PAGE))


def describe_runs(runs: Runs) -> str:
    """One line about the runs: what was read, and on what it was recorded; then the warnings and
    other versions."""
    if runs.own:
        each = [item.configuration for item in runs.recordings]
        systems = sorted({with_version(one.runtime, one.runtime_version) for one in each})
        devices = sorted({one.device_name for one in each})
        line = f"{runs.sentence}; {listed(systems, 6)}; on {', '.join(devices)}"
        failures = sum(isinstance(item, Failure) for item in runs.recordings)
        if failures:
            line += f"; {count(failures, 'failure')}"
    else:
        line = f"{runs.sentence}; {runs.how.get('column', 'times')} in {runs.how['unit']}"
    return "\n".join([line, *warning_lines(runs.remarks)])


def find_folder(path: str | Path) -> Path:
    """`path` in the working folder, or in its nearest parent that has it.

    So a notebook finds `data/epyc` both from its own folder (JupyterLab) and from the project
    folder (papermill). Raises `UsageError` if it is not found.
    """
    path = Path(path).expanduser()
    for folder in [Path(), *Path.cwd().parents]:
        if (folder / path).exists():
            return folder / path
    raise UsageError(
        f"{path} is not in the working folder or its parents: give the path of an existing file or"
        " folder"
    )


def project_folder(path: str | Path) -> Path:
    """`path` for new files of a notebook: in the project folder if it runs in one, else in the
    working folder."""
    path = Path(path).expanduser()
    for folder in [Path.cwd(), *Path.cwd().parents]:
        if (folder / "pyproject.toml").exists() and (folder / "notebooks").is_dir():
            return folder / path
    return path
