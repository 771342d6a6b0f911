"""Encrypts the secrets of users again after their key was replaced: on the leader, a few users at a time.

Each step is one bounded proposal, and the state says which users are left, so another leader goes on where this one
stopped. The old key may be taken out of the files when no user's secret needs it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cluster.broker.refusal import Refused
from raftlog.work import charge
from statemachine.commands import RESEAL_USER

if TYPE_CHECKING:
    from cluster.broker.access.secrets import Secrets
    from cluster.broker.services import Services
    from cluster.replication.outcome import ProposeResult
    from statemachine.commands import Command

logger = logging.getLogger(__name__)

USERS_PER_STEP: Final = 32
RESEAL_UNITS: Final = 16
"""Units of work that one user's secret costs: it is decrypted and encrypted."""
ASKER: Final = "auth.key_file"
"""The name in the audit for the changes that follow from another key."""


class Resealing:
    """Proposes the steps. Event loop only."""

    def __init__(self, services: Services, secrets: Secrets) -> None:
        self._services = services
        self._secrets = secrets
        self._access = services.state.access
        self._seen = -1
        """The version of users at which none was left, or which this node could not go on from."""
        self._asked = False

    def tick(self, _: int) -> None:
        """Called several times a second; cheap if no user is left."""
        if self._asked or self._access.version == self._seen or not self._services.writes_open():
            return
        try:
            run = self._step()
        except Refused as refused:
            logger.warning("secrets of users stay encrypted with the key before: %s", refused.remark)
            run = []
        if not run:
            self._seen = self._access.version
            return
        self._asked = True
        self._services.propose(run, self._proposed)

    def _step(self) -> list[Command]:
        """Returns the commands of the next step. Raises Refused."""
        run: list[Command] = []
        origin = [self._services.log_time_ms(), ASKER, ""]
        for user in self._access.under_other_keys():
            charge(RESEAL_UNITS)
            sealed = self._secrets.resealed(user)
            if sealed is None:
                logger.error("the secret of user %s cannot be decrypted: give it another one", user.name)
                continue
            run.append([RESEAL_USER, origin, user.id, user.secret, sealed, self._access.key_id])
            if len(run) == USERS_PER_STEP:
                break
        return run

    def _proposed(self, result: ProposeResult) -> None:
        self._asked = False
        if not self._access.keys_in_use - {self._access.key_id}:
            logger.info("every secret of a user is encrypted with the key %s now", self._access.key_id)
