"""A step of the user's own: an importable function returns what is timed.

It is a workload like any other, of which only the name is known; `recorder/preparers/step.py`
prepares it.
"""

# A kind is frozen, so it may compute as a property what `Workload` has as a constant.
# pyright: reportIncompatibleVariableOverride=false

from dataclasses import dataclass

from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import Workload


@dataclass(frozen=True)
class Step(Workload):
    """What a function such as `my_package.my_module:make_step` returns, called without arguments.

    That is a callable without arguments, or an object with `step` and optionally `reset`,
    `outputs`, `facts` and `close`, with the meaning that they have in `runtimes.base.PreparedStep`.
    Only the process that times it imports the function. Raises `UsageError` if `function` is not of
    the form MODULE:FUNCTION.
    """

    KIND = "step"

    function: str

    def __post_init__(self) -> None:
        module, _, name = str(self.function).partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            example = "my_package.my_module:make_step"
            raise UsageError(
                f"a step is given as MODULE:FUNCTION, for example {example}, not {self.function!r}"
            )

    @property
    def module(self) -> str:
        return self.function.partition(":")[0]

    @property
    def label(self) -> str:
        """The function: `my_package.my_module:make_step`."""
        return self.function

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        return {"--step": (self.function,)}
