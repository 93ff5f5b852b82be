"""TensorFlow as a process has it: imported silently, with its threads, on the CPU; and PyTorch's optimizers in Keras.

TensorFlow takes its numbers of threads once, before its first operator: one process for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lstm_trt.errors import RuntimeUnavailable, UsageError, first_line

if TYPE_CHECKING:
    from types import ModuleType

#: As PyTorch has it; Keras' own default is 1e-7.
ADAM_EPSILON = 1e-8


def load(threads: int) -> tuple[ModuleType, ModuleType]:
    """TensorFlow and Keras, with `threads` within an operator and `threads` operators at a time.

    Graphics cards are hidden: these implementations are the CPU's.
    Raises `RuntimeUnavailable` where they cannot be imported or Keras runs on another backend,
    and `UsageError` where this process has begun with other threads.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what fails is raised as well
    os.environ["KERAS_BACKEND"] = "tensorflow"  # a file in the user's home may say otherwise
    try:
        with _silence():
            import keras
            import tensorflow as tf
    except ImportError as error:
        raise RuntimeUnavailable("tensorflow", first_line(error)) from error
    if keras.backend.backend() != "tensorflow":
        raise RuntimeUnavailable("tensorflow", f"Keras runs on {keras.backend.backend()} in this process")
    tf.get_logger().setLevel("ERROR")
    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # TensorFlow has begun: what it has begun with must do
        found = (threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
        if found != (threads, threads):
            raise UsageError(
                f"TensorFlow has {found[0]} and {found[1]} threads in this process: ask for {threads} in a fresh one"
            ) from None
        if tf.config.get_visible_devices("GPU"):
            raise UsageError("TensorFlow has a GPU open in this process: prepare in a fresh one") from None
    return tf, keras


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing on standard error: what TensorFlow's libraries say while they are loaded heeds no log level."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def facts(tf: ModuleType, keras: ModuleType) -> dict:
    """Versions, threads and what TensorFlow was built with; JSON values."""
    build = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0",
        "built_for_cuda": bool(build.get("is_cuda_build")),
        "device": "cpu",
    }


def optimizer(tf: ModuleType, keras: ModuleType, name: str, learning_rate: float) -> object:
    """Keras' SGD, or its Adam with two differences, which make it PyTorch's (and Kingma and Ba's algorithm 1).

    Keras adds epsilon before the correction of the second moment's bias, which makes it about
    30 times larger in the first steps. And of an embedding's gradient, which comes as slices,
    Keras 3.15 squares each slice: a token that a batch has twice gets the sum of two squares and
    not the square of the sum. Here the slices are added up to the dense gradient first.
    """
    if name == "sgd":
        return keras.optimizers.SGD(learning_rate)
    ops = keras.ops

    class Adam(keras.optimizers.Adam):
        def update_step(self, gradient: object, variable: object, learning_rate: object) -> None:
            gradient = tf.convert_to_tensor(gradient, variable.dtype)
            rate = ops.cast(learning_rate, variable.dtype)
            step = ops.cast(self.iterations + 1, variable.dtype)
            first = 1 - ops.power(ops.cast(self.beta_1, variable.dtype), step)
            second = 1 - ops.power(ops.cast(self.beta_2, variable.dtype), step)
            index = self._get_variable_index(variable)
            mean, square = self._momentums[index], self._velocities[index]
            self.assign_add(mean, ops.multiply(ops.subtract(gradient, mean), 1 - self.beta_1))
            self.assign_add(square, ops.multiply(ops.subtract(ops.square(gradient), square), 1 - self.beta_2))
            deviation = ops.add(ops.divide(ops.sqrt(square), ops.sqrt(second)), self.epsilon)
            self.assign_sub(variable, ops.divide(ops.multiply(mean, rate / first), deviation))

    return Adam(learning_rate, epsilon=ADAM_EPSILON)
