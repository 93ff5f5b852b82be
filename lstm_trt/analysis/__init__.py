"""Pure functions of recordings: what the numbers say."""

from __future__ import annotations
