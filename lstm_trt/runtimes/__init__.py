"""The runtimes: one file each, behind one contract.

A runtime is a module, or an object in one, with these names:

    NAME         what users type and recordings store
    DISTRIBUTION the package whose version is the runtime's version
    DEVICES      devices that it can use, the default first: ("cpu", "cuda")
    PRECISIONS   device -> precisions that it offers there, "fp32" among them if it can
    availability(device) -> Availability     cheap enough for `doctor`; never raises
    prepare(request) -> PreparedStep         raises ConfigurationFailed or RuntimeUnavailable

and, where it needs them,

    NEEDS_ONNX   True where it reads the exported ONNX file
    supports(workload, mode, device) -> str | None     why it does not do that; None where it can

Importing it must not import the runtime's own libraries. What ships stands in `registry.RUNTIMES`; an
installed package adds its own by an entry point of the group `lstm_trt.runtimes`, and a name with a dot,
`my_package.my_runtime` or `my_package.module:OBJECT`, is imported, so a runtime of one's own needs no change here.
"""

from __future__ import annotations

from typing import Any

from lstm_trt import registry
from lstm_trt.config.errors import UsageError

CONTRACT = ("NAME", "DISTRIBUTION", "DEVICES", "PRECISIONS", "availability", "prepare")


def load(name: str, table: str = "RUNTIMES", contract: tuple[str, ...] = CONTRACT) -> Any:
    """The runtime of a name in a table of `registry`; `contract` are the names that it must have.

    Raises `UsageError` for an unknown name, or for a module that cannot be imported or lacks part of the contract.
    """
    kind = {"RUNTIMES": "runtime", "IMPLEMENTATIONS": "implementation"}.get(table, table.lower())
    try:
        runtime = registry.load(table, name)
    except KeyError:
        known = ", ".join(registry.table(table))
        raise UsageError(f"unknown {kind} {name!r}: choose from {known}, or name a module with a dot") from None
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{kind} {name!r} cannot be imported: {error}") from None
    missing = [attribute for attribute in contract if not hasattr(runtime, attribute)]
    if missing:
        raise UsageError(f"{name!r} is no {kind}: it lacks {', '.join(missing)}")
    return runtime
