"""TensorFlow 2 and Keras 3: the cell written out, Keras' cell unrolled, and Keras' LSTM layer.

`basic` is the cell written out with matrix products and pointwise operators in a Python loop over
time, which `graph` unrolls into one `tf.function`. `fine-grained` is the same with the cell of
document 001, which has a matrix for each gate. `while` is the cell of `basic` in a symbolic
`tf.while_loop`; `tensorflow-xla` is this loop with `jit_compile=True`, so its build time does not
grow with the sequence. On one core of a 2-core EPYC, XLA built the training step of `ptb-lm` (3 x 50
cells, batch 2) in 2.5 s as a loop and in 34 s unrolled; the forward pass of 64 hidden units over 512
steps in 0.2 s and 18 s. `static` unrolls `keras.layers.LSTMCell`, `one-call` is `keras.layers.LSTM`.
All share the code of embedding, head and loss; in graphs and XLA these, the gradients and the
optimizer are part of one function.

The written-out cells have PyTorch's two bias vectors, so their training steps match PyTorch's.
Keras and `fine-grained` have one bias vector, the sum of both. An update changes the sum of two vectors twice as much,
so Keras' loss agrees in the first step and then differs slightly.

Sequences of different lengths are masked, not packed: padding is computed and discarded.

On the CPU the batch is in place as tensors; on a GPU a step first copies it there. A step runs the
function (eager operators, one graph, or XLA code) and reads the outputs or the loss as numpy, which
waits for the result. Costs: `build_s` is making the variables and tracing, and for XLA the call that
compiles; `first_call_s` is the first step after that (for a graph including Grappler's passes); its
weight update is undone.

TensorFlow's numbers of threads can only be set before its first operator, so each needs a new process.
"""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_literature.data import Batch
from lstm_literature.implementations import ADAM_EPSILON, FrameworkStep, Implementation, mode_reason, timed
from lstm_literature.implementations.on_tensorflow_networks import STYLES
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable, UsageError, first_line
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

if TYPE_CHECKING:
    from types import ModuleType

    from tensorflow import Tensor

#: Largest number of cells (steps x layers x directions) that may be unrolled into one graph. Tracing and
#: the first call took 14 ms per cell in a forward pass and 40 ms in a training step (50 ms with masked
#: padding) on one core of a 2-core EPYC, so these limits correspond to about a minute.
UNROLLED = {"forward": 4000, "training": 1000}


#: The packages that install TensorFlow, with and without GPU libraries.
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")

CUDA_WHEEL = "on a machine with an NVIDIA GPU: pip uninstall tensorflow-cpu, then pip install 'tensorflow[and-cuda]'"

#: How a training step with Keras' bias vector differs from PyTorch's.
ONE_BIAS = "the single bias vector changes half as much per update as PyTorch's two together"


@dataclass(frozen=True)
class TensorFlow(Implementation):
    """One style and execution as an implementation."""

    STYLE: str
    EXECUTION: str

    FRAMEWORK = "TensorFlow"
    PACKAGES = ("tensorflow", "keras")
    EXTRA = "frameworks"
    DISTRIBUTIONS = DISTRIBUTIONS
    DEVICES = ("cpu", "cuda")

    @property
    def NAME(self) -> str:
        return "tensorflow-xla" if self.EXECUTION == "xla" else f"tensorflow-{self.STYLE}-{self.EXECUTION}"

    @property
    def TITLE(self) -> str:
        kind = {"while": "while loop", "static": "Keras LSTMCell", "one-call": "Keras LSTM"}
        return f"TensorFlow {kind.get(self.STYLE, self.STYLE)}, {'XLA' if self.EXECUTION == 'xla' else self.EXECUTION}"

    @property
    def DISTRIBUTION(self) -> str:
        return next((name for name in DISTRIBUTIONS if installed_version(name)), DISTRIBUTIONS[0])

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None if supported; graphs that contain one cell per step have a size limit."""
        reason = mode_reason(workload, mode)
        if reason or self.EXECUTION == "eager" or self.STYLE in ("while", "one-call"):
            return reason
        cells = workload.cells
        limit = UNROLLED[mode]
        if cells > limit:
            return f"the graph is unrolled: building {cells} cells would take over a minute, the limit is {limit}"
        return None

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if TensorFlow and Keras are installed, for "cuda" built for a GPU; imports neither, never raises."""
        if device != "cpu" and self.DISTRIBUTION == "tensorflow-cpu":
            return Availability(
                False,
                installed_version(self.DISTRIBUTION),
                reason="tensorflow-cpu is built without CUDA",
                remedy=CUDA_WHEEL,
            )
        return super().availability(device)

    def load_module(self) -> ModuleType:
        """The module of either package."""
        import tensorflow

        return tensorflow

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        return (ForwardStep if request.mode == "forward" else TrainingStep)(self, request, batch)


def load_keras(backend: str) -> ModuleType:
    """Keras with a backend, of which a process can have one.

    Raises `RuntimeUnavailable` if one of them cannot be imported or Keras already uses another backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are also raised as exceptions
    os.environ["KERAS_BACKEND"] = backend  # overrides the user's configuration file
    try:
        with _silence():
            import keras
    except ImportError as error:
        raise RuntimeUnavailable(backend, first_line(error)) from error
    if keras.backend.backend() != backend:
        raise RuntimeUnavailable(backend, f"Keras uses the backend {keras.backend.backend()} in this process")
    return keras


def load_tensorflow(options: Options) -> tuple[ModuleType, ModuleType]:
    """TensorFlow and Keras, with as many threads within an operator and parallel operators as `options` has.

    On the CPU, GPUs are hidden. On "cuda", float32 is computed without TF32, which TensorFlow uses by default. Raises
    `RuntimeUnavailable` if the packages cannot be imported, Keras uses another backend or TensorFlow finds no GPU, and
    `UsageError` if TensorFlow is already running with other numbers of threads or with a GPU in this process.
    """
    threads = options.threads
    keras = load_keras("tensorflow")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
        if options.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # TensorFlow is already running: its settings must match
        found = (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
        if found != (threads, threads):
            raise UsageError(
                f"TensorFlow already runs with {found[0]} and {found[1]} threads in this process, not {threads}:"
                " use a new process"
            ) from None
        if options.device == "cpu" and tf.config.get_visible_devices("GPU"):
            raise UsageError("TensorFlow already uses a GPU in this process: use a new process") from None
    if options.device == "cuda":
        if not tf.config.get_visible_devices("GPU"):
            raise RuntimeUnavailable("tensorflow", "TensorFlow finds no GPU or not its CUDA libraries", CUDA_WHEEL)
        tf.config.experimental.enable_tensor_float_32_execution(False)
    return tf, keras


@contextmanager
def _silence() -> Iterator[None]:
    """Discard standard error: messages of TensorFlow's libraries during loading ignore the log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def optimizer(keras: ModuleType, name: str, learning_rate: float, dense: Callable = lambda slices: slices) -> Any:
    """Keras' SGD, or its Adam with two changes to match PyTorch (and algorithm 1 of Kingma and Ba).

    Keras adds epsilon before the bias correction of the second moment, which makes its effect
    about 30 times larger in the first steps. An embedding's gradient consists of slices, and
    Keras 3.15 squares each slice: a token that occurs twice in a batch gets the sum of two squares
    instead of the square of the sum. Here `dense` first sums the slices to the dense gradient.
    """
    if name == "sgd":
        return keras.optimizers.SGD(learning_rate)
    ops = keras.ops

    class Adam(keras.optimizers.Adam):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            gradient = dense(gradient)
            rate = ops.cast(learning_rate, variable.dtype)
            step = ops.cast(self.iterations + 1, variable.dtype)
            first = 1 - ops.power(ops.cast(self.beta_1, variable.dtype), step)
            second = 1 - ops.power(ops.cast(self.beta_2, variable.dtype), step)
            index = self._get_variable_index(variable)
            mean = self._momentums[index]
            square = self._velocities[index]
            self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
            self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
            deviation = ops.sqrt(square) / ops.sqrt(second) + self.epsilon
            self.assign_sub(variable, mean * (rate / first) / deviation)

    return Adam(learning_rate, epsilon=ADAM_EPSILON)


class _TensorFlowStep(FrameworkStep):
    """Variables, batch and execution, common to both modes."""

    def __init__(self, implementation: TensorFlow, request: Request, batch: Batch) -> None:
        super().__init__(implementation, request)
        self._tf, self._keras = load_tensorflow(self._options)
        with timed(self.costs, "build_s"):
            self._network: Any = STYLES[implementation.STYLE](self._tf, self._keras, self._workload)
            self._batch_major = self._network.batch_major
            self._network.load_weights(self._weights)
            self._variables = [held.variable.value for held in self._network.held]
            self._place(batch)
            self._prepare_mode()
            self._call: Any = self._executed(self._work)
            self._graph = self._traced()
        self._finish()
        if self._traces() > 1:
            raise BuildFailed(f"{implementation.NAME} retraced its function at its first call")

    def _prepare_mode(self) -> None:
        """Prepare what the mode needs in addition to the network."""

    @abstractmethod
    def _work(self, *arguments: Tensor) -> Tensor:
        """The timed computation, without reading its result."""

    def _executed(self, work: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if self._implementation.EXECUTION == "eager":
            return work
        # Without autograph, so that Python loops are unrolled; the symbolic loop is explicit.
        return self._tf.function(work, autograph=False, jit_compile=self._implementation.EXECUTION == "xla")

    def _traced(self) -> dict:
        """Trace the graph, for XLA also compile it, and describe it; empty for eager execution."""
        if self._implementation.EXECUTION == "eager":
            return {}
        traced = self._call.get_concrete_function(*self._arguments)
        definition = traced.graph.as_graph_def()
        nodes = [definition.node, *(function.node_def for function in definition.library.function)]
        kinds = {node.op for part in nodes for node in part}
        compiled = bool(traced.function_def.attr["_XlaMustCompile"].b)
        if compiled:
            self.step()
        return {
            "graph_nodes": sum(map(len, nodes)),
            "while_loops": bool(kinds & {"While", "StatelessWhile"}),
            "lstm_kernels": sorted(kind for kind in kinds if "LSTM" in kind or "RNN" in kind),
            "xla": compiled,
        }

    def _traces(self) -> int:
        """How often the function was traced; 0 for eager execution."""
        return 0 if self._implementation.EXECUTION == "eager" else self._call.experimental_get_tracing_count()

    def _run(self) -> np.ndarray:
        if self._options.device == "cuda":
            self._copy_in()
        return self._call(*self._arguments).numpy()

    def _place(self, batch: Batch) -> None:
        arrays = self._read_by_step(batch)
        if self._workload.loss == "ctc":
            arrays.append(batch.lengths.astype(np.int32))
        # Copies, since a constant may share the memory of its source array.
        self._host = [np.array(array) for array in arrays]
        self._copy_in()

    def _copy_in(self) -> None:
        self._arguments = [self._tf.constant(array) for array in self._host]

    def _outputs(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        return self._network.outputs(inputs, lengths if self._workload.lengths else None)

    def facts(self) -> dict:
        implementation = self._implementation
        tf = self._tf
        found = {
            "tensorflow": tf.__version__,
            "keras": self._keras.__version__,
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0",
            "built_for_cuda": bool(tf.sysconfig.get_build_info().get("is_cuda_build")),
            **self._graph,
            "device": self._options.device,
            "traces": self._traces(),
        }
        if implementation.STYLE == "one-call" and self._options.device == "cpu":
            loop = "a Python loop" if implementation.EXECUTION == "eager" else "tf.while_loop"
            found["dispatches_to"] = f"{loop} over LSTMCell (only cuDNN has a kernel for the whole layer)"
        found["bias_vectors"] = 2 if implementation.STYLE in ("basic", "while") else 1
        if self._workload.lengths:
            found["variable_lengths"] = "masked: padding is computed"
        found |= self._facts
        if self._trains and found["bias_vectors"] == 1:
            found["updates"] = ONE_BIAS
        if self._trains and self._workload.loss == "ctc":
            found["ctc"] = (
                "dense: a loop of operators" if implementation.EXECUTION == "xla" else "TensorFlow's CTCLoss kernel"
            )
        return found


class ForwardStep(_TensorFlowStep):
    """The network's outputs, read as numpy."""

    def _work(self, *arguments: Tensor) -> Tensor:
        return self._outputs(arguments[0], arguments[-1])


class TrainingStep(_TensorFlowStep):
    """Forward, loss, gradients, update; reads the loss as a number."""

    def _prepare_mode(self) -> None:
        workload = self._workload
        self._optimizer: Any = optimizer(
            self._keras, workload.optimizer, workload.learning_rate, self._tf.convert_to_tensor
        )
        self._trained = [held.variable for held in self._network.held]
        self._optimizer.build(self._trained)
        self._initial = [variable.numpy().copy() for variable in self._optimizer.variables]
        self._facts = {
            "gradients": "on",
            "optimizer": f"Keras {type(self._optimizer).__name__}",
            "optimizer_epsilon": ADAM_EPSILON if workload.optimizer == "adam" else None,
        }

    def _work(self, *arguments: Tensor) -> Tensor:
        loss, gradients = self._loss_and_gradients(*arguments)
        self._optimizer.apply(gradients, self._trained)
        return loss

    def _loss_and_gradients(self, inputs: Tensor, targets: Tensor, lengths: Tensor | None = None) -> tuple:
        with self._tf.GradientTape() as tape:
            loss = self._objective(self._outputs(inputs, lengths), targets, lengths)
        return loss, tape.gradient(loss, self._variables)

    def _objective(self, outputs: Tensor, targets: Tensor, lengths: Tensor | None) -> Tensor:
        """The mean cross-entropy over all outputs, or CTC with the defaults of `torch.nn.CTCLoss`.

        `CTCLoss` divides the loss of each sequence by its number of labels and takes the mean.
        """
        tf = self._tf
        if self._workload.loss != "ctc":
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))
        losses = tf.nn.ctc_loss(
            **self._labels(targets),
            logits=outputs,
            logit_length=lengths,
            logits_time_major=not self._batch_major,
            blank_index=0,
        )
        return tf.reduce_mean(losses) / self._workload.labels

    def _labels(self, targets: Tensor) -> dict:
        """Sparse for TensorFlow's CTC kernel; dense for XLA, which has only a loop over time of small operators."""
        tf = self._tf
        workload = self._workload
        size = (workload.batch, workload.labels)
        if self._implementation.EXECUTION == "xla":
            return {"labels": targets, "label_length": tf.fill([workload.batch], workload.labels)}
        places = np.argwhere(np.ones(size, bool))
        labels = tf.SparseTensor(places, tf.cast(tf.reshape(targets, [-1]), tf.int32), size)
        return {"labels": labels, "label_length": None}

    def _rewind(self) -> None:
        super()._rewind()
        self._network.load_weights(self._weights)
        for variable, value in zip(self._optimizer.variables, self._initial, strict=True):
            variable.assign(value)

    def _run(self) -> float:
        return float(super()._run())


BASIC_EAGER = TensorFlow("basic", "eager")

BASIC_GRAPH = TensorFlow("basic", "graph")

FINE_GRAINED_EAGER = TensorFlow("fine-grained", "eager")

FINE_GRAINED_GRAPH = TensorFlow("fine-grained", "graph")

WHILE_GRAPH = TensorFlow("while", "graph")

STATIC_EAGER = TensorFlow("static", "eager")

STATIC_GRAPH = TensorFlow("static", "graph")

XLA = TensorFlow("while", "xla")

ONE_CALL_EAGER = TensorFlow("one-call", "eager")

ONE_CALL_GRAPH = TensorFlow("one-call", "graph")
