"""The fuzzer's damage to objects of the tier: every kind of it, to every kind of object."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from jepsen_like.fuzz.vandal import KINDS, Vandal

NAMES = {
    "object HEAD": "manifest/HEAD",
    "object manifest": "manifest/1.json",
    "object log": "log/1.seg",
    "object index": "index/1.idx",
}


def fill(store: Path) -> None:
    for kind, name in NAMES.items():
        path = store / "0123-cluster" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_json = kind in ("object HEAD", "object manifest")
        path.write_bytes(json.dumps({"schema": 1, "parts": [{"size": 5}]}).encode() if is_json else bytes(100))


def content(store: Path) -> dict[str, bytes]:
    return {kind: path.read_bytes() for kind, name in NAMES.items() if (path := store / "0123-cluster" / name).exists()}


def test_an_empty_store_is_left_alone(tmp_path: Path) -> None:
    vandal = Vandal(tmp_path, random.Random(1))
    assert [vandal.strike() for _ in range(20)] == [None] * 20


def test_one_object_of_the_kind_told_is_damaged_each_time(tmp_path: Path) -> None:
    vandal, seen = Vandal(tmp_path, random.Random(2)), Counter[str]()
    for _ in range(400):
        fill(tmp_path)
        before = content(tmp_path)
        kind = vandal.strike()
        assert kind is not None
        after = content(tmp_path)
        assert {name for name in NAMES if after.get(name) != before[name]} <= {kind}
        damaged = after.get(kind)
        seen[kind] += 1
        seen["gone" if damaged is None else "cut" if len(damaged) < len(before[kind]) else "changed"] += 1
    assert set(seen) == {*KINDS, "gone", "cut", "changed"}


def test_what_is_damaged_already_can_be_damaged_again(tmp_path: Path) -> None:
    vandal = Vandal(tmp_path, random.Random(3))
    for _ in range(300):
        if len(content(tmp_path)) < len(KINDS):
            fill(tmp_path)
        vandal.strike()
