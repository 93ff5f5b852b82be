"""C code of an ONNX network: what it is written from, the folder that is handed over, and the runtime that times it."""
