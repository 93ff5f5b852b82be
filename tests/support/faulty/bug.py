"""Raises something that nobody foresaw."""

from tests.support.faulty import contract


def prepare(request):
    return {}["no such key"]


globals().update(contract("tests.support.faulty.bug", prepare))
