"""Compare recordings of a workload with its document's published figures: which implementations are fastest, and how
the order has changed.

The sizes and machines of the two sides differ, so no ratio is formed between them. Each time is
compared only with others of its own side, and times that one process cannot tell apart (`APART`) are ties.
`then_and_now` tells the ratio of each side beside that of the other, with its machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lstm_judge.read.numbers import multiple
from lstm_literature import metrics, published
from lstm_literature.implementations import load_implementation, title_and_framework
from lstm_literature.workloads import AS_THERE, LiteratureWorkload
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count
from lstm_trt.config.libraries import pd

#: Two times of one side count as different from this ratio on; `compare` uses the same limit for single processes.
APART = 1.10

#: The same as text, for times that count as equal.
ALIKE = f"{100 * (APART - 1):.0f} %"

#: Sizes are listed only up to this number; beyond it the labels in the figure show them.
MOST_SIZES = 3

#: Pairs that reversed their order are listed up to this number.
MOST_PAIRS = 5

REVERSE = "in the reverse order"


@dataclass(frozen=True)
class SideEntry:
    """One implementation of one side; `seconds` (per batch) is None unless `status` is "ok".

    Otherwise `status` is "failed", "no figure" or "empty", with the `reason` in the document's words. `doubt`: why a
    published time is doubtful, or empty. `version` names the framework with its version; `n` batches were timed, 0 if
    not stated.
    """

    implementation: str
    title: str
    seconds: Any  # a float; None without a time
    status: str
    reason: str = ""
    doubt: str = ""
    version: str = ""
    n: int = 0


@dataclass(frozen=True)
class Side:
    """The times of one source for one workload in one mode.

    `machine` is its hardware with the number of threads, `size` the sizes that were run. `scaled`: whether the sizes
    are a fraction of the document's.
    """

    name: str
    machine: str
    size: str
    entries: tuple[SideEntry, ...]
    notes: tuple[str, ...] = ()
    mode: str = "forward"
    scaled: bool = False

    @property
    def ranked(self) -> list[SideEntry]:
        """Entries with a time, fastest first."""
        return sorted((entry for entry in self.entries if entry.seconds is not None), key=lambda entry: entry.seconds)

    @property
    def failed(self) -> list[SideEntry]:
        return [entry for entry in self.entries if entry.status == "failed"]

    @property
    def fastest_text(self) -> str:
        """The title of the fastest entry, and of those that cannot be told from it, named as such."""
        first, *others = (entry.title for entry in self.ranked if entry.seconds < APART * self.ranked[0].seconds)
        return first + (f" and, within {ALIKE}, {' and '.join(others)}" if others else "")

    @property
    def seconds(self) -> dict[str, float]:
        """Implementation -> its time."""
        return {entry.implementation: entry.seconds for entry in self.ranked}

    def only(self, implementations: Collection[str]) -> Side:
        """The side with these implementations alone."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.implementation in implementations))

    def ratio(self, entry: SideEntry) -> float:
        """An entry's time divided by the fastest's."""
        return entry.seconds / self.ranked[0].seconds


def source_text(sides: Sequence[Side]) -> str:
    """Description of the sides of one source: machine and versions, sizes, numbers of batches, notes."""
    fullest = max(sides, key=lambda side: len(side.entries))
    versions = dict.fromkeys(entry.version for entry in fullest.entries if entry.version)
    parts = [fullest.machine, ", ".join(versions)]
    sizes = dict.fromkeys(side.size for side in sides)
    parts += sizes if len(sizes) <= MOST_SIZES else []
    if counts := sorted(entry.n for side in sides for entry in side.entries if entry.n):
        parts.append(f"n = {' to '.join(dict.fromkeys(map(str, (counts[0], counts[-1]))))} batches")
    parts += dict.fromkeys(note for side in sides for note in side.notes)
    return f"{fullest.name}: {'; '.join(filter(None, parts))}."


def today(rows: Iterable, workload: LiteratureWorkload, mode: str, *, as_there: bool = False) -> list[Side]:
    """The recordings of an unscaled workload in one mode: one side per recorded scale, largest first; none if there
    are no recordings.

    Each implementation is represented by one recording (`chosen`). `as_there`: the nearest successor of a program that
    differs from its document's workload is taken on the network that this program has (`AS_THERE`). Raises `UsageError`
    if recordings at one scale are from different machines or have different numbers of threads.
    """
    programs = AS_THERE.items() if as_there else ()
    names = {successors_of(program)[0]: name for (of, program), name in programs if of == workload.name}
    found = [
        row
        for row in rows
        if metrics.is_leading(row) and is_of(row, workload, mode, names.get(row.implementation, workload.name))
    ]
    scales = sorted({row.scale for row in found}, key=Fraction, reverse=True)
    return [_today([row for row in found if row.scale == scale], workload, mode) for scale in scales]


def _today(found: list, workload: LiteratureWorkload, mode: str) -> Side:
    for name, plural in (("machine", "machines"), ("threads", "numbers of threads")):
        if len(kinds := {str(getattr(row, name)) for row in found if row.status == "ok"}) > 1:
            raise UsageError(
                f"{workload.label} ({mode}) was recorded with different {plural}: {', '.join(sorted(kinds))}"
            )
    names = dict.fromkeys(row.implementation for row in found)
    found = [chosen([row for row in found if row.implementation == name]) for name in names]
    entries = tuple(_entry(row, row.title) for row in found)
    first = found[0]
    whole = first.scale == "1"
    size = f"batch {first.batch}, sequence {first.sequence}"
    size += ", as in the document" if whole else f", {first.scale} of the document's size"
    machine = f"{first.hardware}, {count(first.threads, 'thread')}"
    name = "today" if whole else f"today, at scale {first.scale}"
    return Side(name, machine, size, entries, mode=mode, scaled=not whole)


def _entry(row: Any, title: str) -> SideEntry:
    version = f"{row.framework} {row.framework_version}".strip() if row.framework else ""
    return SideEntry(
        row.implementation,
        title,
        row.seconds,
        row.status,
        row.reason,
        getattr(row, "doubt", ""),
        version,
        getattr(row, "n", 0),
    )


def is_of(row: Any, workload: LiteratureWorkload, mode: str, name: str = "") -> bool:
    """Whether a recording, of any scale, belongs to the unscaled `workload`, or to the one of the same sizes with the
    name."""
    # A row whose sizes are no variant of the document has no published sizes; compare its own.
    return (
        row.workload == (name or workload.name)
        and row.mode == mode
        and (row.published_batch or row.batch) == workload.batch
        and (row.published_sequence or row.sequence) == workload.sequence
        and all(getattr(row, size) == getattr(workload, size) for size in ("features", "hidden", "layers"))
    )


def chosen(rows: Sequence) -> Any:
    """The recording that represents an implementation at one scale: of those with the most batches the median one.

    A failure only if all of them failed.
    """
    best = max((row.status == "ok", row.n) for row in rows)
    good = [row for row in rows if (row.status == "ok", row.n) == best]
    return sorted(good, key=lambda row: row.seconds or 0.0)[(len(good) - 1) // 2]


def printed(rows: pd.DataFrame, workload: LiteratureWorkload, mode: str) -> list[Side]:
    """The published figures for the workload in one mode: one side per source and device, the document's first.

    They include cells without a figure.
    """
    sides: dict[tuple[str, str], list] = {}
    every: Any = rows.itertuples()
    for row in every:
        if row.statistic in published.TYPICAL and row.mode == mode and published.matches(row, workload):
            sides.setdefault((row.source, row.device), []).append(row)
    return [_printed(*key, found, workload, mode) for key, found in sides.items()]


def _printed(source: str, device: str, rows: list, workload: LiteratureWorkload, mode: str) -> Side:
    entries = tuple(_entry(row, printed_title(row)) for row in rows)
    hardware = " and ".join(dict.fromkeys(row.hardware for row in rows if row.hardware))
    if device and not hardware:
        hardware = f"unspecified {device.upper()}"
    hardware += "".join(f", {threads} threads" for threads in dict.fromkeys(row.threads for row in rows) if threads)
    size = f"batch {workload.batch}, sequence {workload.sequence}"
    own = source == workload.document
    name = ", ".join(filter(None, (f"document {source}" if own else source, device.upper())))
    return Side(name, hardware, size, entries, notes=tuple(_notes(rows, own)), mode=mode)


def _notes(rows: list, own: bool) -> list[str]:
    """What is to be said of published rows; `own`: the document says what else there is to say."""
    corrected = [printed_title(row) for row in rows if row.corrected]
    notes = [f"corrected: {', '.join(corrected)}, see data/published"] if corrected else []
    if any(row.doubt for row in rows):
        notes.append("? is doubtful, see data/published")
    if not own:
        notes += dict.fromkeys(row.note for row in rows if row.note and not row.corrected)
    return notes


#: Table of document 001 -> what it calls its implementations there, where this package uses others in their place.
PRINTED = {"cuDNN": "CuDNN LSTM", "static CPU": "LSTMCell", "static GPU": "LSTMCell"}

#: Tables that compare versions of a framework, which the titles therefore name.
BY_VERSION = ("results.csv", "1x320-LSTM_cross-entropy_100.png")

#: (document, its name of an implementation) -> the implementations of this package that take its place today, the
#: nearest one first. Names that are not listed are this package's own.
SUCCESSORS: dict[tuple[str, str], tuple[str, ...]] = {
    ("000", "tvm"): ("tvm-untuned", "tvm-tuned"),
    ("000", "cudnn"): ("tensorrt", "pytorch-one-call-eager"),
    ("002", "theano"): ("pytensor-scan",),
    ("002", "tensorflow"): ("tensorflow-static-graph",),
    ("002", "mxnet"): ("mxnet-one-call",),
    ("002", "torch7"): ("pytorch-fused-eager",),
    ("002", "keras-theano"): ("keras-jax", "keras-torch"),
    ("002", "keras-tensorflow"): ("tensorflow-one-call-graph",),
    ("004", ""): ("pytorch-one-call-eager",),
}


def successors(document: str) -> dict[str, tuple[str, ...]]:
    """A document's names of implementations -> those of this package that take their place, the nearest one first."""
    return {name: own for (of, name), own in SUCCESSORS.items() if of == document}


def successors_of(implementation: str) -> tuple[str, ...]:
    """The implementations of this package that take the place of a published one, the nearest one first."""
    return next((own for (_, name), own in SUCCESSORS.items() if name == implementation), (implementation,))


def printed_title(row: Any) -> str:
    """The title of a document's implementation."""
    title = title_of(row.implementation, row.framework)
    if row.table in PRINTED:
        title = f"{row.framework} {PRINTED[row.table]}, {load_implementation(row.implementation).EXECUTION}"
    return f"{title}, {row.framework_version}" if row.table in BY_VERSION else title


def title_of(implementation: str, framework: str) -> str:
    """The title of an implementation; for one that is not in this package, its framework's name."""
    title, own = title_and_framework(implementation)
    return title if own else framework or title


@dataclass(frozen=True)
class ThenAndNow:
    """A side of a document and one of today with the same implementations, beside each other.

    No time of one is divided by a time of the other: each ratio is one within a side, told with its machine. Ties have
    no order.
    """

    what: str
    then: Side
    now: Side

    @property
    def both(self) -> tuple[Side, Side]:
        """The sides with those implementations that have a time in both."""
        common = self.then.seconds.keys() & self.now.seconds.keys()
        return self.then.only(common), self.now.only(common)

    @property
    def sentence(self) -> str:
        """How many times as fast as the slowest the fastest was and is, and how many pairs have changed their order."""
        then, now = self.both
        if len(then.entries) < 2:
            return (
                f"{self.what}: {then.name} and {now.name} have {count(len(then.entries), 'implementation')} in common;"
                " a ratio needs two."
            )
        pairs = [f"{len(found)} {name}" for name, found in self._pairs.items() if found]
        ratios = f"then {_ratio_text(then, 'was')}; now {_ratio_text(now, 'is')}"
        return f"{self.what}: {ratios}. Pairs: {', '.join(pairs)}."

    @property
    def _pairs(self) -> dict[str, list[str]]:
        """What became of the order of two implementations -> the pairs of which this holds."""
        found: dict[str, list[str]] = {"in the same order": [], REVERSE: [], f"tied (within {ALIKE})": []}
        same, reverse, tied = found.values()
        then, now = self.both
        for fast, slow in itertools.combinations(then.ranked, 2):
            gap_then = slow.seconds / fast.seconds
            gap_now = now.seconds[slow.implementation] / now.seconds[fast.implementation]
            order = tied if gap_then < APART or 1 / APART < gap_now < APART else same if gap_now > 1 else reverse
            order.append(f"{fast.title} than {slow.title}")
        return found

    def __str__(self) -> str:
        """The sentence, and the pairs that reversed their order."""
        pairs = self._pairs[REVERSE]
        if not pairs:
            return self.sentence
        named = pairs[:MOST_PAIRS]
        if len(pairs) > MOST_PAIRS:
            named.append("and others")
        sides = f"Faster in {self.then.name}, slower in the recordings of {self.now.name}"
        return f"{self.sentence}\n{sides}: {'; '.join(named)}."


def then_and_now(what: str, then: Side, now: Sequence[Side]) -> ThenAndNow:
    """A document's side beside the one of `now` that has most of its implementations, of equals the first.

    `what` was timed: the sentence begins with it. Each published implementation is beside the nearest of its successors
    that was recorded. An empty `now` is a side without entries.
    """
    found = [_beside(what, then, side) for side in now or [Side("the recordings", "", "", ())]]
    return max(found, key=lambda beside: len(beside.both[0].entries))


def _beside(what: str, then: Side, now: Side) -> ThenAndNow:
    """Both sides with the implementations of `then`, in the names of this package."""
    entries = []
    for entry in then.entries:
        names = successors_of(entry.implementation)
        nearest = next((name for name in names if name in now.seconds), names[0])
        entries.append(replace(entry, implementation=nearest))
    names = {entry.implementation for entry in entries}
    return ThenAndNow(what, replace(then, entries=tuple(entries)), now.only(names))


def _ratio_text(side: Side, verb: str) -> str:
    """How many times as fast as its slowest entry its fastest one is, and on what."""
    fast, slow = (
        f"{entry.title} (doubtful)" if entry.doubt else entry.title for entry in (side.ranked[0], side.ranked[-1])
    )
    if len(side.ranked) > 2:
        fast = f"the fastest of {len(side.ranked)}, {fast},"
        slow = f"the slowest, {slow}"
    ratio = multiple(side.ratio(side.ranked[-1]), "")
    return f"{fast} {verb} {ratio} times as fast as {slow} ({side.machine}; {side.size})"
