"""Serves the dashboard at / and the texts of the runbooks, all from files of this package. The browser loads nothing
from elsewhere.

There is no build step: the browser runs the files of `static/` as they are. The security policy forbids inline scripts
and HTML from strings, so the body of a message cannot become part of the page. The runbooks' text is docs/runbooks.md,
to which `static/runbooks.md` is a link; the command line prints it, and the dashboard shows it.
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
"""Suffix of a file's name -> media type. Files with other suffixes are not served."""
INDEX: Final = "index.html"
_HEADERS: Final = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # after an upgrade, the browser must not use a cached old page
}


async def get_page(call: Call) -> Raw:
    """Returns the page of the dashboard."""
    return static_files()[INDEX]


async def get_static(call: Call) -> Raw:
    """Returns a file of the dashboard, such as a script."""
    name, known = call.params["file"], static_files()
    if name not in known:
        match = nearest(name, known)
        raise ApiError("not_found", f"the dashboard has no file {name}", f"did you mean {match}?" if match else "see /")
    return known[name]


@cache
def static_files() -> dict[str, Raw]:
    """Returns file name -> file, read once. Requests are looked up here, so a name in a request never becomes a
    path."""
    return {
        each.name: Raw(CONTENT_TYPES[kind], each.read_bytes(), _HEADERS)
        for each in sorted((files("cluster.admin") / "static").iterdir(), key=lambda each: each.name)
        if (kind := each.name.rpartition(".")[2]) in CONTENT_TYPES
    }


NAME: Final = "runbooks.md"
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#]+)(?:#[\w-]+)?\)")


@cache
def runbooks() -> dict[str, str]:
    """Returns code of a finding -> text of its section in the runbooks, without the heading, for a terminal."""
    _, *sections = re.split(r"^## ", (files("cluster.admin") / "static" / NAME).read_text(encoding="utf-8"), flags=re.M)
    return {code: _LINK.sub(_page, text.strip()) for code, _, text in (each.partition("\n") for each in sections)}


def _page(link: re.Match[str]) -> str:
    """Returns the text that replaces a link to another page: the page's title. An installed package does not have that
    page."""
    return f'the page "{link[1]}" of the docs'


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/", get_page, "text/html", route.CONSTANT, route_rights.OPEN, asks=(BROKER_GROUP,)),
    Route("GET", "/static/{file}", get_static, "application/octet-stream", route.CONSTANT, route_rights.OPEN),
)
