"""The search for schedules with TVM's MetaSchedule on this machine; results are cached by module, target and settings.

TVM's builder and runner start processes and need cloudpickle; here candidates are built and
measured in this process, which already has its threads. TVM's learned cost model needs xgboost
and takes effect only after 100 measurements of an operator, so candidates are instead drawn at
random from the space of TVM's rules for the target (search strategy "replay-trace"). Trials are first
distributed evenly over the operators and then by expected gain (TVM's gradient scheduler).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

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
from lstm_trt.store.temporary import temporary_folder

KIND = "tvm-schedules"

SEARCH = "replay-trace"

#: A candidate is run for this long; its mean time is used.
MEASURE_MS = 30

#: Trials of an operator before the scheduler chooses again.
ROUND = 8

SEED = 1

_FILES = ("database_workload.json", "database_tuning_record.json")


@dataclass(frozen=True)
class Tuned:
    """The schedules found, as MetaSchedule's two JSON files, and facts about the search."""

    files: dict[str, str]
    facts: dict

    def apply(self, module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
        """`module` with the best schedule found for each operator; operators without a schedule are unchanged."""
        with temporary_folder() as folder:
            for name, text in self.files.items():
                (folder / name).write_text(text)
            with target, meta_schedule.database.JSONDatabase(work_dir=str(folder)):
                return relax.transform.MetaScheduleApplyDatabase()(module)


def tune(module: tvm.IRModule, target: tvm.target.Target, trials: int, threads: int) -> Tuned:
    """The schedules for a legalized, fused module; from the cache if it was tuned before with the same settings.

    `facts["tuning_s"]` and `["trials"]` are those of the original search. Raises `BuildFailed` if no
    candidate could be measured.
    """
    with target:
        tasks = meta_schedule.relax_integration.extract_tasks(module, target)
    how = {
        "search": f"MetaSchedule, {SEARCH}, rules {target.kind.name}, no cost model, in this process",
        "trials_wanted": trials, "trials_a_round": ROUND, "measure_ms": MEASURE_MS, "seed": SEED, "threads": threads,
        "target": str(target), "tvm": installed_version("apache-tvm"), "tvm_ffi": installed_version("apache-tvm-ffi"),
    }  # fmt: skip
    # The operators contain no weights, so the cache entry does not depend on them.
    content = [how, sorted((task.mod.script(), int(task.weight)) for task in tasks)]
    key = cache.sha256(json.dumps(content, sort_keys=True).encode())
    path, _, found = cache.fetch(KIND, key, ".json", lambda: _search(tasks, target, trials, how))
    held = json.loads(path.read_bytes())
    return Tuned(held["files"], held["facts"] | {"from_cache": found})


def _search(tasks: list, target: tvm.target.Target, trials: int, how: dict) -> bytes:
    counts = Counts()
    with temporary_folder() as folder, target:
        began = time.perf_counter()
        meta_schedule.tune_tasks(
            tasks=[_context(task, target, SEED + number) for number, task in enumerate(tasks)],
            task_weights=[task.weight for task in tasks],
            work_dir=str(folder),
            max_trials_global=trials,
            num_trials_per_iter=min(ROUND, max(1, trials // len(tasks))),
            builder=_Builder(counts),
            runner=_Runner(counts, tvm.cuda() if target.kind.name == "cuda" else tvm.cpu()),
            database=meta_schedule.database.JSONDatabase(work_dir=str(folder)),
            cost_model="none",
            measure_callbacks=[meta_schedule.measure_callback.AddToDatabase()],
        )
        seconds = time.perf_counter() - began
        files = {name: (folder / name).read_text() for name in _FILES}
    if not counts.measured:
        raise BuildFailed(f"TVM could measure none of {trials} candidates: {counts.reason or 'no candidates found'}")
    measured = {
        "trials": counts.measured,
        "trials_failed": counts.failed,
        "tuning_s": seconds,
        "operators": {str(task.task_name): int(task.weight) for task in tasks},
    }
    return json.dumps({"files": files, "facts": how | measured}).encode()


def _context(task: meta_schedule.ExtractedTask, target: tvm.target.Target, seed: int) -> meta_schedule.TuneContext:
    """The search context of one operator.

    TVM's constructor first imports intrinsics for all GPUs and CPUs, which takes half a minute and is
    not needed by these rules; the rest of the constructor is repeated here. The last argument is the log.
    """
    rules = str(target.kind.name)  # "llvm" or "cuda"
    space = meta_schedule.space_generator.PostOrderApply(sch_rules=rules, postprocs=rules, mutator_probs=rules)
    search = meta_schedule.search_strategy.SearchStrategy.create(SEARCH)
    context = meta_schedule.TuneContext.__new__(meta_schedule.TuneContext)
    context.__init_handle_by_constructor__(
        _ffi_api.TuneContext, task.dispatched[0], target, space, search, task.task_name, 1, seed, lambda *line: None
    )
    _ffi_api.TuneContextInitialize(context)
    return context


@dataclass
class Counts:
    """Candidates passed from builder to runner, by an artificial path, and counts of their results."""

    built: dict[str, tvm.runtime.Module] = field(default_factory=dict)
    builds: int = 0
    measured: int = 0
    failed: int = 0
    reason: str = ""

    def failure(self, error: Exception) -> str:
        self.failed += 1
        self.reason = first_line(error)
        return self.reason


@derived_object
class _Builder(PyBuilder):
    """Builds candidates sequentially."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        return [self._build(candidate) for candidate in build_inputs]

    def _build(self, candidate: BuilderInput) -> BuilderResult:
        try:
            module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(candidate.mod)
            built = tvm.tirx.build(module, target=candidate.target)
        except Exception as error:  # a schedule that cannot be built uses up a trial
            return BuilderResult(None, self.counts.failure(error))
        self.counts.builds += 1
        path = f"candidate-{self.counts.builds}"
        self.counts.built[path] = built
        return BuilderResult(path, None)


@derived_object
class _Runner(PyRunner):
    """Measures candidates sequentially, with random arguments."""

    def __init__(self, counts: Counts, device: tvm.runtime.Device) -> None:
        super().__init__()
        self.counts = counts
        self.device = device

    def run(self, runner_inputs: list[RunnerInput]) -> list[LocalRunnerFuture]:
        return [self._measure(candidate) for candidate in runner_inputs]

    def _measure(self, candidate: RunnerInput) -> LocalRunnerFuture:
        try:
            built = self.counts.built.pop(str(candidate.artifact_path))
            device = self.device
            (arguments,) = default_alloc_argument(device, [info.as_json() for info in candidate.args_info], 1)
            clock = built.time_evaluator("main", device, number=1, repeat=1, min_repeat_ms=MEASURE_MS)
            seconds = [float(value) for value in clock(*arguments).results]
        except Exception as error:  # uses up a trial as well
            return LocalRunnerFuture(None, self.counts.failure(error))
        self.counts.measured += 1
        return LocalRunnerFuture(seconds, None)
