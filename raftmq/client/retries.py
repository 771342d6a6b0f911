"""Reports of retries, which a program may watch: the operation, the address that was asked, and why the attempt
failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger("raftmq")


class Retry(NamedTuple):
    """An attempt that failed and is repeated. Requests of a producer that share an attempt share a Retry."""

    what: str
    """The operation, for example "send to orders"."""
    address: str
    """The server that was asked; "" while the client looks for the leader."""
    cause: str
    """The fault at the server, worded to follow its address in a sentence, for example "refuses connections"."""
    code: int = 0
    """The protocol's response code; 0 if no answer came."""
    requests: int = 1
    """The number of requests that are sent again."""

    def __str__(self) -> str:
        return f"{self.what}: {self.address or 'the leader'} {self.cause}"


OnRetry = Callable[[Retry], None]
"""A function of the program, called on the client's event loop for each retry; it must not wait for the client."""


class Retries:
    """Reports retries to the program's function, and to the log at level INFO. An exception of the function is logged
    and has no other effect."""

    def __init__(self, on_retry: OnRetry | None) -> None:
        if on_retry is not None and not callable(on_retry):
            raise TypeError(f"on_retry is a function of a Retry, not {type(on_retry).__name__}")
        self._on_retry = on_retry

    def tell(self, retry: Retry) -> None:
        """Reports one failed attempt."""
        logger.info("%s; trying again", retry)
        if self._on_retry is not None:
            try:
                self._on_retry(retry)
            except Exception:
                logger.exception("on_retry failed")
