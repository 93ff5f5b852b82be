"""Compare two recordings: is B faster than A, slower, or the same?"""
