"""Export of PyTorch networks to ONNX files and TensorRT engines."""
