"""The literature's workloads as configurations, their preparation for the recorder, and which implementations run them.

`describe_benchmark` makes a configuration from a workload, an implementation and the document's protocol; it is
recorded like any other (`recorder.pool.record`). All implementations of a workload must agree with
PyTorch's `nn.LSTM`: in their outputs, or in the loss of the first training step.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lstm_literature import implementations
from lstm_literature.data import make_batch, make_weights
from lstm_literature.training import TrainingObserver
from lstm_literature.workloads import VARIANTS, WORKLOADS, LiteratureWorkload, find
from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import table
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.describe import availability as runtime_availability, describe
from lstm_trt.recorder.environments import Tell, described
from lstm_trt.runtimes.base import Availability, Gate, Observer, PreparedStep, Preparer, ReportSection, Request

#: The implementation that all others must agree with.
REFERENCE = "pytorch-one-call-eager"

#: Largest relative difference of the first training step's loss from the reference's, in float32.
LOSS_BOUND = 1e-4

#: Attributes of an implementation that recordings store.
_STORED = ("TITLE", "FRAMEWORK", "STYLE", "EXECUTION", "DISTRIBUTION")


class LiteraturePreparer(Preparer):
    """Weights and batches from numpy's generator; the reference is PyTorch's `nn.LSTM`, eager, on the CPU."""

    FRESH_PROCESS = True  # otherwise an earlier workload in the same framework would affect the build costs

    def runtime(self, name: str):
        return implementations.load_implementation(name)

    def entries(self) -> dict[str, str]:
        return implementations.entries()

    def protocol(self, workload: LiteratureWorkload) -> Protocol:
        return protocol_of(workload)

    def reference_key(self, configuration: Configuration) -> str:
        plain = configuration.as_dict()
        return canonical_json([plain["workload"], plain["mode"], configuration.protocol.seed])

    def reference(
        self, configuration: Configuration, gate_seed: int, reference_path: Path, send: Callable[..., None]
    ) -> dict:
        """Writes, for forward, the outputs (`output_shape`) in float32; for training, the first loss, (1,) float64."""
        send("stage", stage="build")
        workload, mode, seed = configuration.workload, configuration.mode, configuration.protocol.seed
        inputs = make_batch(workload, gate_seed).by_name()
        request = Request(workload, Options(device="cpu"), inputs, make_weights(workload, seed), mode=mode)
        with closing(implementations.load_implementation(REFERENCE).prepare(request)) as step:
            step.step()
            np.save(reference_path, np.array([step.loss()]) if mode == "training" else step.outputs()["outputs"])
        return {}

    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        workload, seed = configuration.workload, configuration.protocol.seed
        inputs, weights = make_batch(workload, seed).by_name(), make_weights(workload, seed)
        return Request(workload, configuration.options, inputs, weights, mode=configuration.mode)

    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        seed = reference["gate_seed"]
        expected = np.load(reference["reference_path"])
        inputs = make_batch(configuration.workload, seed).by_name()
        if configuration.mode != "training":
            return Gate((inputs,), {"outputs": expected}, seed)
        how = {"bound": LOSS_BOUND, "of": "first loss", "repeatable": False}  # a step updates the weights
        return Gate((inputs,), {"loss": expected}, seed, answers=lambda step: {"loss": np.array([step.loss()])}, **how)

    def observer(self, step: PreparedStep, configuration: Configuration) -> Observer:
        return TrainingObserver(step) if configuration.mode == "training" else Observer()

    def doctor(self) -> ReportSection:
        from lstm_literature import states  # with doctor, which recordings do not need

        return states.section([states.row_of(name) for name in implementations.names()])

    def provenance(self, configuration: Configuration, reference: Mapping) -> dict:
        implementation = self.runtime(configuration.runtime)
        # Recording a training loop replaces the losses.
        return {"losses": None, "implementation": {name.lower(): getattr(implementation, name) for name in _STORED}}


PREPARER = LiteraturePreparer()


def availability(name: str, device: str | None = None) -> Availability:
    """Whether an implementation can run on this machine; raises `UsageError` for an unknown name."""
    return runtime_availability(PREPARER, name, device)


def reason(name: str, workload: LiteratureWorkload, mode: str, device: str | None = None) -> str | None:
    """Why an implementation does not support this; None if it does, ready or not. Raises `UsageError` for others."""
    implementation = implementations.load_implementation(name)
    return implementation.supports(workload, mode, device or implementation.DEVICES[0])


def can_run(name: str, workload: LiteratureWorkload, mode: str) -> bool:
    """Whether an implementation supports this, ready or not; False if it cannot be loaded."""
    try:
        return reason(name, workload, mode) is None
    except UsageError:
        return False


def ready_implementations(workload: LiteratureWorkload, mode: str) -> list[str]:
    """The implementations that support this and are ready on this machine; raises `UsageError` if there is none."""
    ready = [name for name in implementations.names() if can_run(name, workload, mode) and availability(name).ready]
    if not ready:
        raise UsageError(f"no implementation for {workload.label} ({mode}) is ready on this machine")
    return ready


def interpreters(
    configurations: Iterable[Configuration], tell: Tell, optional: bool = False
) -> dict[str, Interpreter | None]:
    """Configuration id -> Python that records it, None for the current one; makes the environments that are missing.

    `tell` gets a line before an installation. If an environment cannot be made, this raises `UsageError`, or, if
    `optional`, `tell` gets the reason and the configurations that need the environment are not in the result.
    """
    found: dict[str, Interpreter | None] = {}
    groups: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        groups.setdefault(configuration.runtime, []).append(configuration)
    for name, group in groups.items():
        interpreter, pins = None, getattr(implementations.load_implementation(name), "ENVIRONMENT", ())
        if pins:
            library, version = pins[0].split("==")
            try:
                interpreter = described(library, version, group[0].as_dict(), tell, pins[1:])[0].interpreter
            except UsageError as error:
                if not optional:
                    raise
                tell(f"{name} is not recorded: {error}")
                continue
        found |= {configuration.id: interpreter for configuration in group}
    return found


@dataclass(frozen=True)
class Listing:
    """Workloads, and for each implementation (by name) whether it is ready on this machine."""

    workloads: tuple[LiteratureWorkload, ...]
    implementations: Mapping[str, Availability]

    def able(self, workload: LiteratureWorkload) -> dict[str, list[str]]:
        """Mode of the workload -> the implementations that support it, ready or not."""
        return {
            mode: [name for name in self.implementations if can_run(name, workload, mode)] for mode in workload.modes
        }

    def as_dict(self) -> dict:
        """JSON values."""
        shown = ("ready", "reason", "remedy")
        states = {name: {key: getattr(state, key) for key in shown} for name, state in self.implementations.items()}
        return {"workloads": [self._plain(workload) for workload in self.workloads], "implementations": states}

    def _plain(self, workload: LiteratureWorkload) -> dict:
        def described(variant: LiteratureWorkload, *more: str) -> dict:
            return {**variant.as_dict(), **{name: getattr(variant, name) for name in ("note", "label", *more)}}

        variants = [described(variant) for variant in VARIANTS[workload.name]]
        found = described(workload, "parameters", "flops")
        return {**found, "implementations": self.able(workload), "variants": variants}

    def __str__(self) -> str:
        states = [
            (name, "ready" if state.ready else f"not ready: {state.reason}")
            for name, state in self.implementations.items()
        ]
        last = (
            "implementations (see lstm-trt doctor on how to install missing ones):\n"
            f"{table(None, states, indent=2, wrap=True)}\n"
            "names: framework-style-execution; styles: basic (the cell written out, in a Python loop),\n"
            "  fine-grained (the same, gate by gate), fused and static (PyTorch's and Keras' cell in a Python loop),\n"
            "  while (the cell written out, in a loop of the graph), one-call (the framework's LSTM layer)"
        )
        return "\n\n".join([*map(self._block, self.workloads), last])

    def _block(self, workload: LiteratureWorkload) -> str:
        variants = len(VARIANTS[workload.name])
        batches = f"{workload.warmup} warm-up and {workload.batches} timed batches"
        if workload.loss:
            batches += f"; {workload.loss}, {workload.optimizer} {workload.learning_rate:g}"
        lines = [
            f"{workload.name}  (document {workload.document}; {', '.join(workload.modes)})",
            f"  {workload.sizes}; {workload.parameters} parameters, {workload.flops / 1e9:.3g} GFLOP forward",
            f"  {batches}" + (f"; {variants} sizes with published figures" if variants > 1 else ""),
            *(f"  {mode}: {', '.join(names)}" for mode, names in self.able(workload).items()),
        ]
        return "\n".join([*lines, f"  note: {workload.note}"] if workload.note else lines)


def listing(names: Iterable[str] = (), more: Iterable[str] = ()) -> Listing:
    """The workloads with these names (default: all), and which implementations can run them.

    `more`: further implementations, by module name with a dot. Raises `UsageError` for an unknown workload; an
    implementation that cannot be loaded is listed as not ready.
    """
    workloads = tuple(find(name) for name in names or WORKLOADS)
    return Listing(workloads, {name: _state(name) for name in implementations.names(more)})


def _state(name: str) -> Availability:
    try:
        return availability(name)
    except UsageError as error:
        return Availability(False, reason=str(error))


def protocol_of(
    workload: LiteratureWorkload, batches: int | None = None, warmup: int | None = None, seed: int = 0
) -> Protocol:
    """The document's warm-up and batches; for fewer `batches` the warm-up is reduced in proportion, to at least 1.

    `settle` is 0, since the document's loop has no pauses: all batches after warm-up count.
    """
    if batches is not None and batches < 1:
        raise UsageError(f"batches must be at least 1, not {batches}")
    if warmup is None:
        share = 1 if batches is None else min(1, batches / workload.batches)
        warmup = max(1, math.ceil(workload.warmup * share))
    return Protocol(trials=workload.batches if batches is None else batches, warmup=warmup, seed=seed, settle=0)


def describe_benchmark(
    workload: LiteratureWorkload | str,
    implementation: str,
    mode: str | None = None,
    *,
    scale: str = "1",
    batches: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    options: Options | None = None,
) -> Configuration:
    """The configuration given by these arguments on this machine; nothing is run.

    Defaults: for `mode`, the document's first; for `batches` and `warmup`, the document's. `scale` is a fraction of
    the sizes such as "1/8" (`LiteratureWorkload.scaled`). Raises `UsageError` for unknown names, a mode that the
    document does not have, or more threads than cores; `RuntimeUnavailable` if the implementation is not installed.
    """
    workload = find(workload) if isinstance(workload, str) else workload
    mode = mode or workload.modes[0]
    if refusal := implementations.mode_reason(workload, mode):
        raise UsageError(refusal)
    protocol = protocol_of(workload, batches, warmup, seed)
    return describe(workload.scaled(scale), implementation, protocol, options, mode)
