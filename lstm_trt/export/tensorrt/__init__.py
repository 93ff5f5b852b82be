"""TensorRT engines: building, their options and files, their layers. No recording on a CPU imports
this package."""
