"""Consumer groups as administrators change them, on the node that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.broker.names import check_group_name
from statemachine.commands import DELETE_GROUP, PUT_GROUP

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.outcome import Done


class Groups:
    """Proposes changes of groups. `done` is called when a change is applied or undecided."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def put(self, config: dict[str, Any], done: Done) -> None:
        """Makes the group `config["name"]` or changes it. Raises Refused."""
        check_group_name(config["name"])
        self._services.propose([[PUT_GROUP, config, False]], done)

    def delete(self, name: str, done: Done, *, clean_offsets: bool) -> None:
        """Deletes a group, and its offsets if `clean_offsets`."""
        self._services.propose([[DELETE_GROUP, name, clean_offsets]], done)
