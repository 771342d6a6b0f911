"""Retries that a program may watch: what was tried, at which address, why it failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger("raftmq")


class Retry(NamedTuple):
    """One attempt that failed and is made again. Requests of a producer that share an attempt share a Retry."""

    what: str
    """The operation, for example "send to orders"."""
    address: str
    """The server that was asked; "" while the leader is looked for."""
    cause: str
    """The fault there, for example "refuses connections", as it follows the address in a sentence."""
    code: int = 0
    """The protocol's response code; 0 without an answer."""
    requests: int = 1
    """The number of requests that are sent again."""

    def __str__(self) -> str:
        return f"{self.what}: {self.address or 'the leader'} {self.cause}"


OnRetry = Callable[[Retry], None]
"""A program's function, called on the client's event loop: it must not wait for the client."""


class Retries:
    """Tells the program, and the log at level INFO. An exception of the program's function is logged and harms
    nothing."""

    def __init__(self, on_retry: OnRetry | None) -> None:
        if on_retry is not None and not callable(on_retry):
            raise TypeError(f"on_retry is a function of a Retry, not {type(on_retry).__name__}")
        self._on_retry = on_retry

    def tell(self, retry: Retry) -> None:
        """Tells of one failed attempt."""
        logger.info("%s; trying again", retry)
        if self._on_retry is not None:
            try:
                self._on_retry(retry)
            except Exception:
                logger.exception("on_retry failed")
