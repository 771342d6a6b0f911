"""Users, rules, tokens, logins, the mode and the audit over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from cluster.admin.access import SLOW_AFTER, SLOW_S
from cluster.admin.signed_identity import PASS_HEADER, operator_pass
from cluster.broker.access.guesses import EVERY_MS as EVERY_MS_OF_GUESSES
from cluster.broker.access.guesses import FREE, PAIRS_MAX, TOLD_FROM, WAITING_MAX, Guesses
from cluster.broker.access.token_rate import AT_ONCE, EVERY_MS, TokenRate
from cluster.broker.access.user_admin import LOGINS_MAX
from statemachine.access.access_commands import Origin, PutToken
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import OWNERS_LEVEL
from tests.support.fake_raw import CLUSTER
from tests.support.rows import each_row

SECRET = "secret of root"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def told(answer: Any) -> tuple[int, str]:
    return answer.status, (await answer.json()).get("error", {}).get("code", "")


@pytest.fixture
def root(node: Any) -> dict[str, str]:
    """The headers of a Super, in a node that enforces."""
    token: str = node.add_user("root", is_super=True)
    node.set_mode("enforce")
    return bearer(token)


@pytest.fixture
async def pair(make_node: Any, serve: Any) -> Any:
    """(leader, follower, the leader's client, the follower's client)."""
    leader = make_node(1)
    leader_client = await serve(leader)
    peers = [{"id": 1, "port": 1, "admin": f"127.0.0.1:{leader_client.port}"}, {"id": 2, "port": 2}]
    follower = make_node(2, peers=peers)
    for each in (leader, follower):
        each.add_user("root", is_super=True)
        each.set_mode("enforce")
    return leader, follower, leader_client, await serve(follower)


# --- users and rules -------------------------------------------------------------------------------------------------


async def test_the_life_of_a_user(client: Any, node: Any, root: dict[str, str]) -> None:
    body = {"name": "shop", "secret": "a secret of shop"}
    for _ in range(2):  # again with equal contents: no error
        answer = await client.post("/v1/users", json=body, headers=root)
        assert (await answer.json())["user"] | {"created": ""} == {
            "name": "shop",
            "type": "Normal",
            "enabled": True,
            "created": "",
            "rules": 0,
            "tokens": 0,
        }
    answer = await client.post("/v1/users", json=body | {"secret": "another secret"}, headers=root)
    assert await told(answer) == (409, "refused")
    answer = await client.put("/v1/users/shop", json={"enabled": False, "type": "Super"}, headers=root)
    assert {key: (await answer.json())["user"][key] for key in ("type", "enabled")} == {
        "type": "Super",
        "enabled": False,
    }
    answer = await client.get("/v1/users", headers=root)
    assert [user["name"] for user in (await answer.json())["users"]] == ["root", "shop"]
    assert "secret" not in await answer.text()
    assert (await client.delete("/v1/users/shop", headers=root)).status == 200
    assert await told(await client.delete("/v1/users/shop", headers=root)) == (404, "not_found")
    audit = (await (await client.get("/v1/audit", headers=root)).json())["changes"]
    ours = [(row["user"], row["address"], row["action"]) for row in audit if row["about"] == "User:shop"]
    assert ours == [
        ("root", "127.0.0.1", "removed"),
        ("root", "127.0.0.1", "Super, disabled"),
        ("root", "127.0.0.1", "created, Normal"),
    ]


@each_row(
    "body",
    [
        {"name": "shop"},
        {"name": "shop", "secret": "short"},
        {"name": "shop", "secret": "x" * 257},
        {"name": "", "secret": "long enough"},
        {"name": "a/b", "secret": "long enough"},
        {"name": "operator", "secret": "long enough"},
        {"name": "shop", "secret": "long enough", "type": "Root"},
        {"name": "shop", "secret": 5},
    ],
)
async def test_a_user_that_cannot_be(client: Any, node: Any, root: dict[str, str], body: dict[str, Any]) -> None:
    answer = await client.post("/v1/users", json=body, headers=root)
    assert await told(answer) == (400, "bad_field")
    assert "long enough" not in await answer.text()
    assert set(node.state.access.users) == {"root"}


async def test_two_supers_remove_each_other_and_one_stays(client: Any, node: Any, root: dict[str, str]) -> None:
    other = bearer(node.add_user("other", is_super=True))
    answers = await asyncio.gather(
        client.delete("/v1/users/other", headers=root), client.delete("/v1/users/root", headers=other)
    )
    assert sorted(answer.status for answer in answers) in ([200, 401], [200, 403], [200, 409])
    assert node.state.access.supers == 1


async def test_a_user_made_again_has_nothing_of_the_old_one(client: Any, node: Any, root: dict[str, str]) -> None:
    old = bearer(node.add_user("shop", ("Cluster:*", ["Get"])))
    assert (await client.get("/v1/status", headers=old)).status == 200
    await client.delete("/v1/users/shop", headers=root)
    await client.post("/v1/users", json={"name": "shop", "secret": "a secret of shop"}, headers=root)
    assert (await client.get("/v1/status", headers=old)).status == 401
    assert (await (await client.get("/v1/acl/shop", headers=root)).json())["rules"] == []
    assert (await (await client.get("/v1/tokens?user=shop", headers=root)).json())["tokens"] == []


async def test_rules_are_set_told_tried_and_removed(client: Any, node: Any, root: dict[str, str]) -> None:
    node.add_user("shop")
    rules = [
        {"resource": "Topic:orders*", "actions": ["Pub", "Sub"]},
        {"resource": "Topic:orders-x", "actions": ["All"], "decision": "Deny", "sources": ["10.0.0.0/8"]},
    ]
    assert (await client.put("/v1/acl/shop", json={"rules": rules}, headers=root)).status == 200
    told_rules = (await (await client.get("/v1/acl/shop", headers=root)).json())["rules"]
    assert [rule["resource"] for rule in told_rules] == ["Topic:orders*", "Topic:orders-x"]
    asked = {"user": "shop", "resource": "Topic:orders-x", "action": "Pub"}
    for address, allowed in (("10.1.2.3", False), ("192.168.0.1", True)):
        answer = await client.post("/v1/acl/test", json=asked | {"address": address}, headers=root)
        assert (await answer.json())["allowed"] is allowed
    assert (await client.delete("/v1/acl/shop?resource=Topic:orders*", headers=root)).status == 200
    assert (await (await client.delete("/v1/acl/shop", headers=root)).json())["rules"] == 0
    assert await told(await client.delete("/v1/acl/shop", headers=root)) == (404, "not_found")


@each_row(
    "rule",
    [
        {"resource": "Topic:", "actions": ["Pub"]},
        {"resource": "Topic:a*b", "actions": ["Pub"]},
        {"resource": "Topic:my orders", "actions": ["Pub"]},
        {"resource": "group:my billing*", "actions": ["Sub"]},
        {"resource": "orders", "actions": ["Pub"]},
        {"resource": "Topic:orders", "actions": ["Fly"]},
        {"resource": "Topic:orders", "actions": []},
        {"resource": "Topic:orders", "actions": ["Pub"], "sources": ["nowhere"]},
        {"resource": "Topic:orders", "actions": ["Pub"], "policy": "Mine"},
    ],
)
async def test_a_rule_that_cannot_be(client: Any, node: Any, root: dict[str, str], rule: dict[str, Any]) -> None:
    node.add_user("shop")
    answer = await client.put("/v1/acl/shop", json={"rules": [rule]}, headers=root)
    assert await told(answer) in {(400, "bad_field"), (400, "bad_command")}
    assert node.state.access.users["shop"].rules == ()


# --- the operator ----------------------------------------------------------------------------------------------------


def as_operator(node: Any, method: str, path: str, body: bytes = b"") -> dict[str, str]:
    key, nonce = node.keyring.keys[0], node.access.entropy(16)
    made = operator_pass(key, str(CLUSTER), 1, method, path, body, wall_ms=node.now_ms, nonce=nonce)
    return made | ({"Content-Type": "application/json"} if body else {})


async def test_the_operator_makes_the_first_super_and_lets_one_in_again(client: Any, node: Any) -> None:
    body = b'{"name": "root", "secret": "secret of root", "type": "Super"}'
    assert await told(await client.post("/v1/users", data=body, headers={"Content-Type": "application/json"})) == (
        403,
        "denied",
    )
    answer = await client.post("/v1/users", data=body, headers=as_operator(node, "POST", "/v1/users", body))
    assert answer.status == 200
    assert node.state.access.supers == 1
    node.set_mode("enforce")
    change = b'{"secret": "another secret"}'
    answer = await client.put("/v1/users/root", data=change, headers=as_operator(node, "PUT", "/v1/users/root", change))
    assert answer.status == 200
    rows = list(node.state.access.audit(1 << 60, 3))
    assert [(row.user, row.about) for row in rows if row.about == "User:root"] == [("operator", "User:root")] * 2


# --- logins ----------------------------------------------------------------------------------------------------------


async def log_in(client: Any, user: str = "root", secret: str = SECRET, **more: Any) -> Any:
    return await client.post("/v1/session", json={"user": user, "secret": secret, **more})


async def test_a_login_is_a_cookie_that_no_script_reads(client: Any, node: Any, root: dict[str, str]) -> None:
    answer = await log_in(client)
    assert answer.status == 200
    cookie = answer.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"))
    assert "token" not in await answer.json()
    value = cookie.partition(";")[0]
    headers = {"Cookie": value, "Sec-Fetch-Site": "same-origin"}
    written = len(node.proposed)
    for _ in range(20):
        assert (await client.get("/v1/status", headers=headers)).status == 200
    assert len(node.proposed) == written, "no request of a session writes"
    who = await (await client.get("/v1/session", headers=headers)).json()
    assert (who["user"], who["type"], who["mode"]) == ("root", "Super", "enforce")
    out = await client.delete("/v1/session", headers=headers)
    assert (out.status, "Max-Age=0" in out.headers["Set-Cookie"]) == (200, True)
    assert (await client.get("/v1/status", headers=headers)).status == 401
    assert (await (await client.get("/v1/session", headers=headers)).json())["user"] is None


async def test_a_login_at_a_follower_is_good_everywhere_and_its_secret_stays_there(
    pair: Any,
) -> None:
    leader, follower, at_leader, at_follower = pair
    leader.proposed.clear()
    leader.followers.append(follower)
    answer = await log_in(at_follower, answer="token")
    token = (await answer.json())["token"]
    for client in (at_leader, at_follower):
        assert (await client.get("/v1/status", headers=bearer(token))).status == 200
    (written,) = leader.proposed
    assert isinstance(written, PutToken)
    assert SECRET not in repr(written)
    assert token not in repr(written)


async def test_a_secret_is_not_passed_on_to_another_node(pair: Any) -> None:
    leader, follower, _, client = pair
    token = next(iter({each.add_user("boss", is_super=True) for each in (leader, follower)}))
    answer = await client.post("/v1/users", json={"name": "a", "secret": "long enough"}, headers=bearer(token))
    assert await told(answer) == (503, "not_leader")
    assert "node 1 leads" in await answer.text()
    answer = await client.put("/v1/users/boss", json={"secret": "long enough"}, headers=bearer(token))
    assert await told(answer) == (503, "not_leader")


@pytest.mark.parametrize(("user", "secret"), [("root", "wrong secret"), ("nobody", SECRET), ("root", "")])
async def test_a_wrong_login(client: Any, node: Any, root: dict[str, str], user: str, secret: str) -> None:
    answer = await log_in(client, user, secret)
    assert await told(answer) == (401, "unauthenticated")
    assert "Set-Cookie" not in answer.headers


async def test_a_disabled_user_does_not_log_in(client: Any, node: Any, root: dict[str, str]) -> None:
    node.add_user("shop")
    await client.put("/v1/users/shop", json={"enabled": False}, headers=root)
    assert await told(await log_in(client, "shop", "secret of shop")) == (401, "unauthenticated")


class HeldPauses:
    """The pauses of late answers: they end when the test says so, and no clock is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.total = 0
        sleep = asyncio.sleep

        async def pause(delay_s: float, result: Any = None) -> Any:
            if delay_s != SLOW_S:
                return await sleep(delay_s, result)
            self.total += 1
            ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._begun.put_nowait(ends)
            return await ends

        monkeypatch.setattr("cluster.admin.access.asyncio.sleep", pause)

    @property
    def any_begun(self) -> bool:
        return not self._begun.empty()

    async def next(self) -> asyncio.Future[None]:
        """Waits until another pause has begun; the result ends it."""
        return await self._begun.get()


@asynccontextmanager
async def at_address(client: Any, host: str) -> AsyncIterator[Any]:
    """A client with an address of its own, 127.x.y.z."""
    connector = TCPConnector(local_addr=(host, 0), force_close=True)
    async with ClientSession(str(client.make_url("")), connector=connector) as session:
        yield session


GUESSERS = 60


async def test_guesses_of_a_pair_use_only_its_own_budget(
    client: Any, node: Any, root: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users log in from the same address, and the user from others, while a guesser has many logins under way."""
    pauses, stop, answered = HeldPauses(monkeypatch), False, 0
    timers: list[Any] = []
    node.held_timers = timers
    node.add_user("shop")

    async def guess(number: int) -> None:
        nonlocal answered
        while not stop:
            answer = await log_in(client, "root", f"wrong secret {number}")
            assert await told(answer) in {(401, "unauthenticated"), (503, "busy")}
            answered += 1

    attack = [asyncio.create_task(guess(number)) for number in range(GUESSERS)]
    while node.access.guesses.waiting < GUESSERS - FREE - 1:
        await asyncio.sleep(0.01)
    assert len(timers) == 1, "one timer for all"
    assert answered < FREE
    async with at_address(client, "127.0.0.2") as other:
        for _ in range(7):
            assert (await log_in(client, "shop", "secret of shop")).status == 200
            assert (await log_in(other)).status == 200
    honest = asyncio.create_task(log_in(client))
    while node.access.guesses.waiting < GUESSERS - FREE:
        await asyncio.sleep(0.01)
    begun_ms = node.now_ms
    while not honest.done():
        _, tick = timers.pop()
        node.now_ms += EVERY_MS_OF_GUESSES
        tick()
        await asyncio.sleep(0.001)
        while not timers and not honest.done():
            await asyncio.sleep(0.001)
    assert (await honest).status == 200
    assert node.now_ms - begun_ms <= 5_000
    stop = True
    while not all(task.done() for task in attack):
        while pauses.any_begun:
            (await pauses.next()).set_result(None)
        while timers:
            node.now_ms += EVERY_MS_OF_GUESSES
            timers.pop()[1]()
        await asyncio.sleep(0.001)
    await asyncio.gather(*attack)
    assert node.access.guesses.waiting == 0
    assert pauses.total >= 1, "a wrong one is answered late"


def made(now: list[int]) -> tuple[Guesses, list[Any]]:
    timers: list[Any] = []
    later: Any = lambda delay_ms, callback: timers.append(callback)  # noqa: E731
    return Guesses(lambda: now[0], lambda: now[0], later), timers


def test_guesses_hold_little_memory() -> None:
    now = [1_000_000]
    guesses, timers = made(now)
    for _ in range(FREE):
        guesses.wrong("root", "10.0.0.1")
    turns: list[bool] = []
    for _ in range(2 * WAITING_MAX):
        guesses.wait("root", "10.0.0.1", turns.append)
    assert (turns.count(True), turns.count(False), guesses.waiting) == (1, WAITING_MAX - 1, WAITING_MAX)
    for number in range(2 * PAIRS_MAX):
        guesses.wrong("x" * 1_000_000, f"10.0.{number}")
    assert len(guesses) == PAIRS_MAX
    assert guesses.must_wait("root", "10.0.0.1"), "a pair with a line stays"
    assert len(timers) == 1
    for name in range(100):
        for _ in range(TOLD_FROM):
            guesses.wrong(f"{name}" * 100, "10.0.0.1")
    assert len(guesses.last_hour()) <= 16
    assert max(len(each.name) for each in guesses.last_hour()) == 64
    now[0] += 3_600_001
    assert guesses.last_hour() == []
    assert not guesses.must_wait("root", "10.0.0.1")


def test_lines_of_many_pairs_go_on_beside_each_other() -> None:
    now = [1_000_000]
    guesses, timers = made(now)
    turns: dict[int, int] = {}
    for number in range(10):
        for _ in range(FREE):
            guesses.wrong("root", f"10.0.0.{number}")
        for _ in range(6):
            guesses.wait("root", f"10.0.0.{number}", lambda _, n=number: turns.update({n: turns.get(n, 0) + 1}))  # type: ignore[misc]
    for count in range(1, 7):
        assert turns == dict.fromkeys(range(10), count)
        now[0] += EVERY_MS_OF_GUESSES
        if timers:
            timers.pop()()
    assert (guesses.waiting, timers) == (0, [])


async def test_wrong_tokens_slow_their_address_and_no_right_one(
    client: Any, node: Any, root: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = HeldPauses(monkeypatch)
    for _ in range(SLOW_AFTER):
        assert (await client.get("/v1/status", headers=bearer("x" * 43))).status == 401
    late = asyncio.create_task(client.get("/v1/status", headers=bearer("x" * 43)))
    ends = await pauses.next()
    assert (await client.get("/v1/status", headers=root)).status == 200
    assert not late.done()
    ends.set_result(None)
    assert (await late).status == 401


async def test_a_login_that_is_repeated_ends_the_oldest(client: Any, node: Any, root: dict[str, str]) -> None:
    first = (await (await log_in(client, answer="token", hours=1)).json())["token"]
    for _ in range(LOGINS_MAX + 5):
        node.now_ms += EVERY_MS
        last = (await (await log_in(client, answer="token")).json())["token"]
    assert (await client.get("/v1/status", headers=bearer(first))).status == 401
    assert (await client.get("/v1/status", headers=bearer(last))).status == 200
    assert (await client.get("/v1/status", headers=root)).status == 200, "a token that no login made stays"
    assert len(node.state.access.users["root"].tokens) == LOGINS_MAX + 1


async def test_a_login_from_another_origin_is_refused(client: Any, node: Any, root: dict[str, str]) -> None:
    body = {"user": "root", "secret": SECRET}
    answer = await client.post("/v1/session", json=body, headers={"Origin": "http://evil.example"})
    assert await told(answer) == (403, "cross_origin")


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_a_user_gives_itself_tokens_and_others_none(client: Any, node: Any, root: dict[str, str]) -> None:
    shop = bearer(node.add_user("shop", ("Cluster:*", ["Get"])))
    answer = await client.post("/v1/tokens", json={"user": "shop", "label": "scrape"}, headers=shop)
    given = await answer.json()
    assert (await client.get("/v1/status", headers=bearer(given["token"]))).status == 200
    assert await told(await client.post("/v1/tokens", json={"user": "root"}, headers=shop)) == (403, "denied")
    for name in ("nobody", "shop2"):  # who may give tokens is told that there is nobody to give them to
        assert await told(await client.post("/v1/tokens", json={"user": name}, headers=shop)) == (403, "denied")
        assert await told(await client.post("/v1/tokens", json={"user": name}, headers=root)) == (404, "not_found")
    assert await told(await client.get("/v1/tokens?user=root", headers=shop)) == (403, "denied")
    assert await told(await client.get("/v1/tokens?user=nobody", headers=shop)) == (403, "denied")
    listed = (await (await client.get("/v1/tokens", headers=shop)).json())["tokens"]
    assert "scrape" in [each["label"] for each in listed]
    theirs = node.state.access.users["root"].tokens[0].hex()
    assert await told(await client.delete(f"/v1/tokens/{theirs}", headers=shop)) == (403, "denied")
    assert (await client.delete(f"/v1/tokens/{given['id']}", headers=shop)).status == 200
    assert (await client.get("/v1/status", headers=bearer(given["token"]))).status == 401
    assert await told(await client.delete("/v1/tokens/xyz", headers=root)) == (400, "bad_field")


async def test_nobody_gets_a_token_by_a_header_or_in_mode_off(client: Any, node: Any) -> None:
    node.add_user("root", is_super=True)
    for headers in ({}, {"X-RaftMQ-Hops": "1"}, {"X-RaftMQ-For": "127.0.0.1"}, {PASS_HEADER: "1 a"}):
        status, _ = await told(await client.post("/v1/tokens", json={"user": "root"}, headers=headers))
        assert status in (400, 401)


DAYS_3650_MS = 3_650 * 86_400_000


async def put(client: Any, headers: dict[str, str], ends_ms: int, user: str = "shop", number: int = 1) -> Any:
    row = {"user": user, "label": "put", "ends_ms": ends_ms}
    return await client.put(f"/v1/tokens/{number:064x}", json=row, headers=headers)


async def test_a_token_ends_within_3650_days_however_it_is_made(client: Any, node: Any, root: dict[str, str]) -> None:
    shop = bearer(node.add_user("shop"))
    for headers in (shop, root):
        for ends_ms in (node.now_ms + DAYS_3650_MS + 3_600_000, (1 << 63) - 1):
            assert await told(await put(client, headers, ends_ms)) == (400, "bad_field")
    assert await told(await client.post("/v1/tokens", json={"user": "shop", "days": 3_651}, headers=shop)) == (
        400,
        "bad_field",
    )
    assert len(node.state.access.users["shop"].tokens) == 1
    answer = await client.post("/v1/tokens", json={"user": "shop", "days": 3_650}, headers=shop)
    assert answer.status == 200
    ahead = node.now_ms + DAYS_3650_MS + 1_000  # the clock of the node that made it is ahead of the leader's
    assert (await put(client, shop, ahead)).status == 200
    assert node.state.access.tokens[bytes(31) + b"\x01"].ends_ms == node.now_ms + DAYS_3650_MS


@pytest.mark.parametrize("ends_ms", [(1 << 64) - 1, (1 << 63) - 1, 0])
async def test_a_token_with_an_absurd_end_is_shown_and_can_be_taken_away(
    client: Any, node: Any, root: dict[str, str], ends_ms: int
) -> None:
    shop = bearer(node.add_user("shop"))
    digest = bytes(32)
    node.apply([PutToken(Origin(node.now_ms, "", ""), node.state.access.users["shop"].id, digest, ends_ms, "old")])
    for headers in (root, shop):
        answer = await client.get("/v1/tokens?user=shop", headers=headers)
        assert answer.status == 200
        shown = {each["id"]: each for each in (await answer.json())["tokens"]}
        assert len(shown) == 2
        assert shown[digest.hex()]["ended"] is (ends_ms == 0)
    assert (await client.delete(f"/v1/tokens/{digest.hex()}", headers=shop)).status == 200
    assert digest not in node.state.access.tokens


@pytest.mark.parametrize("level", [OWNERS_LEVEL - 1, OWNERS_LEVEL])
async def test_a_new_secret_ends_tokens_and_logins_unless_they_are_named(
    client: Any, node: Any, root: dict[str, str], level: int
) -> None:
    node.apply([Finalize(level)])
    shop = bearer(node.add_user("shop", ("Cluster:*", ["Get"])))  # its label: for a test
    login = bearer((await (await log_in(client, "shop", "secret of shop", answer="token")).json())["token"])
    change = {"secret": "another secret", "keep_tokens": ["for a test"]}
    assert (await client.put("/v1/users/shop", json=change, headers=root)).status == 200
    status = {name: (await client.get("/v1/status", headers=each)).status for name, each in [("a", shop), ("b", login)]}
    assert status == {"a": 200, "b": 401 if level == OWNERS_LEVEL else 200}
    assert (await client.put("/v1/users/shop", json={"secret": "a third secret"}, headers=root)).status == 200
    assert (await client.get("/v1/status", headers=shop)).status == (401 if level == OWNERS_LEVEL else 200)
    assert (await client.get("/v1/status", headers=root)).status == 200


def audited(node: Any) -> int:
    """The number of rows that the audit ever got."""
    return next(iter(node.state.access.audit(1 << 60, 1))).number


async def test_changes_of_ones_own_tokens_have_a_rate(client: Any, node: Any, root: dict[str, str]) -> None:
    headers = {name: bearer(node.add_user(name)) for name in ("shop", "other")}
    begins, answers = audited(node), []
    for number in range(300):
        answers.append(await told(await put(client, headers["shop"], node.now_ms + 9_000, number=number)))
        await client.delete(f"/v1/tokens/{number:064x}", headers=headers["shop"])
    assert answers == [(200, "")] * AT_ONCE + [(503, "busy")] * (300 - AT_ONCE)
    assert audited(node) == begins + 2 * AT_ONCE
    answer = await put(client, headers["shop"], node.now_ms + 9_000)
    assert (answer.headers["Retry-After"], "ask again in 2 s" in await answer.text()) == ("1", True)
    assert await told(await log_in(client, "shop", "secret of shop")) == (503, "busy"), "logins count"
    assert (await log_in(client, "other", "secret of other")).status == 200, "the budget of a user is its own"
    for number in range(2 * AT_ONCE):
        assert (await put(client, root, node.now_ms + 9_000, "other", 1_000 + number)).status == 200, "a Super's"
    node.now_ms += 2 * EVERY_MS
    for wanted in [(200, "")] * 2 + [(503, "busy")]:
        assert (
            await told(await put(client, headers["shop"], node.now_ms + 9_000, number=5_000 + audited(node))) == wanted
        )


def test_what_is_kept_of_the_rate_ends_with_the_minute() -> None:
    rate = TokenRate()
    for number in range(40):
        rate.take(number, f"user-{number}", number * EVERY_MS)
    assert 1 <= len(rate) <= 2


# --- mode and audit --------------------------------------------------------------------------------------------------


async def test_the_step_to_enforce_shows_whom_it_would_stop(client: Any, node: Any) -> None:
    root = bearer(node.add_user("root", is_super=True))
    assert (await client.put("/v1/auth", json={"mode": "observe"}, headers=root)).status == 200
    await client.get("/v1/topics")
    shown = await (await client.get("/v1/auth", headers=root)).json()
    assert (shown["mode"], shown["supers"], shown["problem"]) == ("observe", ["root"], "")
    assert [(each["last"], each["times"], each["enforced"]) for each in shown["denials"]] == [
        ("GET /v1/topics", 1, False)
    ]
    assert await told(await client.put("/v1/auth", json={"mode": "off"})) == (401, "unauthenticated")
    assert await told(await client.put("/v1/auth", json={"mode": "on"}, headers=root)) == (400, "bad_field")


async def test_denials_older_than_an_hour_are_not_told(client: Any, node: Any, root: dict[str, str]) -> None:
    await client.get("/v1/topics")
    node.now_ms += 3_000_000
    assert len(node.access.denials.last_hour()) == 1
    node.now_ms += 3_000_000
    assert node.access.denials.last_hour() == []


async def test_the_audit_comes_in_pages(client: Any, node: Any, root: dict[str, str]) -> None:
    for number in range(7):
        node.add_user(f"user-{number}")
    numbers: list[int] = []
    before = ""
    while True:
        page = await (await client.get(f"/v1/audit?limit=3{before}", headers=root)).json()
        numbers += [row["number"] for row in page["changes"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert numbers == list(range(len(numbers), 0, -1))
    assert len(numbers) > 14
