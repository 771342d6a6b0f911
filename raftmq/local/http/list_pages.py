"""Lists that the HTTP API returns in pages: follows `next`, and refuses a page that its reader takes for the complete
list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

AFTER: Final = "after"
"""The query parameter of most lists that takes the `next` of the page before."""
BEFORE: Final = "before"
"""The same parameter of lists that begin with the newest item."""
SINCE: Final = "since"
"""The same parameter of the segments in the tier."""

Ask = Callable[[str], dict[str, Any]]
"""Sends a GET for a path and returns the answer, one page if it is a list."""


class UnfollowedPageError(Exception):
    """Raised when code reads one page as if it were the complete list. That is a defect of the code, so nothing catches
    it."""


def whole_answer(path: str, answer: Any) -> Any:
    """Returns the answer to a GET. Raises UnfollowedPageError if it is a page with another one behind it."""
    if isinstance(answer, dict) and answer.get("next") is not None:
        raise UnfollowedPageError(f"GET {path} answered one page of a list, and nobody asks for the next one")
    return answer


def pages(ask: Ask, path: str, cursor: str = AFTER) -> Iterator[dict[str, Any]]:
    """Yields the pages of a list as they arrive. A node of an earlier release returns the complete list at once."""
    joint, page = "&" if "?" in path else "?", ask(path)
    yield page
    while page.get("next") is not None:
        page = ask(f"{path}{joint}{cursor}={quote(str(page['next']), safe='')}")
        yield page


def whole_list(ask: Ask, path: str, field: str, cursor: str = AFTER) -> dict[str, Any]:
    """Returns the first page with the items of all pages in its list `field`, and without a reference to a next
    page."""
    first, *others = pages(ask, path, cursor)
    items = [item for page in (first, *others) for item in page[field]]
    return {**first, field: items, **({"next": None} if "next" in first else {})}
