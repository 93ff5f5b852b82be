"""The packages of this project: tests that name packages or folders take them from here."""

from __future__ import annotations

#: In the order of their imports: the first is imported by all others.
PACKAGES = ("lstm_trt", "lstm_judge", "lstm_onnx", "lstm_literature")
