"""The dashboard at /, and the runbooks: files of this package. The browser fetches nothing from anywhere else.

There is no build step: what is in `static/` is what the browser runs. Its policy allows neither inline scripts nor
strings as HTML, so the body of a message cannot become part of the page, whatever it contains. The command line prints
the runbooks, and the dashboard shows them; their text is docs/runbooks.md, which `static/runbooks.md` links to.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, Raw
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.route import Route
from cluster.config.source import nearest

SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""Suffix of a file's name -> media type; files with other suffixes are not served."""
INDEX: Final = "index.html"
_HEADERS: Final = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # after an upgrade nobody runs the old page on the new API
}


async def get_page(call: Call) -> Raw:
    """The dashboard, for people."""
    return static_files()[INDEX]


async def get_static(call: Call) -> Raw:
    """A file of the dashboard."""
    name, known = call.params["file"], static_files()
    if name not in known:
        match = nearest(name, known)
        raise ApiError("not_found", f"the dashboard has no file {name}", f"did you mean {match}?" if match else "see /")
    return known[name]


@cache
def static_files() -> dict[str, Raw]:
    """Returns every file by its name, read once. A name from a request never becomes a path."""
    return {
        each.name: Raw(CONTENT_TYPES[kind], each.read_bytes(), _HEADERS)
        for each in sorted((files("cluster.admin") / "static").iterdir(), key=lambda each: each.name)
        if (kind := each.name.rpartition(".")[2]) in CONTENT_TYPES
    }


NAME: Final = "runbooks.md"
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#]+)(?:#[\w-]+)?\)")


@cache
def runbooks() -> dict[str, str]:
    """Returns code -> its section of the runbooks, without the heading, as text for a terminal."""
    _, *sections = re.split(r"^## ", (files("cluster.admin") / "static" / NAME).read_text(encoding="utf-8"), flags=re.M)
    return {code: _LINK.sub(_page, text.strip()) for code, _, text in (each.partition("\n") for each in sections)}


def _page(link: re.Match[str]) -> str:
    """Replaces a link to another page, which an installed package does not have, by the page's title, its text."""
    return f'the page "{link[1]}" of the docs'


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/", get_page, "text/html", route.CONSTANT, route_rights.OPEN, asks=(BROKER_GROUP,)),
    Route("GET", "/static/{file}", get_static, "application/octet-stream", route.CONSTANT, route_rights.OPEN),
)
