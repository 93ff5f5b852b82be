"""Estimate the latencies of a closed-loop recording at a fixed call rate."""
