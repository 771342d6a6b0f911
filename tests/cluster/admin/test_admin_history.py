"""/v1/members/{id}/history: rates and quantiles between two samples, the ring, and what `since_ms` leaves out."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from cluster.admin.figure_history import SAMPLES_MAX, Samples, quantile_ms
from cluster.admin.handlers.history import Sampler
from cluster.admin.node_interface import LoadStatus
from cluster.replication.outcome import Outcome
from tests.support.rows import each_row


class HandClock:
    """Both clocks move by hand."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


class Sampled:
    """A node with a sampler whose clock is moved by hand."""

    def __init__(self, node: Any, client: Any) -> None:
        self.node, self._client = node, client
        self.clock = HandClock()
        self.sampler = Sampler(node, self.clock)
        self.sampler.take()

    def after(self, seconds: float) -> None:
        self.clock.ms += int(seconds * 1000)
        self.sampler.take()

    async def last(self, query: str = "") -> dict[str, float | None]:
        answer = await (await self._client.get(f"/v1/members/1/history{query}")).json()
        series = answer["series"]
        return {each["name"] + (f" {each['peer']}" if each["peer"] else ""): each["values"][-1] for each in series}


@pytest.fixture
def sampled(node: Any, client: Any) -> Sampled:
    return Sampled(node, client)


async def test_rates_are_of_the_time_since_the_sample_before(sampled: Sampled) -> None:
    sampled.node.traffic.messages_in("orders", 50, 5_000)
    sampled.node.broker.deliveries.messages_out("orders", 20, 2_000)
    sampled.after(5)
    last = await sampled.last()
    assert (last["messages_in_per_s"], last["bytes_in_per_s"]) == (10, 1_000)
    assert (last["messages_out_per_s"], last["bytes_out_per_s"]) == (4, 400)
    sampled.after(10)
    assert (await sampled.last())["messages_in_per_s"] == 0


async def test_the_first_sample_has_no_rates(sampled: Sampled) -> None:
    last = await sampled.last()
    assert (last["messages_in_per_s"], last["commit_p99_ms"], last["leads"]) == (None, None, 1)
    assert last["peer_lag_entries 2"] == 12


async def test_latencies_are_of_the_time_since_the_sample_before(sampled: Sampled) -> None:
    for _ in range(100):
        sampled.node.traffic.settled(Outcome.OK, 1, 0, 0.004)
        sampled.node.appends.written(100, 0.0007, 0.0)
    sampled.after(5)
    last = await sampled.last()
    assert last["commit_p50_ms"] == pytest.approx(3.75)  # half of the bucket from 2.5 to 5 ms
    assert last["commit_p99_ms"] == pytest.approx(4.975)
    assert last["append_p99_ms"] == pytest.approx(0.995)  # from 0.5 to 1 ms
    sampled.after(5)
    assert (await sampled.last())["commit_p50_ms"] is None


def holds(sampled: Sampled, inflight_bytes: int, **more: Any) -> None:
    sampled.node.load = LoadStatus(
        connections=1, long_polls=0, inflight_bytes=inflight_bytes, client_inflight_bytes=0, **more
    )


async def test_demand_is_what_was_acknowledged_refused_or_waits_now(sampled: Sampled) -> None:
    """The bytes of refused sends are not counted: each is as large as an acknowledged one."""
    metrics = sampled.node.requests
    sampled.node.traffic.messages_in("orders", 50, 5_000)
    for reason, refusals in (("overload", 20), ("busy", 5), ("no_topic", 10)):
        for _ in range(refusals):
            metrics.refused(reason)
    holds(sampled, 800)
    sampled.after(5)
    last = await sampled.last()
    assert last["demand_bytes_per_s"] == (5_000 + 25 * 100 + 500) / 5
    assert (last["refused_overload_per_s"], last["refused_busy_per_s"], last["refused_other_per_s"]) == (4, 1, 2)
    metrics.refused("overload")
    sampled.after(1)
    last = await sampled.last()
    assert last["demand_bytes_per_s"] == 100, "nothing was acknowledged meanwhile: the size of those before"
    holds(sampled, 0)
    sampled.after(1)
    assert (await sampled.last())["demand_bytes_per_s"] == 0, "what waited was given up"


async def test_demand_is_not_known_on_a_follower_or_without_any_size(sampled: Sampled) -> None:
    sampled.node.requests.refused("overload")
    sampled.after(5)
    assert (await sampled.last())["demand_bytes_per_s"] is None
    sampled.node.leader = 2
    sampled.after(5)
    last = await sampled.last()
    assert (last["demand_bytes_per_s"], last["refused_overload_per_s"]) == (None, 0)


async def test_what_the_leader_has_learnt_is_shown_once_it_is_known(sampled: Sampled) -> None:
    names = ("decided_bytes_per_s", "admission_limit_bytes", "overloaded")
    last = await sampled.last()
    assert [last[name] for name in names] == [None, None, 0]
    holds(sampled, 900, admission_bytes=700, decided_bytes_per_second=10_000, overloaded=True)
    sampled.after(5)
    last = await sampled.last()
    assert [last[name] for name in names] == [10_000, 700, 1]


async def test_only_what_is_new_is_given(sampled: Sampled, client: Any) -> None:
    first_ms = sampled.clock.ms
    sampled.after(5)
    answer = await (await client.get(f"/v1/members/1/history?since_ms={first_ms}")).json()
    assert (answer["node"], answer["times_ms"], answer["interval_ms"]) == (1, [first_ms + 5000], 5000)
    assert {len(each["values"]) for each in answer["series"]} == {1}
    answer = await (await client.get(f"/v1/members/1/history?since_ms={first_ms + 5000}")).json()
    assert (answer["times_ms"], {len(each["values"]) for each in answer["series"]}) == ([], {0})


@each_row("wrong", ["-1", "x", "1.5", "", "9" * 30, "٣"])
async def test_a_time_that_is_none_is_refused(client: Any, wrong: str) -> None:
    answer = await client.get("/v1/members/1/history", params={"since_ms": wrong})
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_query")


async def test_an_hour_is_kept(sampled: Sampled) -> None:
    for _ in range(SAMPLES_MAX + 10):
        sampled.after(5)
    times_ms, series = sampled.node.samples.series()
    assert len(times_ms) == SAMPLES_MAX == len(sampled.node.samples)
    assert times_ms[-1] - times_ms[0] == 3_600_000 - 5_000
    assert {len(each.values) for each in series} == {SAMPLES_MAX}


def test_no_samples_are_empty_series() -> None:
    times_ms, series = Samples().series()
    assert (times_ms, {len(each.values) for each in series}) == ([], {0})


@each_row(
    ("counts", "part", "ms"),
    [
        ((0, 0, 0), 0.5, None),
        ((4, 0, 0), 0.5, 500),
        ((1, 1, 0), 0.5, 1000),
        ((1, 1, 0), 0.75, 2000),
        ((0, 0, 5), 0.99, 3000),
        ((2, 0, 2), 0.99, 3000),
    ],
)
def test_quantiles(counts: tuple[int, ...], part: float, ms: float | None) -> None:
    assert quantile_ms((1.0, 3.0, inf), counts, part) == ms
