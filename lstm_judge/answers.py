"""Base class of all answers: a sequence with one result per configuration, as text, JSON and
DataFrame.

`verdict`, `outliers`, `summarize`, `compare`, `scaling` and `replay` of this package return one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from types import ModuleType
from typing import Any, ClassVar, TypeVar, overload

from lstm_judge.read.frames import html_table, numeric
from lstm_judge.read.rounds import Group, NoTrials
from lstm_judge.read.runs import Runs, RunsSource, as_runs
from lstm_judge.statistics.segments import not_judged
from lstm_trt import registry
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count, warning_lines
from lstm_trt.config.libraries import pd

#: Longest sentence that `repr` shows whole.
MOST_LETTERS = 240

#: The answer to one configuration.
Answer = TypeVar("Answer", covariant=True)


@dataclass(frozen=True, eq=False, repr=False)
class Answers(Sequence[Answer]):
    """`answers[i]` is the result for `runs[i]`, or a `NoTrials` if the configuration failed.

    `str` gives the text that the command prints, which names what is missing from the runs,
    `as_dict` its JSON. `warnings` are lines of text, from reading the runs and from the analysis;
    every object of the JSON has them.
    """

    runs: Runs
    answers: tuple[Answer, ...]
    warnings: tuple[str, ...] = ()

    #: JSON values of a configuration that failed, besides its n and the reason.
    _NOTHING_FOUND: ClassVar[dict] = {}

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, index: int) -> Answer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Answer, ...]: ...

    def __getitem__(self, index):
        return self.answers[index]

    def items(self) -> Iterator[tuple[Group, Answer]]:
        """Pairs of configuration and answer."""
        return zip(self.runs, self.answers, strict=True)

    @property
    def exit_status(self) -> int:
        """Exit status of the command that prints these answers."""
        return 0

    @property
    def _texts(self) -> ModuleType:
        """The module that says it: `text`, and what else it has."""
        return registry.load_entry("TEXTS", type(self).__name__)

    def __str__(self) -> str:
        return "\n".join([self._texts.text(self), *self.runs.lacks])

    @property
    def sentence(self) -> str:
        """The answer in one line: the `headline` of its module of texts, else the first of the
        text."""
        if hasattr(self._texts, "headline"):
            return self._texts.headline(self)
        return str(self).partition("\n")[0]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {shorten(self.sentence, MOST_LETTERS, placeholder=' ...')}>"
        )

    def texts(self, text: Callable[[Any, str], str]) -> list[str]:
        """For each configuration `text(answer, name)`, or the reason of its failure."""
        lines = []
        for group, answer in self.items():
            if isinstance(answer, NoTrials):
                lines.append(f"{group.name}: {answer}")
            else:
                lines.append(text(answer, group.name))
        return lines

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the warnings and the text in a terminal, and where a notebook becomes a PDF."""
        printer.text("\n".join([*warning_lines(self.warnings), str(self)]))

    def _repr_html_(self) -> str:
        """Show the sentence, the warnings and the table in Jupyter: the one of `--format md`, with
        the `legend` of its module of texts, and if there are many without the columns that it
        names as the `least` important."""
        lines = [self.sentence, *warning_lines(self.warnings), *self.runs.lacks]
        if hasattr(self._texts, "legend"):
            lines += self._texts.legend(self)
        table = self.frame
        if hasattr(self._texts, "cells"):
            header, rows = self._texts.cells(self)
            table = pd.DataFrame(rows, columns=header)
        least = getattr(self._texts, "least", lambda answers: ())
        return html_table(lines, table, least(self))

    def as_dict(self) -> dict | list:
        """JSON values: an object, or a list of objects if the runs have several configurations."""
        objects = []
        answer: Any
        for group, answer in self.items():
            found: dict[str, Any] = {"group": group.group, "name": group.name, **self.runs.how}
            found["warnings"] = list(self.warnings)
            if isinstance(answer, NoTrials):
                found |= {"n": group.n, **self._NOTHING_FOUND, "failure": str(answer)}
            else:
                found |= answer.as_dict()
            objects.append(found)
        return objects if self.runs.grouped else objects[0]

    @property
    def frame(self) -> pd.DataFrame:
        """The answers as a table; see the class for its rows. What is not known is NaN."""
        return numeric(pd.DataFrame(self._rows()))

    def _rows(self) -> Iterable[dict]:
        """Rows of `frame`: one per configuration; of a failed one name, trials and reason."""
        for group, answer in self.items():
            if isinstance(answer, NoTrials):
                yield {"network": group.name, "n": group.n, "failure": str(answer)}
            else:
                yield {"network": group.name, **self._row(answer)}

    def _row(self, answer: Any) -> dict:
        """Columns of `frame` for one answer."""
        return answer.as_dict()


def runs_to_judge(source: RunsSource, bounds: bool = False) -> Runs:
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
            raise UsageError(
                f"{where}: {group.name} has {count(group.n, 'trial')} after warm-up: at least 2 are"
                " needed"
            )
    return runs


def resolved(runs: Runs) -> Runs:
    """The runs with a failure instead of the rounds that are `not_judged`."""
    groups = []
    for group in runs:
        why = not_judged(group.rounds)
        if why is None:
            groups.append(group)
        else:
            groups.append(replace(group, rounds=(), failure=NoTrials(None, f"not judged: {why}")))
    return replace(runs, groups=tuple(groups))
