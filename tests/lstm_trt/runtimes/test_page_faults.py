"""Why PyTorch has two speeds with 256 units and 256 steps: the C library's allocator gives memory back in each call."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

#: Prints the page faults of 11 calls, after those in which libraries set up what they keep.
CODE = """
import json, resource, torch
torch.set_num_threads(1)
lstm, inputs = torch.nn.LSTM(12, 256, 3, batch_first=True), torch.zeros(1, 256, 12)
found = []
with torch.inference_mode():
    for _ in range(16):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        lstm(inputs)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps(sorted(found[5:])))
"""


def median_faults(threshold: int) -> int:
    """Page faults of the middle call if the allocator gives back what exceeds so many bytes."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    environment = kept | dict.fromkeys(names, str(threshold))
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[5]


@pytest.mark.heavy
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these variables are those of glibc's allocator")
def test_calls_have_page_faults_if_the_allocator_gives_their_memory_back():
    if "LD_PRELOAD" in os.environ:
        pytest.skip("LD_PRELOAD may replace the allocator")
    assert median_faults(1 << 30) == 0
    assert median_faults(1 << 17) > 100
