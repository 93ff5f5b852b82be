"""Child processes with the modules and the `sys.path` of this one."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import IO

from lstm_trt.machine.linux import THREAD_VARIABLES, open_standard_streams


@dataclass(frozen=True)
class Interpreter:
    """The Python of a child process; the folders `first` precede this process's `sys.path`."""

    executable: str = field(default_factory=lambda: sys.executable)
    first: tuple[str, ...] = ()

    def command(self, code: str) -> list[str]:
        """The command that runs `code` with this process's `sys.path` after `first`.

        So modules in the working folder are not imported, and additions to the path in a notebook
        are kept.
        """
        return [
            self.executable,
            "-P",
            "-c",
            f"import sys; sys.path[:] = {[*self.first, *sys.path]!r}; {code}",
        ]

    def environment(self) -> dict[str, str]:
        """The environment variables for it, without those that name folders of another Python."""
        foreign = ("PYTHONPATH", "PYTHONHOME") if self.first else ()
        return {name: value for name, value in os.environ.items() if name not in foreign}


class Child:
    """A process that runs `code`, whose last argument is the file descriptor of its end of
    `connection`.

    It is in a session of its own: Ctrl-C reaches only the parent.
    """

    #: How long `close` waits by default.
    patience_s = 0.0

    def __init__(
        self,
        code: str,
        interpreter: Interpreter | None = None,
        threads: int = 1,
        variables: dict[str, str] | None = None,
        log: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        interpreter = interpreter or Interpreter()
        # A connection with the number of a standard stream would be replaced in the child.
        open_standard_streams()
        self.connection, theirs = Pipe()
        environment = (
            interpreter.environment()
            | dict.fromkeys(THREAD_VARIABLES, str(threads))
            | (variables or {})
        )
        with theirs:
            self.child = subprocess.Popen(
                [*interpreter.command(code), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def close(self, patience_s: float | None = None) -> None:
        """End the process, after `patience_s` even if it is busy; may be called twice."""
        if self.connection.closed:
            return
        self.connection.close()
        try:
            self.child.wait(timeout=self.patience_s if patience_s is None else patience_s)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
