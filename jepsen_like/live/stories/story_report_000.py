"""The story `report-000`: the log is uploaded exactly once, whichever node leads and whatever happens to it during an
upload.

Field report 000: a broker was stopped while it uploaded, and the last file of its index was never in the store. Here
the leader is stopped at each step of an upload (a failpoint), and is then killed, shut down, or cut off from the store.
At the end all of the log must be in the store, each segment once; keys are found at every moment; and consumers read
from offset zero while the nodes have only the last few segments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product

from jepsen_like.live.probes.keyed_messages import KeyedMessages
from jepsen_like.live.probes.tier_probe import KEPT_SEGMENTS, TierProbe
from jepsen_like.live.stories.story import WELL_S, Scene, Story, StoryEnds
from jepsen_like.live.subjects.raftmq_nodes import until_answered
from jepsen_like.live.subjects.subject import LoadPlan

SEGMENTS = 24
KEYS = 1_000_000
TOPICS = ("tiered-a", "tiered-b", "tiered-c")
POINTS = ("tier.uploading", "tier.put", "tier.uploaded", "tier.read_back", "tier.verified", "tier.manifest")
"""Failpoints before each record, call and publication of an upload: see cluster/tier/uploader.py and
tier_service.py."""
MINUTES = 15
SPARE_KEYS = 4
"""The most messages, in multiples of KEYS: more are sent while a leader is slow to reach a failpoint."""
OVERHEAD_BYTES = 300
"""Bytes of a message in the log in addition to its body."""
CHUNKS = 8
"""Chunks per segment."""
VERIFIED_S = 120.0
"""Seconds to wait for verification, since a pause after failures lasts up to 30 s."""


def play(scene: Scene) -> None:
    begun = time.monotonic()
    segment_bytes = scene.subject.segment_size_bytes
    keys = scene.count(KEYS)
    body = max(100, SEGMENTS * segment_bytes // keys - OVERHEAD_BYTES)
    probe = TierProbe(scene.subject)
    with KeyedMessages(
        scene.subject.servers, scene.subject.client_options, TOPICS, body, SPARE_KEYS * keys
    ) as messages:
        chunk = max(1, segment_bytes // (CHUNKS * (body + OVERHEAD_BYTES)))
        for point, (name, strike) in _blows(scene):
            with scene.act(f"{name} at {point}") as told:
                told.append(_blow(scene, probe, messages, chunk, point, strike))
        _fill(scene, messages, chunk, lambda: messages.acked >= keys and _rows(scene, probe) >= scene.count(SEGMENTS))
        with scene.quiet():
            _judge(scene, probe, messages)
        scene.measured |= {"keys": messages.acked, "segments": _rows(scene, probe)}
        scene.gate("keys acknowledged", messages.acked, keys)
    scene.gate("segments in the tier", scene.measured["segments"], scene.count(SEGMENTS))
    scene.gate("minutes, at most", round((time.monotonic() - begun) / 60, 1), MINUTES, at_most=True)


StoreBlow = Callable[[Scene, TierProbe, int, str], str]


def _blows(scene: Scene) -> list[tuple[str, tuple[str, StoreBlow]]]:
    """Returns every failpoint with every kind of blow; in a rehearsal every failpoint and every kind at least once."""
    strikes: list[tuple[str, StoreBlow]] = [("kill -9", _kill), ("SIGTERM", _stop), ("no store", _cut_off)]
    turns = [(point, strikes[(at + turn) % len(strikes)]) for turn, (at, point) in product(range(3), enumerate(POINTS))]
    return turns[: max(len(POINTS), scene.count(len(turns)))]


def _blow(scene: Scene, probe: TierProbe, messages: KeyedMessages, chunk: int, point: str, strike: StoreBlow) -> str:
    """Holds the leader at the failpoint, applies the blow, and waits until the tier has all sealed segments. Raises
    StoryEnds.
    """
    leader = scene.stage.leader()
    scene.subject.set_failpoint(leader, point, "hold")
    _fill(scene, messages, chunk, lambda: scene.subject.failpoint_waiting(leader).get(point, 0) > 0)
    last = messages.send(len(TOPICS))
    said = strike(scene, probe, leader, point)
    scene.wait_well()
    if last is not None and (wrong := messages.find(last, WELL_S)):
        scene.demand(False, f"after {said} at {point}: {wrong}")
    begun = time.monotonic()
    leader = scene.stage.leader()
    if not probe.wait_verified(leader, probe.view(leader)["sealed_end"], VERIFIED_S):
        raise StoryEnds(f"after {said} at {point} the tier did not catch up: {probe.view(leader)}")
    return f"{said}; all in the tier {time.monotonic() - begun:.1f} s after"


def _kill(scene: Scene, probe: TierProbe, leader: int, point: str) -> str:
    if not scene.stage.strike([leader]):
        raise StoryEnds(f"node {leader} could not be killed")
    scene.subject.start_node(leader)
    return f"node {leader} was killed"


def _stop(scene: Scene, probe: TierProbe, leader: int, point: str) -> str:
    scene.demand(scene.subject.terminate(leader), f"node {leader} did not stop in order while it was held at {point}")
    scene.subject.start_node(leader)
    return f"node {leader} was stopped"


def _cut_off(scene: Scene, probe: TierProbe, leader: int, point: str) -> str:
    """Cuts the leader off from the store, and lets it continue."""
    before = probe.view(leader)["failures"]
    with probe.cut_off():
        scene.subject.set_failpoint(leader, point, "off")
        if not until_answered(lambda: probe.view(leader)["failures"] > before, WELL_S, 0.05):
            raise StoryEnds(f"node {leader} did not notice that there is no store: {probe.view(leader)}")
        failing = probe.view(leader)["failing"]
    return f"node {leader} had no store ({failing[:60]})"


def _fill(scene: Scene, messages: KeyedMessages, chunk: int, reached: Callable[[], bool]) -> None:
    """Sends messages until `reached` returns True. Raises StoryEnds if no message of a chunk was acknowledged, or if
    there are no more.
    """
    while not reached():
        if messages.send(chunk) is None:
            raise StoryEnds(f"of {messages.sent} messages the last {chunk} were not acknowledged, or there are no more")


def _rows(scene: Scene, probe: TierProbe) -> int:
    return len(probe.rows(scene.stage.leader()))


def _judge(scene: Scene, probe: TierProbe, messages: KeyedMessages) -> None:
    """Checks, without writes, that everything to the last byte is in the tier, once, and can be read from there."""
    leader = scene.stage.leader()
    with scene.act("seal, and sweep") as told:
        position = int(scene.subject.request(leader, "POST", "/v1/tier/seal", {})["position"])
        if not probe.wait_verified(leader, position, VERIFIED_S):
            raise StoryEnds(f"the last segment did not come into the tier: {probe.view(leader)}")
        scene.wait_caught_up()
        scrub = probe.scrub(leader, VERIFIED_S)
        scene.demand(scrub["bad"] == 0, f"the scrub found {scrub['bad']} bad objects: {scrub['findings']}")
        differences = probe.differences(position)
        for each in differences:
            scene.demand(False, each)
        told.append(f"{scrub['objects']} objects, {scrub['swept']} swept; {len(differences)} differences")
    with scene.act("read from offset zero") as told:
        kept = (KEPT_SEGMENTS + 2) * scene.subject.segment_size_bytes

        def evicted() -> bool:
            return bool(position - probe.view(leader)["log_begins"] <= kept)

        if not until_answered(evicted, VERIFIED_S, 0.2):
            raise StoryEnds(f"the nodes keep more than {kept} bytes: {probe.view(leader)}")
        begins = probe.view(leader)["log_begins"]
        scene.demand(begins > 0, "the nodes have all of the log: nothing was read from the tier")
        for wrong in messages.read_all():
            scene.demand(False, wrong)
        told.append(f"{messages.acked} messages; the nodes have the log from {begins} to {position}")


STORY = Story(play, free_gib=12, segment_mib=64, load=LoadPlan(50, 64), is_tiered=True)
