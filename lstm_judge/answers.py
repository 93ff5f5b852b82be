"""Base class of all answers: a sequence with one result per configuration, as text, JSON and
DataFrame.

`verdict`, `outliers`, `summarize`, `compare`, `scaling` and `replay` of this package return one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lstm_trt import registry
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count, warning_lines
from lstm_trt.config.libraries import pd

from lstm_judge.read.rounds import Group, NoTrials
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.statistics.segments import not_judged


@dataclass(frozen=True, eq=False)
class Answers(Sequence):
    """`answers[i]` is the result for `runs[i]`, or a `NoTrials` if the configuration failed.

    `str` gives the text that the command prints, which names what is missing from the runs,
    `as_dict` its JSON. `warnings` are lines of text, from reading the runs and from the analysis;
    every object of the JSON has them.
    """

    runs: Runs
    answers: tuple
    warnings: tuple[str, ...] = ()

    #: JSON values of a configuration that failed, besides its n and the reason.
    _NOTHING_FOUND: ClassVar[dict] = {}

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index):
        return self.answers[index]

    def items(self) -> Iterator[tuple[Group, Any]]:
        """Pairs of configuration and answer."""
        return zip(self.runs, self.answers, strict=True)

    @property
    def exit_status(self) -> int:
        """Exit status of the command that prints these answers."""
        return 0

    def __str__(self) -> str:
        return "\n".join(
            [registry.load_entry("TEXTS", type(self).__name__).text(self), *self.runs.lacks]
        )

    def texts(self, text: Callable[[Any, str], str]) -> list[str]:
        """For each configuration `text(answer, name)`, or the reason of its failure."""
        return [
            f"{group.name}: {answer}" if isinstance(answer, NoTrials) else text(answer, group.name)
            for group, answer in self.items()
        ]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the warnings and the text in Jupyter."""
        printer.text("\n".join([*warning_lines(self.warnings), str(self)]))

    def as_dict(self) -> dict | list:
        """JSON values: an object, or a list of objects if the runs have several configurations."""
        shared = {**self.runs.how, "warnings": list(self.warnings)}
        objects = []
        for group, answer in self.items():
            failed = {"n": group.n, **self._NOTHING_FOUND, "failure": str(answer)}
            found = failed if isinstance(answer, NoTrials) else answer.as_dict()
            objects.append({"group": group.group, "name": group.name, **shared, **found})
        return objects if self.runs.grouped else objects[0]

    @property
    def frame(self) -> pd.DataFrame:
        """The answers as a table; see the class for its rows."""
        return pd.DataFrame(self._rows())

    def _rows(self) -> Iterable[dict]:
        """Rows of `frame`: one per configuration; if it failed: name, number of trials and reason."""
        for group, answer in self.items():
            failed = {"n": group.n, "failure": str(answer)}
            yield {
                "network": group.name,
                **(failed if isinstance(answer, NoTrials) else self._row(answer)),
            }

    def _row(self, answer: Any) -> dict:
        """Columns of `frame` for one answer."""
        return answer.as_dict()


def runs_to_judge(source: Any, bounds: bool = False) -> Runs:
    """As `as_runs`; raises `UsageError` if there is no configuration, or one has fewer than 2
    trials after warm-up.

    `bounds`: also histograms and times of a coarse clock can be judged, by the bounds of each time.
    Without, they have a failure instead of rounds (`resolved`).
    """
    runs = as_runs(source) if bounds else resolved(as_runs(source))
    where = runs.source or "the runs"
    if not len(runs):
        raise UsageError(f"{where}: there are no configurations to analyze")
    for group in runs:
        if group.failure is None and group.n < 2:
            trials = count(group.n, "trial")
            raise UsageError(
                f"{where}: {group.name} has {trials} after warm-up: at least 2 are needed"
            )
    return runs


def resolved(runs: Runs) -> Runs:
    """The runs with a failure instead of the rounds that are `not_judged`."""
    reasons = [not_judged(group.rounds) for group in runs]
    if not any(reasons):
        return runs
    groups = []
    for group, why in zip(runs, reasons, strict=True):
        groups.append(
            replace(group, rounds=(), failure=NoTrials(None, f"not judged: {why}"))
            if why
            else group
        )
    return replace(runs, groups=tuple(groups))
