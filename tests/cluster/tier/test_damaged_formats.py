"""Objects of the tier, changed in one or two places: a read raises an error that its callers know, or returns them."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from hashlib import sha256

import msgspec
import pytest

from cluster.tier.manifest_format import SCHEMA, Head, ManifestPage, Segment, decode_head, decode_page, segment_of
from cluster.tier.object_names import HEAD, manifest_version, page_base, page_name, parse
from cluster.tier.state_copies.state_copier import index_of
from cluster.tier.store.errors import BadAnswer
from cluster.tier.store.object_store import check_name
from cluster.tier.stored_files import BadDescriptionError, StoredFile, StoredPart, decode, encode
from jepsen_like.hostile import almost_valid_values
from statemachine.tier import SegmentSpan, TierPart, TierSegment, TierState

ROUNDS = 1500
DIGEST = "0123456789abcdef"
ROW = TierSegment(
    0, TierState.VERIFIED, SegmentSpan(100, 1, 2, 3, 4), 1, (TierPart(f"log/{0:020d}", 100, bytes(32), 7),)
)


def damaged(document: object, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    found = []
    for _ in range(ROUNDS):
        data = almost_valid_values.encode(
            rng, almost_valid_values.tree(rng, json.loads(json.dumps(document)), rng.choice((1, 1, 2)))
        )
        at = rng.randrange(len(data) + 1)
        found.append(data if rng.random() < 0.7 else data[:at] + almost_valid_values.noise(rng, 3) + data[at + 1 :])
    return found


def test_head_names_a_manifest_or_is_none() -> None:
    head = Head(
        schema=SCHEMA,
        cluster_id="c",
        version=5,
        term=2,
        applied_index=9,
        key=f"manifest/{5:020d}.{DIGEST}.json",
        sha256="0",
    )
    read = 0
    for data in damaged(msgspec.to_builtins(head), 1):
        with contextlib.suppress(BadAnswer, msgspec.DecodeError):
            told = decode_head(data)
            assert manifest_version(check_name(told.key)) == told.version == 5
            read += 1
    assert 0 < read < ROUNDS


def test_a_page_is_a_list_of_segments_or_none() -> None:
    read = 0
    for data in damaged([msgspec.to_builtins(segment_of(ROW))], 2):
        page = ManifestPage(base=0, end=100, name="p", segments=1, size=len(data), sha256=sha256(data).hexdigest())
        with contextlib.suppress(BadAnswer):
            assert all(type(each) is Segment for each in decode_page(page, data))
            read += 1
        with pytest.raises(BadAnswer, match="not what the manifest says"):
            decode_page(msgspec.structs.replace(page, sha256="0" * 64), data)
    assert 0 < read < ROUNDS


def test_a_description_of_files_is_whole_or_bad() -> None:
    part = StoredPart(name="p", size=3, sha256="0", crc32c=5)
    whole = encode(StoredFile(path="a", size=3, parts=[part]))
    for at in range(len(whole)):
        for bit in range(8):
            data = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            with contextlib.suppress(BadDescriptionError):
                assert decode(data, StoredFile).parts == [part]
    for data in damaged(json.loads(whole), 4):
        with contextlib.suppress(BadDescriptionError):
            assert decode(data, StoredFile).parts == [part]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (f"log/{7:020d}-{9:020d}.{DIGEST}.seg", parse),
        (f"index/{7:020d}-{9:020d}.{DIGEST}-3.idx", parse),
        (page_name(7, 9, DIGEST, 2), page_base),
        (f"manifest/{7:020d}.{DIGEST}.json", manifest_version),
        (f"state/{7:020d}-2-{DIGEST[:8]}.json", index_of),
        (f"state/{7:020d}-{DIGEST * 2}.part", index_of),
        (HEAD, lambda name: name if name == HEAD else None),
    ],
)
def test_a_name_that_is_read_is_one_that_a_store_takes(name: str, read: Callable[[str], object]) -> None:
    """Digits of other scripts are digits for `int` too, and a name with them is nobody's."""
    rng, taken = random.Random(3), 0
    assert read(name) is not None
    for _ in range(ROUNDS):
        at = rng.randrange(len(name) + 1)
        other = name[:at] + rng.choice(("", "0", "1", "-", ".", "/", "\u0661", "\uff11", "\n", "a")) + name[at + 1 :]
        if read(other) is not None:
            assert check_name(other) == other
            taken += 1
            part = parse(other)
            assert part is None or str(part) == other
    assert 0 < taken < ROUNDS
