"""The runbooks that come with the package, by the code of a finding: what it means and what to do.

Their text is docs/runbooks.md, which `static/runbooks.md` links to. The command line prints it, the dashboard shows it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

NAME: Final = "runbooks.md"
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#]+)(?:#[\w-]+)?\)")


@cache
def runbooks() -> dict[str, str]:
    """Code -> its section, without the heading, as text for a terminal."""
    _, *sections = re.split(r"^## ", (files("cluster.admin") / "static" / NAME).read_text(encoding="utf-8"), flags=re.M)
    return {code: _LINK.sub(_page, text.strip()) for code, _, text in (each.partition("\n") for each in sections)}


def _page(link: re.Match[str]) -> str:
    """A link to another page, which an installed package does not have: its path in the sources."""
    return f"docs/{link[2]}"
