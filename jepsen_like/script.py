"""The language of hand-written schedules and stories, for the Raft core and for whole nodes alike.

One command per line, `#` begins a comment:

    COMMAND [WORD ...] [name=value ...] [flag ...]

A WORD is a node (`2`), a link (`1->2`), a number or a name; a flag is a word that a command knows as one. An
interpreter has a method `do_COMMAND` for each command (`-` in a name becomes `_`): words are its positional parameters,
options and flags its keyword parameters.

There are two engines for the one language: the core (`core_sim/scripted.py` judges schedules,
tests/support/raft_story.py prints stories) and full nodes (`sim/scripted.py`, with clients). VOCABULARY is the whole
language.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from raftlog.types import NodeId

EVERYWHERE = """
nodes COUNT [option=value ...]  a fresh group: fields of RaftConfig, or of `sim/options.py`; what a story takes: below
start N ...                     a node that is down starts
crash N ... | lose N ... | join N  see the engine: power fails; something is gone for good; a node with an empty disk
cut A->B ... | heal             packets are lost until healed (full nodes: `cut N` too, and `client` for A or B)
"""
CORE = """
campaign N                      N's election timeout passes
tick N [COUNT]                  ticks of one member
transfer N M | closed N M       hand leadership over; N's connection from M breaks
propose N ...                   an entry is proposed at N
read N ...                      a linearizable read at N
clock N ...                     what N's clock says
sync N [COUNT]                  N's oldest writes reach the disk (all without COUNT), each by its own fdatasync
deliver A->B [COUNT] | last A->B   the oldest messages of the link (all without COUNT); the newest
drop A->B [COUNT]               loses the oldest (all without COUNT)
repeat A->B                     delivers a message, and keeps it
run                             disks and links work until nothing moves
join N                          a new node with nothing but GENESIS
add N M | promote N M | remove N M   the leader N proposes that M joins as learner, becomes a voter, leaves
trim N INDEX                    N makes a checkpoint, and its log begins at INDEX
install N M                     N takes over the checkpoint of M and the end of its log, and starts again
lose N INDEX                    the disk of a crashed member loses INDEX and all above
"""
"""Commands of both schedules and stories of the core."""
SCHEDULES = """
nodes COUNT [field=value ...]   RaftConfig fields; pre_vote and check_quorum are off unless given (0 or 1)
ticks COUNT                     ticks of all in turn (messages and disks at rest in between)
propose N [COUNT] | again N     new operations at a leader; the last operation once more
clock N MS                      N's wall clock is off by MS from now on
repeat A->B                     the newest
save A->B | late                puts the link's newest message aside; delivers what was put aside
cut N                           to and from N
offer A->B INDEX                A's offer of a snapshot that ends at INDEX comes (again)
crash N torn                    power fails in the middle of all that is not synced: term and vote are written first
crash N [keep]                  power fails: what is not synced is lost (keep: is there), applied state stays
unfit N                         N's log is damaged, or its state suspect: it must not campaign
gone N ...                      the operator stops these for good
settle                          heals, starts all, ticks until a new operation is applied everywhere, final checks
check                           every invariant of every member, now
same                            remembers the highest term for `expect same`
expect answered | no-leader N | term T | same | once     Violation "quiescent-failover", "stale-leader",
                                "disruption" (twice), "message-budget" (entries sent in vain, refusals)
"""
"""Commands of the core's schedules, whose runs are judged: `core_sim/scripted.py`."""
STORIES = """
nodes COUNT [election=10] [pre_vote=off] [check_quorum=off] [inflight=N] [append=BYTES] [seed=N]
group [election=..] ...         the same, from the `disk` lines before it
disk N terms=1,1,4 [term=7]     what node N finds on its disk: GENESIS and one entry per term
clock N WALL MONOTONIC | propose N TEXT | read N CONTEXT | persisted N TERM INDEX
ready N                         takes one Ready and prints it
repeat A->B                     the oldest
run [quiet]                     ready, sync, deliver, until nothing moves
damage N LOW HIGH | repair N    entries LOW to HIGH of its disk cannot be read; they can again
release N | resign N            gives its vote back; leads no longer
fit N [yes|no]                  says whether it may vote, campaign; lets it campaign
thrifty N [preferred=M] | at MS    N holds appends back from now on; the time by which it does
look N | held N                    N sends what is due; prints what N holds back, and for whom it does not
add N M [UUID]
network | log N | state [N ...] | progress N | members [N ...]   prints them
"""
"""Commands of the core's stories, whose runs are printed: tests/support/raft_story.py."""
FULL = """
lead N                          leadership goes to N; goes on when N takes writes
send [COUNT] [body=BYTES] [later]   our client sends, wherever it finds the leader, one after the other
ask N [COUNT] [body=BYTES] [level=LEVEL] [later]  a foreign client sends at node N, all at once, each once
offer N ID [later]              a foreign client sends at node N with this UNIQ_KEY (again, if it did before)
commit N [later]                the register's next value is committed through node N
query N [anew] [later]          the register is read through node N (anew: on a connection of its own)
tide N KIND ... [later]         on one connection to N, without waiting: oneway, commit, pull (offset commits of
                                each kind), delete, make (the group), query
locks N STEP ...                clients a, b, ... of one group at node N: make (the topic), a+ (locks every queue), a-
                                (unlocks), a:5 (commits), group, topic (deleted; the topic is made again)
install N older|newer           node N is killed and starts with that version (`nodes` says levels=1; with begins=LEVEL
                                the older one knows LEVEL, else the one below the newest)
finalize N [LEVEL]              node N is asked to finalize; LEVEL: to that one, and the members are not asked
change N TOPIC                  a person changes TOPIC at node N
users N STEP ... [later]        users ann, bob, cy at node N (`nodes` says users=1), each on a connection that it keeps:
                                create/ann, remove/ann, secret/ann (another one), disable/ann, enable/ann, usual/ann
                                (all rights), clear/ann (none), allow/ann/RESOURCE/ACTION, deny/... (and /clients or
                                /elsewhere: for those addresses alone); send/ann, old/ann (with the secret before),
                                unsigned/ann, forged/ann (as the Super, with her own secret), pull/ann, lite/ann (wait
                                for messages)
request N CODE [field=value ...] [body=TEXT] [expect=CODE] [later]   one request, on a connection of its own
        [times=COUNT] [oneway=COUNT]    so often on this connection, and behind that so often without an answer
attack [EPISODE ...] [seconds=S]    clients mean harm (`nodes` says hostile=1): odd, halves, pulls, twice, crowd,
                                stranger (on the peer port, without the secret)
named N SEQUENCE ... [low=S]    a client with an identity sends these at node N, all at once, perhaps again
remake SECONDS                  topics are made, changed and deleted (`nodes` says remakes=1)
demand SECONDS                  clients that know one thing each (`nodes` says waits=1, seekers=1, repeats=1, ordered=1,
                                transactions=1, delayed=1, failures=1, resets=1, legacies=1, writes=1, users=1,
                                resized=1, apart=1)
malice SECONDS [ATTACK ...]     users try to read and change what others have (`nodes` says users=1): all attacks of
                                jepsen_like/sim/users/attackers.py, or those named; also `register`, `guess` and
                                `tokens`, the clients of registrations.py, guessers.py and token_owners.py there
groups SECONDS                  a second group of brokers is added, and copies what it needs, while topics and groups
                                are changed and deleted (`nodes` says groups=1)
quota LIMIT VALUE SUBJECT=NAME  sets a quota (`nodes` says quotas=1)
quotas SECONDS                  quotas come and go while clients send (`nodes` says quotas=1)
gather                          a topic of both groups leaves the second one, and comes back (`nodes` says gathers=1)
registry FAULT N... [seconds=S]  a fault of these processes of the registry: gone, empty, old-copy, stands-still, hangs,
                                cut-off, lies (`nodes` says registry=1). `registry copy` keeps what old-copy puts back,
                                `registry rebuilt` takes all from it and has it know all again, and after a retirement
                                `registry returns` puts back what it was at the copy
retire                          the second group of brokers retires (`nodes` says retires=1)
second SECONDS                  clients use both groups, and change what they share (`nodes` says second=1 groups=1);
                                N@2 is node N of the second group, wherever a command takes a node
apart [to|from]                 the groups do not hear each other, or what goes to or comes from the first is lost
surge [SECONDS]                 clients send more than the log takes (`nodes` says surges=1): bursts for so long, then a
                                burst and an overload while others send a little
garbage N                       somebody sends malformed bytes to N, one connection for each kind
load SECONDS                    the clients of a random run work for so long
reader                          a consumer group reads from now on
wait SECONDS | answered         time passes; until everything asked for has ended
clock N MS                      N's wall clock is off by MS from now on
kill N ...                      kill -9
pause N | resume N              SIGSTOP, SIGCONT
stall N [campaign|resign] [seconds=S]  a turn of N's loop takes long, perhaps begun when N's next tick would let it do
                                that: S seconds, or until go-on; what is sent to N waits in its sockets
go-on N                         the turn of N's loop that `stall` made long ends
stop N ...                      SIGTERM; the machine starts it again
power N [left=LEFT] [rows=K]    the plug is pulled; LEFT of what was not synced: nothing, everything, heads (the
                                first sector of each write); the database loses its last K batches (default all)
power-in N CALL [left=LEFT] [rows=K]  the same in the middle of N's next CALL (pwritev, fdatasync, rename ...)
crash N before-ack|after-ack    the plug is pulled when N has entries on disk and has not told, or has told
crash N after-roll              the same after it has told of the first entry of a new segment
lying N ...                     syncs of N's disk do nothing from now on, and say that all is well
fail N CALL ERRNO               N's next CALL fails
fill N BYTES                    N's disk takes so many more bytes
slow N FACTOR | slow-apply N FACTOR  N's lanes, or its apply lane, take longer
store away | store back         with tier=1 or tier=2: the object store refuses everything, or takes requests again
store flip log|index K          a bit rots in the first half of an object of the tier's segment K; again: it is right
store repair                    the leader compares the whole tier with its state, and repairs it
rot N INDEX                     a bit of entry INDEX flips on the disk of N, which runs
spoil N                         the state of N, which is down, cannot be opened by its next start
join N | leave N | lose N [later]   a machine with an empty disk becomes a voter; a member is removed and switched
                                off; a machine is gone for good, with its disk
oldest N                        somebody pulls the oldest message that there is from node N, and must get it
pull N                          our client pulls the first queue through node N, from its first offset to its end, or
                                to the first error; no answer may leave out a message
copying N STAGE                 until node N copies the STAGE of a snapshot: state, log, backfill
half-open A B | half-open A->B [CHANNEL]  the connections between A and B lead nowhere from now on, heal or not,
                                and nobody is told: all, or those that A dialled (control, bulk); new ones work
reset A B                       the connections between A and B end; what was on the way is lost
settle                          heals, starts all, waits until everything was answered and read; then judges
"""
"""Commands for full nodes: `sim/scripted.py`. Without `later` a command ends when its operation does, or after 6 s."""
VOCABULARY = {"core schedules": EVERYWHERE + CORE + SCHEDULES, "stories": EVERYWHERE + CORE + STORIES,
              "full nodes": EVERYWHERE + FULL}  # fmt: skip


class ScriptError(ValueError):
    """A line of a script is not understood; the message names the line."""


class ScriptLine(NamedTuple):
    """A line of a script, which is one command."""

    number: int
    """Line number in its script, from 1."""
    words: tuple[str, ...]
    """The words of the line; the first is the command's name."""

    def __str__(self) -> str:
        return " ".join(self.words)


def lines_of(script: str) -> Iterator[ScriptLine]:
    """Yields the commands of a script, without empty lines and comments."""
    for number, line in enumerate(script.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            yield ScriptLine(number, tuple(words))


def node_of(word: str) -> NodeId:
    """Returns the node that a word names. Raises ValueError."""
    return NodeId(int(word))


def link_of(word: str) -> tuple[NodeId, NodeId]:
    """Returns (sender, receiver) of a link `1->2`. Raises ValueError."""
    sender, receiver = word.split("->")
    return node_of(sender), node_of(receiver)


class Interpreter:
    """Carries out commands: a subclass has a method `do_COMMAND` for each."""

    flags: ClassVar[frozenset[str]] = frozenset()
    """Words of a line that are flags. A flag is passed to the command's method as a keyword parameter with the value
    "yes".
    """
    misread: ClassVar[tuple[type[Exception], ...]] = (TypeError, KeyError)
    """Types of errors by which a method shows that it does not understand its words."""

    def perform(self, line: ScriptLine) -> Any:
        """Carries out one command; returns the result of its method. Raises ScriptError."""
        name, *words = line.words
        command = getattr(self, "do_" + name.replace("-", "_"), None)
        if command is None:
            raise ScriptError(f"line {line.number}: no command {name!r}")
        plain = [word for word in words if "=" not in word and word not in self.flags]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        named |= {word: "yes" for word in words if word in self.flags}
        try:
            inspect.signature(command).bind(*plain, **named)
        except TypeError as error:
            raise ScriptError(f"line {line.number}: {line}: {error}") from error
        try:
            return command(*plain, **named)
        except self.misread as error:
            if isinstance(error, ScriptError):
                raise
            raise ScriptError(f"line {line.number}: {line}: {error!r}") from error
