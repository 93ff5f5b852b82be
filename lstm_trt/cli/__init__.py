"""The command line `lstm-trt`: one module per command.

Each module defines `EXAMPLE` (the end of its help), `add_arguments(parser)` and `run(arguments)`,
which returns the exit status; `FORMATS` lists the output formats of a command that prints no table.
The tables `COMMANDS` hold the name, the group and the summary line of each command. `main` imports
a module only when its command is used.
"""
