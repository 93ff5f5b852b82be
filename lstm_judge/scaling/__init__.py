"""How latency grows with the sizes of a network."""
