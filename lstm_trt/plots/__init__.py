"""Figures of recordings and of answers; one file a kind of figure."""
