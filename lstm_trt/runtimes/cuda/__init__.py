"""The CUDA driver, and the runtimes that need it. No recording on a CPU imports this package."""
