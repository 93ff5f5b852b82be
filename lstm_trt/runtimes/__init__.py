"""The runtimes: one file per runtime, with a common interface.

A runtime is a module, or an object in a module, with these attributes:

    NAME         the name that users type and recordings store
    DISTRIBUTION the package that determines the runtime's version
    DEVICES      supported devices, the default first: ("cpu", "cuda")
    PRECISIONS   device -> supported precisions, including "fp32" if possible
    availability(device) -> Availability     fast, for `doctor`; never raises
    prepare(request) -> PreparedStep         raises ConfigurationFailed or RuntimeUnavailable

Optional attributes:

    NEEDS_ONNX   True if it reads ONNX files: it needs the exported network, and can run networks of
                 users
    ONNX_RULES   what it reads of ONNX's recurrent operators (`export.onnx_checks.Rules`), if it
                 needs ONNX files
    MODES        ("forward", "stream") if it can carry state from call to call
    PREPARES     True if its steps have `prepare_next` in streams with the option `prepare`
    parser_refusal(content, name) -> str | None
                 why it rejects an ONNX model, if it knows without its device
    supports(workload, mode, device) -> str | None
                 reason why this is not supported, such as another kind of workload or two
                 directions, or None if it is
    DISTRIBUTIONS
                 the packages that `versions` can install, if DISTRIBUTION is one of several
    load_module() -> module
                 imports the module of DISTRIBUTION, if importing its name is not enough

Importing the module must not import the runtime's libraries. Built-in runtimes are listed in
`registry.RUNTIMES`; an installed package adds its own by an entry point of the group
`lstm_trt.runtimes`. A name with a dot, `my_package.my_runtime` or `my_package.module:OBJECT`, is
imported without registration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lstm_trt import registry
from lstm_trt.config.errors import UsageError, nearest

CONTRACT = ("NAME", "DISTRIBUTION", "DEVICES", "PRECISIONS", "availability", "prepare")


def load_runtime(name: str) -> Any:
    """The runtime with this name; raises `UsageError` as `load_from`."""
    entries = registry.RUNTIMES if name in registry.RUNTIMES else registry.table("RUNTIMES")
    return load_from(entries, name)


def load_from(
    entries: Mapping[str, str], name: str, contract: Sequence[str] = CONTRACT, kind: str = "runtime"
) -> Any:
    """What has this name in `entries` (name -> module or object); `contract`: attributes that it
    must have.

    Raises `UsageError` for an unknown name, or if the module cannot be imported or lacks one of the
    attributes.
    """
    try:
        runtime = registry.load_from(entries, name)
    except KeyError:
        known = f"choose from {', '.join(entries)}, or give a module (package.module)"
        raise UsageError(f"unknown {kind} {name!r}{nearest(name, entries)}: {known}") from None
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{kind} {name!r} cannot be imported: {error}") from None
    # Asked of the type first, since a property of an object may take long: it need not be computed
    # to be there.
    missing = [
        each for each in contract if not (hasattr(type(runtime), each) or hasattr(runtime, each))
    ]
    if missing:
        raise UsageError(f"{name!r} is not a valid {kind}: it lacks {', '.join(missing)}")
    return runtime
