"""Summaries as text. No code parses it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lstm_judge.outliers.text import clusters_text
from lstm_judge.read.labels import cell_text, version_text
from lstm_judge.read.numbers import scientific, table
from lstm_judge.summarize.summarize import FIELDS, SummaryRow
from lstm_trt.config.configuration import Options
from lstm_trt.config.fields import About, Tells, about
from lstm_trt.config.format import latency, microseconds, short_number
from lstm_trt.store import provenance
from lstm_trt.store.provenance import Fact

Rows = Sequence[SummaryRow]


@dataclass(frozen=True)
class Column:
    """A column of the table: the value for a row, whether it is shown for these rows, and what the
    legend says of it.

    In a narrow terminal the columns with `drop` are left out, 1 first.
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
    headings = [column.heading for column in columns]
    star = any("*" in cell for cells in lines for cell in cells)
    legends = [column.legend for column in columns] + ["*: n too small for an upper bound"] * star
    if any(row.below_floor for row in rows):
        legends.append("!: the median is below the bound")
    counts = headings.index("outliers")
    legend = (["latencies in us after warm-up", *legends[:counts]], legends[counts:])
    dropped = sorted((column for column in columns if column.drop), key=lambda column: column.drop)
    body = table(headings, lines, left=("clusters",), drop=[column.heading for column in dropped])
    return "\n".join([*("; ".join(filter(None, texts)) for texts in legend), body])


def shown(rows: Rows) -> tuple[int, list[Column], list[list[str]]]:
    """The number of columns that tell these rows apart, these and all others, and the cells of each
    row.

    Those of a failure end with the reason.
    """
    named = NAMES
    if any(row.runtime is None for row in rows):
        keys = dict.fromkeys(key for row in rows for key in row.group)
        named = tuple(Column(str(key), lambda row, key=key: row.group.get(key)) for key in keys)
    names = [column for column in (*named, ROUNDS) if column.shown(rows)]
    columns, lines = [*names, *(column for column in _statistics(rows) if column.shown(rows))], []
    for row in rows:
        reason = f"failed at {row.stage}: {row.reason}" if row.stage else f"failed: {row.reason}"
        texts = [column.cell(row) for column in (columns if row.status == "ok" else names)]
        lines.append(
            ["-" if cell is None else str(cell) for cell in texts] + [reason] * (row.status != "ok")
        )
    return len(names), columns, lines


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table; the rows of failures are filled up."""
    _, columns, lines = shown(rows)
    return [column.heading for column in columns], [
        line + [""] * (len(columns) - len(line)) for line in lines
    ]


def _network(row: SummaryRow) -> str | None:
    if row.layers is None or row.hidden is None:
        return None
    return f"{row.layers}x{row.hidden}" + " bi" * (row.directions == 2)


def _sizes_vary(rows: Rows) -> bool:
    """Whether the sequence or batch of a workload varies; the name of a workload states its other
    sizes."""
    sizes = {(row.group.get("workload"), row.sequence, row.batch) for row in rows}
    return _unnamed(rows) or len(sizes) > len({name for name, _, _ in sizes})


def _versions_vary(rows: Rows) -> bool:
    """Whether a runtime has several versions."""
    return len({(row.runtime, row.runtime_version) for row in rows}) > len(
        {row.runtime for row in rows}
    )


def _named(rows: Rows) -> bool:
    return any("workload" in row.group for row in rows)


def _unnamed(rows: Rows) -> bool:
    return not all("workload" in row.group for row in rows)


def _any(name: str) -> Callable[[Rows], bool]:
    """Whether a row has this field, and it is not 0."""
    return lambda rows: any(getattr(row, name) for row in rows)


def _inexact(rows: Rows) -> bool:
    """Whether a precision is not float32, or the outputs of a row were not checked."""
    recorded = [row for row in rows if row.status == "ok" and row.config_id is not None]
    return any(row.precision != Options.precision or row.parity_error is None for row in recorded)


def _value(row: SummaryRow, field: About) -> object:
    return (
        getattr(row, field.name)
        if field.name in FIELDS
        else row.group.get(field.name, field.default)
    )


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
    return "refused" if row.graph and row.graph_captured is False else "yes" if row.graph else "no"


def _arrival(row: SummaryRow) -> str:
    text = f"pause {latency(1e3 * row.pause_ms, 3)}" if row.pause_ms else str(row.arrival)
    text = f"{short_number(row.period_us)} us {row.wait}" if row.period_us else text
    return text + ", silence" * ("after_warmup" in row.group)


#: Columns that tell the configurations apart.
NAMES = (
    Column("workload", lambda row: row.group.get("workload"), shown=_named),
    Column(
        "mode",
        lambda row: row.mode,
        shown=lambda rows: _named(rows) or any(row.mode != "forward" for row in rows),
    ),
    Column("network", _network, "network: layers x hidden", shown=_unnamed),
    Column("seq", lambda row: row.sequence, shown=_sizes_vary),
    Column("batch", lambda row: row.batch, shown=_sizes_vary),
    Column("runtime", lambda row: row.runtime),
    Column(
        "version",
        lambda row: version_text(str(row.runtime), str(row.runtime_version)),
        shown=_versions_vary,
    ),
    *_options(),
    Column("graph", _graph, shown=_any("graph")),
    Column("arrival", _arrival, shown=lambda rows: any(_arrival(row) != "closed" for row in rows)),
)


def _rounds(row: SummaryRow) -> object:
    return row.rounds if row.round is None else f"r{row.round}"


ROUNDS = Column(
    "rounds",
    _rounds,
    shown=lambda rows: any(row.rounds > 1 or row.round is not None for row in rows),
)


def _error(row: SummaryRow) -> str:
    if row.parity_error is not None:
        return scientific(row.parity_error)
    return f"not checked: {row.not_checked}" if row.not_checked else "not checked"


def _clusters(row: SummaryRow) -> str | None:
    return None if row.clusters is None else clusters_text(row.clusters, short=True)


def _us(name: str) -> Callable[[SummaryRow], str]:
    """The text of a latency in us, with a star if its upper bound is missing."""
    return lambda row: _starred(getattr(row, name), getattr(row, f"{name}_high", row.max_us))


def _starred(value_us: float | None, high_us: float | None) -> str:
    return microseconds(value_us) + "*" * (high_us is None)


def _floor(row: SummaryRow) -> str:
    return f"{microseconds(row.floor_us)}!" if row.below_floor else microseconds(row.floor_us)


def _facts() -> list[Column]:
    """A column for each fact of recordings that has a heading."""

    def column(fact: Fact) -> Column:
        def value(row: SummaryRow) -> Any:
            return (
                getattr(row, fact.column) if fact.column in FIELDS else row.facts.get(fact.column)
            )

        def cell(row: SummaryRow) -> str | None:
            return None if value(row) is None else fact.text(value(row))

        return Column(
            fact.heading, cell, fact.legend, shown=lambda rows: any(value(row) for row in rows)
        )

    return [column(fact) for fact in provenance.columns().values() if fact.heading]


#: What was measured: the maximum, percentiles unless others were asked for, and what follows them.
FIRST = (Column("n", lambda row: row.n, "n: number of trials"), Column("max", _us("max_us")))
USUAL = (
    Column("p99.9", _us("p999_us"), drop=10),
    Column("p99", _us("p99_us"), drop=9),
    Column("p90", _us("p90_us"), drop=5),
    Column("median", _us("median_us")),
)
OTHERS = (
    Column("mean", _us("mean_us"), drop=3),
    Column("std", _us("std_us"), drop=1),
    Column("min", _us("min_us"), drop=2),
    Column("parity error", _error, "parity error: relative to float32", drop=8, shown=_inexact),
    Column(
        "roofline", _floor, "roofline: lower bound for this machine", drop=4, shown=_any("floor_us")
    ),
    Column("outliers", lambda row: row.outliers, "outliers: outside 1.5 x IQR (box plot)", drop=6),
    *_facts(),
    Column(
        "clusters",
        _clusters,
        "clusters: share of the calls at a multiple of the local median",
        drop=7,
    ),
)


def _statistics(rows: Rows) -> list[Column]:
    def asked(place: int, heading: str) -> Column:
        return Column(
            heading, lambda row: _starred(row.percentiles[place].us, row.percentiles[place].high_us)
        )

    several = max((row.percentiles for row in rows), key=len, default=())
    chosen = [asked(place, each.heading) for place, each in enumerate(several)]
    return [*FIRST, *(chosen or USUAL), *OTHERS]
