"""Compare recordings of a workload with its document's published figures: which implementations are fastest, and how
the order has changed.

The sizes and machines of the two sides differ, so no ratio is formed between them. Each time is
compared only with others of its own side, and times that one process cannot tell apart (`APART`) are ties.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lstm_literature import metrics, published
from lstm_literature.implementations import load_implementation, title_and_framework
from lstm_literature.workloads import LiteratureWorkload
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


@dataclass(frozen=True)
class SideEntry:
    """One implementation of one side; `seconds` (per batch) is None unless `status` is "ok".

    Otherwise `status` is "failed", "no figure" or "empty", with the `reason` in the document's words. `doubt`: why a
    published time is doubtful, or empty.
    """

    implementation: str
    title: str
    seconds: Any  # a float; None without a time
    status: str
    reason: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class Side:
    """The times of one source for one workload in one mode.

    `where` names machine and versions, `size` the sizes that were run, `counts` the numbers of batches
    that were timed (empty if not stated). `scaled`: whether the sizes are a fraction of the document's.
    """

    name: str
    where: str
    size: str
    entries: tuple[SideEntry, ...]
    counts: tuple[int, ...] = ()
    note: str = ""
    mode: str = "forward"
    scaled: bool = False

    @property
    def ranked(self) -> list[SideEntry]:
        """Entries with a time, fastest first."""
        return sorted((entry for entry in self.entries if entry.seconds is not None), key=lambda entry: entry.seconds)

    @property
    def fastest_text(self) -> str:
        """The title of the fastest entry, and of those that cannot be told from it, named as such."""
        first, *others = (entry.title for entry in self.ranked if entry.seconds < APART * self.ranked[0].seconds)
        return first + (f" and, within {ALIKE}, {' and '.join(others)}" if others else "")

    def ratio(self, entry: SideEntry) -> float | None:
        """An entry's time divided by the fastest's; None if it has no time."""
        return None if entry.seconds is None else entry.seconds / self.ranked[0].seconds


def source_text(sides: Sequence[Side]) -> str:
    """Description of the sides of one source: machine and versions, sizes, numbers of batches, notes."""
    fullest = max(sides, key=lambda side: len(side.entries))
    counts = [count for side in sides for count in side.counts]
    batches = f"n = {min(counts)}" + (f" to {max(counts)}" if max(counts) > min(counts) else "") if counts else ""
    sizes = list(dict.fromkeys(side.size for side in sides))
    parts = [fullest.where, *(sizes if len(sizes) <= MOST_SIZES else []), batches and f"{batches} batches"]
    return f"{fullest.name}: {'; '.join(filter(None, [*parts, *dict.fromkeys(side.note for side in sides)]))}."


def today(rows: Iterable, workload: LiteratureWorkload, mode: str) -> list[Side]:
    """The recordings of an unscaled workload in one mode: one side per recorded scale, largest first.

    Each implementation is represented by one recording (`chosen`). Raises `UsageError` if there are none, or if
    recordings at one scale are from different machines or have different numbers of threads.
    """
    found = [row for row in rows if metrics.is_leading(row) and is_of(row, workload, mode)]
    if not found:
        raise UsageError(f"no recording of {workload.label} ({mode}): set record = True to record it on this machine")
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
    first, whole = found[0], found[0].scale == "1"
    versions = sorted({f"{row.framework} {row.framework_version}" for row in found if row.framework})
    size = f"batch {first.batch}, sequence {first.sequence}"
    size += ", as in the document" if whole else f", {first.scale} of the document's size"
    threads = f"{first.threads} thread{'s' if first.threads > 1 else ''}"
    name = "today" if whole else f"today, at scale {first.scale}"
    counts = tuple(sorted({row.n for row in found if row.n}))
    where = f"{first.hardware}, {threads}; {', '.join(versions)}"
    return Side(name, where, size, entries, counts, mode=mode, scaled=not whole)


def _entry(row: Any, title: str) -> SideEntry:
    return SideEntry(row.implementation, title, row.seconds, row.status, row.reason, getattr(row, "doubt", ""))


def is_of(row: Any, workload: LiteratureWorkload, mode: str) -> bool:
    """Whether a recording, of any scale, belongs to the unscaled `workload`."""
    # A row whose sizes are no variant of the document has no published sizes; compare its own.
    batch, sequence = row.published_batch or row.batch, row.published_sequence or row.sequence
    sizes = (batch, sequence, row.features, row.hidden, row.layers)
    wanted = (workload.batch, workload.sequence, workload.features, workload.hidden, workload.layers)
    return (row.workload, row.mode, sizes) == (workload.name, mode, wanted)


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
        if row.statistic in published.TYPICAL and published.matches(row, workload) and row.mode == mode:
            sides.setdefault((row.source, row.device), []).append(row)
    return [replace(_printed(*key, found, workload), mode=mode) for key, found in sides.items()]


def _printed(source: str, device: str, rows: list, workload: LiteratureWorkload) -> Side:
    entries = tuple(_entry(row, printed_title(row)) for row in rows)
    hardware = " and ".join(dict.fromkeys(row.hardware for row in rows if row.hardware)) or (
        f"unspecified {device.upper()}" if device else ""
    )
    hardware += "".join(f", {threads} threads" for threads in dict.fromkeys(row.threads for row in rows) if threads)
    versions = dict.fromkeys(f"{row.framework} {row.framework_version}".strip() for row in rows if row.framework)
    size = f"batch {workload.batch}, sequence {workload.sequence}"
    corrected = [printed_title(row) for row in rows if row.corrected]
    notes = [f"corrected: {', '.join(corrected)}, see data/published"] if corrected else []
    notes += ["? is doubtful, see data/published"] if any(row.doubt for row in rows) else []
    if source != workload.document:
        notes += dict.fromkeys(row.note for row in rows if row.note and not row.corrected)
    where = "; ".join(filter(None, (hardware, ", ".join(versions))))
    name = f"document {source}" if source == workload.document else source
    name = ", ".join(filter(None, (name, device.upper())))
    return Side(name, where, size, entries, note="; ".join(notes))


#: Table of document 001 -> what it calls its implementations there, where this package uses others in their place.
PRINTED = {"cuDNN": "CuDNN LSTM", "static CPU": "LSTMCell", "static GPU": "LSTMCell"}

#: Tables that compare versions of a framework, which the titles therefore name.
BY_VERSION = ("results.csv", "1x320-LSTM_cross-entropy_100.png")

#: (document, its name of an implementation) -> the implementations of this package that take its place today, the
#: nearest one first, or the reason why there is none. Names that are not listed are this package's own.
SUCCESSORS: dict[tuple[str, str], tuple[str, ...] | str] = {
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
    return {name: own for (of, name), own in SUCCESSORS.items() if of == document and not isinstance(own, str)}


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


def order_text(then: Side, now: Side) -> str:
    """Changes in the order of the implementations that both sides have, as text; ties have no order."""
    common = {entry.implementation for entry in then.ranked} & {entry.implementation for entry in now.ranked}
    before, after = (
        replace(side, entries=tuple(entry for entry in side.ranked if entry.implementation in common))
        for side in (then, now)
    )
    if len(common) < 2:
        return f"{then.name} and {now.name} have {count(len(common), 'implementation')} in common: no order to compare."
    fastest = [f"{side.fastest_text} ({side.name})" for side in (before, after)]
    sentences = [f"Fastest of the {len(common)} implementations in both: {'; '.join(fastest)}."]
    seconds = {entry.implementation: entry.seconds for entry in after.entries}
    found: dict[str, list[str]] = {"in the same order": [], "in the reverse order": [], f"tied (within {ALIKE})": []}
    same, reverse, close = found.values()
    for fast, slow in itertools.combinations(before.ranked, 2):
        gap_then, gap_now = slow.seconds / fast.seconds, seconds[slow.implementation] / seconds[fast.implementation]
        group = close if gap_then < APART or 1 / APART < gap_now < APART else same if gap_now > 1 else reverse
        group.append(f"{fast.title} than {slow.title}")
    pairs = count(sum(map(len, found.values())), "pair")
    sentences.append(f"Of {pairs}: {', '.join(f'{len(names)} {name}' for name, names in found.items() if names)}.")
    if reverse:
        named = reverse[:MOST_PAIRS] + ["and others"] * (len(reverse) > MOST_PAIRS)
        sentences.append(f"Faster in {then.name}, slower in the recordings of {now.name}: {'; '.join(named)}.")
    return "\n".join(sentences)


def filled(then: Side, now: Side) -> list[dict]:
    """The document's cells without a figure, with today's time; one dictionary per table row."""
    recorded = {entry.implementation: entry for entry in now.entries}
    missing = SideEntry("", "", None, "empty", "not recorded")
    empty = [(entry, recorded.get(entry.implementation, missing)) for entry in then.entries if entry.status != "ok"]
    return [
        {
            "document": then.name,
            "implementation": entry.title,
            "printed": entry.reason or entry.status,
            "seconds per batch today": found.seconds,
            "ratio to fastest today": now.ratio(found),
            "note": found.reason,
        }
        for entry, found in empty
    ]


def succeeded_by(side: Side, successors: Mapping[str, str]) -> Side:
    """The side with discontinued implementations renamed to their current successors.

    `successors`: the document's name -> this package's name; other implementations are omitted.
    """
    kept = (entry for entry in side.entries if entry.implementation in successors)
    entries = tuple(replace(entry, implementation=successors[entry.implementation]) for entry in kept)
    return replace(side, entries=entries)
