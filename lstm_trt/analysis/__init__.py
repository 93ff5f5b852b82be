"""Pure functions of recordings: what the numbers say."""
