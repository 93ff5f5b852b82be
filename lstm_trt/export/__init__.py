"""A PyTorch network as an ONNX file and as a TensorRT engine."""
