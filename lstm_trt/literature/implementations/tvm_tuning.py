"""The search for schedules with TVM's MetaSchedule on this CPU, cached by what is tuned, where and how.

TVM's own builder and runner start processes and need cloudpickle; here candidates are built and
measured in this process, which has its threads already. Its learnt cost model needs xgboost and
begins to count after 100 measurements of an operator: candidates are drawn at random from the
space of TVM's rules for LLVM instead (the search strategy "replay-trace"). The operators take
turns first, then trials go where they promise most (TVM's gradient scheduler).
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerInput
from tvm.s_tir.meta_schedule.runner.local_runner import LocalRunnerFuture, default_alloc_argument
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from lstm_trt.config.errors import BuildFailed, first_line
from lstm_trt.machine.facts import installed_version
from lstm_trt.store import cache

KIND = "tvm-schedules"

SEARCH = "replay-trace"

RULES = "llvm"

#: A candidate is run for this long, and its mean counts.
MEASURE_MS = 30

#: Trials of an operator before the scheduler looks again.
ROUND = 8

SEED = 1

_FILES = ("database_workload.json", "database_tuning_record.json")


@dataclass(frozen=True)
class Tuned:
    """The schedules found, as MetaSchedule's two JSON files, and how they were found."""

    files: dict[str, str]
    facts: dict

    def apply(self, module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
        """`module` with the best schedule found for each operator; one without any stays as it is."""
        with tempfile.TemporaryDirectory(prefix="lstm-trt-tvm-") as folder:
            for name, text in self.files.items():
                (Path(folder) / name).write_text(text)
            with target, meta_schedule.database.JSONDatabase(work_dir=folder):
                return relax.transform.MetaScheduleApplyDatabase()(module)


def tune(module: tvm.IRModule, target: tvm.target.Target, trials: int, threads: int) -> Tuned:
    """The schedules for a legalized, fused module, from the cache where the same was tuned alike before.

    `facts["tuning_s"]` and `["trials"]` are of the search itself. Raises `BuildFailed` where no
    candidate could be measured.
    """
    with target:
        tasks = meta_schedule.relax_integration.extract_tasks(module, target)
    how = {
        "search": f"MetaSchedule, {SEARCH}, rules {RULES}, no cost model, in this process",
        "trials_wanted": trials, "trials_a_round": ROUND, "measure_ms": MEASURE_MS, "seed": SEED, "threads": threads,
        "target": str(target), "tvm": installed_version("apache-tvm"), "tvm_ffi": installed_version("apache-tvm-ffi"),
    }  # fmt: skip
    # The operators hold no weights, so other weights of the same shapes find the same entry.
    content = [how, sorted((task.mod.script(), int(task.weight)) for task in tasks)]
    key = cache.sha256(json.dumps(content, sort_keys=True).encode())
    path, _, found = cache.fetch(KIND, key, ".json", lambda: _search(tasks, target, trials, how))
    held = json.loads(path.read_bytes())
    return Tuned(held["files"], held["facts"] | {"from_cache": found})


def _search(tasks: list, target: tvm.target.Target, trials: int, how: dict) -> bytes:
    counts = Counts()
    with tempfile.TemporaryDirectory(prefix="lstm-trt-tvm-") as folder, target:
        began = time.perf_counter()
        database = meta_schedule.database.JSONDatabase(work_dir=folder)
        meta_schedule.tune_tasks(
            tasks=[_context(task, target, SEED + place) for place, task in enumerate(tasks)],
            task_weights=[task.weight for task in tasks],
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=min(ROUND, max(1, trials // len(tasks))),
            builder=_Builder(counts),
            runner=_Runner(counts),
            database=database,
            cost_model="none",
            measure_callbacks=[meta_schedule.measure_callback.AddToDatabase()],
        )
        seconds = time.perf_counter() - began
        files = {name: (Path(folder) / name).read_text() for name in _FILES}
    if not counts.measured:
        raise BuildFailed(f"TVM could measure none of {trials} candidates: {counts.reason or 'it found none'}")
    operators = {str(task.task_name): int(task.weight) for task in tasks}
    measured = {"trials": counts.measured, "trials_failed": counts.failed, "tuning_s": seconds, "operators": operators}
    return json.dumps({"files": files, "facts": how | measured}).encode()


def _context(task: meta_schedule.ExtractedTask, target: tvm.target.Target, seed: int) -> meta_schedule.TuneContext:
    """One operator's search.

    TVM's constructor first imports its intrinsics for every GPU and CPU, half a minute of work
    for rules that use none; what it does after that is done here. The last argument is its log.
    """
    space = meta_schedule.space_generator.PostOrderApply(sch_rules=RULES, postprocs=RULES, mutator_probs=RULES)
    search = meta_schedule.search_strategy.SearchStrategy.create(SEARCH)
    context = meta_schedule.TuneContext.__new__(meta_schedule.TuneContext)
    context.__init_handle_by_constructor__(
        _ffi_api.TuneContext, task.dispatched[0], target, space, search, task.task_name, 1, seed, lambda *line: None
    )
    _ffi_api.TuneContextInitialize(context)
    return context


@dataclass
class Counts:
    """Candidates between builder and runner, by an invented path, and what became of them."""

    built: dict[str, tvm.runtime.Module] = field(default_factory=dict)
    builds: int = 0
    measured: int = 0
    failed: int = 0
    reason: str = ""

    def failure(self, error: Exception) -> str:
        self.failed, self.reason = self.failed + 1, first_line(error)
        return self.reason


@derived_object
class _Builder(PyBuilder):
    """Builds candidates one after the other."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        return [self._build(wanted) for wanted in build_inputs]

    def _build(self, wanted: BuilderInput) -> BuilderResult:
        try:
            module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(wanted.mod)
            built = tvm.tirx.build(module, target=wanted.target)
        except Exception as error:  # a schedule that cannot be built is one trial less
            return BuilderResult(None, self.counts.failure(error))
        self.counts.builds += 1
        path = f"candidate-{self.counts.builds}"
        self.counts.built[path] = built
        return BuilderResult(path, None)


@derived_object
class _Runner(PyRunner):
    """Measures candidates one after the other, on random arguments."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def run(self, runner_inputs: list[RunnerInput]) -> list[LocalRunnerFuture]:
        return [self._measure(wanted) for wanted in runner_inputs]

    def _measure(self, wanted: RunnerInput) -> LocalRunnerFuture:
        try:
            built, device = self.counts.built.pop(str(wanted.artifact_path)), tvm.cpu()
            (arguments,) = default_alloc_argument(device, [place.as_json() for place in wanted.args_info], 1)
            clock = built.time_evaluator("main", device, number=1, repeat=1, min_repeat_ms=MEASURE_MS)
            seconds = [float(value) for value in clock(*arguments).results]
        except Exception as error:  # likewise
            return LocalRunnerFuture(None, self.counts.failure(error))
        self.counts.measured += 1
        return LocalRunnerFuture(seconds, None)
