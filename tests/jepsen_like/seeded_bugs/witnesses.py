"""One witness per planted bug: a tiny case that holds on the product and fails once the bug is in.

A witness proves that a mutant is one: that it changes what the code does. It says nothing about who finds it.
"""

from __future__ import annotations

from jepsen_like.core_sim.scripted import Stage
from jepsen_like.seeded_bugs.catalogue import load_all
from raftlog.core import read_index
from raftlog.core.raft import Raft
from raftlog.core.state.progress import Inflights, Progress
from raftlog.core.state.read_queue import ReadQueue
from raftlog.core.step import step
from raftlog.errors import ProposalDroppedError
from raftlog.messages import AppendEntries, AppendEntriesReply, Heartbeat, RequestVote, RequestVoteReply, TimeoutNow
from raftlog.types import NOBODY, EntryId, EntryType, NodeId, Role

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
LED = "nodes 3\ncampaign 1\nrun\n"


def stage(script: str) -> Stage:
    played = Stage(black_box=True)
    played.play(script)
    return played


def raft_of(played: Stage, node: NodeId) -> Raft:
    return played.machines[node].raw.raft


def progress() -> Progress:
    return Progress(5, Inflights(10, 1000))


def schedule_of(bug_id: str) -> Stage:
    """The bug's schedule without its end."""
    bug = next(bug for bug in load_all() if bug.id == bug_id)
    return stage(bug.schedule.replace("settle", ""))


def witness_C01() -> None:
    raw = stage("nodes 3").machines[ONE].raw
    raw.raft.become_follower(5, NOBODY)
    raw.ready()
    raw.raft.vote = TWO
    hard_state = raw.ready().hard_state
    assert hard_state is not None
    assert hard_state.vote == TWO


def witness_C02() -> None:
    raw = stage("nodes 3\ncampaign 1\n").machines[ONE].raw
    raw.raft.become_follower(5, NOBODY)
    hard_state = raw.ready().hard_state
    assert hard_state is not None
    assert hard_state.term == 5


def witness_C03() -> None:
    raw = stage(LED + "propose 1\n").machines[ONE].raw
    raft = raw.raft
    raft.term_start_index += 5
    for peer in raft.members.peers.values():
        peer.match_index = raft.log.tail.index
    raw.persisted(raft.log.tail.id)
    assert raft.log.commit_index == 1


def witness_C04() -> None:
    assert not schedule_of("C04").links[TWO, ONE]


def witness_C05() -> None:
    raft = raft_of(stage(LED), TWO)
    stage_vote(raft, EntryId(0, 0))
    assert raft.vote == NOBODY


def stage_vote(raft: Raft, last: EntryId) -> None:
    step(raft, RequestVote(THREE, raft.id, raft.term + 1, last, False, True))


def witness_C06() -> None:
    assert not raft_of(stage(LED), TWO).log.is_up_to_date(EntryId(0, 99))


def witness_C07() -> None:
    played = schedule_of("C07")
    played.play("sync 3\n")
    assert played.disks[THREE].entries[3].term == 2


def witness_C08() -> None:
    played = stage(LED + "propose 1\nrepeat 1->2\nsave 1->2\npropose 1\ndeliver 1->2\nlate\n")
    assert raft_of(played, TWO).log.tail.index == 3


def witness_C09() -> None:
    played = stage(LED + "cut 1\npropose 1\nsync 1\ncampaign 2\nrun\npropose 2 2\nrun\n")
    raft = raft_of(played, ONE)
    raft.become_follower(2, TWO)
    raft.messages.clear()
    entries = tuple(played.disks[TWO].entries[index] for index in (3, 4))
    step(raft, AppendEntries(TWO, ONE, 2, EntryId(2, 2), 0, entries))
    assert any(isinstance(message, AppendEntriesReply) and message.rejected for message in raft.messages)


def witness_C11() -> None:
    assert raft_of(stage("nodes 4"), ONE).members.quorum == 3


def witness_C11b() -> None:
    members = raft_of(stage("nodes 5"), ONE).members
    for node, peer in members.peers.items():
        peer.was_active, peer.match_index = node <= THREE, 9 if node == TWO else 1
    assert members.agreed_match(9) == 1, "two of five have 9"


def witness_C12() -> None:
    raw = stage("nodes 3\ncampaign 1\ntick 1\n").machines[ONE].raw
    for node in (TWO, THREE):
        raw.step(RequestVoteReply(node, ONE, 1, False, False, 0))
    assert raw.raft.vote == ONE


def witness_C13() -> None:
    assert raft_of(schedule_of("C13"), THREE).vote == THREE


def witness_C14() -> None:
    raw = stage("nodes 3\ncampaign 1\ncampaign 1\ntick 1\n").machines[ONE].raw
    raw.step(RequestVoteReply(TWO, ONE, 1, True, False, 0))
    assert TWO not in raw.raft.votes


def witness_C14b() -> None:
    raw = stage("nodes 5\ncampaign 1\n").machines[ONE].raw
    for _ in range(2):
        raw.step(RequestVoteReply(TWO, ONE, 1, True, False, 0))
    assert len(raw.raft.votes) == 1


def witness_C15() -> None:
    raw = stage("nodes 3\ncampaign 2\ncampaign 2\n").machines[TWO].raw
    raw.step(AppendEntries(ONE, TWO, 1, EntryId(0, 0), 0, ()))
    assert raw.leader_id == NOBODY


def witness_C16() -> None:
    raw = stage(LED + "crash 1\nstart 1\ncampaign 1\nrun\n").machines[ONE].raw
    peer = raw.raft.members.peers[TWO]
    peer.match_index = 0
    raw.step(AppendEntriesReply(TWO, ONE, 1, False, 1, EntryId(0, -1)))
    assert peer.match_index == 0


def witness_C16b() -> None:
    raw = stage("nodes 3\ncampaign 2\ncampaign 2\nsync 2\ncrash 2\nstart 2\n").machines[TWO].raw
    raw.step(Heartbeat(ONE, TWO, 1, 0, 0))
    assert raw.raft.messages


def witness_C17() -> None:
    peer = progress()
    peer.accepted(4, 0)
    peer.become_probe()
    peer.accepted(2, 0)
    assert peer.match_index == 4


def witness_C19() -> None:
    script = "nodes 3 inflight_bytes_max=300\ncampaign 1\nrun\npropose 1 12\ndeliver 1->2\nsync 2\ndeliver 2->1 1\n"
    assert stage(script).wasted == 0


def witness_C20() -> None:
    played = stage(LED + "propose 1 3\nrun\ntick 1 2\nrun\ntrim 2 3\ncampaign 2\nrun\n")
    assert raft_of(played, TWO).log.tail.term == 2


def witness_C21() -> None:
    raw = stage("nodes 3").machines[ONE].raw
    drawn = set()
    for term in range(1, 50):
        raw.campaign()
        for node in (TWO, THREE):
            raw.step(RequestVoteReply(node, ONE, term, False, False, 0))
        drawn.add(raw.raft.election_timeout)
    assert len(drawn) > 1


def witness_C22() -> None:
    raw = stage(LED + "propose 1\n").machines[ONE].raw
    raw.resign()
    raw.campaign()
    hard_state = raw.ready().hard_state
    assert hard_state is not None
    assert (hard_state.term, hard_state.vote) == (2, ONE)


def witness_C23() -> None:
    raw = stage("nodes 3 pre_vote=1\ncampaign 1\nrun\n").machines[ONE].raw
    raw.resign()
    raw.campaign()
    assert raw.role is Role.PRE_CANDIDATE


def witness_C23b() -> None:
    raw = stage("nodes 3 pre_vote=1 check_quorum=1\ncampaign 1\nrun\ntick 2 6\n").machines[TWO].raw
    raw.step(RequestVote(THREE, TWO, 2, EntryId(1, 9), True, False))
    assert not raw.raft.messages


def witness_C24() -> None:
    played = stage("nodes 3 check_quorum=1\ncampaign 1\nrun\ncut 1\npropose 1 2\ntick 1 25\n")
    assert raft_of(played, ONE).role is Role.FOLLOWER


def witness_C24b() -> None:
    played = stage("nodes 3 inflight_messages_max=1\ncampaign 1\nrun\npropose 1\n")
    members = raft_of(played, ONE).members
    members.active_voters()
    assert members.active_voters() == 1


def witness_C25() -> None:
    assert schedule_of("C25").machines[TWO].up


def witness_C27() -> None:
    played = stage(LED + "propose 1\ntransfer 1 3\n")
    assert not any(isinstance(message, TimeoutNow) for message in played.links[ONE, THREE])


def witness_C27b() -> None:
    raw = stage(LED + "cut 3\npropose 1 2\nrun\ntransfer 1 3\n").machines[ONE].raw
    try:
        raw.propose(EntryType.MESSAGES, b"x", 0)
    except ProposalDroppedError:
        return
    raise AssertionError("proposed while handing over")


def witness_C28() -> None:
    raw = stage("nodes 5\ncampaign 1\ntick 1\n").machines[ONE].raw
    raw.step(RequestVoteReply(TWO, ONE, 1, True, True, 0))
    assert TWO not in raw.raft.votes


def witness_C29() -> None:
    assert raft_of(schedule_of("C29"), ONE).log.commit_index == 0


def witness_C30() -> None:
    assert not schedule_of("C30").links[TWO, ONE]


def witness_C30b() -> None:
    assert not stage("nodes 3\ncampaign 1\ntick 1 3\n").links[ONE, TWO]


def witness_C31() -> None:
    assert raft_of(schedule_of("C31"), THREE).log.persisted_index == 2


def witness_C32() -> None:
    assert raft_of(schedule_of("C32"), THREE).log.persisted_index == 1


def witness_C33() -> None:
    assert schedule_of("C33").machines[ONE].state.applied_index == 1


def witness_C34() -> None:
    script = "propose 1 20\nrun\nheal\ntick 1 2\nrun\n"
    member = stage("nodes 3 apply_bytes_max=400\ncampaign 1\nrun\ncut 1\n" + script).machines[ONE]
    assert member.up
    assert member.state.values == list(range(1, 21))


def witness_C37() -> None:
    window = progress().inflights
    window.add(7, 10)
    window.clear()
    assert window.bytes == 0


def witness_C38() -> None:
    played = schedule_of("C38")
    played.play("ticks 8\n")
    assert all(member.state.applied_index >= 1 for member in played.machines.values())


def witness_C39() -> None:
    played = stage(LED + "tick 1 2\nrun\ntrim 2 1\ncampaign 3\nsync 3\ndeliver 3->2\n")
    assert raft_of(played, TWO).vote == THREE


def witness_C44() -> None:
    peer = Progress(20, Inflights(10, 1000))
    peer.rejected(19, 4)
    assert peer.next_index == 5


def witness_C45() -> None:
    raw = stage(LED + "tick 2 3\n").machines[TWO].raw
    raw.step(Heartbeat(ONE, TWO, 1, 0, 0))
    assert raw.raft.election_elapsed == 0


def witness_C46() -> None:
    played = stage("nodes 3\ncampaign 1\nsync 1\ndeliver 1->2\nsync 2\ncampaign 2\n")
    assert raft_of(played, TWO).term == 2


def witness_C47() -> None:
    assert raft_of(schedule_of("C47"), TWO).log.commit_index <= 3


def witness_L02() -> None:
    assert schedule_of("L02").machines[TWO].raw.tail.timestamp_ms < 2_000_000


def witness_C51() -> None:
    played = stage(LED + "crash 3\nlose 3 1\nstart 3\n" + 4 * "campaign 2\n" + "sync 2\ndeliver 2->3\n")
    assert raft_of(played, THREE).vote == NOBODY


def witness_C52() -> None:
    played = stage(LED + "cut 2\npropose 1\nrun\ncrash 3\nlose 3 2\nstart 3\ntick 1 2\nrun\nheal\ncampaign 1\nsync 1\n")
    played.play("deliver 1->2\nsync 2\ndeliver 2->1\ndrop 1->3\ntick 1 2\ndeliver 1->3\n")
    assert not played.machines[THREE].raw.may_vote


def witness_C53() -> None:
    assert raft_of(stage("nodes 3\ncampaign 2\nunfit 2\n"), TWO).role is Role.FOLLOWER


def witness_C54() -> None:
    played = stage(LED + "propose 1 3\nrun\ntick 1 2\nrun\ntrim 2 2\nunfit 2\ntransfer 1 2\nrun\n")
    assert raft_of(played, ONE).role is Role.LEADER


def witness_L01() -> None:
    played = stage("nodes 3\nclock 1 3600000\ncampaign 1\nrun\n")
    assert played.machines[ONE].raw.tail.timestamp_ms < 2_000_000


def witness_R01() -> None:
    assert stage(LED + "cut 1\npropose 1\nread 1\n").reads


def witness_R02() -> None:
    raft = raft_of(stage(LED), ONE)
    raft.term_start_index = 99
    raft.reads.waiting.append(1)
    raft.reads.last_round = 1
    assert not read_index.is_due(raft)


def witness_R03() -> None:
    assert not raft_of(schedule_of("R03"), ONE).reads.waiting


def witness_R04() -> None:
    reads = ReadQueue()
    for _ in range(3):
        reads.start_round(0)
    assert reads.last_round == 3
