"""Test whether a percentile of the latency meets a deadline."""
