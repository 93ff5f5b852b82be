"""The command line `lstm-trt`: one file a command."""
