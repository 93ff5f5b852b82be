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
        if device not in self.DEVICES:
            return Availability(False, version, reason=f"it runs on cuda only, not on {device}")
        try:
            lacks = _cuda.missing(flavour.remedy)
            if find_spec(flavour.module) is None:
                lacks.insert(0, _cuda.CudaUnavailable(flavour.distribution, flavour.remedy))
            if lacks:
                reason = "no " + ", ".join(lack.what for lack in lacks)
                remedies = dict.fromkeys(lack.remedy for lack in lacks)
                return Availability(False, version, reason=reason, remedy="; ".join(remedies))
            trt, found = export_trt.load_module(self.NAME), gpu.cuda_device()
            named, known = found.as_dict()["compute_capability"], export_engine.COMPUTE_CAPABILITIES
            if self.NAME == "tensorrt-rtx" and named not in known:
                reason = (
                    f"TensorRT for RTX supports {', '.join(known)}, but {found.name} has {named}"
                )
                return Availability(False, version, found.name, reason, "use the runtime tensorrt")
            needed, (major, minor) = export_trt.cuda_major(self.NAME), found.cuda_version
            if needed and needed > major:
                reason = f"it needs CUDA {needed}, but the driver of {found.name} supports CUDA {major}.{minor}"
                return Availability(False, version, reason=reason, remedy=gpu.old_driver_remedy())
            return Availability(True, version or trt.__version__, found.name)
        except RuntimeUnavailable as error:
            return Availability(False, version, reason=error.reason, remedy=error.remedy)
        except Exception as error:  # a broken installation
            reason = f"{flavour.distribution} cannot be loaded: {errors.one_line(error)}"
            return Availability(False, version, reason=reason)

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
        self._name, self._options, self._request = name, request.options, request
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
                every, stream = self._options.device_clocks == "all", self._session.stream
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
        arrays = ((name, self._arrays[name]) for name in self._request.output_shapes)
        return {
            name: array.astype(np.float32 if array.dtype == np.float16 else array.dtype)
            for name, array in arrays
        }

    def facts(self) -> dict:
        return {**self.described, **({"event_pool": self._clocks.size} if self._clocks else {})}

    def close(self) -> None:
        super().close()
        self._clocks = self._copy_in = self._copy_out = None
        self._arrays.clear()  # their memory is freed with the session
        self._session.close()

    def _load(self, built: export_engine.Engine, open_context: OpenContext) -> None:
        """Load the engine on the GPU and create its execution context."""
        trt = export_trt.load_module(self._name)
        self.described["compute_capability"] = "{}.{}".format(*gpu.cuda_device().compute_capability)
        self._session.hold(self._unload)
        plan = built.plan
        messages = export_trt.collected(self._name)
        with export_trt.starting(self._name):
            self._runtime = trt.Runtime(export_trt.logger(self._name))
        self._engine = engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            self._explain("the engine cannot be loaded on the GPU", messages, len(plan))
        self._opened = opened = open_context(trt, engine, built.sha256)
        if opened.context is None:
            self._explain(
                "cannot create an execution context", messages, engine.device_memory_size_v2
            )
        opened.context.nvtx_verbosity = (
            trt.ProfilingVerbosity.NONE
        )  # NVTX markers would lengthen the enqueue

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
        trt, engine, context = (
            export_trt.load_module(self._name),
            self._engine,
            self._opened.context,
        )
        request, states = self._request, self._request.states
        inputs = {**request.input_shapes, **{state.input: state.shape for state in states}}
        sizes_of = {
            **inputs,
            **request.output_shapes,
            **{state.output: state.shape for state in states},
        }
        tensors = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        if tensors != set(sizes_of):
            raise BuildFailed(
                f"the engine's tensors are {sorted(tensors)}, expected {sorted(sizes_of)}"
            )
        types = {
            tensor: np.dtype(trt.nptype(engine.get_tensor_dtype(tensor))) for tensor in sizes_of
        }
        self.described["tensor_types"] = {tensor: str(found) for tensor, found in types.items()}
        enqueue = _enqueuer(context.execute_async_v3, self._session.stream.handle, self._name)
        places, carry = self._place_states(types)
        self._enqueue, copies = _all_of([enqueue, *carry]), {}
        for tensor, sizes in sizes_of.items():
            if tensor in inputs and not context.set_input_shape(tensor, sizes):
                raise BuildFailed(f"the engine does not accept {tensor} of shape {sizes}")
            found = tuple(context.get_tensor_shape(tensor))
            if found != sizes:
                raise BuildFailed(
                    f"the engine's tensor {tensor} has shape {found}, expected {sizes}"
                )
            if tensor not in places:
                array = self._arrays[tensor] = self._session.pinned(sizes, types[tensor])
                places[tensor] = self._session.device(math.prod(sizes) * types[tensor].itemsize)
                copies[tensor] = self._session.copies(places[tensor], array)
            if not context.set_tensor_address(tensor, places[tensor]):
                raise BuildFailed(f"the engine does not accept the buffer of its tensor {tensor}")
        self._copy_in = _all_of([copies[name][0] for name in request.input_shapes])
        self._copy_out = _all_of([copies[name][1] for name in request.output_shapes])

    def _place_states(
        self, types: Mapping[str, np.dtype]
    ) -> tuple[dict[str, int], list[Callable[[], None]]]:
        """Device buffers of the states, set to zero: address of each tensor, and the copy that
        carries all, if any."""
        offsets, size = {}, 0
        for state in self._request.states:
            if types[state.input] != types[state.output]:
                kinds = f"{types[state.input]} and {types[state.output]}"
                raise BuildFailed(
                    f"the engine's tensors {state.input} and {state.output} have the types {kinds}"
                )
            offsets[state] = size
            size += (
                -(-math.prod(state.shape) * types[state.input].itemsize // ALIGNMENT) * ALIGNMENT
            )
        if not offsets:
            return {}, []
        before, after = self._session.device(size), self._session.device(size)
        places = {state.input: before + offset for state, offset in offsets.items()}
        places |= {state.output: after + offset for state, offset in offsets.items()}
        zero_state = self._session.on_stream("memset_d8_async", before, 0, size)
        zero_state()
        self.reset = _all_of([zero_state, self._session.stream.synchronize])
        return places, [self._session.on_stream("memcpy_dtod_async", before, after, size)]

    def _captured(self) -> Callable[[], None]:
        """The launch of a captured graph; if the capture fails, the plain enqueue, with the reason
        in the facts."""
        try:
            if refusal := self._opened.why_not_captured(self._session.stream.handle):
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
        information, table = built.information, built.information["layers"] or {}
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
