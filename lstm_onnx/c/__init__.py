"""C code of an ONNX network, the folder that is handed over, and the runtime that times it."""
