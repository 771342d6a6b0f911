"""Damages the objects of the tier (the nodes' object store) while the nodes use them."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

from jepsen_like.hostile import almost_valid_values

KINDS = ("object HEAD", "object manifest", "object log", "object index")
"""Kinds of the tier's objects that are damaged; every long run must damage each kind."""
_GLOBS = dict(zip(KINDS, ("manifest/HEAD", "manifest/*.json", "log/*.seg", "index/*.idx"), strict=True))


class Vandal:
    """Damages the tier of live nodes: cuts, changes, mixes up or removes objects of a directory store while the nodes
    read, upload, scrub and publish. It draws the next object and the damage."""

    def __init__(self, store: Path, rng: random.Random) -> None:
        """`store`: the directory of `tier.url`, with one cluster's folder."""
        self._store = store
        self._rng = rng

    def strike(self) -> str | None:
        """Damages one object; returns its kind. Returns None if there is no object of the drawn kind, or if the nodes
        delete it meanwhile.
        """
        rng = self._rng
        kind = rng.choice(KINDS)
        found = sorted(self._store.glob(f"[0-9a-f]*/{_GLOBS[kind]}"))
        if not found:
            return None
        path = rng.choice(found[-8:] if rng.random() < 0.5 else found)  # nodes read mostly the newest
        with suppress(FileNotFoundError):  # swept, or deleted by the nodes meanwhile
            data = path.read_bytes()
            damaged = self._damaged(data, rng.choice(found))
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            return kind
        return None

    def _damaged(self, data: bytes, other: Path) -> bytes | None:
        """Returns the damaged content of the object; None if it is to be removed."""
        rng, fate = self._rng, self._rng.random()
        if data.startswith((b"{", b"[")) and fate < 0.6:
            with suppress(ValueError, RecursionError):  # the object is already damaged
                return almost_valid_values.encode(
                    rng, almost_valid_values.tree(rng, json.loads(data), rng.choice((1, 1, 2)))
                )
        if fate < 0.7 and data:
            at = rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        if fate < 0.8:
            return data[: rng.randrange(len(data) + 1)]
        if fate < 0.85:
            return data + almost_valid_values.noise(rng)
        if fate < 0.9:
            return almost_valid_values.noise(rng)
        return other.read_bytes() if fate < 0.95 else None
