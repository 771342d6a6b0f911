"""Puts together one process of the registry: the child with pysyncobj, the links with nodes, the port for clients."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection
from pathlib import Path

from cluster.config.source import ConfigError
from cluster.peer.keyring import Keyring
from cluster.placement.registry_state import RegistryState
from cluster.registry.front import Front
from cluster.registry.records import Records
from cluster.registry.registrations import Registrations, RegistryIdentity
from cluster.registry.registry_file import RegistryFile
from cluster.registry.supervisor import Supervisor
from cluster.registry.surroundings import Surroundings
from cluster.runtime.logs import Seldom

logger = logging.getLogger(__name__)

SEED_BYTES = 16
SECRET_EVERY_S = 5.0
"""Seconds between two checks of the secret's file."""


class NameServer:
    """All parts of one registry process: child, links with nodes, and port for clients. Event loop only."""

    def __init__(self, file: RegistryFile, log: int = 2, surroundings: Surroundings | None = None) -> None:
        """`log` is the descriptor of the file for errors of the child. Raises ConfigError if the file of the secret
        cannot be used. `surroundings` is given by the simulator and by tests."""
        self._file = file
        found = surroundings or Surroundings()
        self._read_secret = found.read_secret
        self._keys = found.read_secret(Path(file.secret_file))
        self._told = Seldom(logger)
        self._tending: asyncio.Task[None] | None = None
        self.records = Records(file.cluster_id.bytes)
        """All records that this process knows."""
        self.supervisor = Supervisor(file.settings(self._keys), self.records, log, found)
        self.registrations = Registrations(
            RegistryIdentity(file.cluster_id, file.id, (file.bind, file.peer_port)),
            Keyring(self._keys, demanded=True),
            self.records,
            found.entropy,
            self.supervisor.hand,
            self.supervisor.hand_places,
            self.state,
        )
        rng = random.Random(found.entropy(SEED_BYTES))
        self.front = Front(self.registrations.ready, self.living, self.groups_of, rng)

    def state(self) -> RegistryState:
        """Returns the state of this process that it sends to nodes."""
        figures, status = self.supervisor.figures, self.supervisor.status
        age_s = figures.accepted_age_s()
        return RegistryState(
            ready=self.registrations.ready.is_set(),
            missing=list(self.registrations.missing),
            living=len(self.registrations.reached()),
            has_majority=self.supervisor.has_majority,
            leader=status.leader if status is not None else 0,
            operations=figures.accepted,
            entries=status.entries if status is not None else 0,
            accepted_ms=-1 if age_s is None else int(1000 * age_s),
            child_starts=self.supervisor.starts,
        )

    def groups_of(self, topic: str) -> tuple[int, ...]:
        """Returns the groups that have the topic, as far as this process knows; an empty tuple if it knows none."""
        place = self.records.view.topics.get(topic)
        return place.groups if place is not None else ()

    def living(self, within: Collection[int] = ()) -> list[str]:
        """Returns the "host:port" of the listeners of nodes that have a connection to this process: of the groups
        `within`, or of all if it is empty."""
        found, groups = [], self.records.view.groups
        for group, node in self.registrations.reached():
            record = groups.get(group) if not within or group in within else None
            address = record.addresses(self._file.listener).get(node) if record is not None else None
            found += [address] if address is not None else []
        return found

    async def start(self) -> None:
        """Listens on both ports, for nodes and for clients, and starts the child. Raises OSError if an address cannot
        be bound."""
        await self.registrations.start()
        await self.front.start(self._file.bind, self._file.port)
        self.supervisor.start()
        self._tending = asyncio.create_task(self._tend(), name="registry secret")

    async def close(self) -> None:
        """Stops the child and closes all connections."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        await self.front.close()
        await self.registrations.close()
        await self.supervisor.close()

    async def _tend(self) -> None:
        """Restarts the child with another secret, and requires proofs of it, soon after the secret's file has
        changed."""
        path = Path(self._file.secret_file)
        while True:
            await asyncio.sleep(SECRET_EVERY_S)
            try:
                keys = await asyncio.to_thread(self._read_secret, path)
            except ConfigError as error:
                self._told.warn("the secret stays as it was", str(error))
                continue
            if keys != self._keys:
                self._keys = keys
                self.registrations.transport.set_keyring(Keyring(keys, demanded=True))
                await self.supervisor.use(self._file.settings(keys))
                logger.warning("the secret of the cluster has changed, and is used from now on")
