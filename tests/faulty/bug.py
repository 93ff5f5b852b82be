"""Raises something that nobody foresaw."""

from tests.faulty import contract


def prepare(request):
    return {}["no such key"]


globals().update(contract("tests.faulty.bug", prepare))
