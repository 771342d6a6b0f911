"""The commands that both schedules and stories of the core have. Each of them passes one input to one member."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from jepsen_like.script import Interpreter, node_of
from raftlog.membership import Address, Membership, promoted, with_learner, without
from raftlog.types import NodeId, Voter


class CoreCommands(Interpreter):
    """Interprets the commands of `jepsen_like.script.CORE` that are exactly one input of the core."""

    def act(self, node: NodeId, action: str, *arguments: object) -> object:
        """Calls the method named `action` of that member's RawNode."""
        raise NotImplementedError

    def change(self, node: NodeId, change: Callable[[Membership], Membership]) -> Iterable[str] | None:
        """Proposes a change of the members at `node`. Returns the lines that a story prints."""
        raise NotImplementedError

    def do_campaign(self, node: str) -> None:
        self.act(node_of(node), "campaign")

    def do_transfer(self, node: str, target: str) -> None:
        self.act(node_of(node), "transfer_leadership", node_of(target))

    def do_closed(self, node: str, peer: str) -> None:
        self.act(node_of(node), "peer_closed", node_of(peer))

    def do_add(self, node: str, joining: str, uuid: str = "") -> Iterable[str] | None:
        voter = Voter(node_of(joining), UUID(int=int(uuid or joining)))
        address = Address(voter.id, "host", 9000 + voter.id)
        return self.change(node_of(node), lambda members: with_learner(members, voter, address))

    def do_promote(self, node: str, learner: str) -> Iterable[str] | None:
        return self.change(node_of(node), lambda members: promoted(members, node_of(learner)))

    def do_remove(self, node: str, leaving: str) -> Iterable[str] | None:
        return self.change(node_of(node), lambda members: without(members, node_of(leaving)))
