"""All codes of findings that the server declares."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Final

import cluster
from cluster.runtime.findings import Code


def _declared() -> list[Code]:
    found: dict[str, Code] = {}
    for module in pkgutil.walk_packages(cluster.__path__, "cluster."):
        if not module.name.endswith("__main__"):
            values = vars(import_module(module.name)).values()
            found |= {each: each for each in values if isinstance(each, Code)}
    return [found[each] for each in sorted(found)]


KEYS: Final = {str(each): each for each in _declared()}
"""Code of a finding, or key of an alarm -> what is declared about it."""
CODES: Final = {each.finding: each for each in KEYS.values()}
"""Code of a finding -> what is declared about it."""
