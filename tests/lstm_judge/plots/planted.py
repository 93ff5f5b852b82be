"""Runs of which every latency is known: systems on grids of networks for sweeps, single rounds for the pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import Runs
from lstm_judge.scaling.scaling import scaling
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import Grid, LstmShape
from lstm_trt.store.schema import Failure
from tests.support.planted_latencies import explain

EPYC = ("onnxruntime", "1.27.0", "AMD EPYC 9005")
XEON = ("onnxruntime", "1.27.0", "Intel Xeon 8480")
OLDER = ("onnxruntime", "1.26.0", "AMD EPYC 9005")
TORCH = ("pytorch", "2.13.0", "AMD EPYC 9005")
N, SLOW, TWICE, WARMUP = 400, 30, 6, 10
ONE, TWO = [LstmShape(2, 64, 32)], Grid((2,), (64,), (32, 64))
ERRORS = {"fp32": 0.0, "tf32": 2e-4, "fp16": 3e-4, "bf16": 2e-3, "int8": 9e-3}


def base_us(system: tuple, shape: LstmShape) -> float:
    """Median that is planted; differs for every shape and system."""
    speed = 1 + 0.5 * [EPYC, TORCH, XEON, OLDER].index(system)
    return speed * (20 + shape.layers * shape.sequence * (0.5 + shape.hidden / 500) + shape.batch / 3)


def latencies_us(
    median_us: float, n: int = N, slow: int = SLOW, twice: int = TWICE, largest: float = 3.0
) -> np.ndarray:
    """An even body within 0.5 %, `slow` trials at 1.25 x, `twice` at 2 x, one at `largest` x; shuffled."""
    below = (n + 1) // 2 - 1  # the median is the next one: an order statistic
    above = n - below - 1 - slow - twice - 1
    body = np.r_[np.linspace(0.995, 0.9999, below), 1.0, np.linspace(1.0001, 1.005, above)]
    ratios = np.concatenate([body, np.full(slow, 1.25), np.full(twice, 2.0), [largest]])
    return median_us * np.random.default_rng(n).permutation(ratios)


def few(us: float) -> np.ndarray:
    return latencies_us(us, n=40, slow=3, twice=1)


def faster(us: float) -> np.ndarray:
    """Larger networks take less time."""
    return few(1e4 / us)


def make_runs(grid, systems=(EPYC,), rounds=1, failing=None, floor=True, make=latencies_us, **protocol) -> Runs:
    """`failing(system, shape, round)` gives the stage of a failure, or None."""
    groups, failures = [], []
    for system in systems:
        for shape in grid:
            configuration = Configuration(shape, *system, Options(), Protocol(warmup=WARMUP, **protocol))
            recorded = []
            for number in range(rounds):
                stage = failing(system, shape, number) if failing else None
                if stage:
                    failures.append(Failure(configuration, number, stage, f"no {stage} left"))
                    continue
                timed = make(base_us(system, shape) * (1 + 0.01 * number))
                warm = timed[0] * np.r_[40.0, np.linspace(3, 1.5, WARMUP - 1)]
                latency_ns = np.round(np.r_[warm, timed] * 1000)
                floor_us = 0.2 * base_us(system, shape) if floor else None
                warmup = np.arange(len(latency_ns)) < WARMUP
                recorded.append(Round(latency_ns, warmup, round=number, floor_us=floor_us))
            failure = None if recorded else NoTrials(stage, f"no {stage} left")
            name = f"{shape.label} on {system[0]}"
            groups.append(Group(name, tuple(recorded), configuration=configuration, failure=failure))
    return Runs(tuple(groups), recordings=tuple(failures))


def all_fail(system, shape, number):
    return "build"


def torch_fails_at_128(system, shape, number):
    return "memory" if (system, shape.hidden) == (TORCH, 128) else None


def steps(count: int) -> tuple[int, ...]:
    """As many sizes: the founding document's, or multiples of 4."""
    return (32, 64, 100, 128, 200, 256, 300, 400)[:count] if count <= 8 else tuple(range(4, 4 * count + 1, 4))


def dense(layers=(1,), hidden=(32, 64), sequence=(32, 64), batch=(1,), systems=(EPYC,), make=few, **more) -> Runs:
    """A grid with few trials; every tenth hidden size fails at the second sequence length."""

    def failing(system, shape, number):
        return "memory" if shape.hidden % 40 == 8 and shape.sequence == 64 else None

    return make_runs(Grid(layers, hidden, sequence, batch), systems, make=make, failing=failing, **more)


def findings(**grid):
    return scaling(dense(**grid)).findings


def in_precisions(runs: Runs, *names: str, errors=ERRORS) -> Runs:
    """Each group in each precision with its error; lower ones are faster. Without an error it was not checked."""
    groups = []
    for group in runs:
        for order, name in enumerate(names):
            rounds = group.rounds
            if errors[name] is not None:
                rounds = tuple(
                    replace(
                        each,
                        latency_ns=each.latency_ns / (1 + order),
                        facts={"parity.error": errors[name] * (1 + each.round)},
                    )
                    for each in group.rounds
                )
            options = replace(group.configuration.options, precision=name)
            groups.append(replace(group, rounds=rounds, configuration=replace(group.configuration, options=options)))
    return Runs(tuple(groups))


def renamed(group: Group, **fields: str) -> Group:
    """A group with another runtime or version."""
    return replace(group, configuration=replace(group.configuration, **fields))


def of_runtimes(runs: Runs, names) -> Runs:
    """Each group under each of these runtimes."""
    return Runs(tuple(renamed(group, runtime=name) for name in names for group in runs))


def of_versions(*names: str) -> Runs:
    """One network under several versions, in 3 rounds; each version has other planted medians."""
    several = zip((OLDER, EPYC, TORCH), names, strict=False)
    made = [(make_runs(ONE, (system,), rounds=3), name) for system, name in several]
    return Runs(tuple(renamed(runs[0], runtime="onnxruntime", runtime_version=name) for runs, name in made))


def table_beside(rows: dict[str, dict[tuple[int, int, int, int], float]]) -> pd.DataFrame:
    """Label -> (layers, hidden, sequence, batch) -> us, as a table of numbers from elsewhere."""
    found = [(*sizes, label, us) for label, numbers in rows.items() for sizes, us in numbers.items()]
    return pd.DataFrame(found, columns=["layers", "hidden", "sequence", "batch", "label", "latency_us"])


MEDIAN_NS = 100_000.0
SHAPE = LstmShape(2, 64, 64)


def round_(n: int, late: int = 0, far: float = 2.0, warmup: int = 10, seed: int = 0, **more) -> Round:
    """A bulk near 100 us, evenly spread within 1 %, with `late` trials at `far` times that; warm-up first."""
    body = MEDIAN_NS * np.linspace(0.99, 1.01, max(n - late, 0))
    timed = np.random.default_rng(seed).permutation(np.r_[body, np.full(late, far * MEDIAN_NS)])
    warm = MEDIAN_NS * np.linspace(9, 3, warmup)
    return Round(np.r_[warm, timed], np.arange(warmup + n) < warmup, **more)


def group(*rounds: Round, shape: LstmShape = SHAPE, **more) -> Group:
    configuration = Configuration(shape, "onnxruntime", "1.31.1", "AMD EPYC", protocol=Protocol(**more))
    return Group(f"{shape.label} on onnxruntime", rounds, configuration=configuration)


def failed_group(stage: str, shape: LstmShape = SHAPE) -> Group:
    return replace(group(shape=shape), failure=NoTrials(stage, f"no {stage} left"))


def control(n: int) -> np.ndarray:
    return 200 + 100 * np.random.default_rng(n).exponential(size=n) ** 3


def margins(n: int = 1000, hidden: tuple[int, ...] = (32, 64, 128)) -> Runs:
    """Networks with more misses at larger sizes; the largest failed."""
    groups, failures = [], []
    for shape in Grid((2,), hidden, (16, 32)):
        recorded = group(
            round_(n, {32: 0, 64: 5, 128: 60}[shape.hidden], seed=shape.hidden + shape.sequence), shape=shape
        )
        if (shape.hidden, shape.sequence) == (128, 32):
            recorded = failed_group("build", shape)
            failures.append(Failure(recorded.configuration, 0, "build", "no build left"))
        groups.append(recorded)
    return Runs(tuple(groups), recordings=tuple(failures))


def of_lengths(*lengths: int) -> list[Group]:
    """A network for each number of trials, of growing hidden size."""
    return [group(round_(n), shape=LstmShape(2, 8 * 2**place, 64)) for place, n in enumerate(lengths)]


def watched(missing: str | None = None) -> Round:
    """Calls of 100 us, one each ms, in two blocks; ten are preempted, five wait, one has page faults.

    During the second block other programs used the processor.
    """
    n = 200
    latency_ns, preempted, waited = np.full(n, 100_000.0), np.zeros(n, int), np.zeros(n, int)
    preempted[20:30], waited[50:55] = 40_000, 7_000
    faults = np.where(np.arange(n) == 70, 12, 0)
    others = {"others_ns": 60_000_000, "others_total_ns": 60_000_000}
    quiet = dict.fromkeys(others, 0)
    return Round.of(
        latency_ns + preempted + waited,
        np.arange(n) * 1_000_000,
        off_core={} if missing else {"preempted_ns": preempted, "off_core_ns": preempted + waited},
        causes={"minor_faults": faults, "major_faults": faults * 0},
        switches={"missing": missing, "ran": {}, "ran_missing": missing, "faults": {}, "faults_missing": missing},
        blocks=[{"rows": 100, "interrupts": 40, **quiet}, {"rows": 100, "interrupts": 90, **others}],
    )


def clustered(n: int = 2000, seed: int = 0, counts=((1.25, 40), (2.0, 20)), step: float = 1.0, **more) -> Round:
    """A normal bulk of 1 %, clusters of exact size, a step half way; warm-up first."""
    generator = np.random.default_rng(seed)
    ratios = 1 + 0.01 * generator.standard_normal(n)
    places, first = generator.permutation(n), 0
    for multiplier, count in counts:
        ratios[places[first : first + count]] = multiplier * (1 + 0.002 * generator.standard_normal(count))
        first += count
    ratios[n // 2 :] *= step
    warm = np.linspace(9, 3, 10)
    return Round(MEDIAN_NS * np.r_[warm, ratios], np.arange(n + 10) < 10, **more)


def explained(**more) -> tuple[Group, object]:
    """A group with clusters, and its findings."""
    recorded = group(clustered(**more))
    return recorded, explain(recorded.rounds)
