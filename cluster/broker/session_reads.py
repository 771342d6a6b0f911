"""Producer sessions that are too long to be read in one step: read once for all sends that ask for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.runtime.work import Steps

Told = Callable[[bool], None]

logger = logging.getLogger(__name__)


class SessionReads:
    """A producer may leave 65,536 sequences unsettled, each with a row of its own. Apply keeps the sessions in memory
    that it used last. Others are read when a send repeats one of their sequences."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[bytes, list[Told]] = {}

    def read(self, producer_id: bytes, told: Told) -> None:
        """Tells `told` in a later turn whether the session could be read; then it is in memory for a while."""
        waiting = self._waiting.get(producer_id)
        if waiting is None:
            waiting = self._waiting[producer_id] = []
            self._services.turns.begin_later(self, self._read(producer_id))
        waiting.append(told)

    def _read(self, producer_id: bytes) -> Steps:
        done = False
        try:
            yield from self._services.state.read_session(producer_id)
            done = True
        except Exception:
            logger.exception("the session of producer %s cannot be read", producer_id.hex())
        for told in self._waiting.pop(producer_id):
            told(done)
            yield
