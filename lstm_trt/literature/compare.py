"""Today's recordings of a workload beside what its document printed: who is fastest, and what changed in the order.

Sizes and machines of the two sides differ, so times are never divided across them. Each side is
compared within itself: a time, and its ratio to the fastest of the side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lstm_trt.config.errors import UsageError
from lstm_trt.literature import metrics, published
from lstm_trt.literature.implementations import title_and_framework
from lstm_trt.literature.workloads import LiteratureWorkload

#: Two times of one side count as different from this ratio on, as one process against another does in `compare`.
APART = 1.10

#: More sizes than these are not listed: the pictures' own labels show them.
MOST_SIZES = 3


@dataclass(frozen=True)
class Entry:
    """One implementation of one side; `seconds` of one batch is None unless `status` is "ok".

    `status` is else "failed", "no figure" or "empty", with the `reason` in the document's words.
    """

    implementation: str
    title: str
    seconds: float | None
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Side:
    """What one source says of one workload in one mode.

    `where` names machine and versions, `size` what was run, `counts` the numbers of batches behind
    the times (empty where that is not stated).
    """

    name: str
    where: str
    size: str
    entries: tuple[Entry, ...]
    counts: tuple[int, ...] = ()
    note: str = ""

    @property
    def ranked(self) -> list[Entry]:
        """Those with a time, the fastest first."""
        return sorted((entry for entry in self.entries if entry.seconds is not None), key=lambda entry: entry.seconds)

    def ratio(self, entry: Entry) -> float | None:
        """An entry's time over the fastest's; None where it has none."""
        return None if entry.seconds is None else entry.seconds / self.ranked[0].seconds


def source_text(sides: Sequence[Side]) -> str:
    """What stands behind sides of one source: machine and versions, sizes, numbers of batches, notes."""
    fullest = max(sides, key=lambda side: len(side.entries))
    counts = [count for side in sides for count in side.counts]
    batches = f"n = {min(counts)}" + (f" to {max(counts)}" if max(counts) > min(counts) else "") if counts else ""
    sizes = list(dict.fromkeys(side.size for side in sides))
    parts = [fullest.where, *(sizes if len(sizes) <= MOST_SIZES else []), batches and f"{batches} batches"]
    return f"{fullest.name}: {'; '.join(filter(None, [*parts, *dict.fromkeys(side.note for side in sides)]))}."


def today(rows: Iterable[metrics.Row], workload: LiteratureWorkload, mode: str) -> list[Side]:
    """The recordings of an unscaled workload in one mode: a side a scale at which they were made, the largest first.

    Of several rounds the middle one counts. Raises `UsageError` where there are none, or where those
    of one scale were made on unlike machines or with unlike threads.
    """
    leading = metrics.LEADING[workload.document]
    found = [row for row in rows if (row.statistic, row.unit) == leading and _is_of(row, workload, mode)]
    if not found:
        raise UsageError(f"there is no recording of {workload.label} ({mode}): set record = True to record it here")
    scales = sorted({row.scale for row in found}, key=Fraction, reverse=True)
    return [_today([row for row in found if row.scale == scale], workload, mode) for scale in scales]


def _today(found: list[metrics.Row], workload: LiteratureWorkload, mode: str) -> Side:
    for name in ("machine", "threads"):
        if len(kinds := {str(getattr(row, name)) for row in found if row.status == "ok"}) > 1:
            raise UsageError(f"{workload.label} ({mode}) was recorded with unlike {name}: {', '.join(sorted(kinds))}")
    names = dict.fromkeys(row.implementation for row in found)
    entries = tuple(_middle(name, [row for row in found if row.implementation == name]) for name in names)
    first, whole = found[0], found[0].scale == "1"
    versions = sorted({f"{row.framework} {row.framework_version}" for row in found if row.framework})
    size = f"batch {first.batch}, sequence {first.sequence}"
    size += ", the document's size" if whole else f", scale {first.scale} of the document's"
    threads = f"{first.threads} thread{'s' if first.threads > 1 else ''}"
    name = "today" if whole else f"today, at {first.scale} of the size"
    counts = tuple(sorted({row.n for row in found if row.n}))
    return Side(name, f"{first.hardware}, {threads}; {', '.join(versions)}", size, entries, counts)


def _is_of(row: metrics.Row, workload: LiteratureWorkload, mode: str) -> bool:
    # What is no variant of the document has no published sizes and must have these itself.
    batch, sequence = row.published_batch or row.batch, row.published_sequence or row.sequence
    sizes = (batch, sequence, row.features, row.hidden, row.layers)
    wanted = (workload.batch, workload.sequence, workload.features, workload.hidden, workload.layers)
    return (row.workload, row.mode, sizes) == (workload.name, mode, wanted)


def _middle(name: str, rounds: Sequence[metrics.Row]) -> Entry:
    good = sorted((row for row in rounds if row.seconds is not None), key=lambda row: row.seconds)
    if not good:
        return Entry(name, rounds[0].title, None, "failed", rounds[0].reason)
    row = good[(len(good) - 1) // 2]
    return Entry(name, row.title, row.seconds, "ok")


def printed(rows: Iterable[published.Row], workload: LiteratureWorkload, mode: str) -> list[Side]:
    """What the document prints of the workload in one mode: a side a device, cells without a figure included."""
    sides: dict[str, list[published.Row]] = {}
    for row in rows:
        if row.statistic in published.TYPICAL and row.matches(workload) and row.mode == mode:
            sides.setdefault(row.device, []).append(row)
    return [_printed(device, found, workload) for device, found in sides.items()]


def _printed(device: str, rows: list[published.Row], workload: LiteratureWorkload) -> Side:
    entries = tuple(
        Entry(row.implementation, title_of(row.implementation, row.framework), row.seconds, row.status, row.reason)
        for row in rows
    )
    hardware = " and ".join(dict.fromkeys(row.hardware for row in rows if row.hardware)) or (
        f"a {device.upper()}" if device else ""
    )
    versions = dict.fromkeys(f"{row.framework} {row.framework_version}".strip() for row in rows if row.framework)
    size = f"batch {workload.batch}, sequence {workload.sequence}"
    corrected = [title_of(row.implementation, row.framework) for row in rows if row.corrected]
    note = f"corrected: {', '.join(corrected)}, see data/published" if corrected else ""
    where = "; ".join(filter(None, (hardware, ", ".join(versions))))
    name = ", ".join(filter(None, (f"document {workload.document}", device.upper())))
    return Side(name, where, size, entries, note=note)


def title_of(implementation: str, framework: str) -> str:
    """A name for figures: this lab's where it has the implementation, else the framework's."""
    title, own = title_and_framework(implementation)
    return title if own else framework or title


def order_text(then: Side, now: Side) -> str:
    """What changed in the order of the implementations that both sides have, in sentences."""
    before, after = ({entry.implementation: entry.seconds for entry in side.ranked} for side in (then, now))
    common = [name for name in before if name in after]
    if len(common) < 2:
        return (
            f"{then.name} and today have {len(common) or 'no'} implementation in common: there is no order to compare."
        )
    titles = {entry.implementation: entry.title for entry in now.entries}
    sentences = [
        f"Fastest of the {len(common)} that both have: {titles[common[0]]} in {then.name},"
        f" {titles[min(common, key=after.get)]} {now.name}."
    ]
    turned, alike = [], 0
    for fast, slow in itertools.combinations(common, 2):
        gap_then, gap_now = before[slow] / before[fast], after[slow] / after[fast]
        if gap_then >= APART and gap_now <= 1 / APART:
            turned.append(
                f"{titles[slow]} took {gap_then:.3g} times as long as {titles[fast]}:"
                f" it is {1 / gap_now:.3g} times faster now."
            )
        elif gap_then >= APART and gap_now >= APART:
            alike += 1
    pairs = len(common) * (len(common) - 1) // 2
    sentences += turned or ["No pair has changed places by more than 10 %."]
    close = pairs - alike - len(turned)
    order = f"{alike} of {pairs} pairs stand in the order in which they stood"
    sentences.append(order + (f"; {close} lie within 10 %, then or now." if close else "."))
    spread = [max(times[name] for name in common) / min(times[name] for name in common) for times in (before, after)]
    sentences.append(f"From the fastest to the slowest: {spread[0]:.3g} times then, {spread[1]:.3g} times today.")
    return "\n".join(sentences)


def filled(then: Side, now: Side) -> list[dict]:
    """The cells that the document leaves without a figure, each with today's; a dictionary a row of a table."""
    recorded = {entry.implementation: entry for entry in now.entries}
    rows = []
    for entry in then.entries:
        if entry.status == "ok":
            continue
        found = recorded.get(entry.implementation)
        rows.append(
            {
                "document": then.name,
                "implementation": entry.title,
                "printed": entry.reason or entry.status,
                "seconds a batch today": None if found is None else found.seconds,
                "times the fastest today": None if found is None else now.ratio(found),
                "note": found.reason if found else "not recorded",
            }
        )
    return rows


def succeeded_by(side: Side, successors: Mapping[str, str]) -> Side:
    """The side with implementations that are gone in the place of today's that carry on their line.

    `successors`: the document's name -> this lab's; what is not named stays out.
    """
    kept = (entry for entry in side.entries if entry.implementation in successors)
    entries = tuple(replace(entry, implementation=successors[entry.implementation]) for entry in kept)
    return replace(side, entries=entries)
