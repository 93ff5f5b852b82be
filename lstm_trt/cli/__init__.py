"""The command line `lstm-trt`: one file a command.

A command is a module with `EXAMPLE` (the end of its help), `add_arguments(parser)`, `run(arguments)`, which
returns the exit status, and `FORMATS` where it prints anything else than text and JSON. `registry.COMMANDS`
names it and has the summary line. `main` imports it when the command is asked for.
"""
