"""A configuration of a shape as the arguments of `lstm-trt record` and `sweep` that ask for it."""

from __future__ import annotations

from lstm_trt.config.configuration import Configuration

#: What both commands do without being told.
DEFAULTS = {
    "--features": "12",
    "--directions": "1",
    "--precision": "fp32",
    "--threads": "1",
    "--device-clocks": "off",
    "--warmup": "10",
    "--seed": "0",
    "--arrival": "closed",
    "--wait": "none",
}


def flags_of(configuration: Configuration) -> dict[str, tuple[str, ...]]:
    """Flag -> its values, in the order in which people give them; what goes without saying is left out."""
    options, protocol = configuration.options, configuration.protocol
    given: dict[str, object] = {f"--{axis}": size for axis, size in configuration.workload.axes.items()}
    given |= {"--runtime": configuration.runtime, "--precision": options.precision, "--threads": options.threads}
    given |= {"--device": options.device, "--device-clocks": options.device_clocks}
    for name in ("trials", "warmup", "seed", "arrival", "period_us", "pause_ms", "wait"):
        given[f"--{name.replace('_', '-')}"] = getattr(protocol, name)
    told = {flag: _text(value) for flag, value in given.items() if value is not None}
    told = {flag: (text,) for flag, text in told.items() if DEFAULTS.get(flag) != text}
    return told | ({"--graph": ()} if options.graph else {})


def _text(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
