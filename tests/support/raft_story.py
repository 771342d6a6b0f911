"""Stories: commands in, printed outcome. `testdata/*.txt` holds both; `--rewrite` writes the outcome anew.

A block is command lines, a line `----`, the outcome, an empty line. `jepsen_like.script` has the commands (CORE,
STORIES).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from jepsen_like.core_sim.commands import CoreCommands
from jepsen_like.script import ScriptError, ScriptLine, lines_of, link_of, node_of
from raftlog.core.held_appends import HeldAppends, Outside
from raftlog.core.raw_node import RawNode, Ready
from raftlog.core.state.config import RaftConfig
from raftlog.errors import RaftLogError
from raftlog.membership import Membership
from raftlog.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
)
from raftlog.types import NOBODY, Entry, EntryId, EntryType, HardState, NodeId
from tests.support.raft_group import Disk, Group, chain

_RUN_MAX = 200


def show_id(entry_id: EntryId) -> str:
    return f"({entry_id.term},{entry_id.index})"


def show_entry(entry: Entry) -> str:
    kind = "" if entry.type == EntryType.MESSAGES else EntryType(entry.type).name
    return f"{show_id(entry.id)}{kind}"


def show_message(m: Message) -> str:
    head = f"{m.from_id}->{m.to_id} {type(m).__name__} t{m.term}"
    if isinstance(m, RequestVote):
        return head + f" last={show_id(m.last)}" + " pre" * m.pre_vote + " transfer" * m.transfer
    if isinstance(m, RequestVoteReply):
        return head + (" granted" if m.granted else " refused") + " pre" * m.pre_vote
    if isinstance(m, AppendEntries):
        entries = " ".join(show_entry(e) for e in m.entries)
        return head + f" prev={show_id(m.prev)} commit={m.commit_index} [{entries}]"
    if isinstance(m, AppendEntriesReply):
        if m.rejected:
            return head + f" rejected prev={m.match_index} hint={show_id(m.hint)}"
        return head + f" match={m.match_index}"
    if isinstance(m, Heartbeat):
        return head + f" commit={m.commit_index}" + f" round={m.context}" * bool(m.context)
    if isinstance(m, HeartbeatReply):
        return head + f" round={m.context}" * bool(m.context) + " unfit" * (not m.fit)
    if isinstance(m, InstallSnapshot):
        return head + f" first={m.first_index} last={show_id(m.last)}"
    return head


def show_members(raw: RawNode) -> str:
    m = raw.membership
    what = f"voters {' '.join(map(str, m.voter_ids))}"
    what += f", learners {' '.join(map(str, m.learner_ids))}" * bool(m.learners)
    what += f", left {' '.join(str(each.id) for each in m.removed)}" * bool(m.removed)
    return what + f" (index {m.index}{'' if raw.committed_membership_index == m.index else ', not committed'})"


def show_ready(node: NodeId, ready: Ready) -> Iterator[str]:
    yield f"{node} ready"
    if ready.soft_state is not None:
        yield f"  {ready.soft_state.role.name} leader={ready.soft_state.leader_id}"
    if ready.hard_state is not None:
        yield f"  hard state: term={ready.hard_state.term} vote={ready.hard_state.vote}"
    if ready.entries:
        yield "  persist: " + " ".join(map(show_entry, ready.entries))
    for message in ready.messages:
        yield f"  send {show_message(message)}"
    for message in ready.messages_after_persist:
        yield f"  after persist {show_message(message)}"
    if ready.committed_entries:
        yield "  apply: " + " ".join(map(show_entry, ready.committed_entries))
    if ready.members_changed:
        yield "  members changed"
    if ready.install is not None:
        yield f"  install: the leader's log begins at {ready.install.first_index}"
    for read in ready.read_states:
        yield f"  read {read.context} at index {read.index}"


class Story(CoreCommands):
    """Interprets command lines against one group."""

    def __init__(self) -> None:
        self.disks: dict[NodeId, Disk] = {}
        self.group: Group
        self.cuts: set[tuple[int, int]] = set()

    def run(self, line: ScriptLine) -> list[str]:
        """One command; protocol errors are part of the outcome. Raises ScriptError."""
        try:
            return list(self.perform(line) or ())
        except ScriptError:
            raise
        except (RaftLogError, ValueError) as error:
            return [f"{type(error).__name__}: {error}"]

    # -- setting up

    def do_nodes(self, count: str, **options: str) -> None:
        self.disks = {NodeId(n): Disk() for n in range(1, int(count) + 1)}
        self.do_group(**options)

    def do_disk(self, node: str, *, terms: str = "", term: str = "") -> None:
        known = [int(each) for each in terms.split(",") if each]
        state = HardState(int(term or max(known, default=0)), NOBODY, 0)
        self.disks[node_of(node)] = Disk(chain(known), state)

    def do_group(self, **given: str) -> None:
        config = RaftConfig(
            NodeId(1),
            1,
            election_ticks=int(given.get("election", 10)),
            pre_vote=given.get("pre_vote") != "off",
            check_quorum=given.get("check_quorum") != "off",
            inflight_messages_max=int(given.get("inflight", 256)),
            append_bytes_max=int(given.get("append", 1 << 20)),
        )
        self.cuts.clear()
        self.group = Group(lambda node: replace(config, node_id=node), self.disks, int(given.get("seed", 1)))
        self.disks = {}

    # -- inputs

    def do_clock(self, node: str, wall: str, monotonic: str) -> None:
        self.act(node_of(node), "set_clock", int(wall), int(monotonic))

    def do_tick(self, node: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.act(node_of(node), "tick")

    def do_propose(self, node: str, text: str) -> Iterator[str]:
        raw = self.group.nodes[node_of(node)]
        entry: Any = self.act(node_of(node), "propose", EntryType.MESSAGES, text.encode(), raw.log_time_ms())
        yield f"{show_entry(entry)} at log time {entry.timestamp_ms}"

    def do_read(self, node: str, context: str) -> None:
        self.act(node_of(node), "read_index", int(context))

    def do_persisted(self, node: str, term: str, index: str) -> None:
        self.act(node_of(node), "persisted", EntryId(int(term), int(index)))

    def do_join(self, *nodes: str) -> None:
        for node in nodes:
            self.group.join(node_of(node))

    def change(self, node: NodeId, change: Callable[[Membership], Membership]) -> Iterator[str]:
        """Proposes a change of the members, as CoreCommands.change asks."""
        raw = self.group.nodes[node]
        entry: Any = self.act(node, "propose_membership", change(raw.membership), raw.log_time_ms())
        yield f"{show_entry(entry)}: {show_members(raw)}"

    def do_trim(self, node: str, first_index: str) -> None:
        raw = self.group.nodes.get(node_of(node))
        if raw is not None:
            self.group.disks[node_of(node)].applied_index = raw.applied_index
        self.group.trim(node_of(node), int(first_index))

    def do_install(self, node: str, source: str) -> None:
        raw = self.group.nodes[node_of(source)]
        self.group.disks[node_of(source)].applied_index = raw.applied_index
        self.group.install(node_of(node), node_of(source))

    def act(self, node: NodeId, action: str, *arguments: object) -> object:
        """Acts on the node's core, as CoreCommands.act asks."""
        return self.group.act(node, lambda raw: getattr(raw, action)(*arguments))

    def do_thrifty(self, node: str, *, preferred: str = "0") -> None:
        outside = Outside(
            plain=lambda index: True,
            in_haste=lambda: False,
            slow=lambda node: False,
            preferred=lambda: (NodeId(int(preferred)),),
        )
        self.group.appends[node_of(node)] = HeldAppends(self.group.nodes[node_of(node)].raft, outside)

    def do_at(self, now_ms: str) -> None:
        self.group.now_ms = float(now_ms)

    def do_look(self, node: str) -> Iterator[str]:
        due = self.group.appends[node_of(node)].look(self.group.now_ms)
        self.group.network += due
        return iter([show_message(message) for message in due] or ["nothing is due"])

    def do_held(self, node: str) -> Iterator[str]:
        appends = self.group.appends[node_of(node)]
        quick = " ".join(map(str, appends.quick)) or "not known"
        yield f"{node} quick: {quick}; {appends.why_whole() or 'may hold'}"
        for message in (each for queued in appends.held.values() for each in queued):
            yield f"  held {show_message(message)}"

    # -- disk and network

    def do_ready(self, node: str) -> Iterator[str]:
        if not self.group.nodes[node_of(node)].has_ready():
            return iter(["nothing"])
        return show_ready(node_of(node), self.group.take_ready(node_of(node)))

    def do_sync(self, node: str, count: str = "999") -> Iterator[str]:
        writes = self.group.disks[node_of(node)].writes
        for _ in range(min(int(count), len(writes))):
            ready = self.group.sync(node_of(node))
            released = [show_message(m) for m in ready.messages_after_persist]
            what = ["hard state"] * (ready.hard_state is not None) + [show_entry(entry) for entry in ready.entries]
            yield "\n  ".join([f"{node} synced {' '.join(what) or 'nothing new'}", *released])

    def _link(self, link: str) -> list[Message]:
        ends = link_of(link)
        return [m for m in self.group.network if (m.from_id, m.to_id) == ends]

    def _take(self, message: Message) -> None:
        at = next(at for at, queued in enumerate(self.group.network) if queued is message)
        del self.group.network[at]

    def do_deliver(self, link: str, count: str = "999") -> Iterator[str]:
        for message in self._link(link)[: int(count)]:
            self._take(message)
            yield show_message(message)
            self.group.deliver(message)

    def do_last(self, link: str) -> Iterator[str]:
        message = self._link(link)[-1]
        self._take(message)
        yield show_message(message)
        self.group.deliver(message)

    def do_repeat(self, link: str) -> Iterator[str]:
        message = self._link(link)[0]
        yield show_message(message)
        self.group.deliver(message)

    def do_drop(self, link: str, count: str = "999") -> Iterator[str]:
        for message in self._link(link)[: int(count)]:
            self._take(message)
            yield "lost " + show_message(message)

    def do_cut(self, *links: str) -> None:
        for link in links:
            self.cuts.add(link_of(link))

    def do_heal(self) -> None:
        self.cuts.clear()

    def do_run(self, quiet: str = "") -> Iterator[str]:
        lines: list[str] = []
        for _ in range(_RUN_MAX):
            if not self._round(lines):
                return iter([] if quiet else lines)
        raise AssertionError("the group does not come to rest")

    def _round(self, lines: list[str]) -> bool:
        moved = False
        for node in list(self.group.nodes):
            if self.group.nodes[node].has_ready():
                lines.extend(show_ready(node, self.group.take_ready(node)))
                moved = True
            while self.group.disks[node].writes:
                self.group.sync(node)
                moved = True
        network, self.group.network = self.group.network, []
        for message in network:
            lost = (message.from_id, message.to_id) in self.cuts or message.to_id not in self.group.nodes
            lines.append(("lost " if lost else "") + show_message(message))
            if not lost:
                self.group.deliver(message)
        return moved or bool(network)

    def do_crash(self, *nodes: str) -> None:
        for node in nodes:
            self.group.crash(node_of(node))

    def do_start(self, *nodes: str) -> None:
        for node in nodes:
            self.group.start(node_of(node))

    def do_damage(self, node: str, low: str, high: str) -> None:
        self.group.disks[node_of(node)].damaged = range(int(low), int(high) + 1)

    def do_repair(self, node: str) -> None:
        self.group.disks[node_of(node)].damaged = range(0)
        self.act(node_of(node), "repaired")

    def do_lose(self, node: str, index: str) -> None:
        self.group.lose_from(node_of(node), int(index))

    def do_release(self, node: str) -> None:
        self.group.release(node_of(node))

    def do_resign(self, node: str) -> None:
        self.act(node_of(node), "resign")

    def do_fit(self, node: str, campaigns: str = "") -> Iterator[str]:
        raw = self.group.nodes[node_of(node)]
        if campaigns:
            self.group.act(node_of(node), lambda raw: raw.hold_campaigns("story", campaigns == "no"))
        what = [("votes", raw.may_vote), ("campaigns", raw.may_campaign), ("has caught up", raw.caught_up_with_leader)]
        return iter([f"{node} " + (", ".join(name for name, is_so in what if is_so) or "neither votes nor campaigns")])

    # -- looking

    def do_network(self) -> Iterator[str]:
        return map(show_message, self.group.network)

    def do_log(self, node: str) -> Iterator[str]:
        raw = self.group.nodes[node_of(node)]
        yield " ".join(
            show_entry(raw.raft.log.entry(index)) for index in range(raw.raft.log.first_index, raw.last_index + 1)
        )

    def do_state(self, *nodes: str) -> Iterator[str]:
        for node in map(node_of, nodes) if nodes else list(self.group.nodes):
            raw = self.group.nodes[node]
            s = raw.status()
            yield (
                f"{node} {s.role.name} term={s.term} vote={s.vote} leader={s.leader_id} last={show_id(raw.tail.id)} "
                f"persisted={s.persisted_index} commit={s.commit_index} applied={s.applied_index}"
            )

    def do_members(self, *nodes: str) -> Iterator[str]:
        for node in map(node_of, nodes) if nodes else list(self.group.nodes):
            yield f"{node} counts {show_members(self.group.nodes[node])}"

    def do_progress(self, node: str) -> Iterator[str]:
        for peer in self.group.nodes[node_of(node)].status().peers:
            yield (
                f"{peer.node_id} {peer.state} match={peer.match_index} next={peer.next_index} lag={peer.lag} "
                f"inflight={peer.inflight_messages}"
            )


def retell(text: str) -> str:
    """Runs the commands of a story file and returns the file with the outcomes that came out."""
    story = Story()
    told: list[str] = []
    for block in text.strip("\n").split("\n\n"):
        commands = block.split("\n----")[0].split("\n")
        lines = list(lines_of("\n".join(commands)))
        if not lines:
            told.append("\n".join(commands))
            continue
        outcome = [out for line in lines for out in story.run(line)]
        told.append("\n".join([*commands, "----", *outcome]))
    return "\n\n".join(told) + "\n"
