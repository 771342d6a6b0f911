"""The map that is changed while others read and iterate, against a dict, and what a change of it costs."""

from __future__ import annotations

import random
import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from raftlog.work import METER
from statemachine.rows.sorted_map import PIECE_MAX, SortedMap


@pytest.mark.parametrize("seed", range(3))
def test_a_map_says_what_a_sorted_dict_says(seed: int) -> None:
    rng = random.Random(seed)
    rows = {f"n{n:05}": n for n in rng.sample(range(20_000), 3000)}
    found, wanted = SortedMap(rows), dict(rows)
    for step in range(20_000):
        key = f"n{rng.randrange(20_000):05}"
        if key in wanted and (rng.random() < 0.5 or 8_000 < step < 12_000):  # in between it nearly empties
            found.remove(key)
            del wanted[key]
        elif key not in wanted and not 8_000 < step < 12_000:
            found.put(key, step)
            wanted[key] = step
        if step % 997 == 0:
            assert list(found) == sorted(wanted)
    assert list(found.items()) == sorted(wanted.items())
    assert list(found.values()) == [wanted[key] for key in sorted(wanted)]
    assert (len(found), dict(found), sorted(found.keys())) == (len(wanted), wanted, sorted(wanted))
    for key in list(wanted):
        found.remove(key)
    assert (list(found), found.keys_from(None, 5), len(found)) == ([], [], 0)


@pytest.mark.parametrize("seed", range(3))
def test_pages_follow_each_other_without_a_gap(seed: int) -> None:
    rng = random.Random(seed)
    names = sorted({f"n{rng.randrange(10**6)}" for _ in range(5000)})
    found = SortedMap((name, 1) for name in names)
    after, pages = None, []
    while page := found.keys_from(after, 300):
        pages += page
        after = page[-1]
    assert pages == names
    assert found.keys_from("n", 2) == names[:2]
    assert found.keys_from(names[7] + "!", 2) == names[8:10]  # a name that was deleted meanwhile
    assert found.keys_from(names[-1], 2) == []


POINTER_BYTES = 8


def peak_of(change: Callable[[], None]) -> int:
    """The most bytes that the change has allocated at one moment."""
    tracemalloc.start()
    try:
        change()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(3))
def test_pieces_stay_small_and_few(seed: int) -> None:
    rng = random.Random(seed)
    found: SortedMap[int, int] = SortedMap()
    for n in range(20_000):
        found.put(n, n)
    for n in rng.sample(range(20_000), 19_000):
        found.remove(n)
    assert len(found) == 1_000
    before = METER.units
    assert found.rank(max(found)) == 999
    assert METER.units - before <= 2, "a step of each piece, and there are few"
    assert peak_of(lambda: found.put(-1, 1)) < 3 * PIECE_MAX * POINTER_BYTES, "none of them is long"


def test_a_change_replaces_one_piece_and_copies_no_other() -> None:
    found = SortedMap((n, n) for n in range(0, 100_000, 2))
    all_keys = 50_000 * POINTER_BYTES
    for change in (lambda: found.put(501, 1), lambda: found.put(502, 9), lambda: found.remove(501)):
        assert peak_of(change) < all_keys / 20


def test_a_page_is_charged_by_its_length_and_a_change_by_one_step() -> None:
    found = SortedMap((n, n) for n in range(100_000))
    before = METER.units
    assert len(found.keys_from(50_000, 1000)) == 1000
    assert 1000 <= METER.units - before < 3000
    before = METER.units
    assert len(found.keys_from(99_990, 1000)) == 9
    assert 9 <= METER.units - before < 30
    before = METER.units
    found.put(-1, 0)
    found.remove(-1)
    assert METER.units - before < 10


def test_iterating_goes_on_while_another_thread_changes_the_map() -> None:
    found = SortedMap((n, n) for n in range(0, 4000, 2))
    ended = threading.Event()

    def change() -> None:
        for turn in range(40):
            for n in range(1, 4000, 2):
                (found.put if turn % 2 == 0 else lambda key, _: found.remove(key))(n, n)
        ended.set()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=change)
    try:
        thread.start()
        while not ended.is_set():
            rows = list(found.items())
            assert rows == sorted(rows)
            assert {n for n, _ in rows} >= set(range(0, 4000, 2))  # those that were there all the time
    finally:
        thread.join()
        sys.setswitchinterval(switch)
