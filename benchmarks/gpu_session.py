"""What is recorded on a GPU that is lent for half an hour: `make gpu-session CALL=1`, then 2, then 3.

Each call takes at most 560 s (`--seconds` for less) and runs its parts in the order of their value. Each command of a
part has a limit: it then gets Ctrl-C, which keeps what was recorded, and is killed 10 s later if it has not ended; the
next one follows. When the time is used up, the parts at the end are left out.

The first call begins with `look`: what the GPU and its driver are, how far the outputs at the corners of the grid are
from the reference, and the tests of a GPU. Unless a network was recorded and a test passed, nothing else is run.

Recordings lie in `data/local/gpu`, which git ignores. A sweep that was cut short goes on where it was, also from the
archives of an earlier call if they lie there. They are packed into `recordings-K.tgz` in `$OUT` (or `--out`), at the
end of each part and at most every 60 s between two networks, never while one is timed. At home,

    python3 benchmarks/gpu_session.py collect recordings-1.tgz ...

writes them into `data/CARD/PART` as consolidated pairs. `--rehearse cpu` runs the same commands without a GPU on small
networks, `--rehearse shim` over the tests' stand-in for a driver. No setting of the GPU is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # lstm_trt need not be installed

CALL_S = 560.0
#: Factor on all time limits of a rehearsal, which runs beside other tests, on a processor of any speed.
REHEARSAL = 5
#: From Ctrl-C to SIGKILL, and what packing at the end may take; the least time in which a command is worth starting.
GRACE_S, LEAST_S = 10.0, 15.0
PACK_EVERY_S = 60.0
#: What comes back from a lent machine: at most 8 files below 16 MiB. The log and the report are two of them.
ARCHIVES, ARCHIVE_BYTES = 4, 15 << 20

WORK = ROOT / "data/local/gpu"
#: Files with tests of a GPU, as in the Makefile.
GPU_TESTS = (
    "tests/lstm_trt/machine/test_machine.py tests/lstm_trt/runtimes/test_tensorrt_runtime.py"
    " tests/lstm_trt/runtimes/test_torch_runtimes.py"
)
REPORT = "gpu-tests.xml"

Sizes = dict[str, str]
GRID: Sizes = {"layers": "1 2 3 4 6", "hidden": "32 64 100 128 200 256 300 400", "sequence": "32 64 128 200 256"}
CORNERS: Sizes = {"layers": "1 6", "hidden": "32 400", "sequence": "256"}
#: cuDNN changes its kernel at 128 and 192 units.
EDGE: Sizes = {"layers": "2", "hidden": " ".join(map(str, [*range(120, 137), *range(184, 201)])), "sequence": "128"}
HALF: Sizes = {**GRID, "layers": "2", "sequence": "64 128"}
BATCH: Sizes = {**GRID, "layers": "2", "sequence": "64", "batch": " ".join(str(2**power) for power in range(10))}
COMPILED: Sizes = {"layers": "2", "hidden": "64 200", "sequence": "32 64"}
ONE: Sizes = {"layers": "2", "hidden": "200", "sequence": "128"}
REHEARSED: Sizes = {"layers": "1", "hidden": "8", "sequence": "4"}
LITERATURE = "cell stack ptb-lm text-classifier speech-ce-short"
IMPLEMENTATIONS = "pytorch-one-call-eager pytorch-fused-eager"
KERNELS = "128 192 193 200 256"


@dataclass(frozen=True)
class Command:
    """What follows the name of Python, with WORK for the session's folder; and its limit."""

    words: str
    limit_s: float

    def line(self, work: Path) -> list[str]:
        return [sys.executable, *(word.replace("WORK", str(work)) for word in self.words.split())]


@dataclass(frozen=True)
class Place:
    """Where the session runs: the device, the runtime with a CUDA graph and the one without."""

    device: str
    graph: str
    eager: str
    precisions: str
    rehearsal: bool = True


PLACES = {
    "cuda": Place("cuda", "pytorch-cudagraph", "pytorch", "tf32 fp16 bf16", rehearsal=False),
    "cpu": Place("cpu", "pytorch", "torchscript", "fp32 bf16"),
    "shim": Place("cuda", "tensorrt --graph", "tensorrt", "tf32 fp16"),
}


def calls(place: Place) -> dict[int, dict[str, list[Command]]]:
    """Call -> part -> its commands."""
    trials = 10 if place.rehearsal else 1000
    own = "cpu" if place is PLACES["shim"] else place.device  # PyTorch has no GPU over the stand-in

    def sweep(
        folder: str,
        sizes: Sizes,
        runtime: str,
        limit_s: float,
        more: str = "",
        trials: int = trials,
        device: str = place.device,
    ) -> Command:
        if place.rehearsal:
            sizes = {axis: REHEARSED.get(axis, "1") for axis in sizes}
        axes = " ".join(f"--{axis} {size}" for axis, size in sizes.items())
        words = f"-m lstm_trt sweep {axes} --runtime {runtime} --device {device} --trials {trials} --rounds 1"
        return Command(f"{words} --time-limit 60 --out WORK/{folder} {more}".rstrip(), limit_s)

    both = place.graph if " " in place.graph else f"{place.graph} {place.eager}"
    small = " --scale 1/32 --batches 2" if place.rehearsal else ""
    workloads = "cell" if place.rehearsal else LITERATURE
    literature = f"-m lstm_literature record {workloads} --implementation {IMPLEMENTATIONS} --device {own}{small}"
    periodic = "--control --arrival periodic --period-us 2000"
    grid = sweep("grid", GRID, place.graph, 290)
    return {
        1: {
            "look": [
                Command("-m lstm_trt doctor", 40),
                sweep("look", CORNERS, both, 90, trials=max(trials // 5, 10)),
                Command(f"-m pytest -q -p no:cacheprovider -m gpu --junitxml WORK/{REPORT} {GPU_TESTS}", 130),
            ],
            "grid": [grid],
        },
        2: {
            "grid": [replace(grid, limit_s=90)],
            "edge": [sweep("edge", EDGE, place.graph, 100)],
            "certify": [
                sweep("certify", ONE, place.graph, 90, "--control", trials * 40),
                sweep("certify", ONE, place.graph, 200, periodic, trials * 40),
            ],
            "kernels": [
                Command(f"benchmarks/gpu_kernels.py --device {own} --hidden {KERNELS} --json WORK/kernels.json", 70)
            ],
        },
        3: {
            "half": [sweep("half", HALF, place.graph, 100, f"--precision {place.precisions}")],
            "batch": [sweep("batch", BATCH, place.graph, 130)],
            "eager": [sweep("grid", GRID, place.eager, 120)],
            "compiled": [sweep("compiled", COMPILED, "torch-compile", 100, device=own)],
            "literature": [Command(f"{literature} --time-limit 60 --out WORK/literature", 100)],
        },
    }


@dataclass
class Session:
    """One call: runs its parts, keeps a report in `out`, and packs there what was recorded in `work`."""

    parts: dict[str, list[Command]]
    work: Path
    out: Path
    seconds: float = CALL_S
    place: Place = PLACES["cuda"]
    report: list[dict] = field(default_factory=list)
    pack_every_s: float = PACK_EVERY_S

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._packing, self._ended = threading.Lock(), threading.Event()
        self.work.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self._began)

    def run(self) -> bool:
        """Run the parts; returns whether the session may go on (`look` found a GPU that records)."""
        unpack(self.work.glob("recordings-*.tgz"), self.work)
        packer = threading.Thread(target=self._pack_meanwhile, daemon=True)
        packer.start()
        try:
            for name, commands in self.parts.items():
                for command in commands:
                    self._run(name, command)
                self.pack()
                if name == "look" and not self._looks_good():
                    return False
            return True
        finally:
            self._ended.set()
            self.pack()

    def _run(self, part: str, command: Command) -> None:
        limit_s = min(command.limit_s, self.left_s) - GRACE_S
        row = {"part": part, "command": command.words}
        if limit_s + GRACE_S < LEAST_S:
            self._add({**row, "skipped": "no time left"})
            return
        print(f"{part}: {command.words[:100]} (at most {limit_s:.0f} s)", flush=True)
        began = time.monotonic()
        status = run_limited(command.line(self.work), limit_s, self.out / "log.txt")
        self._add({**row, "status": status, "seconds": round(time.monotonic() - began, 1)})

    def _add(self, row: dict) -> None:
        print(f"  {row.get('skipped') or 'exit status {status} after {seconds} s'.format(**row)}", flush=True)
        self.report.append(row)
        temporary = self.out / ".report.tmp"
        temporary.write_text(json.dumps(self.report, indent=1) + "\n")
        temporary.replace(self.out / "report.json")

    def _looks_good(self) -> bool:
        lines, recorded = corners(self.work / "look")
        passed = tests_passed(self.work / REPORT)
        lines.append(f"{recorded} recordings at the corners, {passed} tests of a GPU passed")
        good = bool(recorded and (passed or self.place is PLACES["cpu"]))
        if not good:
            lines.append("nothing else is run: mend what log.txt and the lines above show first")
        text = "\n".join(lines)
        print(text, flush=True)
        with (self.out / "log.txt").open("a") as log:
            print(text, file=log)
        return good

    def _pack_meanwhile(self) -> None:
        from lstm_trt.config.configuration import Options
        from lstm_trt.machine.linux import choose_cores
        from lstm_trt.recorder.pool import resources
        from lstm_trt.store.locks import timing_lock

        needed = resources(Options(device=self.place.device, cores=choose_cores(1)))
        while not self._ended.wait(self.pack_every_s):
            with timing_lock(needed):  # the sweep waits meanwhile, between two networks
                self.pack()

    def pack(self) -> None:
        """Pack the recordings into at most `ARCHIVES` files, each replaced at once."""
        with self._packing:
            files = [path for path in sorted(self.work.rglob("*")) if packed(path) and self.out not in path.parents]
            for number, group in enumerate(filled(files), 1):
                temporary = self.out / f".recordings-{number}.tmp"
                with tarfile.open(temporary, "w:gz", compresslevel=1) as archive:  # Parquet files are compressed
                    for path in group:
                        with suppress(FileNotFoundError):  # a failure row whose network was recorded just now
                            archive.add(path, path.relative_to(self.work))
                temporary.replace(self.out / f"recordings-{number}.tgz")


def packed(path: Path) -> bool:
    """Whether a file comes home: recordings, failure rows and tables, no temporary file or archive."""
    return path.suffix in (".parquet", ".json", ".xml") and not path.name.startswith(".")


def filled(files: list[Path]) -> Iterator[list[Path]]:
    """The files in at most `ARCHIVES` groups of `ARCHIVE_BYTES`; prints how many are left out."""
    groups: list[list[Path]] = [[]]
    size = 0
    for path in files:
        size += path.stat().st_size
        if size > ARCHIVE_BYTES and groups[-1]:
            groups.append([])
            size = path.stat().st_size
        groups[-1].append(path)
    left_out = [path.name for group in groups[ARCHIVES:] for path in group]
    if left_out:
        print(f"{len(left_out)} files are too many bytes to come back, the first: {left_out[0]}", file=sys.stderr)
    yield from groups[:ARCHIVES]


def unpack(archives: Iterator[Path] | list[Path], folder: Path) -> None:
    """Extract archives of an earlier call; what is there already stays."""
    for path in archives:
        with tarfile.open(path) as archive:
            members = [member for member in archive if not (folder / member.name).exists()]
            archive.extractall(folder, members, filter="data")


def run_limited(line: list[str], limit_s: float, log: Path, grace_s: float = GRACE_S) -> int:
    """Run a command with its output in `log`; after its limit Ctrl-C, and after `grace_s` SIGKILL for its processes."""
    environment = os.environ | {"LSTM_TRT_CLOCKS": "fixed", "PYTHONUNBUFFERED": "1"}
    with log.open("a") as file:
        print(f"\n$ {' '.join(line)}  (at most {limit_s:.0f} s)", file=file, flush=True)
        child = subprocess.Popen(line, cwd=ROOT, stdout=file, stderr=file, start_new_session=True, env=environment)
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                return child.wait(grace_s)
            except subprocess.TimeoutExpired:
                return -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def corners(folder: Path) -> tuple[list[str], int]:
    """A line per network that `look` recorded, with its parity error and its latencies; and how many were recorded."""
    from lstm_trt.config.errors import StoreError
    from lstm_trt.store.folders import read_many
    from lstm_trt.store.schema import Failure

    try:
        items = list(read_many(folder))
    except StoreError as error:
        return [str(error)], 0
    lines, recorded = [f"{'network':28}{'parity error':>14}{'allowed':>10}{'median':>12}{'maximum':>12}"], 0
    for item in items:
        name = f"{item.configuration.workload.label} {item.configuration.runtime}"
        if isinstance(item, Failure):
            lines.append(f"{name:28} failed at {item.stage}: {item.reason}")
            continue
        recorded += 1
        parity, ordered_us = item.provenance["parity"], sorted(item.timed_ns / 1e3)
        median_us, largest_us = ordered_us[len(ordered_us) // 2], ordered_us[-1]
        times = f"{median_us:>9.1f} us{largest_us:>9.1f} us"
        lines.append(f"{name:28}{parity['error']:>14.1e}{parity['bound']:>10.0e}{times}")
    return lines, recorded


def tests_passed(report: Path) -> int:
    """The number of tests that passed, from pytest's report in XML; 0 without one."""
    if not report.exists():
        return 0
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return sum(not any(child.tag in ("skipped", "failure", "error") for child in case) for case in cases)


def collect(archives: list[Path], data: Path) -> int:
    """Write what came home into `data`/CARD/PART as consolidated pairs, and print where."""
    import tempfile

    import lstm_trt as lab

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        unpack(archives, home)
        for part in sorted(path for path in home.iterdir() if path.is_dir()):
            cards = {group.configuration.device_name for group in lab.load(part)}
            (card,) = {re.sub("[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-") for name in cards}
            (data / card / part.name).mkdir(parents=True, exist_ok=True)
            print(lab.consolidate(part, data / card / part.name))
            for table in home.glob("*.json"):
                shutil.copy(table, data / card)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("call", choices=["1", "2", "3", "collect"], help="number of the call, or collect")
    parser.add_argument("archives", nargs="*", type=Path, help="for collect: the archives that came home")
    parser.add_argument(
        "--seconds",
        type=float,
        default=CALL_S,
        help="time for this call (default and at most 560; times 5 in a rehearsal)",
    )
    parser.add_argument("--rehearse", choices=["cpu", "shim"], help="small networks, without a GPU")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the recordings (default data/local/gpu)")
    out = os.environ.get("OUT")
    text = "folder for what comes home (default $OUT, else out in the folder of the recordings)"
    parser.add_argument("--out", type=Path, default=out and Path(out), help=text)
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="for collect: the folder of recordings")
    arguments = parser.parse_args()
    if arguments.call == "collect":
        return collect(arguments.archives, arguments.data)
    from lstm_trt.machine.facts import commit

    if commit() is None:
        print("the commit is not known here: set LSTM_TRT_COMMIT", file=sys.stderr)
    place, out = PLACES[arguments.rehearse or "cuda"], arguments.out or arguments.work / "out"
    longer = REHEARSAL if place.rehearsal else 1
    parts = {
        part: [replace(command, limit_s=command.limit_s * longer) for command in commands]
        for part, commands in calls(place)[int(arguments.call)].items()
    }
    seconds = min(arguments.seconds, CALL_S) * longer
    session = Session(parts, arguments.work.resolve(), out.resolve(), seconds, place)
    good = session.run()
    if arguments.rehearse:
        good = good and not any(row.get("status", 1) for row in session.report if row["part"] != "look")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
