"""The loads that run beside the trials: started before the warm-up, watched, and ended.

A load is a command under two supervisors (`machine.supervisor`), or one of `COPIES`, further
processes that call the same step, which `pool.py` starts. Of each it is stated what it did while
trials were timed, in CPU time and bytes of I/O; a recording beside a load that did nothing, or
ended early, fails, since nothing was beside it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lstm_trt.config.configuration import COPIES, Options, Protocol
from lstm_trt.config.errors import RunFailed, UsageError, last_line
from lstm_trt.config.libraries import psutil
from lstm_trt.machine import linux
from lstm_trt.machine.counters import process_clock
from lstm_trt.machine.process import Interpreter

#: For so long the commands run before the warm-up, in s.
LEAD_S = 1.0

#: For at most so long they run alone after the trials, in s, for the rate that they print.
ALONE_S = 3.0

#: So much of what a load prints is kept, its end; one that never stops printing fills no disk.
KEPT_BYTES = 65_536

#: For so long a load may hold its output open once its supervisors have ended, in s.
PATIENCE_S = 5.0

#: A rate: a number, perhaps a word, and a unit per second: "8947.77 MB/sec", "12.1 MB read/sec".
RATE = re.compile(r"\b[\d.]+ (?:\w+ )?\S+/s(?:ec)?\b")


def cores_of(protocol: Protocol, options: Options) -> tuple[int, ...]:
    """The cores of the loads; raises `UsageError` if there are not enough."""
    if not protocol.beside:
        return ()
    if protocol.beside_on == "same-core":
        return options.cores
    others = tuple(core for core in linux.allowed_cores() if core not in options.cores)
    needed = options.threads if COPIES in dict(protocol.beside) else 1
    if len(others) < needed:
        raise UsageError(
            f"the loads need {needed} of the cores besides those of the trials, and this process"
            f" may use only {linux.list_text(linux.allowed_cores())}: add --beside-on same-core"
        )
    return others


def check_programs(protocol: Protocol) -> None:
    """Raise `UsageError` if a load's command cannot be split, or its program is not there, or
    `tail`, which keeps what it prints."""
    for name, command in commands(protocol):
        try:
            own = shlex.split(command)[0]
        except (ValueError, IndexError) as error:
            raise UsageError(f"--beside {name}: {error} in {command!r}") from None
        for program in (own, "tail"):
            if shutil.which(program) is None:
                raise UsageError(
                    f"--beside {name}: there is no program {program}: install it, or give its path"
                )


def commands(protocol: Protocol) -> list[tuple[str, str]]:
    """The loads that are commands, not copies."""
    return [(name, command) for name, command in protocol.beside if name != COPIES]


class Load:
    """A command, all that came of it, and the end of what it prints."""

    #: So many of its processes are no load: those that supervise.
    supervisors = 2

    def __init__(self, name: str, command: str, cores: Iterable[int]) -> None:
        self.name = name
        self.command = command
        self._printed = b""
        supervisor = Interpreter().command(
            "from lstm_trt.machine.supervisor import main; sys.exit(main())"
        )
        pipe, self._held = os.pipe()
        supervisor.append(str(pipe))
        reads, prints = os.pipe()
        self._kept = subprocess.Popen(
            ["tail", "-c", str(KEPT_BYTES)],
            start_new_session=True,
            stdin=reads,
            stdout=subprocess.PIPE,
        )
        # The recorder's own numbers of threads are not meant for it.
        environment = dict(os.environ)
        for variable in linux.THREAD_VARIABLES:
            environment.pop(variable, None)
        self._child = subprocess.Popen(
            [*supervisor, *supervisor, *shlex.split(command)],
            pass_fds=[pipe],
            start_new_session=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=prints,
            stderr=prints,
        )
        for descriptor in (pipe, reads, prints):
            os.close(descriptor)
        # What it starts, which takes some milliseconds, inherits them.
        for pid in self.pids:
            os.sched_setaffinity(pid, cores)

    @property
    def pids(self) -> list[int]:
        return [self._child.pid, self._kept.pid]

    def end(self) -> str:
        """End it; returns the end of what it printed. May be called twice."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
            self._child.wait()
            try:
                self._printed, _ = self._kept.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._kept.kill()
                self._kept.wait()
        return self._printed.decode(errors="replace")

    def death(self) -> str:
        """How it ended by itself, with its last line."""
        last = last_line(self.end())
        return f"exit status {self._child.returncode}{last}"


class Copies:
    """The further processes with the same step, which the parent process starts and ends."""

    name = COPIES
    supervisors = 0

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids
        self.command = str(len(pids))

    def end(self) -> str:
        return ""

    def death(self) -> str:
        return "see what the copies need, such as memory"


class Loads:
    """The loads of one recording; a context manager that ends those that are commands.

    `cores`: of the loads. `copies`: process ids of the copies.
    """

    def __init__(self, protocol: Protocol, cores: Sequence[int], copies: Sequence[int]) -> None:
        self._protocol = protocol
        self._cores = list(cores)
        self._loads: list[Any] = []
        self._copies = [Copies(copies)] if copies else []
        self._began: list[tuple] = []

    def __enter__(self) -> Loads:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _start(self, for_s: float = LEAD_S) -> None:
        self._loads = [*self._copies]
        for name, command in commands(self._protocol):
            self._loads.append(Load(name, command, self._cores))
        if self._loads:
            time.sleep(for_s)

    def _end(self) -> list[str]:
        return [load.end() for load in self._loads]

    def begin(self) -> None:
        """Note what the loads did so far, before trials are timed; raises `RunFailed` if one
        ended."""
        self._check()
        self._began = [used(load) for load in self._loads]
        self._began_ns = time.perf_counter_ns()

    def finish(self) -> list[dict[str, Any]]:
        """What each load did since `begin` (`store.provenance.Load`).

        Raises `RunFailed` if one ended, or used neither CPU time nor I/O.
        """
        wall_ns = time.perf_counter_ns() - self._began_ns
        self._check()
        stated = []
        for load, (cpu_before_ns, bytes_before, _) in zip(self._loads, self._began, strict=True):
            cpu_ns, io_bytes, processes = used(load)
            cpu_ns = max(0, cpu_ns - cpu_before_ns)
            io_bytes = max(0, io_bytes - bytes_before)
            if cpu_ns == 0 and io_bytes == 0:
                raise RunFailed(
                    f"the load {load.name} used neither CPU time nor I/O during the trials, so it"
                    " was no load"
                )
            stated.append(
                {
                    "name": load.name,
                    "command": load.command,
                    "cores": self._cores,
                    "cpu_ns": cpu_ns,
                    "io_bytes": io_bytes,
                    "wall_ns": wall_ns,
                    "processes": processes,
                }
            )
        return stated

    def _check(self) -> None:
        for load in self._loads:
            if not all(map(_runs, load.pids)):
                raise RunFailed(
                    f"the load {load.name} ended before the trials did, with {load.death()}"
                )

    def add_rates(self, stated: Sequence[dict[str, Any]]) -> None:
        """End the loads, and add the rates that they printed beside the trials and, run once more,
        alone.

        Nothing is judged by them: a writer to disk fills the page cache first.
        """
        rates = list(map(rate_in, self._end()))
        if not any(rates):
            return
        longest_s = max(load["wall_ns"] for load in stated) / 1e9
        self._start(min(ALONE_S, LEAD_S + longest_s))
        for load, rate, printed in zip(stated, rates, self._end(), strict=True):
            if rate:
                load["rate"] = rate
                load["rate_alone"] = rate_in(printed)


def rate_in(printed: str) -> str | None:
    """The last rate in a text; None without."""
    rates = RATE.findall(printed)
    return rates[-1] if rates else None


def used(load: Load | Copies) -> tuple[int, int, list[str]]:
    """What the processes of a load have used so far: CPU time in ns, bytes read and written; and
    the names of those that are there, without supervisors.

    What a process used counts for its parent once that has waited for it, as a supervisor does.
    """
    cpu_ns = 0
    io_bytes = 0
    names = set()
    for pid in load.pids:
        for place, process in enumerate(_with_children(pid)):
            with suppress(psutil.Error, OSError):
                ended = process.cpu_times()
                cpu_ns += time.clock_gettime_ns(process_clock(process.pid))
                cpu_ns += int(1e9 * (ended.children_user + ended.children_system))
                if place >= load.supervisors:
                    names.add(process.name()[:15])
                io: Any = process.io_counters()
                io_bytes += io.read_chars + io.write_chars
    return cpu_ns, io_bytes, sorted(names)


def _with_children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def load_text(load: Mapping[str, Any]) -> str:
    """What a load did, on one line."""
    text = (
        f"beside {load['name']}: {100 * load['cpu_ns'] / load['wall_ns']:.0f} % of a core,"
        f" {load['io_bytes'] / 1e6:.0f} MB of I/O"
    )
    if load.get("rate"):
        text += f"; it printed {load['rate']}, and alone {load['rate_alone']}"
    return text
