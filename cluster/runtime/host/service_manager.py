"""Reports to systemd (sd_notify) that the node recovers, serves or stops, and that its event loop runs.

Only the loop feeds the watchdog, so a stalled loop does not feed it. While a node opens its directory the loop cannot
run, because recovery reads the log on the loop's thread. For that time the watchdog gets a period of RECOVERY_S_MAX,
and another thread asks for more time to start, for RECOVERY_S_MAX at most.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)

EXTEND_S: Final = 60
EXTEND_EVERY_S: Final = 15.0
RECOVERY_S_MAX: Final = 6 * 3600
_US: Final = 1_000_000


class ServiceManager:
    """Sends reports to the service manager, over the socket that it has given to this process. Without such a socket,
    every method does nothing."""

    def __init__(self, env: Mapping[str, str], pid: int) -> None:
        """`env` contains NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as systemd sets them. `pid` is this process."""
        name = env.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if name else None
        self._watchdog_us = _watchdog_us(env, pid)
        self._food: asyncio.TimerHandle | None = None
        self._open = threading.Event()
        self._open.set()

    def recovering(self) -> None:
        """Reports that the node opens its directory, which may take long; this state lasts until `ready`."""
        self._tell(f"STATUS=recovering\nEXTEND_TIMEOUT_USEC={EXTEND_S * _US}{self._period(RECOVERY_S_MAX * _US)}")
        if self._socket is not None:
            self._starve()
            self._open.clear()
            threading.Thread(target=self._extend, name="recovery", daemon=True).start()

    def ready(self, status: str) -> None:
        """Reports that the node serves. Event loop only."""
        self._open.set()
        self._tell(f"READY=1\nSTATUS={status}{self._period(self._watchdog_us)}")
        if self._socket is not None and self._watchdog_us:
            self._starve()
            self._feed(asyncio.get_running_loop())

    def stopping(self) -> None:
        """Reports that the node is stopping."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def close(self) -> None:
        """Ends all reports."""
        self._open.set()
        self._starve()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _period(self, us: int) -> str:
        return f"\nWATCHDOG_USEC={us}" if self._watchdog_us else ""

    def _feed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tell("WATCHDOG=1")
        self._food = loop.call_later(self._watchdog_us / _US / 3, self._feed, loop)

    def _starve(self) -> None:
        if self._food is not None:
            self._food.cancel()
            self._food = None

    def _extend(self) -> None:
        left = int(RECOVERY_S_MAX / EXTEND_EVERY_S)
        while left and not self._open.wait(EXTEND_EVERY_S):
            self._tell(f"EXTEND_TIMEOUT_USEC={EXTEND_S * _US}")
            left -= 1

    def _tell(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)
        except OSError as error:
            logger.debug("the service manager cannot be told: %s", error)


def _watchdog_us(env: Mapping[str, str], pid: int) -> int:
    """Returns the microseconds without a report after which systemd kills the process; 0 if it does not watch this
    one."""
    text, of = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not (text.isascii() and text.isdigit()) or of not in ("", str(pid)):
        return 0
    return int(text)
