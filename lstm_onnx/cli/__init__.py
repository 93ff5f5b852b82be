"""The commands for networks of one's own, one module each; see `lstm_trt.cli`."""
