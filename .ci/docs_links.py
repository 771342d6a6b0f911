"""Hooks of mkdocs, which rewrite links to files outside docs/. A link to a file in COPIED leads to a copy of the file
in the site. Any other such link becomes text that names the file's path."""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
SHIM = re.compile(r"https://[^\s\"']+/iframe-worker/shim")
ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "SECURITY.md",
    "deploy/alerts.yml",
    "deploy/grafana/raftmq.json",
    "deploy/systemd/raftmq.service",
    "examples/topics-as-tables.ipynb",
)
"""Files outside docs/ for people who have only the site and the wheels."""
FILES = "files"
"""The folder of the site with the copies of these files."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page with links to files outside docs/ rewritten. Raises FileNotFoundError if such a file does not
    exist."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def told(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {path}, which is not there")
        if path in COPIED:  # HTML, because mkdocs checks each link of Markdown, and this is no page
            target = posixpath.relpath(f"{FILES}/{path}", posixpath.dirname(page.file.src_uri) or ".")
            return f'<a href="{target}">{link[1]}</a>'
        return link[1] if path in link[1] else f"{link[1]} (`{path}` in the sources)"

    return LINK.sub(told, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Copies the files of COPIED into the site."""
    for path in COPIED:
        target = Path(config["site_dir"], FILES, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Returns the page with this site's `frame-worker.js` in place of a script of another host that does the same."""
    return SHIM.sub("../" * page.file.src_uri.count("/") + "assets/frame-worker.js", output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Returns a page that has no source in docs/, such as 404.html, with the script replaced as in `on_post_page`."""
    return SHIM.sub("assets/frame-worker.js", output_content)
