"""Statistical analysis of recordings: pure functions from groups of samples to answers."""
