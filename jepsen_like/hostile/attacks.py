"""The table of all attacks by name."""

from __future__ import annotations

from jepsen_like.hostile import drawn, hogs, requests, strangers, turns
from jepsen_like.hostile.attack import Attack

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (*requests.ATTACKS, *hogs.ATTACKS, *strangers.ATTACKS, *turns.ATTACKS, *drawn.ATTACKS)
}
