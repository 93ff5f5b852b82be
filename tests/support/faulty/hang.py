"""Hangs in prepare, for sequences of 6 only."""

import time

from tests.support.faulty import RightStep, contract


def prepare(request):
    if request.workload.sequence == 6:
        while True:
            time.sleep(3600)
    return RightStep(request)


globals().update(contract("tests.support.faulty.hang", prepare))
