"""What the tests take, and which ran: `.venv/bin/python benchmarks/suite.py run OUT.json [COMMAND ...]`.

Runs the command (`bash .ci/run` without one) and writes what each of its steps and tests took, how the tests ended and
how busy the cores were; then prints it by step, by file and by test. A step begins with a line `make NAME` of the
command and ends with `make NAME: 12.3 s`; steps may overlap, and so may the tests of several processes.

`.venv/bin/python benchmarks/suite.py compare BEFORE.json AFTER.json` prints which tests ran on one side only or ended
otherwise, and the times of the steps side by side. Exit status 1 if a test of the first run is not in the second with
any of its cases, of which the seed may choose some, or was skipped there and not before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Read by tests/support/times.py.
VARIABLE = "LSTM_TRT_TEST_TIMES"
SAMPLE_S = 1.0
FILES, TESTS = 15, 30
STARTED, ENDED = re.compile(r"make (\S+)$"), re.compile(r"make (\S+): ([\d.]+) s$")


def cpu_times() -> tuple[float, float]:
    """Seconds of all cores since the machine started: in all, and with nothing to do."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    idle, waiting = fields[3], fields[4]
    return sum(fields) / ticks, (idle + waiting) / ticks


class Busy(threading.Thread):
    """Samples, each second, of how much the cores had done."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float, float]] = []

    def run(self) -> None:
        while True:
            self.samples.append((time.time(), *cpu_times()))
            time.sleep(SAMPLE_S)


def share_busy(samples: list[tuple[float, float, float]], begin_s: float, end_s: float) -> float | None:
    """The share of the cores' time that something ran, of any program; None for less than two samples."""
    inside = [sample for sample in samples if begin_s <= sample[0] <= end_s]
    if len(inside) < 2:
        return None
    (_, all_before, idle_before), (_, all_after, idle_after) = inside[0], inside[-1]
    return 1 - (idle_after - idle_before) / (all_after - all_before)


def measure(command: list[str], times: Path) -> dict[str, object]:
    """Run a command, print what it prints, and return what it and its tests took."""
    busy = Busy()
    busy.start()
    steps: list[dict[str, object]] = []
    began_s = time.time()
    environment = os.environ | {VARIABLE: str(times)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if found := STARTED.match(line.rstrip()):
                steps.append({"step": found[1], "began_s": time.time()})
            if found := ENDED.match(line.rstrip()):
                step = next(step for step in reversed(steps) if step["step"] == found[1])
                step |= {"seconds": float(found[2]), "ended_s": time.time()}
    ended_s = time.time()
    for step in steps:
        step["busy"] = share_busy(busy.samples, step["began_s"], step.get("ended_s", ended_s))
    return {
        "command": command,
        "status": process.returncode,
        "cores": os.cpu_count(),
        "seconds": ended_s - began_s,
        "busy": share_busy(busy.samples, began_s, ended_s),
        "steps": steps,
        "tests": [json.loads(line) for line in times.read_text().splitlines()],
    }


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def show(run: dict) -> None:
    """Print a run by step, by file and by test."""
    print(f"\n{run['seconds']:.0f} s in all, cores busy {percent(run['busy'])}, exit status {run['status']}")
    print("\n| step | s | cores busy |\n| --- | --- | --- |")
    for step in run["steps"]:
        print(f"| {step['step']} | {step.get('seconds', '')} | {percent(step['busy'])} |")
    outcomes: dict[str, int] = defaultdict(int)
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for test in run["tests"]:
        outcomes[test["outcome"]] += 1
        file = files[test["test"].split("::")[0]]
        file[0] += test["seconds"]
        file[1] += test.get("cpu_seconds", 0.0)
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    longest_files = sorted(files.items(), key=lambda pair: -pair[1][0])[:FILES]
    longest_tests = sorted(run["tests"], key=lambda test: -test["seconds"])[:TESTS]
    print("\n| file | s of its tests | s of CPU |\n| --- | --- | --- |")
    for file, (seconds, cpu_seconds) in longest_files:
        print(f"| {file} | {seconds:.0f} | {cpu_seconds:.0f} |")
    print("\n| test | s | s of CPU |\n| --- | --- | --- |")
    for test in longest_tests:
        print(f"| {test['test']} | {test['seconds']:.1f} | {test.get('cpu_seconds', 0.0):.1f} |")


def best_outcomes(run: dict) -> dict[str, str]:
    """The best of a test's outcomes, as it may run in several environments and surroundings."""
    rank = {"passed": 0, "failed": 1, "skipped": 2}
    best: dict[str, str] = {}
    for test in run["tests"]:
        name, outcome = test["test"], test["outcome"]
        if not name.startswith("tests/"):
            continue  # a session that a test started
        if name not in best or rank[outcome] < rank[best[name]]:
            best[name] = outcome
    return best


def function(name: str) -> str:
    """A test without its case, which the seed may choose."""
    return name.partition("[")[0]


def compare(before: dict, after: dict) -> int:
    """Print what differs between two runs, and return the exit status."""
    old, new = best_outcomes(before), best_outcomes(after)
    lost = sorted({function(name) for name in old} - {function(name) for name in new})
    added = sorted({function(name) for name in new} - {function(name) for name in old})
    changed = sorted(name for name in set(old) & set(new) if old[name] != new[name])
    for name in lost:
        print(f"lost: {name}")
    for name in added:
        print(f"new: {name}")
    for name in changed:
        print(f"{old[name]} before, {new[name]} now: {name}")
    both, gone, added_cases = set(old) & set(new), set(old) - set(new), set(new) - set(old)
    print(f"{len(lost)} tests lost, {len(added)} new, {len(changed)} cases end otherwise")
    print(f"{len(both)} cases ran in both, {len(gone)} before only, {len(added_cases)} now only")
    print("\n| step | s before | s now |\n| --- | --- | --- |")
    seconds = [{step["step"]: step.get("seconds", "") for step in run["steps"]} for run in (before, after)]
    for step in dict.fromkeys([*seconds[0], *seconds[1]]):
        print(f"| {step} | {seconds[0].get(step, '')} | {seconds[1].get(step, '')} |")
    print(f"| in all | {before['seconds']:.0f} | {after['seconds']:.0f} |")
    return int(bool(lost) or any(new[name] == "skipped" for name in changed))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/suite.py", description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    running = actions.add_parser("run", help="run a command and write what it took")
    running.add_argument("out", type=Path, metavar="OUT.json")
    running.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="default: bash .ci/run")
    comparing = actions.add_parser("compare", help="compare two files of `run`")
    comparing.add_argument("before", type=Path, metavar="BEFORE.json")
    comparing.add_argument("after", type=Path, metavar="AFTER.json")
    arguments = parser.parse_args()
    if arguments.action == "compare":
        try:
            runs = [json.loads(path.read_text()) for path in (arguments.before, arguments.after)]
        except (OSError, ValueError) as error:
            parser.error(f"cannot read a file of `run`: {error}")
        return compare(*runs)
    with tempfile.NamedTemporaryFile(prefix="suite-") as times:
        os.chmod(times.name, 0o666)  # The tests of another user write to it too.
        run = measure(arguments.command or ["bash", ".ci/run"], Path(times.name))
    arguments.out.write_text(json.dumps(run))
    show(run)
    return run["status"]


if __name__ == "__main__":
    sys.exit(main())
