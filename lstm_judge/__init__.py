"""Judges latencies of recordings, or of tables from anywhere: summary, verdict, tail, comparison,
growth, figures."""
