"""The form of every answer: a sequence of what was found, a configuration each, with its text, JSON and DataFrame.

The functions `verdict`, `outliers`, `summarize`, `compare`, `scaling` and `replay` of this package give one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count
from lstm_trt.store.runs import Runs, as_runs
from lstm_trt.store.samples import Group

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Answers(Sequence):
    """`answers[i]` belongs to `runs[i]`, a `NoTrials` where a configuration failed.

    `str` is what the command prints, `as_dict` its JSON. `warnings` are lines for people: those of reading the runs,
    and of the analysis itself.
    """

    runs: Runs
    answers: tuple
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index):
        return self.answers[index]

    @abstractmethod
    def __str__(self) -> str:
        """What the command prints."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """In Jupyter the text, not the values."""
        printer.text(str(self))

    def as_dict(self) -> dict | list:
        """JSON values: an object, or a list of them where the runs are of several configurations."""
        shared = {**self.runs.how, "warnings": list(self.runs.warnings)}
        plain = [
            {"group": group.group, "name": group.name, **shared, **self._plain(group, answer)}
            for group, answer in zip(self.runs, self.answers, strict=True)
        ]
        return plain if self.runs.grouped else plain[0]

    def _plain(self, group: Group, answer: Any) -> dict:
        """JSON values of one answer."""
        return answer.as_dict()

    @property
    @abstractmethod
    def frame(self) -> pd.DataFrame:
        """A row a configuration."""


def runs_to_judge(source: Any) -> Runs:
    """`as_runs`; raises `UsageError` where there is no configuration, or one with fewer than 2 trials after warm-up."""
    runs = as_runs(source)
    if not len(runs):
        raise UsageError(f"{runs.source or 'the runs'}: there is no configuration to judge")
    for group in runs:
        if group.failure is None and group.n < 2:
            trials = count(group.n, "trial")
            raise UsageError(
                f"{runs.source or 'the runs'}: {group.name} has {trials} after warm-up, at least 2 are needed"
            )
    return runs
