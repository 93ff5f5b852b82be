"""Raises an unexpected error."""

from tests.support.faulty import contract


def prepare(request):
    return {}["no such key"]


globals().update(contract("tests.support.faulty.bug", prepare))
