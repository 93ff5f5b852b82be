"""The timed loop and the processes around it: from a configuration to a recording on disk."""
