"""Exchanges what is known of the groups of the cluster: tells other groups of this one, merges what they tell, keeps
the map on disk, and says whom to dial (docs/adr/0108).

A link gets the whole map when it opens, what is new as soon as it is known, and the own group every second, which also
shows that the link lives. Processes of the registry are told the same, and what they tell is merged by the same rule,
so nothing that they say or forget shrinks a map. In a cluster with one group and no registry, a node only accepts
connections of other groups, and begins with the rest when the first one comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from cluster.config.address import join_address, split_address
from cluster.config.config import Config, ConfigError
from cluster.config.local_layout import REGISTRY_GROUP, node_object
from cluster.members.service import MembersService
from cluster.peer.group_links import GroupLink, GroupLinks, LinkTarget
from cluster.placement.group_map import (
    Epoch,
    GroupMember,
    GroupRecord,
    GroupRecords,
    decode,
    dialled,
    encode,
    news,
    rank,
    same_addresses,
    same_names,
)
from cluster.placement.groups_file import GroupsFile
from cluster.placement.registry_metrics import RegistryMetrics
from cluster.placement.registry_state import RegistryProcess, RegistryState, decode_state
from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.core.raw_node import RawNode
from raftlog.types import FIRST_GROUP, NOBODY, NodeId
from statemachine.cluster_wide.broker_groups import BrokerGroup, is_retired, living_groups

logger = logging.getLogger(__name__)

ALARM = Code("group_map", "warning", "raftmq status")
REGISTRY_ALARM = Code("registry_no_majority", "warning", "raftmq registry status")
NOT_READY_ALARM = Code("registry_not_ready", "warning", "raftmq registry status")
LOOK_S = 1.0
"""Seconds between two looks: links are tended, and the own group is told."""
WHOLE_EVERY = 10
"""Looks between two times at which the whole map is told: what a slow node has missed."""
GATHER_S = 0.05
"""Seconds for which news is gathered before it is passed on: whatever others send, a link gets 20 such frames a second.
"""
REFUSED_LOOKS = 10
"""Looks at which group 1 refuses this node before that is an alarm: a new group 1 does so for a moment, until it has
its level."""
RIVAL_LOOKS = 10
"""Looks at which this node leads its group, and another node of it led in a later term, until that is an alarm: a
deposed leader hears of it within a second or two, and leads no longer."""
RETIRED_LOOKS = 10
"""Looks without a leader, after this node has heard that its group has retired, until it ends. As long as others of the
group run, it learns it from their log."""
LOST_LOOKS = 30
"""Looks at which no majority of the registry is reached until that is an alarm: its processes may be restarted in turn.
"""
SAVE_AGAIN = 60
"""Looks until the next attempt after a failed write."""


def own_record(
    raw: RawNode, members: MembersService, name: str, unreached: Callable[[], Iterable[NodeId]], level: int
) -> GroupRecord | None:
    """Returns the record of this node's group; None while this node knows no leader of it: a candidate's term would be
    an epoch that no other node knows. `unreached` returns the nodes that this node, if it leads, does not reach.
    `level`: the level of the group, as this node has applied it."""
    if raw.leader_id == NOBODY or members.is_removed:
        return None
    voters = members.in_force.voter_ids
    found = [
        GroupMember(node, known.host, known.port, known.admin, dict(known.listeners))
        for node, known in sorted(members.addresses.items())
        if node in voters
    ]
    epoch = Epoch(raw.term, max(0, members.in_force.index))
    lost = set(unreached()) if raw.leader_id == members.own_id else ()
    away: list[int] = sorted(node for node in voters if node in lost)
    return GroupRecord(members.identity.group_id, name, epoch, raw.leader_id, found, away, level) if found else None


def added(others: GroupRecords, rows: Mapping[int, BrokerGroup]) -> GroupRecords:
    """Returns those of the reported groups that belong to the cluster: they have a row in this node's copy of the
    truth, and have not retired. A node without a copy has no rows, and accepts all reports."""
    living = living_groups(rows)
    return {number: record for number, record in others.items() if number in living} if rows else others


def _registry_of(config: Config) -> list[LinkTarget]:
    return [
        LinkTarget(REGISTRY_GROUP, NodeId(number), (split_address(address),))
        for number, address in enumerate(config.cluster.registry, 1)
    ]


def has_majority(registry: Collection[RegistryProcess]) -> bool:
    """Returns True if more than half of the processes are reached, or there are none."""
    return not registry or 2 * sum(each.reached for each in registry) > len(registry)


def _lacking(registry: list[RegistryProcess]) -> list[str]:
    """Returns what each process says that answers clients without some groups."""
    return [
        f"registry node {each.id} answers clients without group {', '.join(map(str, each.state.missing))}: none of its "
        "nodes has registered there"
        for each in registry
        if each.state is not None and each.state.missing
    ]


class KnownGroups:
    """The other groups of the cluster, as this node knows them. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        links: GroupLinks,
        file: GroupsFile,
        own: Callable[[], GroupRecord | None],
        rows: Callable[[], Mapping[int, BrokerGroup]] = dict,
        retired: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
        whole_every: int = WHOLE_EVERY,
    ) -> None:
        """Reads the file (blocking). `own` returns the present record of this node's group, None if it has none; `rows`
        the groups of the truth (`BrokerGroups.by_number`). `retired` is called if the group has retired while this node
        was down, so that it finds no leader any more. Raises ConfigError if the configuration names no address at which
        this node could find other groups."""
        cluster = context.config.cluster
        self._group = cluster.group
        self._node = context.config.node_id
        self._first = tuple(split_address(address) for address in cluster.first_group)
        self._registry = _registry_of(context.config)
        self._loop = context.loop
        self._alarms = context.alarms
        self._links = links
        self._file = file
        self._make_own, self._rows, self._retired = own, rows, retired
        self._look_s, self._whole_every = look_s, whole_every
        self._heard_retired = False
        """True if a node of another group has said that this one's group has retired."""
        self._own: GroupRecord | None = None
        self._others: GroupRecords = file.load()
        self.groups_here = 1
        """The number of groups, with the own one, with nodes at this node's host, which share its disk."""
        self._registry_states: dict[int, RegistryState] = {}
        """The state that each process of the registry told last."""
        self._fresh: dict[int, GroupRecord] = {}
        """The records that are to be passed on."""
        self._passing: asyncio.TimerHandle | None = None
        self._looks = self._refused_looks = self._lost_looks = self._rival_looks = self._alone_looks = 0
        """`_refused_looks`: in a row, while group 1 refused this node and no other connection led there. `_lost_looks`:
        in a row, without connections to a majority of the registry. `_rival_looks`: in a row, with a rival.
        `_alone_looks`: in a row, without a leader of a group of which is heard that it has retired."""
        self._heard_own: GroupRecord | None = None
        """The newest record of the own group that others have told."""
        self._unsaved = False
        self._save_at = 0
        """The look from which on the map may be written."""
        self._saving: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._told = Seldom(logger)
        if self._group != FIRST_GROUP and not self._first and FIRST_GROUP not in self._others:
            raise ConfigError(
                f"cluster.group is {self._group}, and cluster.first_group is empty",
                "a node of another group than the first learns of the others from members of group 1",
                'write their peer addresses under [cluster]: first_group = ["10.0.0.1:10912"]',
            )
        links.takes(Kind.GROUPS, self._on_groups)
        links.takes(Kind.REGISTRY_STATE, self._on_registry_state)
        links.opened.add(self._on_open)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="other groups",
            start=self._start,
            close=self._close,
            role=lambda _: self._on_role(),
            reload=self._reload,
            metrics=(RegistryMetrics(self.registry),),
        )

    def others(self) -> GroupRecords:
        """Returns number -> record of each other group that has not retired. The record of a retired one is kept and
        passed on, but nobody asks that group for anything."""
        return added(self._others, self._rows())

    def registry(self) -> list[RegistryProcess]:
        """Returns the processes of the registry, in the order of `cluster.registry`; none if there are none."""
        found = []
        for target in self._registry:
            reached = self._links.reaches(target.group, target.node)
            state = self._registry_states.get(target.node) if reached else None
            found.append(RegistryProcess(target.node, join_address(*target.addresses[0]), reached, state))
        return found

    def leader(self, group: int) -> int:
        """Returns the last known leader of another group; 0 if it is unknown."""
        record = self._others.get(group)
        return record.leader if record is not None else NOBODY

    def below(self, level: int) -> list[str]:
        """Returns a text for each group that is not known to have that level, also for groups that have sent nothing
        yet."""
        told, rows = [], self._rows()
        groups = {*rows, *self._others} & living_groups(rows) if rows else {*self._others}
        for group in sorted(groups - {self._group}):
            record = self._others.get(group)
            if record is None or not record.level:
                told.append(f"group {group} has not told its level")
            elif record.level < level:
                told.append(f"group {group} has level {record.level}, as it told last")
        return told

    # --- start and stop ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._group != FIRST_GROUP or self._others or self._registry:
            self._begin()

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._run(), name="other groups")

    def _reload(self, config: Config) -> None:
        """Registers with other processes of the registry from now on, if the configuration names others."""
        registry = _registry_of(config)
        if registry == self._registry:
            return
        kept = [target for target in registry if target in self._registry]
        self._registry = kept
        self._links.tend(self._targets())  # a connection to an address that is no longer named ends
        self._registry = registry
        self._lost_looks = 0
        if registry:
            self._begin()

    async def _close(self) -> None:
        self._closed = True
        if self._passing is not None:
            self._passing.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._links.close()
        if self._unsaved and self._saving is None:
            self._save()
        if self._saving is not None:
            await asyncio.wait([self._saving])

    async def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:  # a bad report of another group must not end this task
                logger.exception("the other groups could not be looked at")
            await asyncio.sleep(self._look_s)

    # --- by the clock ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._renew_own()
        known = self._known()
        self._looks += 1
        whole = self._looks % self._whole_every == 0
        self._tell(self._links.all(), known.values() if whole else [self._own] if self._own is not None else [])
        self._links.tend(self._targets())
        self._judge(known)
        self._look_if_retired()
        self.groups_here = self._count_here()
        if self._unsaved and self._saving is None and self._looks >= self._save_at:
            self._save()

    def _known(self) -> GroupRecords:
        """Returns the map as this node tells it: with its own group, and with what it knows of retired ones."""
        rows = self._rows()
        told = {
            number: replace(record, retired=True) if is_retired(rows, number) else record
            for number, record in self._others.items()
        }
        return told if self._own is None else {**told, self._group: self._own}

    def _look_if_retired(self) -> None:
        """Ends a node that was down when its group retired, and that cannot learn it from its group: no other node of
        it runs."""
        is_alone = self._heard_retired and self._make_own() is None
        self._alone_looks = self._alone_looks + 1 if is_alone else 0
        if self._alone_looks == RETIRED_LOOKS:
            self._retired()

    def _renew_own(self) -> bool:
        """Makes the record of the own group again; returns True if it has changed."""
        record, before = self._make_own(), self._own
        if record is not None and before is not None and record.epoch[:2] == before.epoch[:2]:
            is_changed = (record.away, record.level) != (before.away, before.level)
            change = before.epoch.change + (is_changed and record.leader == self._node)
            record = replace(record, epoch=record.epoch._replace(change=change))
        if record is None or record == before:
            return False
        try:
            decode(encode([record]))
        except WireError as error:
            self._told.warn("this node's group cannot be told to other groups", str(error))
            return False
        self._own = record
        return True

    def _targets(self) -> list[LinkTarget]:
        """Returns whom to dial: the registry, all members of group 1, and one each of some groups
        (`group_map.dialled`)."""
        found = [*self._registry]
        if self._group != FIRST_GROUP:
            first = self._others.get(FIRST_GROUP)
            members = first.members if first is not None else []
            found += [LinkTarget(FIRST_GROUP, NodeId(each.node), ((each.host, each.port),)) for each in members]
            if self._first and not any(self._links.reaches(FIRST_GROUP, NodeId(each.node)) for each in members):
                found.append(LinkTarget(FIRST_GROUP, NOBODY, self._first))
        for group in dialled(self._group, self.others()):
            addresses = [(each.host, each.port) for each in self._others[group].members]
            at = self._node % len(addresses)  # members of a group begin with different ones
            found.append(LinkTarget(group, NOBODY, tuple(addresses[at:] + addresses[:at])))
        return found

    def _count_here(self) -> int:
        own = self._own.members if self._own is not None else []
        host = next((each.host for each in own if each.node == self._node), None)
        return 1 + sum(any(each.host == host for each in record.members) for record in self.others().values())

    def _judge(self, known: GroupRecords) -> None:
        said = [
            f"group {group} has the name {known[group].name} of group {holder}: clients of other groups find only "
            f"group {holder} under it. Give its nodes another cluster.broker_name"
            for group, holder in sorted(same_names(known).items())
        ]
        said += [
            f"{node_object(*member)} has the peer address of {node_object(*holder)}: who dials one may reach "
            "the other. Correct the address of the one that moved, or remove it from its group if it is gone"
            for member, holder in sorted(same_addresses(known).items())
        ]
        if self._group != FIRST_GROUP and not self._first:
            said.append("cluster.first_group is empty: without its map of the groups this node could find nobody")
        why = self._links.refused.get(FIRST_GROUP)
        self._refused_looks = self._refused_looks + 1 if why is not None and not self._links.to(FIRST_GROUP) else 0
        if self._refused_looks >= REFUSED_LOOKS:
            said.append(f"no node of group {FIRST_GROUP} takes a connection of this one: {why}")
        rival = self._rival()
        self._rival_looks = self._rival_looks + 1 if rival is not None else 0
        if rival is not None and self._rival_looks >= RIVAL_LOOKS:
            said.append(
                f"{node_object(self._group, rival.leader)} leads group {self._group} too, in term {rival.epoch.term}: "
                "two survivors of it were recovered into this cluster, and each stores messages that the other does "
                "not have. Stop one of them, and add members to the other"
            )
        self._alarm(ALARM, ". ".join(said))
        registry = self.registry()
        why = self._why_no_majority(registry)
        self._lost_looks = self._lost_looks + 1 if why else 0
        self._alarm(REGISTRY_ALARM, why if self._lost_looks >= LOST_LOOKS else "")
        self._alarm(NOT_READY_ALARM, "; ".join(_lacking(registry)))

    def _rival(self) -> GroupRecord | None:
        """Returns the record of this node's group under another leader of a later term, while this node leads it; None
        if there is none."""
        heard = self._heard_own
        if heard is None or heard.leader == self._node:
            return None
        own = self._make_own()
        if own is None or own.leader != self._node:
            return None
        return heard if heard.epoch.term > own.epoch.term else None

    def _why_no_majority(self, registry: list[RegistryProcess]) -> str:
        """Returns the reason why the registry takes no operation, as far as this node can see; "" if it does."""
        if not has_majority(registry):
            reached = sum(each.reached for each in registry)
            why = self._links.refused.get(REGISTRY_GROUP, "the others do not answer in cluster.registry")
            return f"{reached} of {len(registry)} processes of the registry are reached: {why}"
        states = [each.state for each in registry if each.state is not None]
        if states and not any(state.has_majority for state in states):
            return "the processes of the registry are reached, and none has an operation accepted: its log says why"
        return ""

    def _alarm(self, key: Code, text: str) -> None:
        """Raises an alarm, or clears it if the text is empty."""
        if text:
            self._alarms.raise_alarm(key, text)
        else:
            self._alarms.clear(key)

    # --- telling and hearing -----------------------------------------------------------------------------------------

    def _tell(self, links: Iterable[GroupLink], records: Collection[GroupRecord]) -> None:
        """Sends all these records to nodes. A process of the registry that starts waits for each group that it learns
        of, so it gets only the groups that exist."""
        there = {self._group, *self.others()}
        everything, registered = encode(records), encode([each for each in records if each.group in there])
        for link in links:
            link.send(Kind.GROUPS, [], registered if link.group == REGISTRY_GROUP else everything)

    def _on_role(self) -> None:
        """Passes on the new record of this node's group. Called when the leader of the group has changed."""
        if self._task is not None and self._renew_own() and self._own is not None:
            self._pass_on_soon({self._group: self._own})

    def _on_open(self, link: GroupLink) -> None:
        self._begin()
        self._renew_own()
        self._tell([link], self._known().values())

    def _on_groups(self, link: GroupLink, header: list[object], payload: bytes) -> None:
        """Handles a frame GROUPS. Raises WireError."""
        heard = decode(payload)
        own = next((record for record in heard if record.group == self._group), None)
        if own is not None and (self._heard_own is None or rank(own) > rank(self._heard_own)):
            self._heard_own = own
        if link.group != REGISTRY_GROUP:  # the registry has no state, and deletes nothing
            self._heard_retired |= own is not None and own.retired
        fresh = news(self._others, heard, self._group)
        if fresh:
            is_new = not fresh.keys() <= self._others.keys()
            self._others = {**self._others, **fresh}
            self._unsaved = True
            self._pass_on_soon(fresh)
            if is_new and self._saving is None:  # without it, a restart would not know where the group's queues are
                self._save()

    def _pass_on_soon(self, fresh: dict[int, GroupRecord]) -> None:
        self._fresh.update(fresh)
        if self._passing is None and not self._closed:
            self._passing = self._loop.call_later(GATHER_S, self._pass_on)

    def _pass_on(self) -> None:
        self._passing = None
        fresh, self._fresh = self._fresh, {}
        self._tell(self._links.all(), fresh.values())

    def _on_registry_state(self, link: GroupLink, header: list[object], payload: bytes) -> None:
        """Handles a frame REGISTRY_STATE. Raises WireError."""
        self._registry_states[link.node] = decode_state(header)

    # --- on disk -----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Writes the map in another thread, because the disk may be slow. Nothing waits for it."""
        self._unsaved = False
        self._saving = self._loop.run_in_executor(None, self._file.save, self._others)
        self._saving.add_done_callback(self._on_saved)

    def _on_saved(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        error = None if saving.cancelled() else saving.exception()
        if error is not None:
            self._unsaved, self._save_at = True, self._looks + SAVE_AGAIN
            self._told.warn("the map of the groups cannot be kept on disk", str(error))
