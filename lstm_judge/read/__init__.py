"""How latencies are read: recordings, and tables of other tools, as runs of rounds."""
