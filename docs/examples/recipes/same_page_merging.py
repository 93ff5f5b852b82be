"""A check of doctor: a function of `lstm_trt/machine/checks.py`."""

from pathlib import Path

from lstm_trt.machine.checks import Found, check
from lstm_trt.machine.linux import read_text


@check("same-page merging", "the kernel may merge pages of the process")
def same_page_merging(root: Path) -> Found:
    running = read_text("/sys/kernel/mm/ksm/run", root)
    if running is None:
        return None
    if running == "0":
        return "off", "good", "no page of the process is merged"
    meaning = "a merged page is copied when the process writes to it"
    return "on", "attention", meaning, "echo 0 | sudo tee /sys/kernel/mm/ksm/run"
