"""Summaries as text. No code parses it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lstm_judge.outliers.text import clusters_text
from lstm_judge.read.labels import cell_text, known_text, version_text
from lstm_judge.read.numbers import scientific, table
from lstm_judge.summarize.summarize import SummaryRow
from lstm_trt.config.configuration import Options
from lstm_trt.config.fields import About, Tells, about
from lstm_trt.config.format import count, latency, microseconds, short_number
from lstm_trt.store import provenance
from lstm_trt.store.provenance import Fact

Rows = Sequence[SummaryRow]

#: Legend of the star at a percentile.
STAR = "*: n too small for an upper bound"


@dataclass(frozen=True)
class Column:
    """A column of the table: the value for a row, whether it is shown for these rows, and what the
    legend says of it.

    In a narrow terminal and in a notebook the columns with `drop` are left out, 1 first.
    """

    heading: str
    cell: Callable[[SummaryRow], object]
    legend: str = ""
    drop: int = 0
    shown: Callable[[Rows], bool] = lambda rows: True


def text(rows: Rows) -> str:
    """The summary as a text table; the maximum comes first, times are in us.

    A star marks a percentile without an upper bound at this n. Rows of tables from elsewhere show
    their group instead of a shape.
    """
    _, columns, lines = shown(rows)
    header = [column.heading for column in columns]
    body = table(header, lines, left=("clusters",), drop=least(rows))
    return "\n".join([*legend(rows), body])


def least(rows: Rows) -> list[str]:
    """Headings of the columns that a narrow terminal and a notebook leave out, in this order."""
    columns = [column for column in shown(rows)[1] if column.drop]
    return [column.heading for column in sorted(columns, key=lambda column: column.drop)]


def headline(rows: Rows) -> str:
    """The summary in one line: medians and maximum."""
    measured = [row for row in rows if row.failure is None]
    text = count(len(rows), "row")
    if not measured:
        return f"{text}, without trials"
    medians = [row.percentiles["median"].us or math.inf for row in measured]
    ends = dict.fromkeys(map(microseconds, (min(medians), max(medians))))
    highest = microseconds(max(row.statistics["max_us"] or math.inf for row in measured))
    return f"{text}, median {' to '.join(ends)} us, maximum {highest} us"


def legend(rows: Rows) -> list[str]:
    """What the columns mean: up to the percentiles, and the others."""
    _, columns, lines = shown(rows)
    counts = [column.heading for column in columns].index("outliers")
    legends = [column.legend for column in columns]
    if any("*" in "".join(cells) for cells in lines):
        legends.append(STAR)
    if any(row.floor is not None and row.floor.below for row in rows):
        legends.append("!: the median is below the bound")
    names = ["latencies in us after warm-up", *legends[:counts]]
    return ["; ".join(filter(None, texts)) for texts in (names, legends[counts:])]


def shown(rows: Rows) -> tuple[int, list[Column], list[list[str]]]:
    """The number of columns that tell these rows apart, these and all others, and the cells of each
    row.

    Those of a failure end with the reason.
    """
    named = NAMES
    if any(row.configuration["runtime"] is None for row in rows):
        keys = dict.fromkeys(key for row in rows for key in row.group)
        named = tuple(Column(str(key), lambda row, key=key: row.group.get(key)) for key in keys)
    names = [column for column in (*named, ROUNDS) if column.shown(rows)]
    columns = names + [column for column in _statistics(rows) if column.shown(rows)]
    lines = []
    for row in rows:
        failure = row.failure
        line = []
        for column in columns if failure is None else names:
            cell = column.cell(row)
            line.append("-" if cell is None else str(cell))
        if failure is not None:
            line.append(str(failure) if failure.stage else f"failed: {failure.reason}")
        lines.append(line)
    return len(names), columns, lines


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table; the rows of failures are filled up."""
    _, columns, lines = shown(rows)
    for line in lines:
        line.extend([""] * (len(columns) - len(line)))
    return [column.heading for column in columns], lines


def _network(row: SummaryRow) -> str | None:
    layers = row.configuration["layers"]
    hidden = row.configuration["hidden"]
    if layers is None or hidden is None:
        return None
    return f"{layers}x{hidden} bi" if row.configuration["directions"] == 2 else f"{layers}x{hidden}"


def _different(rows: Rows, *names: str) -> set[tuple]:
    """The values of these columns of the configuration."""
    return {tuple(map(row.configuration.get, names)) for row in rows}


def _sizes_vary(rows: Rows) -> bool:
    """Whether the sequence or batch varies; the name of a workload states its other sizes."""
    return _unnamed(rows) or len(_different(rows, "sequence", "batch")) > 1


def _several(rows: Rows, name: str, of: str) -> bool:
    """Whether one value of the column `of` has several values of this column."""
    return len(_different(rows, of, name)) > len(_different(rows, of))


def _named(rows: Rows) -> bool:
    return any("workload" in row.group for row in rows)


def _unnamed(rows: Rows) -> bool:
    return not all("workload" in row.group for row in rows)


def _inexact(rows: Rows) -> bool:
    """Whether a precision is not float32, or the outputs of a row were not checked."""
    for row in rows:
        if row.failure is None and row.configuration["config_id"] is not None:
            exact = row.configuration["precision"] == Options.precision
            if not exact or row.facts["parity_error"] is None:
                return True
    return False


def _value(row: SummaryRow, field: About) -> object:
    if field.name in row.configuration:
        return row.configuration[field.name]
    return row.group.get(field.name, field.default)


def _options() -> list[Column]:
    """A column for each option, shown if a row has another value than the default; the `kept` ones
    together."""
    fields = [field for field in about(Options).values() if field.tells is Tells.SYSTEM]
    kept = [field for field in fields if field.kept]

    def column(field: About) -> Column:
        def shown(rows: Rows) -> bool:
            return any(
                _value(row, each) not in (None, each.default) for row in rows for each in together
            )

        together = kept if field.kept else [field]
        return Column(field.heading, lambda row: cell_text(field, _value(row, field)), shown=shown)

    return [column(field) for field in fields if field.name != "graph"]


def _graph(row: SummaryRow) -> str:
    if row.configuration["graph"] and row.facts["graph_captured"] is False:
        return "refused"
    return "yes" if row.configuration["graph"] else "no"


def _arrival(row: SummaryRow) -> str:
    protocol = row.configuration
    text = str(protocol["arrival"])
    if protocol["pause_ms"]:
        text = f"pause {latency(1e3 * protocol['pause_ms'], 3)}"
    if protocol["period_us"]:
        text = f"{short_number(protocol['period_us'])} us {protocol['wait']}"
    if "after_warmup" in protocol:
        text += ", silence"
    return f"{text}, FIFO {protocol['fifo']}" if "fifo" in protocol else text


#: Columns that tell the configurations apart.
NAMES = (
    Column("workload", lambda row: row.group.get("workload"), shown=_named),
    Column(
        "mode",
        lambda row: row.configuration["mode"],
        shown=lambda rows: _named(rows) or _different(rows, "mode") != {("forward",)},
    ),
    Column("network", _network, "network: layers x hidden", shown=_unnamed),
    Column("seq", lambda row: row.configuration["sequence"], shown=_sizes_vary),
    Column("batch", lambda row: row.configuration["batch"], shown=_sizes_vary),
    Column("runtime", lambda row: row.configuration["runtime"]),
    Column(
        "version",
        lambda row: version_text(
            str(row.configuration["runtime"]), str(row.configuration["runtime_version"])
        ),
        shown=lambda rows: _several(rows, "runtime_version", of="runtime"),
    ),
    *_options(),
    Column("graph", _graph, shown=lambda rows: {_graph(row) for row in rows} != {"no"}),
    Column("arrival", _arrival, shown=lambda rows: {_arrival(row) for row in rows} != {"closed"}),
    Column(
        "beside",
        lambda row: known_text("beside", row.configuration.get("beside")),
        "beside: what ran during the calls",
        shown=lambda rows: _different(rows, "beside") != {(None,)},
    ),
    Column(
        "load commands",
        lambda row: row.configuration.get("load_commands"),
        shown=lambda rows: _several(rows, "load_commands", of="beside"),
    ),
)


ROUNDS = Column(
    "rounds",
    lambda row: row.rounds.count if row.round is None else f"r{row.round}",
    shown=lambda rows: any(row.rounds.count > 1 or row.round is not None for row in rows),
)


def _error(row: SummaryRow) -> str:
    error = row.facts["parity_error"]
    if error is not None:
        return scientific(error)
    reason = row.facts["not_checked"]
    return f"not checked: {reason}" if reason else "not checked"


def _clusters(row: SummaryRow) -> str | None:
    return None if row.clusters is None else clusters_text(row.clusters, short=True)


def _percentile(key: str) -> Callable[[SummaryRow], str]:
    """The text of a percentile in us, with a star if its upper bound is missing."""

    def cell(row: SummaryRow) -> str:
        found = row.percentiles[key]
        return _starred(found.us, found.high_us is None)

    return cell


def _us(name: str) -> Callable[[SummaryRow], str]:
    """The text of a statistic in us; a star if the maximum is above the range of a histogram."""

    def cell(row: SummaryRow) -> str:
        return _starred(row.statistics[name], row.statistics["max_us"] is None)

    return cell


def _starred(us: float | None, star: bool) -> str:
    return f"{microseconds(us)}*" if star else microseconds(us)


def _floor(row: SummaryRow) -> str:
    if row.floor is None:
        return microseconds(None)
    return f"{microseconds(row.floor.us)}!" if row.floor.below else microseconds(row.floor.us)


def _facts() -> list[Column]:
    """A column for each fact of recordings that has a heading."""

    def column(fact: Fact) -> Column:
        def cell(row: SummaryRow) -> str | None:
            value = row.facts[fact.column]
            return None if value is None else fact.text(value)

        return Column(
            fact.heading,
            cell,
            fact.legend,
            shown=lambda rows: any(row.facts[fact.column] for row in rows),
        )

    return [column(fact) for fact in provenance.columns().values() if fact.heading]


#: What was measured: the maximum, percentiles unless others were asked for, and what follows them.
FIRST = (Column("n", lambda row: row.n, "n: number of trials"), Column("max", _us("max_us")))
USUAL = (
    Column("p99.9", _percentile("p999"), drop=10),
    Column("p99", _percentile("p99"), drop=9),
    Column("p90", _percentile("p90"), drop=5),
    Column("median", _percentile("median")),
)
OTHERS = (
    Column("mean", _us("mean_us"), drop=3),
    Column("std", _us("std_us"), drop=1),
    Column("min", _us("min_us"), drop=2),
    Column("parity error", _error, "parity error: relative to float32", drop=8, shown=_inexact),
    Column(
        "roofline",
        _floor,
        "roofline: lower bound for this machine",
        drop=4,
        shown=lambda rows: any(row.floor is not None for row in rows),
    ),
    Column(
        "outliers",
        lambda row: row.statistics["outliers"],
        "outliers: outside 1.5 x IQR (box plot)",
        drop=6,
    ),
    *_facts(),
    Column(
        "clusters",
        _clusters,
        "clusters: share of the calls at a multiple of the local median",
        drop=7,
    ),
)


def _statistics(rows: Rows) -> list[Column]:
    """Columns of what was measured."""
    asked = {}
    for row in rows:
        for key in row.asked:
            asked[key] = Column(row.percentiles[key].heading, _percentile(key))
    return [*FIRST, *(asked.values() if asked else USUAL), *OTHERS]
