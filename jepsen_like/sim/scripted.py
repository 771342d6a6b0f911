"""Runs a schedule written by hand on full nodes and judges it like a random run. `jepsen_like.script.FULL` describes
the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jepsen_like.client_kit.frames import Answer
from jepsen_like.script import ScriptError, ScriptLine, lines_of
from jepsen_like.sim.attack_phase import Calm
from jepsen_like.sim.clients.client_machines import Foreign
from jepsen_like.sim.clients.offset_commits import OffsetCommits
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.scripted_client import ScriptedClient
from jepsen_like.sim.groups.second_group import NUMBER
from jepsen_like.sim.hostile.garbage_client import MALFORMED
from jepsen_like.sim.locks.lock_steps import LockSteps
from jepsen_like.sim.machines.machine import BROKER_PORT
from jepsen_like.sim.operator import Task
from jepsen_like.sim.options import IN_A_QUARTER, Options, calm
from jepsen_like.sim.registry.registry_faults import KINDS
from jepsen_like.sim.result import SimResult
from jepsen_like.sim.scripted_machines import LEAD_S, OPERATION_S, MachineStage
from jepsen_like.sim.upgrades import SURE_S, Upgrades
from jepsen_like.sim.users.attackers import attacks_of
from jepsen_like.sim.users.user_steps import UserSteps
from statemachine.levels import LEVEL


class ScriptedWorld(MachineStage):
    """A simulated world in which only the commands of the script happen."""

    def __init__(self, script: str, *, black_box: bool = False, trace: Callable[[str], None] | None = None) -> None:
        """Creates the world from the script's first line. Raises ScriptError if that line does not begin with `nodes`,
        or gives a wrong count or option."""
        self._lines = list(lines_of(script))
        first = self._lines.pop(0) if self._lines else ScriptLine(0, ())
        super().__init__(_options(first), black_box=black_box, trace=trace)
        self.hand = ScriptedClient(self._add_host(), self.recorder, self.register)
        self._reads = False
        self._locks: LockSteps | None = None
        self._users: UserSteps | None = None
        self._tide_at = ""
        self._asked: list[list[RawConnection]] = []
        """Connections of requests whose answers the script does not wait for, one list for each such command."""
        self._started: list[Any] = []

    def phases(self) -> None:
        for machine in self.machines.values():
            machine.start()
        self._begin()
        for line in self._lines:
            if self.monitor.violations:
                return
            self.monitor.log(f"> {line}")
            self.perform(line)

    def _tasks(self) -> tuple[Task, ...]:
        return ()

    def _clients(self) -> list[Any]:
        return [*self._started, self.reader]

    def retried(self) -> list[Foreign]:
        """Returns the messages that foreign clients, including the script's, sent again until they were answered."""
        return super().retried() + self.hand.retried

    def _host(self, name: str) -> str:
        return self.hand.address if name == "client" else super()._host(name)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _operation(self, later: str) -> None:
        if not later:
            self._until(lambda: not self.hand.open, OPERATION_S)

    def do_send(self, count: str = "1", *, body: str = "20", later: str = "") -> None:
        self.hand.send(int(count), int(body))
        self._operation(later)

    def do_ask(self, node: str, count: str = "1", *, body: str = "20", level: str = "", later: str = "") -> None:
        self.hand.ask(self._machine(node).host, int(count), int(body), level)
        self._operation(later)

    def do_offer(self, node: str, message_id: str, *, later: str = "") -> None:
        self.hand.offer(self._machine(node), message_id)
        self._operation(later)

    def do_commit(self, node: str, *, later: str = "") -> None:
        self.hand.commit(self._machine(node).host)
        self._operation(later)

    def do_query(self, node: str, *, anew: str = "", later: str = "") -> None:
        self.hand.query(self._machine(node).host, anew=bool(anew))
        self._operation(later)

    # --- clients of further modules ----------------------------------------------------------------------------------

    def do_tide(self, name: str, *kinds: str, later: str = "") -> None:
        tide = self._tide()
        host = self._machine(name).host
        if tide.connection is None or tide.connection.closed or self._tide_at != host:
            self._tide_at, opened = host, []

            async def connect() -> None:
                await tide.connect(host)
                opened.append(True)

            tide.host.spawn(connect)
            self._until(lambda: opened, OPERATION_S)
        for kind in kinds:
            tide.step(kind)
        connection = tide.connection
        if not later and connection is not None:
            self._until(lambda: not connection.unanswered, OPERATION_S)

    def do_locks(self, name: str, *steps: str) -> None:
        if self._locks is None:
            self._locks = LockSteps(self._add_host(), self.monitor.report)
        locks, node, done = self._locks, self._machine(name).host, []

        async def run() -> None:
            for step in steps:
                await locks.step(node, step)
            done.append(True)

        locks.host.spawn(run)
        if not self._until(lambda: done, len(steps) * OPERATION_S):
            self.monitor.report("liveness", f"the steps {' '.join(steps)} do not end")

    def do_users(self, name: str, *steps: str, later: str = "") -> None:
        if self.users is None:
            raise ValueError("`nodes` says users=1")
        if self._users is None:
            self._users = UserSteps(self._add_host(), self.monitor.report, self.users.check)
        users, node, done = self._users, self._machine(name).host, []

        async def run() -> None:
            for step in steps:
                await users.step(node, step, waits=not later)
            done.append(True)

        users.host.spawn(run)
        if not self._until(lambda: done, len(steps) * OPERATION_S):
            self.monitor.report("liveness", f"the steps {' '.join(steps)} do not end")

    def do_install(self, name: str, version: str) -> None:
        upgrades, machine = self._upgrades(), self._machine(name)
        upgrades.install(machine, LEVEL if version == "newer" else upgrades.older)
        self._until(lambda: machine.up and hasattr(machine.node, "peers"), LEAD_S)

    def do_finalize(self, name: str, level: str = "0") -> None:
        upgrades = self._upgrades()
        self._pass_time(2 * SURE_S)
        upgrades.finalize(self._machine(name), int(level))
        self._pass_time(SURE_S)
        upgrades.look()

    def do_change(self, name: str, topic: str) -> None:
        self._upgrades().change(self._machine(name), topic)
        self._pass_time(SURE_S)

    def _upgrades(self) -> Upgrades:
        if self.upgrades is None:
            raise ValueError("`nodes` says levels=1")
        self.upgrades.look()
        return self.upgrades

    def _tide(self) -> OffsetCommits:
        if not self.tides:
            self.tides.append(
                OffsetCommits("tide", self._add_host(), self.recorder, self.monitor.report, self.states.reign_of)
            )
        return self.tides[0]

    def do_request(
        self,
        name: str,
        code: str,
        /,
        *,
        expect: str = "",
        body: str = "",
        oneway: str = "0",
        times: str = "1",
        later: str = "",
        **ext: str,
    ) -> None:
        answers: list[Answer] = []
        made: list[RawConnection] = []
        host = self._machine(name).host

        async def ask() -> None:
            connection = RawConnection(f"request {code}", self.loop, self.monitor.report, self.auditor.credentials)
            made.append(await connection.reach(host))
            for at in range(int(times) + int(oneway)):
                silent = at >= int(times)
                frame = connection.frame(int(code), ext, body.encode(), oneway=silent, heard=answers.append)
                connection.write(frame)

        self.auditor.spawn(ask)
        if later:
            self._asked.append(made)
            return
        self._until(lambda: len(answers) == int(times) or (made and made[0].closed), OPERATION_S)
        if self.monitor.violations:
            return
        if len(answers) < int(times):
            self.monitor.report("answers", f"a request of code {code} has no answer")
        elif expect and answers[0].code != int(expect):
            what = f"{answers[0].code} {answers[0].remark[:100]}"
            self.monitor.report("answers", f"a request of code {code} is answered {what}, {expect} is right")

    def do_named(self, name: str, *sequences: str, low: str = "1") -> None:
        self.hand.named(self._machine(name).host, [int(sequence) for sequence in sequences], int(low))
        self._operation("")

    def do_attack(self, *episodes: str, seconds: str = "3") -> None:
        if self.hostile is None:
            raise ValueError("`nodes` says hostile=1")
        if episodes:
            self.hostile.episodes = tuple(getattr(self.hostile, episode) for episode in episodes)
        self.hostile.start()
        calm = Calm(self)
        calm.attack(float(seconds))
        calm.settle()

    def do_remake(self, seconds: str) -> None:
        if self.remakes is None:
            raise ValueError("`nodes` says remakes=1")
        self.remakes.start()
        self._started.append(self.remakes)
        self._pass_time(float(seconds))

    def do_demand(self, seconds: str) -> None:
        some = (self.waits, self.seeker, self.repeater, self.ordered, self.transactors, self.delayed)
        more = (self.failures, self.resets, self.legacies, self.writers, self.users, self.resized, self.apart)
        chosen: list[Any] = [one for one in (*some, *more) if one is not None]
        if not chosen:
            some_of = "=1, ".join(("waits", "seekers", "repeats", *IN_A_QUARTER, "writes", "users", "resized", "apart"))
            raise ValueError(f"`nodes` says one of {some_of}=1")
        self._start(chosen)
        self._pass_time(float(seconds))
        if self.waits is not None:
            self._pulls_answered(self.waits)
        self._revoked()

    def do_groups(self, seconds: str) -> None:
        if self.broker_groups is None:
            raise ValueError("`nodes` says groups=1")
        self.broker_groups.start()
        self._pass_time(float(seconds))

    def do_quota(self, limit: str, value: str, **subject: str) -> None:
        if self.quotas is None:
            raise ValueError("`nodes` says quotas=1")
        self.quotas.set(",".join(map("=".join, subject.items())), {limit: int(value)})
        self._pass_time(SURE_S)

    def do_quotas(self, seconds: str) -> None:
        if self.quotas is None:
            raise ValueError("`nodes` says quotas=1")
        self.quotas.start()
        self.do_load(seconds)

    def do_second(self, seconds: str) -> None:
        if self.second is None:
            raise ValueError("`nodes` says second=1 groups=1")
        self._start(self.second.clients)
        self._pass_time(float(seconds))

    def do_retire(self) -> None:
        retirement = None if self.second is None else self.second.retirement
        if retirement is None:
            raise ValueError("`nodes` says second=1 groups=1 retires=1")
        retirement.play(self._wait)

    def do_gather(self) -> None:
        gathering = None if self.second is None else self.second.gathering
        if gathering is None:
            raise ValueError("`nodes` says second=1 groups=1 gathers=1")
        gathering.play(self._wait)

    def do_registry(self, act: str, *numbers: str, seconds: str = "0") -> None:
        registry = None if self.second is None else self.second.registry
        if registry is None:
            raise ValueError("`nodes` says second=1 groups=1 registry=1")
        kind = act.replace("-", " ")
        if kind in KINDS:
            registry.faults.begin(kind, [int(number) for number in numbers], float(seconds))
            self._pass_time(float(seconds) + 0.01)
        elif act == "copy":
            registry.faults.copy()
        elif act == "rebuilt":
            registry.rebuilt(self._wait)
        elif act == "returns":
            registry.stays_gone(NUMBER, self._wait)
        else:
            raise ValueError(f"registry copy, registry rebuilt, registry returns, or a fault: {', '.join(KINDS)}")

    def do_apart(self, way: str = "both") -> None:
        if self.second is None or way not in ("both", "to", "from"):
            raise ValueError("`nodes` says second=1 groups=1; apart, apart to (the first group), apart from")
        pairs = [(a.host, b.host) for a in self.machines.values() for b in self.second.machines.values()]
        self.network.cut([pair for pair in pairs if way != "to"] + [pair[::-1] for pair in pairs if way != "from"])

    def do_surge(self, seconds: str = "0") -> None:
        if self.surges is None:
            raise ValueError("`nodes` says surges=1")
        if float(seconds):
            self._start([self.surges])
            self._pass_time(float(seconds))
        self._surged()

    def do_malice(self, seconds: str, *names: str) -> None:
        if self.attackers is None or self.requesters is None or self.guessers is None:
            raise ValueError("`nodes` says users=1")
        others: dict[str, Any] = {
            "register": self.registrations,
            "guess": self.guessers,
            "tokens": self.token_owners,
        }
        attacks = [name for name in names if name not in others]
        self.attackers.attacks, self.requesters.calm, self.guessers.calm = attacks_of(attacks), True, True
        self._start([others[name] for name in names if name in others])
        self._start([self.requesters, self.attackers] if attacks or not names else [])
        self._pass_time(float(seconds))

    def do_answered(self) -> None:
        self._until(lambda: not self.hand.open and not self._unanswered(), OPERATION_S)
        for what in self._unanswered()[:1]:
            self.monitor.report("answers", f"{what} has no answer")

    def _unanswered(self) -> list[str]:
        made = [connection for connections in self._asked for connection in connections if not connection.closed]
        return [connection.name for connection in made if connection.unanswered]

    def do_garbage(self, name: str) -> None:
        for kind in MALFORMED:
            self.vandal.strike(self._machine(name).host, BROKER_PORT, kind)

    def do_load(self, seconds: str) -> None:
        load: list[Any] = [*self.producers, *self.foreign, self.register, self.catalogue, self.vandal]
        self._start(load)
        self.do_reader()
        self._pass_time(float(seconds))

    def _start(self, clients: Sequence[Any]) -> None:
        """Starts those clients that have not been started: a client that is started twice would do everything twice on
        one state."""
        for client in clients:
            if client not in self._started:
                client.start()
                self._started.append(client)

    def do_reader(self) -> None:
        if not self._reads:
            self._reads = True
            self.reader.start()

    def do_settle(self) -> None:
        self.do_reader()
        for phase in (self._heal, self._end_of_hand, self._finish):
            if not self.monitor.violations:
                phase()

    def _end_of_hand(self) -> None:
        self.wait_for(lambda: not self.hand.open, "an operation never ends")


def _options(line: ScriptLine) -> Options:
    number, words = line
    if not words or words[0] != "nodes":
        raise ScriptError(f"line {number}: a script begins with `nodes COUNT`")
    try:
        given = dict(word.split("=", 1) for word in words[2:])
        return calm(**{"nodes": int(words[1]), **{name: _number(value) for name, value in given.items()}})
    except (ValueError, IndexError) as error:
        raise ScriptError(f"line {number}: {line}: {error}") from error


def _number(text: str) -> Any:
    if ".." in text:
        return tuple(float(part) for part in text.split(".."))
    return float(text) if "." in text else int(text)


def play(script: str, *, black_box: bool = False, trace: Callable[[str], None] | None = None) -> SimResult:
    """Runs a script to its end or to the first violation. Raises ScriptError."""
    return ScriptedWorld(script, black_box=black_box, trace=trace).run()
