"""Summary statistics of the latency, one row per configuration."""
