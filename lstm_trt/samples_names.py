"""What the columns of a table from elsewhere mean, told by their names.

Tables come out of harnesses, loggers and spreadsheets: `latency_us`, `Latency [us]`,
`latencyMs`, `Average time (s)`. A unit is believed only where it stands apart from the rest
of the name: in brackets, behind a separator, or as the capital end of a camel-case word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lstm_trt.times_tables import normal_name

UNIT_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_SPELLINGS = {
    "ns": ("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"),
    "us": ("us", "µs", "μs", "usec", "usecs", "microsecond", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_WORDS = "|".join(sorted(_UNITS, key=len, reverse=True))
_IN_BRACKETS = re.compile(rf"^(?P<stem>.*?)[\s_]*[\[({{<]\s*(?:in\s+)?(?P<unit>{_WORDS})\s*[\])}}>]$", re.IGNORECASE)
_BEHIND = re.compile(rf"^(?:(?P<stem>.*?)[\s_./-]+)??(?:in[\s_]+)?(?P<unit>{_WORDS})$", re.IGNORECASE)
_CAMEL = re.compile(r"^(?P<stem>.*[a-z0-9])(?P<unit>Ns|Us|Ms|Sec|Nanos|Micros|Millis)$")
_CAMEL_UNITS = {"nanos": "ns", "micros": "us", "millis": "ms"} | _UNITS


def _words(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word for word in re.split(r"[\s_.\-/:]+", apart.casefold()) if word]


#: Names of the column of times, the first that is there counts; all of one row are as good.
_TIME_STEMS = (
    ("latency", "latencies"),
    ("duration", "durations", "elapsed", "elapsed time", "response time", "execution time", "inference time"),
    ("latency time", "time", "times", "runtime", "wall time", "wall", "real time", "rtt", "delay", ""),
    ("average latency", "mean latency", "avg latency", "median latency"),
    ("average time", "mean time", "avg time", "median time", "average", "mean", "median"),
)
_START_STEMS = (
    *("intended", "intended start", "start", "start time", "starttime", "started", "begin", "begin time"),
    *("start in", "start enq", "start h2d", "start compute", "timestamp", "time stamp", "ts", "time"),
)
WARMUP_NAMES = ("warmup", "warm up", "is warmup", "is warm up")
#: Each value is a process of its own.
ROUND_NAMES = ("round", "process", "pid")
TRIAL_NAMES = ("trial", "iteration", "iter", "index", "idx", "sample", "call", "request", "no", "nr", "i", "n")
_NO_TIMES = {*TRIAL_NAMES, *ROUND_NAMES, *WARMUP_NAMES, "id", "run", "step", "unnamed: 0", "row", "epoch", "seed"}

_CONFIGURATION = set(
    _words(
        "layers layer hidden units sequence sequences seq seqlen timesteps steps batch batchsize features inputs"
        " directions bidirectional runtime backend framework engine model models network net architecture arch config"
        " configuration configs variant device gpu machine host hostname precision dtype quantization quantized threads"
        " mode graph kernel provider workload experiment scenario case benchmark bench test name label group category"
        " method algorithm implementation impl system platform library lib version shape size setting settings arrival"
        " period pause wait clocks optimizer compiler flags tool client server hyperparameters"
    )
)
#: Words that change nothing beside one of those: `num_layers`, `hidden size`.
_BESIDE = set(
    _words(
        "num number n nr no of count length len lstm gru rnn type kind name id dim dims dimension time the per in us ms"
        " intra inter op core cores stacked cell cells"
    )
)
#: Any two values of these are a mixture, however few rows there are; of the second, where they are text.
_SIZES = {"layers", "layer", "hidden", "units", "sequence", "sequences", "seqlen", "batch", "batchsize", "directions"}
_NAMES = {"model", "network", "runtime", "config", "configuration", "framework", "backend", "precision"}
#: Text that tells how a single trial went.
_OF_A_TRIAL = set(
    _words(
        "status result outcome ok error comment comments note notes message msg phase state flag reason level severity"
        " warning event timestamp time date day hour minute cause throttled type thread cpu core"
    )
)


def split_unit(name: str) -> tuple[str, str | None]:
    """`"Latency [us]"` -> `("latency", "us")`; the stem has spaces between its words and no capitals.

    The unit is None where the name has none: `times` and `focus` do not end in a unit.
    """
    name = " ".join(name.split())
    for pattern in (_IN_BRACKETS, _CAMEL, _BEHIND):
        found = pattern.match(name)
        if found:
            return " ".join(_words(found["stem"] or "")), _CAMEL_UNITS[found["unit"].casefold()]
    return " ".join(_words(name)), None


def find_times(numeric: Iterable[str]) -> list[str]:
    """Of the names of the columns with numbers, the one of the times: one name where it is clear.

    Several where it is not, none where there is nothing that may be one. Well-known names
    first (latency before duration before time before averages), then names that have
    "latency" in them, then the only column that is no index, start or size.
    """
    numeric = list(numeric)
    stems = {name: split_unit(name) for name in numeric}
    for row in _TIME_STEMS:
        found = [name for name in numeric if stems[name][0] in row and (stems[name][0] or stems[name][1])]
        if found:
            return found
    found = [name for name in numeric if "latency" in stems[name][0].split()]
    if found:
        return found
    left = [name for name in numeric if not (_no_time(name) or is_start(name) or names_configuration(name))]
    with_unit = [name for name in left if stems[name][1]]
    return with_unit or left


def _no_time(name: str) -> bool:
    return " ".join(_words(name)) in _NO_TIMES or normal_name(name) in _NO_TIMES


def is_start(name: str) -> bool:
    """Whether a column of this name tells when a call began, on some clock."""
    return split_unit(name)[0] in _START_STEMS[:-1]


def find_starts(names: Iterable[str]) -> list[str]:
    """Columns that may tell when the calls began, the best first."""
    stems = {name: split_unit(name)[0] for name in names}
    found = [name for name in stems if stems[name] in _START_STEMS]
    return sorted(found, key=lambda name: _START_STEMS.index(stems[name]))


def find_named(names: Iterable[str], known: Iterable[str]) -> str | None:
    """The first of the names that is one of the known, without case and separators."""
    known = tuple(known)
    return next((name for name in names if " ".join(_words(name)) in known), None)


def are_averages(name: str) -> bool:
    """Whether the times of a column of this name are averages, whose tail is gone."""
    return not {"average", "avg", "mean", "median"}.isdisjoint(_words(name))


def names_configuration(name: str) -> bool:
    """Whether a column of this name says what was measured: `hidden_size`, `Num LSTM layers`, `runtime`.

    `gpu_temperature` or `batch_time_us` have a further word, and do not.
    """
    words = set(_words(name))
    return not words.isdisjoint(_CONFIGURATION) and words <= _CONFIGURATION | _BESIDE and not _is_a_part(name)


def _is_a_part(name: str) -> bool:
    """`kernel_us`, `network_ms`: a time within the call; only a period or a pause is a setting."""
    stem, unit = split_unit(name)
    return unit is not None and stem not in ("period", "pause", "arrival period")


def mixes(name: str, kind: str, values: int, rows: int) -> bool:
    """Whether a column with so many distinct values in so many rows shows that configurations are mixed.

    `kind`: "text", "number" (of any kind) or "bool". A size, or the text of a model or runtime, does
    with any two values; another name of a configuration where values repeat, twice on average; any other
    column only where it is text, does not say how a trial went, and repeats ten times on average.
    """
    if values < 2:
        return False
    words = set(_words(name))
    if names_configuration(name):
        sure = _SIZES | _NAMES if kind == "text" else _SIZES
        return not words.isdisjoint(sure) or 2 * values <= rows
    return kind == "text" and words.isdisjoint(_OF_A_TRIAL) and 10 * values <= rows and not _no_time(name)
