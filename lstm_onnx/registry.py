"""What this package adds to the tables of `lstm_trt.registry`."""

from lstm_trt.registry import Command, defined

RUNTIMES = {"c": "lstm_onnx.c.runtime"}

WORKLOADS = {"onnx-network": "lstm_onnx.own_network:OnnxNetwork"}

PREPARERS = {"onnx-network": "lstm_onnx.preparer:PREPARER"}

FLAGS = {"onnx-network": "lstm_onnx.cli.flags"}

COMMANDS = {
    "inspect": Command(
        160,
        "lstm_onnx.cli.inspect",
        "networks as files",
        "show what is in an ONNX file, and which runtimes run it or why not",
    ),
    "export": Command(
        170,
        "lstm_onnx.cli.export",
        "networks as files",
        "write a network as an ONNX file, or as C code",
    ),
}

API = defined(
    "lstm_onnx",
    {
        "c.export": ("export_c",),
        "inspect": ("inspect",),
        "own_network": ("OnnxNetwork",),
        "torch_network": ("TorchNetwork",),
    },
)
