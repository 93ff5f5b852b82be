"""The two TensorRT runtimes: availability, preparing a step from an ONNX file, and the step.

A trial is a copy in from pinned memory, one enqueue of the engine (`execute_async_v3`) or
one launch of the CUDA graph captured from it, a copy out to pinned memory, and the wait for
the stream, in which the host spins. The copies are outside the graph, as in
`pytorch-cudagraph`. Sizes and addresses are set before the first trial; the stream is not
the default stream.

In mode "stream" the state stays in device memory: one block has the states before a call, another
those after it, and one copy between them follows the engine, in the graph if there is one. So the
state costs the same with and without a graph, and the addresses stay those of the capture.

If a graph was requested but its capture fails, the engine is enqueued instead, and
`graph_fallback` in the facts has the reason; `graph_captured` records what was timed.

A runtime of this family is a `TensorRtRuntime`; its `open_context(trt, engine, plan_sha256)`
creates the execution context for its flavour (TensorRT or TensorRT for RTX).
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import numpy as np

from lstm_trt.config import errors
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import (
    BuildFailed,
    ConfigurationFailed,
    MemoryExhausted,
    RunFailed,
    RuntimeUnavailable,
)
from lstm_trt.export import onnx_checks
from lstm_trt.export.tensorrt import build, engine as export_engine, trt as export_trt
from lstm_trt.machine import gpu
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, BufferedStep, PreparedStep, Request, check_options
from lstm_trt.runtimes.cuda import _cuda

#: Device buffers are aligned to this many bytes (as those of cuMemAlloc).
ALIGNMENT = 256


@dataclass(frozen=True)
class Opened:
    """An engine's execution context; None if TensorRT could not create it.

    `why_not_captured(stream_handle)` returns a reason, or "" if a capture can be attempted;
    `after_first_run()` is called once the engine has run; `facts()` are added to the provenance;
    `config` must live as long as the context.
    """

    context: Any
    why_not_captured: Callable[[int], str] = lambda handle: ""
    after_first_run: Callable[[], None] = lambda: None
    facts: Callable[[], dict] = dict
    config: Any = None


#: open_context(trt, engine, SHA-256 of the plan) -> Opened
OpenContext = Callable[[ModuleType, Any, str], Opened]


@dataclass(frozen=True)
class TensorRtRuntime:
    """A runtime of this family; `NAME` is also its flavour."""

    NAME: str
    open_context: OpenContext

    DEVICES: ClassVar[tuple[str, ...]] = ("cuda",)
    PRECISIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("fp32", "tf32", "fp16")}
    NEEDS_ONNX: ClassVar[bool] = True
    ONNX_RULES: ClassVar[onnx_checks.Rules] = onnx_checks.TENSORRT
    MODES: ClassVar[tuple[str, ...]] = ("forward", "stream")
    GRAPHS: ClassVar[bool] = True
    DEVICE_CLOCKS: ClassVar[bool] = True

    @property
    def DISTRIBUTION(self) -> str:
        return export_trt.FLAVOURS[self.NAME].distribution

    def availability(self, device: str) -> Availability:
        """What is missing, in one line; loads TensorRT only if a GPU and all packages are present.
        Never raises."""
        flavour = export_trt.FLAVOURS[self.NAME]
        version = installed_version(flavour.distribution)
        refused = partial(Availability, False, version)
        if device not in self.DEVICES:
            return refused(reason=f"it runs on cuda only, not on {device}")
        try:
            lacks = _cuda.missing(flavour.remedy)
            if find_spec(flavour.module) is None:
                lacks.insert(0, _cuda.CudaUnavailable(flavour.distribution, flavour.remedy))
            if lacks:
                reason = "no " + ", ".join(lack.what for lack in lacks)
                remedies = dict.fromkeys(lack.remedy for lack in lacks)
                return refused(reason=reason, remedy="; ".join(remedies))
            trt = export_trt.load_module(self.NAME)
            card = gpu.cuda_device()
            known = export_engine.COMPUTE_CAPABILITIES
            capability = card.as_dict()["compute_capability"]
            if self.NAME == "tensorrt-rtx" and capability not in known:
                supported = ", ".join(known)
                reason = f"TensorRT for RTX supports {supported}, but {card.name} has {capability}"
                return refused(card.name, reason, "use the runtime tensorrt")
            needed = export_trt.cuda_major(self.NAME)
            major, minor = card.cuda_version
            if needed and needed > major:
                reason = (
                    f"it needs CUDA {needed}, but the driver of {card.name} supports CUDA"
                    f" {major}.{minor}"
                )
                return refused(reason=reason, remedy=gpu.old_driver_remedy())
            return Availability(True, version or trt.__version__, card.name)
        except RuntimeUnavailable as error:
            return refused(reason=error.reason, remedy=error.remedy)
        except Exception as error:  # a broken installation
            reason = f"{flavour.distribution} cannot be loaded: {errors.one_line(error)}"
            return refused(reason=reason)

    def _engine_options(self, options: Options) -> export_engine.EngineOptions:
        """Only what changes the engine, so that with and without a graph TensorRT times the same
        one.

        TensorRT for RTX builds for this GPU where it can name it: its default leaves out the
        oldest.
        """
        wanted = export_engine.EngineOptions(self.NAME, options.precision, detailed=True)
        if self.NAME != "tensorrt-rtx":
            return wanted
        here = gpu.device_here()
        target = here.as_dict()["compute_capability"] if here else None
        known = target if target in export_engine.COMPUTE_CAPABILITIES else None
        return replace(wanted, capturable=options.graph, compute_capability=known)

    def parser_refusal(self, content: bytes, name: str) -> str | None:
        """Why the parser rejects an ONNX model, which TensorRT for RTX says without a GPU; None if
        it does not."""
        try:
            build.check_parses(content, self.NAME, name)
        except RuntimeUnavailable:
            return None
        except ConfigurationFailed as error:
            return str(error)
        return None

    def prepare(self, request: Request) -> PreparedStep:
        """The prepared step, after a first call.

        Raises `UsageError` for unsupported options, `RuntimeUnavailable`, `ExportFailed`,
        `MemoryExhausted`, and `BuildFailed` for all other errors.
        """
        options = request.options
        self.availability(options.device).require(self.NAME)
        check_options(self.NAME, self, options)
        if options.precision == "tf32":
            _cuda.check_tf32()
        with errors.building(self.NAME, request.label):
            _cuda.spin_while_waiting()
            onnx = request.model()
            began = time.perf_counter()
            # Detailed, to count the launches per inference; the NVTX markers that this adds are
            # disabled later.
            built = build.build_engine(
                onnx, self._engine_options(options), name=request.workload.label
            )
            ready = time.perf_counter()
            step = TensorRtStep(self.NAME, request, built, self.open_context)
            step.described |= {"build_s": ready - began, "load_s": time.perf_counter() - ready}
            return step


class TensorRtStep(BufferedStep):
    """An engine on its own stream, with its buffers; `described` are its facts.

    Raises `MemoryExhausted` or `BuildFailed`, after freeing what was acquired.
    """

    # TensorRT's objects, which have no types, and calls on the stream; None when the step is
    # closed.
    _runtime: Any = None
    _engine: Any = None
    _opened: Any = None
    _enqueue: Any = None
    _copy_in: Any = None
    _copy_out: Any = None

    def __init__(
        self, name: str, request: Request, built: export_engine.Engine, open_context: OpenContext
    ) -> None:
        self._name = name
        self._options = request.options
        self._request = request
        self._arrays: dict[str, np.ndarray] = {}
        self.described: dict = {
            "graph_captured": False,
            "graph_nodes": None,
            "graph_fallback": None,
        }
        self._session = _cuda.Session()
        try:
            self._load(built, open_context)
            self._bind()
            super().__init__({name: self._arrays[name] for name in request.input_shapes})
            self.load_inputs(request.inputs)
            # Once before a capture: this loads the kernels and, for RTX, compiles them.
            self._copy_in()
            self._enqueue()
            self._session.stream.synchronize()
            self._opened.after_first_run()
            if self._options.device_clocks != "off":
                every = self._options.device_clocks == "all"
                stream = self._session.stream
                self._clocks = _cuda.EventClocks(
                    self._session.new_event, stream, every, "time_till"
                )
                self._session.hold(self._clocks.release)
            run = self._captured() if self._options.graph else self._enqueue
            self.step = _cuda.timed_step(
                self._copy_in, run, self._copy_out, self._session.stream, self._clocks
            )
            self._describe(built)
            self.step()
            self.device_times()  # discards the times of this call
        except BaseException:
            with suppress(Exception):  # the earlier error is the relevant one
                self.close()
            raise

    def outputs(self) -> dict[str, np.ndarray]:
        if not self._arrays:
            raise RunFailed("the step is closed")
        found = {}
        for name in self._request.output_shapes:
            array = self._arrays[name]
            kind = np.float32 if array.dtype == np.float16 else array.dtype
            found[name] = array.astype(kind)
        return found

    def facts(self) -> dict:
        if self._clocks:
            return {**self.described, "event_pool": self._clocks.size}
        return dict(self.described)

    def close(self) -> None:
        super().close()
        self._clocks = self._copy_in = self._copy_out = None
        self._arrays.clear()  # their memory is freed with the session
        self._session.close()

    def _load(self, built: export_engine.Engine, open_context: OpenContext) -> None:
        """Load the engine on the GPU and create its execution context."""
        trt = export_trt.load_module(self._name)
        major, minor = gpu.cuda_device().compute_capability
        self.described["compute_capability"] = f"{major}.{minor}"
        self._session.hold(self._unload)
        plan = built.plan
        messages = export_trt.collected(self._name)
        with export_trt.starting(self._name):
            self._runtime = trt.Runtime(export_trt.logger(self._name))
        self._engine = engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            self._explain("the engine cannot be loaded on the GPU", messages, len(plan))
        self._opened = open_context(trt, engine, built.sha256)
        context = self._opened.context
        if context is None:
            needed = engine.device_memory_size_v2
            self._explain("cannot create an execution context", messages, needed)
        context.nvtx_verbosity = trt.ProfilingVerbosity.NONE  # markers would lengthen the enqueue

    def _unload(self) -> None:
        for name in ("_enqueue", "_opened", "_engine", "_runtime"):  # in this order
            setattr(self, name, None)

    def _explain(self, what: str, messages: Iterable[tuple[str, str]], size_bytes: int) -> NoReturn:
        """Raise an error for a step that failed, with TensorRT's reason."""
        reason = export_trt.errors_of(messages)
        free_bytes, _ = self._session.memory_bytes()
        if size_bytes > free_bytes or _is_out_of_memory(messages):
            raise MemoryExhausted(
                f"{self._name}: {what}: {reason}; {size_bytes} bytes needed, {free_bytes} free"
            )
        raise BuildFailed(f"{self._name}: {what}: {reason or 'TensorRT gives no reason'}")

    def _bind(self) -> None:
        """Set sizes, buffers and addresses; of the inputs first, so that the outputs' sizes are
        known."""
        request = self._request
        context = self._opened.context
        inputs = dict(request.input_shapes)
        outputs = dict(request.output_shapes)
        for state in request.states:
            inputs[state.input] = outputs[state.output] = state.shape
        types = self._types({*inputs, *outputs})
        enqueue = _enqueuer(context.execute_async_v3, self._session.stream.handle, self._name)
        places, carry = self._place_states(types)
        self._enqueue = _all_of([enqueue, *carry])
        copies = {}
        for tensor, sizes in {**inputs, **outputs}.items():
            if tensor in inputs and not context.set_input_shape(tensor, sizes):
                raise BuildFailed(f"the engine does not accept {tensor} of shape {sizes}")
            found = tuple(context.get_tensor_shape(tensor))
            if found != sizes:
                raise BuildFailed(
                    f"the engine's tensor {tensor} has shape {found}, expected {sizes}"
                )
            if tensor not in places:
                array = self._session.pinned(sizes, types[tensor])
                self._arrays[tensor] = array
                places[tensor] = self._session.device(array.nbytes)
                copies[tensor] = self._session.copies(places[tensor], array)
            if not context.set_tensor_address(tensor, places[tensor]):
                raise BuildFailed(f"the engine does not accept the buffer of its tensor {tensor}")
        self._copy_in = _all_of([copies[name][0] for name in request.input_shapes])
        self._copy_out = _all_of([copies[name][1] for name in request.output_shapes])

    def _types(self, expected: set[str]) -> dict[str, np.dtype]:
        """The engine's types of its tensors; raises `BuildFailed` unless it has these."""
        trt = export_trt.load_module(self._name)
        engine = self._engine
        tensors = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        if tensors != expected:
            raise BuildFailed(
                f"the engine's tensors are {sorted(tensors)}, expected {sorted(expected)}"
            )
        types = {name: np.dtype(trt.nptype(engine.get_tensor_dtype(name))) for name in tensors}
        self.described["tensor_types"] = {name: str(types[name]) for name in sorted(types)}
        return types

    def _place_states(
        self, types: Mapping[str, np.dtype]
    ) -> tuple[dict[str, int], list[Callable[[], None]]]:
        """Device buffers of the states, set to zero: address of each tensor, and the copy that
        carries all, if any."""
        states = self._request.states
        if not states:
            return {}, []
        offsets = []
        size = 0
        for state in states:
            kind = types[state.input]
            if kind != types[state.output]:
                raise BuildFailed(
                    f"the engine's tensors {state.input} and {state.output} have the types"
                    f" {kind} and {types[state.output]}"
                )
            offsets.append(size)
            blocks = math.ceil(math.prod(state.shape) * kind.itemsize / ALIGNMENT)
            size += blocks * ALIGNMENT
        before = self._session.device(size)
        after = self._session.device(size)
        places = {}
        for state, offset in zip(states, offsets, strict=True):
            places[state.input] = before + offset
            places[state.output] = after + offset
        zero_state = self._session.on_stream("memset_d8_async", before, 0, size)
        zero_state()
        self.reset = _all_of([zero_state, self._session.stream.synchronize])
        return places, [self._session.on_stream("memcpy_dtod_async", before, after, size)]

    def _captured(self) -> Callable[[], None]:
        """The launch of a captured graph; if the capture fails, the plain enqueue, with the reason
        in the facts."""
        try:
            refusal = self._opened.why_not_captured(self._session.stream.handle)
            if refusal:
                raise _cuda.CaptureRefused(refusal)
            launch, nodes = self._session.capture(self._enqueue)
            self.described |= {"graph_captured": True, "graph_nodes": nodes}
            return launch
        except _cuda.CaptureRefused as error:
            self.described["graph_fallback"] = str(error)
        with suppress(RunFailed):  # the runtime library may report the refusal once more
            self._enqueue()
        self._enqueue()  # checks that the engine and the stream still work
        self._session.stream.synchronize()
        return self._enqueue

    def _describe(self, built: export_engine.Engine) -> None:
        free_bytes, total_bytes = self._session.memory_bytes()
        information = built.information
        table = information["layers"] or {}
        self.described |= {
            "module_version": export_trt.load_module(self._name).__version__,
            "driver_layer": _cuda.driver_layer(),
            "pycuda_version": installed_version("pycuda"),
            "cuda_bindings_version": installed_version("cuda-bindings"),
            "engine_sha256": built.sha256,
            "engine_cached": built.cached,
            "engine_bytes": information["engine"]["bytes"],
            "engine_build_s": information["build_seconds"],
            "engine_warnings": information["warnings"],
            "engine_layers": self._engine.num_layers,
            "launches": table.get("launches"),
            "loops": table.get("loops"),
            "tf32": self._options.precision == "tf32",
            "aux_streams": self._engine.num_aux_streams,
            "activation_bytes": self._engine.device_memory_size_v2,
            "gpu_free_bytes": free_bytes,
            "gpu_total_bytes": total_bytes,
            "host_memory": "pinned",
            "device_wait": f"cuStreamSynchronize, {_cuda.scheduling()}",
            "device_clocks": self._options.device_clocks,
            **self._opened.facts(),
        }


def _all_of(calls: list[Callable[[], None]]) -> Callable[[], None]:
    """A function that makes these calls in order; with a single one that call itself, which saves a
    Python frame."""
    if len(calls) == 1:
        return calls[0]

    def call_all() -> None:
        for call in calls:
            call()

    return call_all


def _enqueuer(execute: Callable[[int], bool], handle: int, name: str) -> Callable[[], None]:
    def enqueue() -> None:
        if not execute(handle):
            messages = export_trt.logger(name).lines
            reason = export_trt.errors_of(messages) or "TensorRT gives no reason"
            failure = MemoryExhausted if _is_out_of_memory(messages) else RunFailed
            raise failure(f"{name}: the engine cannot be enqueued: {reason}")

    return enqueue


def _is_out_of_memory(messages: Iterable[tuple[str, str]]) -> bool:
    return any(
        errors.is_memory_message(text)
        for severity, text in messages
        if severity in export_trt.ERRORS
    )
