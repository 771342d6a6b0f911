"""No collection of garbage walks over more than what was made lately, and no garbage stays. In a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.pace import at_most

CHECK = """
import gc, sys, weakref
from cluster.runtime.turns import garbage_collection
from cluster.runtime.turns.garbage_collection import WALKED, Collector

class Knot:
    def __init__(self):
        self.me = self  # nothing but the collector ends it

class Held:
    pass

walked = []
def watch(phase, info):
    if phase == "start" and counting:
        walked.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

counting = False
collector = Collector(aside_min=200_000)
collector.thorough()
gc.callbacks.append(watch)
counting = True
"""


def run(script: str) -> None:
    """`script` goes on from CHECK, in an interpreter without this one's objects."""
    done = subprocess.run([sys.executable, "-c", CHECK + script], capture_output=True, text=True, timeout=at_most(120))
    assert done.returncode == 0, done.stderr


def test_what_lives_long_is_not_walked_over_again() -> None:
    run("""
held = [Held() for _ in range(300_000)]
assert len(walked) >= 20, "it collects by itself"
assert max(walked) <= WALKED, max(walked)
assert collector.aside >= 250_000
counting = False
collector.thorough()
walked.clear()
counting = True
held += [Held() for _ in range(300_000)]
assert len(walked) >= 20
assert max(walked) <= WALKED, f"after a thorough look at {len(held)}: {max(walked)}"
""")


def test_garbage_that_is_made_meanwhile_goes() -> None:
    run("""
alive = weakref.WeakSet()
class Knot(Knot):
    __slots__ = ()
held = []
peak = 0
for number in range(300_000):
    knot = Knot()
    if number % 3 == 0:
        held.append(Held())
    if number % 100 == 0:
        alive.add(knot)
        peak = max(peak, len(alive))
del knot
assert peak <= 2 * WALKED / 100, peak
assert max(walked) <= WALKED, max(walked)
""")


def test_old_garbage_goes_by_and_by_at_a_follower_before_a_leader() -> None:
    run("""
counting = False
knots = [Knot() for _ in range(150_000)]
gc.collect()
assert not collector.due(leads=False)
alive = weakref.WeakSet(knots[::1000])
del knots
gc.collect()
assert len(alive) == 150, "it was set aside before it became garbage"
more = [Held() for _ in range(100_000)]
gc.collect()
assert collector.due(leads=False) and not collector.due(leads=True)
collector.thorough()
assert not alive and not collector.due(leads=False)
more += [Held() for _ in range(1_000_000)]
gc.collect()
assert collector.due(leads=True), collector.aside
collector.thorough()
more += [Held() for _ in range(300_000)]
gc.collect()
assert not collector.due(leads=False), "a thorough look is worth its pause when there is twice as much"
""")


def test_looks_that_find_nothing_become_rare_until_one_finds_something() -> None:
    run("""
counting = False
garbage_collection.RARE = 8
needed = []
for _ in range(6):
    held = []
    while not collector.due(leads=False):
        held += [Held() for _ in range(20_000)]
        gc.collect()
    needed.append(collector.aside)
    del held
    collector.look()
assert needed[0] < 300_000 and needed[3] >= 1_600_000, needed
assert needed[-1] < 1.5 * needed[3], "not ever rarer"
knots = [Knot() for _ in range(50_000)]
gc.collect()
del knots
collector.look()
held = []
while not collector.due(leads=False):
    held += [Held() for _ in range(20_000)]
    gc.collect()
assert collector.aside < 300_000, "what was found is worth a look"
""")


def test_what_goes_after_it_was_set_aside_is_no_reason_for_a_look() -> None:
    run("""
counting = False
for _ in range(100):
    held = [Held() for _ in range(20_000)]  # they live until they are set aside, and then their references end them
    gc.collect()
    assert not collector.due(leads=False), collector.aside
""")


def test_it_can_be_closed() -> None:
    run("""
collector.close()
held = [Held() for _ in range(100_000)]
gc.collect()
assert gc.get_freeze_count() < len(held), "CPython 3.12 counts some immortal objects"
""")
