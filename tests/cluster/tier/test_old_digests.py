"""Tiers of builds that named objects by SHA-256: their manifests are read, and what is lost of them is made again."""

from __future__ import annotations

import json
from hashlib import sha256

from xxhash import xxh3_128

from cluster.tier.manifest_format import Manifest, decode
from cluster.tier.object_names import parse


def test_a_manifest_of_an_earlier_build_is_read() -> None:
    part = {"name": "log/1", "size": 3, "sha256": "ab", "crc32c": 7}
    segment = {"base": 0, "end": 3, "first_index": 0, "last_index": 0, "first_ms": 0, "last_ms": 0, "term": 1}
    manifest = {"schema": 1, "cluster_id": "c", "version": 1, "term": 1, "applied_index": 4}
    manifest["segments"] = [segment | {"parts": [part], "index": []}]
    (found,) = decode(json.dumps(manifest).encode(), Manifest).segments
    assert (found.parts[0].size, found.parts[0].crc32c) == (3, 7)


def test_a_name_of_an_earlier_build_has_its_content() -> None:
    data = b"frames"
    for digest in (xxh3_128(data).hexdigest(), sha256(data).hexdigest()):
        name = parse(f"log/{0:020d}-{6:020d}.{digest[:16]}.seg")
        assert name is not None
        assert name.is_of(data)
        assert not name.is_of(data + b"!")
