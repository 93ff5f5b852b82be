"""What child processes are asked to do, and what they answer; `child.py` runs a job there.

Two processes take part in a recording. One makes the reference, which the parity gate compares with
(`ReferenceJob`): that loads PyTorch, and may use all cores. The other records (`RecordJob`): it is
pinned before it imports the runtime. A third kind of process, of another Python, states which
version of a library it imports (`DescribeJob`).

A configuration is in a job as JSON values, since the child can import the kind of its workload only
after the registry's additions have arrived.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: `send(event, **values)`: sends a message to the parent.
Send = Callable[..., None]


@dataclass
class Seconds:
    """Wall time by activity, in s; `inside_trials` is a part of `timing`."""

    preparing: float = 0.0
    timing: float = 0.0
    inside_trials: float = 0.0
    control: float = 0.0
    storing: float = 0.0

    def add(self, other: "Seconds") -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class ReferenceJob:
    """Make the reference of a configuration; its outputs are written to `path` (.npy).

    The answer has the JSON values of `Preparer.reference`. `doing` is for errors that nobody
    expected.
    """

    configuration: dict[str, Any]
    gate_seed: int
    path: str

    doing = "making the reference outputs"


@dataclass(frozen=True)
class RecordJob:
    """Record a configuration into a folder.

    `reference`: what the preparer made, with "gate_seed" and "reference_path". `control`: with a
    control run. `asked_s`: the seconds of a soak, else None. `unlocked`: warnings of
    `locks.timing_lock`. `load_cores`: of the loads. `copies`: process ids of those that run the
    same step.
    """

    configuration: dict[str, Any]
    reference: Mapping[str, Any]
    folder: str
    round: int = 0
    control: bool = False
    asked_s: float | None = None
    unlocked: tuple[str, ...] = ()
    load_cores: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()

    doing = "recording"


@dataclass(frozen=True)
class CopyJob:
    """Call the step of a configuration until the process ends; the answer comes when it began."""

    configuration: dict[str, Any]
    reference: Mapping[str, Any]

    doing = "starting a copy of the step"


@dataclass(frozen=True)
class Written:
    """The answer to a `RecordJob`: the last file, the number of files and of timed trials."""

    path: str
    parts: int
    trials: int
    seconds: Seconds
    warnings: list[str]


@dataclass(frozen=True)
class DescribeJob:
    """Import a library, and describe a configuration with it; other fields as in `describe`.

    The runtime can have a function that imports the module; by default it is the one with the
    library's name.
    """

    library: str
    workload: dict[str, Any]
    runtime: str
    protocol: dict[str, Any]
    options: dict[str, Any]
    mode: str | None = None

    doing = "reading the version"


@dataclass(frozen=True)
class Described:
    """The answer to a `DescribeJob`: the versions that metadata and module state, and its file.

    And the configuration as JSON values, or why there is none.
    """

    metadata: str
    module: str | None
    file: str | None
    configuration: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Failed:
    """The answer to a job that failed: at which stage, if that is known, and why.

    `detail`: a traceback. `invalid`: the protocol cannot be carried out with this network.
    `spent`: the process can no longer be relied on, and ends. `refused`: nothing could be written.
    """

    reason: str
    stage: str | None = None
    detail: str = ""
    invalid: bool = False
    spent: bool = False
    refused: bool = False


Job = ReferenceJob | RecordJob | CopyJob | DescribeJob
