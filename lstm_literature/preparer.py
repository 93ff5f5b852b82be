"""The literature's workloads as configurations, their preparation for the recorder, and which implementations run them.

`describe_benchmark` makes a configuration from a workload, an implementation and the document's protocol; it is
recorded like any other (`lstm_trt.record`). All implementations of a workload must agree with
PyTorch's `nn.LSTM`: in their outputs, or in the loss of the first training step.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np

from lstm_judge.environments import Tell, described
from lstm_literature import implementations
from lstm_literature.data import make_batch, make_weights
from lstm_literature.training import TrainingObserver
from lstm_literature.workloads import LiteratureWorkload, find
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.describe import availability as runtime_availability, describe
from lstm_trt.runtimes.base import Availability, Gate, Observer, PreparedStep, Preparer, Request

#: The implementation that all others must agree with.
REFERENCE = "pytorch-one-call-eager"

#: Largest relative difference of the first training step's loss from the reference's, in float32.
LOSS_BOUND = 1e-4

#: Attributes of an implementation that recordings store.
_STORED = ("TITLE", "FRAMEWORK", "STYLE", "EXECUTION", "DISTRIBUTION")


class LiteraturePreparer(Preparer):
    """Weights and batches from numpy's generator; the reference is PyTorch's `nn.LSTM`, eager, on the CPU."""

    LIBRARIES = ("torch",)
    FRESH_PROCESS = True  # otherwise an earlier workload in the same framework would affect the build costs

    def runtime(self, name: str):
        return implementations.load_implementation(name)

    def entries(self) -> dict[str, str]:
        return implementations.entries()

    def protocol(self, workload: LiteratureWorkload) -> Protocol:
        return protocol_of(workload)

    def reference(
        self, configuration: Configuration, gate_seed: int, reference_path: Path, send: Callable[..., None]
    ) -> dict:
        """Writes, for forward, the outputs (`output_shape`) in float32; for training, the first loss, (1,) float64.

        Those of a workload are the same for all implementations: the latest are kept, with the seed of their inputs.
        """
        send("stage", stage="build")
        outputs, seed = _outputs(configuration.workload, configuration.mode, configuration.protocol.seed)
        np.save(reference_path, outputs)
        return {"gate_seed": seed}

    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        workload = configuration.workload
        seed = configuration.protocol.seed
        inputs = make_batch(workload, seed).by_name()
        return Request(workload, configuration.options, inputs, make_weights(workload, seed), mode=configuration.mode)

    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        seed = reference["gate_seed"]
        expected = np.load(reference["reference_path"])
        inputs = make_batch(configuration.workload, seed).by_name()
        if configuration.mode != "training":
            return Gate((inputs,), {"outputs": expected}, seed)
        return Gate(
            (inputs,),
            {"loss": expected},
            seed,
            answers=lambda step: {"loss": np.array([step.loss()])},
            bound=LOSS_BOUND,
            of="first loss",
            repeatable=False,  # a step updates the weights
        )

    def observer(self, step: PreparedStep, configuration: Configuration) -> Observer:
        return TrainingObserver(step) if configuration.mode == "training" else Observer()

    def provenance(self, configuration: Configuration, reference: Mapping) -> dict:
        implementation = self.runtime(configuration.runtime)
        # Recording a training loop replaces the losses.
        return {"losses": None, "implementation": {name.lower(): getattr(implementation, name) for name in _STORED}}


@lru_cache(maxsize=4)  # one can take 256 MB
def _outputs(workload: LiteratureWorkload, mode: str, seed: int) -> tuple[np.ndarray, int]:
    """The reference's outputs for random inputs, and the seed of these."""
    gate_seed = secrets.randbits(32)
    inputs = make_batch(workload, gate_seed).by_name()
    request = Request(workload, Options(device="cpu"), inputs, make_weights(workload, seed), mode=mode)
    with closing(implementations.load_implementation(REFERENCE).prepare(request)) as step:
        step.step()
        outputs = np.array([step.loss()]) if mode == "training" else step.outputs()["outputs"]
    return outputs, gate_seed


PREPARER = LiteraturePreparer()


def availability(name: str) -> Availability:
    """Whether an implementation can run on its first device here; raises `UsageError` for an unknown name."""
    return runtime_availability(PREPARER, name)


def reason(name: str, workload: LiteratureWorkload, mode: str) -> str | None:
    """Why an implementation does not support this; None if it does, ready or not. Raises `UsageError` for others."""
    implementation = implementations.load_implementation(name)
    return implementation.supports(workload, mode, implementation.DEVICES[0])


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
        interpreter = None
        pins = getattr(implementations.load_implementation(name), "ENVIRONMENT", ())
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
    return describe(workload.scaled(scale), implementation, protocol_of(workload, batches, warmup, seed), options, mode)
