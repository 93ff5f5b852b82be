"""Medians below the roofline bound, which the arithmetic of the network cannot reach."""

from typing import Any

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import LabError, RunFailed
from lstm_trt.config.format import latency, percent
from lstm_trt.runtimes.base import preparer_of

#: Share of the roofline bound below which a median is not that of the network's arithmetic.
LEAST_OF_BOUND = 0.5


def against_bound(
    configuration: Configuration, provenance: dict[str, Any], median_ns: float
) -> list[str]:
    """Warnings of a median below the roofline bound, which is then computed from rates that are
    measured again.

    `provenance` has the bound, and gets the new one. Nothing may be timed meanwhile. Raises
    `RunFailed` below half of the bound, unless weights that are 0 or repeat explain it: the step
    did not compute what the network states.
    """
    workload = configuration.workload
    bound_ns = provenance.get("floor_ns")
    if bound_ns is None or median_ns >= bound_ns:
        return []
    from lstm_trt.machine import roofline

    try:
        rates = roofline.renewed_rates(configuration.options.threads)
    except (LabError, OSError):  # its text has the path of the cache, which no recording may have
        return [f"{_faster(median_ns, bound_ns)}; the rates could not be measured again"]
    bound_ns = roofline.roofline_bound(workload, rates).total_ns
    provenance["floor_ns"] = bound_ns
    if median_ns >= bound_ns:
        return []
    found = _faster(median_ns, bound_ns)
    if median_ns >= LEAST_OF_BOUND * bound_ns:
        return [found]
    multiplied = preparer_of(workload).multiplied_share(workload)
    if median_ns >= LEAST_OF_BOUND * multiplied * bound_ns:
        return [f"{found}; {percent(1 - multiplied)} of its weights are 0 or repeat one number"]
    raise RunFailed(
        f"{found}; the step computes only a part of the network, as with lengths or counts of 0"
    )


def _faster(median_ns: float, bound_ns: float) -> str:
    return (
        f"faster than this network's arithmetic: a median of {latency(median_ns / 1e3)} is"
        f" {median_ns / bound_ns:.2g} of its roofline bound, {latency(bound_ns / 1e3)}"
    )
