"""Libraries that take long to import: each is imported when its first attribute is read.

So a command, and a process that records, loads those only that it uses. To a type checker they are ordinary imports.
The version of any library is known without importing it.
"""

import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _Library(ModuleType):
    """Stands for the module of its name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules.get(self.__name__) or import_module(self.__name__), name)


if TYPE_CHECKING:
    import numpy as np
    import onnx
    import onnxruntime
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from scipy import special
else:
    np, onnx, onnxruntime, pa, pd = map(_Library, ("numpy", "onnx", "onnxruntime", "pyarrow", "pandas"))
    pq, special, torch = map(_Library, ("pyarrow.parquet", "scipy.special", "torch"))

__all__ = ["np", "onnx", "onnxruntime", "pa", "pd", "pq", "special", "torch"]

#: Versions of CUDA that names of packages end with.
CUDA_MAJORS = (12, 13)


def installed_version(distribution: str) -> str | None:
    """Version of an installed package without importing it, or None; its name can end with a CUDA version."""
    from importlib import metadata  # takes long itself

    for name in (distribution, *(f"{distribution}-cu{major}" for major in CUDA_MAJORS)):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
