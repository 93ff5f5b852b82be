"""The control run: an empty step with the same arrivals, which shows the delays that the machine itself causes.

It runs in the same pinned process right after the trials. A stall of the machine (another
task, the hypervisor, a firmware interrupt) delays an empty step as it delays any other, so
delays seen in both runs are not caused by the network.

With closed and paused arrivals, the core spins for the recording's median latency in place
of each call, since an empty step takes no time; the latency is the delay beyond that. With
periodic arrivals, calls are due once per period as in the recording, and the latency is
counted from the due time.
"""

import resource
import time

import numpy as np

from lstm_trt.config.configuration import Protocol
from lstm_trt.machine.switches import Switches
from lstm_trt.recorder.loop import Block, ends, quiet_collector

LONGEST_S = 60.0

MOST_CALLS = 1_000_000

#: Calls that sleep are read from the ring of `switches` after so many.
MOST_SLEEPS = 5_000

#: Upper estimate of the loop's own time per call.
LEAST_SPACING_NS = 2_000


def _empty() -> None:
    pass


def run_control(
    protocol: Protocol, calls: int, median_ns: float, switches: Switches | None = None
) -> tuple[dict[str, np.ndarray], dict]:
    """The control run of a recording with `calls` trials and this median latency.

    Runs the same number of calls, at most a million, for at most a minute. Returns the
    columns `start_ns` (due time of each call, from the start of the loop), `latency_ns`
    (from the due time), and where `switches` measures them `preempted_ns` and `off_core_ns`
    (also from the due time), all int64; and a description of the run, as JSON values.
    """
    spacing_ns = round(1e3 * protocol.period_us) if protocol.period_us else max(LEAST_SPACING_NS, round(median_ns))
    turn_ns = spacing_ns + 1e6 * (protocol.pause_ms or 0)
    calls = max(1, min(calls, MOST_CALLS, int(1e9 * LONGEST_S / turn_ns)))
    block = Block(calls, protocol, 0 if protocol.arrival == "periodic" else spacing_ns)
    who, began, clock = resource.RUSAGE_THREAD, time.perf_counter_ns(), time.perf_counter_ns
    end_ns, taken = began + int(1e9 * LONGEST_S), []
    with quiet_collector():
        while calls > 0 and (not taken or clock() < end_ns):
            if switches:
                switches.discard()
            most = MOST_SLEEPS if protocol.wait in ("sleep", "os") else calls
            calls -= block.run(_empty, min(calls, most), who, end_ns - clock())
            block.rest()
            part = block.take(resource.getrusage(who))
            taken.append(part | (switches.take(part["intended_ns"], ends(part)) if switches else {}))
    columns = {name: np.concatenate([part[name] for part in taken]) for name in taken[0]}
    start_ns, latency_ns = columns["intended_ns"] - began, columns["latency_ns"]
    facts = {
        "arrival": protocol.arrival,
        "wait": protocol.wait if protocol.arrival == "periodic" else "spin",
        "spacing_us": spacing_ns / 1e3,
        **({"pause_ms": protocol.pause_ms} if protocol.pause_ms else {}),
        "calls": len(latency_ns),
        "median_us": float(np.median(latency_ns)) / 1e3,
        "max_us": int(latency_ns.max()) / 1e3,
    }
    off_core = {name: columns[name] for name in ("preempted_ns", "off_core_ns") if name in columns}
    return {"start_ns": start_ns, "latency_ns": latency_ns, **off_core}, facts
