"""All runtimes compared at three sizes, window and stream: `.venv/bin/python benchmarks/runtimes.py`.

Every round records each network once on each runtime that is ready, in new processes and in a new random order, so
that a drift of the machine affects all of them alike. In the mode "forward" a call computes a whole window, in
"stream" `--block` samples with carried state. For each configuration it prints the median over the rounds of two
ratios within a round, with distribution-free 95 % intervals (order statistics, at least 6 rounds): median latency to
roofline bound, and to the median of the fastest runtime. Runtimes that lack a mode are listed with the reason.

"onnxruntime session.run" is ONNX Runtime without I/O binding. "c in process" is the code of the runtime `c`, called by
a C program (`in_process.c`) instead of Python, on the same core in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import lstm_trt as lab
from lstm_judge.read.numbers import multiple, table
from lstm_judge.statistics.quantiles import interval
from lstm_onnx.c.compile import find_compiler
from lstm_trt.config.configuration import Configuration
from lstm_trt.recorder.sweep import run_sweep

#: Layers, hidden units, time steps of a window.
NETWORKS = ((1, 32, 32), (2, 64, 64), (2, 200, 128))

HEADER = ("network", "mode", "runtime", "rounds", "median us", "x bound", "interval", "x fastest", "interval")


def ratio(values: Sequence[float]) -> dict:
    """Median and 95 % interval of the rounds' ratios; None where there is no value or no bound."""
    ordered = np.sort(np.array(values))
    low, high = interval(ordered, Fraction(1, 2)) if len(ordered) else (None, None)
    return {"ratio": float(np.median(ordered)) if len(ordered) else None, "low": low, "high": high}


def compared(rounds: Mapping[str, Mapping[int, object]]) -> list[dict]:
    """One network in one mode: runtime -> round -> row of the summary; the fastest runtime comes first."""
    medians = {runtime: float(np.median([row.median_us for row in rows.values()])) for runtime, rows in rounds.items()}
    fastest = min(medians, key=medians.get)
    found = []
    for runtime in sorted(medians, key=medians.get):
        rows, others = rounds[runtime], rounds[fastest]
        to_fastest = [row.median_us / others[number].median_us for number, row in rows.items() if number in others]
        found.append(
            {
                "runtime": runtime,
                "runtime_version": next(iter(rows.values())).runtime_version,
                "rounds": len(rows),
                "median_us": medians[runtime],
                "to_bound": ratio([row.median_us / row.floor_us for row in rows.values() if row.floor_us > 0]),
                "to_fastest": ratio(to_fastest),
            }
        )
    return found


def cells(ratios: Mapping) -> tuple[str, str]:
    """A ratio and its interval as text."""
    bounds = ["-" if ratios[name] is None else multiple(ratios[name], "") for name in ("ratio", "low", "high")]
    return bounds[0], "-" if bounds[1] == "-" else f"{bounds[1]} to {bounds[2]}"


def text(results: Sequence[Mapping], missing: Sequence[Mapping]) -> str:
    """The table, and what could not be recorded."""
    rows = []
    for item in results:
        named = [str(item[name]) for name in ("network", "mode", "runtime", "rounds")]
        rows.append([*named, f"{item['median_us']:.3f}", *cells(item["to_bound"]), *cells(item["to_fastest"])])
    reasons = dict.fromkeys(f"{item['runtime']}, {item['mode']}: {item['reason']}" for item in missing)
    return "\n".join([table(HEADER, rows), *(f"not recorded: {reason}" for reason in reasons)])


def in_process(configuration: Configuration, folder: Path) -> Callable[[], float]:
    """The network of a configuration of `c` as a program; the result is the median of its calls in us, on its core."""
    network, mode, trials = configuration.workload, configuration.mode, configuration.protocol.trials
    written = lab.export_c(network, folder / f"{network.label}-{mode}", mode=mode, name="network")
    source, program = written.paths[0], written.paths[0].with_suffix("")
    weights = source.with_suffix(".weights")
    weights.write_bytes(written.file.weights)
    function, rows = {"forward": ("_run", "network_WINDOW"), "stream": ("_step", "network_STEP")}[mode]
    macros = ["-DNETWORK=network", f"-DFUNCTION={function}", f"-DROWS={rows}", f"-I{source.parent}"]
    files = [str(Path(__file__).with_name("in_process.c")), str(source), "-o", str(program)]
    flags = [*written.file.compile_flags, *macros, "-include", "network.h"]
    subprocess.run([*find_compiler().command, *flags, *files], check=True)
    pin = partial(os.sched_setaffinity, 0, configuration.options.cores)

    def median_us() -> float:
        command = [str(program), str(weights), str(trials)]
        found = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=pin)
        return float(np.median([int(line) for line in found.stdout.split()])) / 1e3

    return median_us


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds in new processes (default %(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help="trials per recording (default %(default)s)")
    parser.add_argument("--block", type=int, default=1, help="samples of a call in a stream (default %(default)s)")
    parser.add_argument("--modes", nargs="+", choices=("forward", "stream"), default=["forward", "stream"])
    parser.add_argument("--runtimes", nargs="+", metavar="NAME", help="runtimes (default: all that are ready)")
    parser.add_argument("--device", default="cpu", help="device (default %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="keep the recordings here, and resume if interrupted")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    protocol = lab.Protocol(trials=arguments.trials)
    options, unbound = lab.Options(device=arguments.device), lab.Options(device=arguments.device, io_binding=False)
    ready = [row.runtime for row in lab.doctor().runtimes if row.ready and row.device == options.device]
    configurations, missing = [], []
    for layers, hidden, window in NETWORKS:
        for mode in arguments.modes:
            network = lab.LstmShape(layers, hidden, window if mode == "forward" else arguments.block)
            for runtime in arguments.runtimes or ready:
                try:
                    configurations.append(lab.describe(network, runtime, protocol, options, mode))
                    if runtime == "onnxruntime":
                        configurations.append(lab.describe(network, runtime, protocol, unbound, mode))
                except lab.LabError as error:
                    missing.append({"network": network.label, "mode": mode, "runtime": runtime, "reason": str(error)})
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="lstm_trt-"))
        out = arguments.out or f"{scratch}/recordings"
        programs = {item.id: in_process(item, Path(scratch)) for item in configurations if item.runtime == "c"}
        alone: dict[str, dict[int, float]] = {name: {} for name in programs}
        for number in range(arguments.rounds):
            report = run_sweep(configurations, out, rounds=number + 1)
            if report.stopped:
                break
            for name, program in programs.items():
                alone[name][number] = program()
        rows = {
            (row.config_id, row.round): row
            for row in lab.summarize(lab.load(out), by_round=True, clusters=False).frame.itertuples()
            if row.status == "ok"
        }
    missing += [
        {"network": failure.configuration.workload.label, "mode": failure.configuration.mode}
        | {"runtime": failure.configuration.runtime, "reason": failure.reason}
        for failure in report.failures
    ]
    groups: dict[tuple[str, str], dict[str, dict]] = {}
    for configuration in configurations:
        recorded = {number: row for (name, number), row in rows.items() if name == configuration.id}
        if recorded:
            key = configuration.workload.label, configuration.mode
            name = configuration.runtime + ("" if configuration.options.io_binding else " session.run")
            groups.setdefault(key, {})[name] = recorded
            others = alone.get(configuration.id, {})
            if others:
                one = next(iter(recorded.values()))
                known = {"runtime_version": one.runtime_version, "floor_us": one.floor_us}
                rounds = {number: SimpleNamespace(median_us=median, **known) for number, median in others.items()}
                groups[key]["c in process"] = rounds
    results = [
        {"network": network, "mode": mode, **item}
        for (network, mode), rounds in groups.items()
        for item in compared(rounds)
    ]
    if arguments.format == "json":
        print(json.dumps({"configurations": results, "not_recorded": missing}, indent=1))
    else:
        print(text(results, missing))
    return 130 if report.stopped else 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
