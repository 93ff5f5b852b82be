"""Networks of one's own: ONNX files and PyTorch modules as workloads, what is in such a file, and C
code of them."""
