"""The commands that judge, one module each; see `lstm_trt.cli`."""
