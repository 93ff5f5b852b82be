"""Writes keras_lstm.onnx with Keras on TensorFlow (it needs tf2onnx): two LSTM layers and a dense layer.

The input `samples` is batch x time x features. Batch and time have no names in Keras; tf2onnx calls them unk__N. It
converts layers of the class LSTM into LSTM operators, but a GRU layer into a loop of matrix products. The weights are
random.
"""

from pathlib import Path

import keras
import numpy as np
from keras import layers

FEATURES, HIDDEN, OUTPUTS = 8, (32, 16), 2


def write(folder: Path) -> Path:
    """Write the file into `folder`; returns its path."""
    keras.utils.set_random_seed(1)
    recurrent = [layers.LSTM(hidden, return_sequences=True) for hidden in HIDDEN]
    network = keras.Sequential([keras.Input((None, FEATURES), name="samples"), *recurrent, layers.Dense(OUTPUTS)])
    network(np.zeros((1, 20, FEATURES), np.float32))  # otherwise Keras does not export it
    path = folder / "keras_lstm.onnx"
    network.export(path, format="onnx", verbose=False)
    return path


if __name__ == "__main__":
    write(Path(__file__).parent)
