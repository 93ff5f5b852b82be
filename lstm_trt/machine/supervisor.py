"""Runs a command, and ends all that came of it when its pipe closes or the command ends.

The pipe comes from whoever needs the command, here a recorder. The kernel closes it however that
process ends, also by SIGKILL, so nothing has to be told or cleaned up there.

This process adopts what the command leaves behind (PR_SET_CHILD_SUBREAPER): a process whose parent
ended becomes its child, and is found. If this process itself is killed, nobody does that, since
death signals (PR_SET_PDEATHSIG) reach children only, not what they started. So `Load` runs two, one
inside the other: the outer one adopts what the inner one leaves.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

PR_SET_CHILD_SUBREAPER = 36

#: How long a command has for its last words after SIGTERM, in s.
PATIENCE_S = 1.0


def main() -> int:
    """Arguments: the file descriptor of the pipe, and the command. Returns the command's exit
    status, 127 if it cannot be started."""
    pipe = int(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    # SIGTERM comes from an outer supervisor, after the pipe has closed for both. A handler, unlike
    # a signal that is ignored, is not passed on to the command.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        child = subprocess.Popen(sys.argv[2:], pass_fds=[pipe])
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        return 127
    ends = select.poll()
    ends.register(pipe, select.POLLIN)
    ends.register(os.pidfd_open(child.pid), select.POLLIN)
    ends.poll()
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_S)
    end_children()
    status = child.returncode or 0
    return status if status >= 0 else 128 - status


def end_children() -> None:
    """Kill the children of this process until there are none: the children of a child that ended
    are adopted, and killed next."""
    with suppress(ChildProcessError):
        while True:
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    child.kill()
            os.wait()
