"""Versions of packages that are installed here, without importing them."""

import importlib.metadata
from contextlib import suppress

#: Versions of CUDA that names of packages end with.
CUDA_MAJORS = (12, 13)


def installed_version(distribution: str) -> str | None:
    """Version of an installed package without importing it, or None; its name can end with a CUDA version."""
    for name in (distribution, *(f"{distribution}-cu{major}" for major in CUDA_MAJORS)):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
