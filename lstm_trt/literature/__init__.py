"""The literature's LSTM benchmarks: their workloads, and today's implementations of them."""

from __future__ import annotations
