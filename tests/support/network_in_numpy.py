"""Compute a network that TensorRT's parser built from an ONNX file, layer by layer in numpy.

An engine cannot run without a GPU, but the parsed network can be read through the API and has few
kinds of layers. So the tests compare what TensorRT *parsed* with the outputs of PyTorch and ONNX
Runtime: a graph that is silently misread gives different numbers here. Sizes may be symbolic; they
are determined by the inputs.
"""

from __future__ import annotations

import numpy as np

NUMPY_TYPES = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}

#: LayerType -> class through which the layer's specific attributes are read.
CLASSES = {
    "ACTIVATION": "IActivationLayer",
    "CONCATENATION": "IConcatenationLayer",
    "CONSTANT": "IConstantLayer",
    "ELEMENTWISE": "IElementWiseLayer",
    "GATHER": "IGatherLayer",
    "ITERATOR": "IIteratorLayer",
    "LOOP_OUTPUT": "ILoopOutputLayer",
    "MATRIX_MULTIPLY": "IMatrixMultiplyLayer",
    "REDUCE": "IReduceLayer",
    "SHUFFLE": "IShuffleLayer",
    "SLICE": "ISliceLayer",
    "TRIP_LIMIT": "ITripLimitLayer",
    "UNARY": "IUnaryLayer",
}

ELEMENTWISE = {
    "SUM": np.add,
    "SUB": np.subtract,
    "PROD": np.multiply,
    "DIV": np.divide,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "LESS": np.less,
    "GREATER": np.greater,
    "EQUAL": np.equal,
    "AND": np.logical_and,
    "OR": np.logical_or,
}
UNARY = {"NOT": np.logical_not, "NEG": np.negative, "ABS": np.abs}

#: ActivationType -> function of (values, alpha, beta); formulas from TensorRT's reference.
ACTIVATIONS = {
    "SIGMOID": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "TANH": lambda x, a, b: np.tanh(x),
    "RELU": lambda x, a, b: np.maximum(x, 0),
    "CLIP": np.clip,
    "HARD_SIGMOID": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LEAKY_RELU": lambda x, a, b: np.where(x < 0, a * x, x),
    "SOFTSIGN": lambda x, a, b: x / (1 + np.abs(x)),
    "SOFTPLUS": lambda x, a, b: a * np.log(np.exp(b * x) + 1),
}


def parse(trt, logger, onnx: bytes):
    """The network that the parser builds; AssertionError with the parser's message if it fails."""
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(onnx), parser.get_error(0).desc()
    return network, (builder, parser)  # the network is valid only as long as these two


class _Evaluation:
    def __init__(self, trt, network, feeds: dict[str, np.ndarray]) -> None:
        self.trt, self.feeds, self.values, self.producers, self.trips = trt, feeds, {}, {}, {}
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            kind = layer.type.name  # before changing the class: some classes define another `type`
            if kind in CLASSES:
                layer.__class__ = getattr(trt, CLASSES[kind])
            if kind == "TRIP_LIMIT":
                self.trips[layer.loop.name] = layer
            for output in range(layer.num_outputs):
                self.producers[layer.get_output(output).name] = (layer, kind)

    def value(self, tensor, step: int | None) -> np.ndarray:
        """The value of a tensor at one step of its loop; `step` is None outside loops."""
        if tensor.name in self.feeds:
            return self.feeds[tensor.name]
        layer, kind = self.producers[tensor.name]
        if kind == "LOOP_OUTPUT":
            step = None  # belongs to the network around the loop
        key = (tensor.name, step)
        if key not in self.values:
            found = np.asarray(self.compute(layer, kind, step))
            self.values[key] = found.astype(NUMPY_TYPES[tensor.dtype.name], copy=False)
        return self.values[key]

    def compute(self, layer, kind: str, step: int | None):
        def has(index: int) -> bool:
            return index < layer.num_inputs and layer.get_input(index) is not None

        def get(index: int) -> np.ndarray:
            return self.value(layer.get_input(index), step)

        match kind:
            case "CONSTANT":
                return np.array(layer.weights).reshape(tuple(layer.shape))
            case "CAST" | "IDENTITY":
                return get(0)
            case "SHAPE":
                return np.array(get(0).shape)
            case "SHUFFLE":
                return self._shuffle(layer, get(0), get(1) if has(1) else None)
            case "SLICE":
                sizes = [get(i) if has(i) else getattr(layer, name) for i, name in ((1, "start"), (2, "shape"))]
                return self._slice(layer, get(0), *sizes, get(3) if has(3) else layer.stride)
            case "REDUCE":
                axes = tuple(axis for axis in range(get(0).ndim) if layer.axes >> axis & 1)
                assert layer.op.name == "SUM"
                return get(0).sum(axis=axes, keepdims=layer.keep_dims)
            case "CONCATENATION":
                return np.concatenate([get(i) for i in range(layer.num_inputs)], axis=layer.axis)
            case "UNSQUEEZE":
                return np.expand_dims(get(0), tuple(int(axis) for axis in get(1)))
            case "SQUEEZE":
                return np.squeeze(get(0), tuple(int(axis) for axis in get(1)))
            case "GATHER":
                return np.take(get(0), get(1), axis=layer.axis)
            case "SELECT":
                return np.where(get(0), get(1), get(2))
            case "UNARY":
                return UNARY[layer.op.name](get(0))
            case "ELEMENTWISE":
                return ELEMENTWISE[layer.op.name](get(0), get(1))
            case "MATRIX_MULTIPLY":
                turned = (layer.op0.name == "TRANSPOSE", layer.op1.name == "TRANSPOSE")
                left, right = (get(i).swapaxes(-1, -2) if turned[i] else get(i) for i in (0, 1))
                return left @ right
            case "ACTIVATION":
                name = self.trt.IActivationLayer.type.__get__(layer).name
                return ACTIVATIONS[name](get(0), get(0).dtype.type(layer.alpha), get(0).dtype.type(layer.beta))
            case "ITERATOR":
                whole = self.value(layer.get_input(0), None)
                place = whole.shape[layer.axis] - 1 - step if layer.reverse else step
                return np.take(whole, place, axis=layer.axis)
            case "RECURRENCE":
                return self.value(layer.get_input(0), None) if step == 0 else self.value(layer.get_input(1), step - 1)
            case "LOOP_OUTPUT":
                return self._loop_output(layer)
        raise NotImplementedError(kind)

    @staticmethod
    def _shuffle(layer, x: np.ndarray, sizes) -> np.ndarray:
        x = x.transpose(list(layer.first_transpose)[: x.ndim])
        sizes = layer.reshape_dims if sizes is None else sizes
        if sizes is not None:  # None: transposed, not reshaped
            copied = x.shape if layer.zero_is_placeholder else ()
            x = x.reshape([copied[place] if size == 0 and copied else int(size) for place, size in enumerate(sizes)])
        return x.transpose(list(layer.second_transpose)[: x.ndim])

    @staticmethod
    def _slice(layer, x: np.ndarray, starts, sizes, strides) -> np.ndarray:
        axes = range(x.ndim) if layer.axes is None else layer.axes
        for place, axis in enumerate(axes):
            start, size, stride = int(starts[place]), int(sizes[place]), int(strides[place])
            x = np.take(x, [start + stride * i for i in range(size)], axis=axis)
        return x

    def _loop_output(self, layer) -> np.ndarray:
        steps = int(self.value(self.trips[layer.loop.name].get_input(0), None))
        if layer.kind.name == "LAST_VALUE":
            return self.value(layer.get_input(0), steps)
        every = [self.value(layer.get_input(0), step) for step in range(steps)]
        return np.stack(every[::-1] if layer.kind.name == "REVERSE" else every, axis=layer.axis)


def evaluate(trt, network, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a parsed network by name, for inputs by name."""
    run = _Evaluation(trt, network, feeds)
    outputs = (network.get_output(index) for index in range(network.num_outputs))
    return {output.name: run.value(output, None) for output in outputs}
