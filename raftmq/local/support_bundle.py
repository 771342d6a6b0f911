"""The content of a support bundle, without secrets and without message bodies.

The endpoints to ask are listed one by one, and none of them shows a body. Secrets are removed from every text that is
written: values of keys that look like secrets, passwords in URLs, and PEM blocks.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raftmq.local.http.answers import loaded
from raftmq.local.http.http_exchange import exchange

ENDPOINTS = (
    "/v1/status",
    "/v1/health",
    "/v1/findings",
    "/v1/members",
    "/v1/config",
    "/v1/links",
    "/v1/registry",
    "/v1/recovery",
    "/v1/consistency",
    "/v1/repair",
    "/v1/scrub",
    "/v1/retention",
    "/v1/backup",
    "/v1/events?limit=1000",
    "/v1/log-level",
    "/metrics",
)
LOG_BYTES_MAX = 2 << 20
"""Bytes of the end of each log that the bundle contains at most."""
TIMEOUT_S = 10.0
HIDDEN = "***"
_WORDS = r"(?:secret|passw(?:or)?d|token|access_?key|api_?key|credential|private_?key|authorization)"
_KEY = re.compile(rf"{_WORDS}", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""(?P<key>["']?[\w.-]*{_WORDS}[\w.-]*["']?\s*[:=]\s*)(?P<value>"[^"\n]*"|'[^'\n]*'|(?:(?:Bearer|Basic)\s+)?[^\s,;}}\]]+)""",
    re.IGNORECASE,
)
_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s@\"']+@", re.IGNORECASE)
_SIGNED = re.compile(r"(?P<key>[?&](?:X-Amz-\w+|Signature|sig|AWSAccessKeyId)=)[^&\s\"']+", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)


def without_secrets(text: str) -> str:
    """Returns a free text (a log, TOML, metrics) with the values of secrets replaced."""
    text = _PEM.sub(HIDDEN, text)
    text = _USER.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _SIGNED.sub(rf"\g<key>{HIDDEN}", text)
    return _ASSIGNED.sub(rf"\g<key>{HIDDEN}", text)


def json_without_secrets(value: Any) -> Any:
    """Returns a JSON value with the values of secrets replaced; objects keep their form."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if _KEY.search(key) and isinstance(each, str) and each else json_without_secrets(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [json_without_secrets(each) for each in value]
    return without_secrets(value) if isinstance(value, str) else value


def files_of_node(address: str) -> Iterator[tuple[str, str]]:
    """Yields (name, text) for each endpoint of a node. If the node does not answer, the text is the error, and no
    further endpoint is asked."""
    for path in ENDPOINTS:
        name = path.partition("?")[0].strip("/").removeprefix("v1/")
        try:
            status, body = exchange(address, "GET", path, timeout_s=TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            yield f"{name}.error.txt", without_secrets(f"{path}: {error}\n")
            return
        try:
            yield f"{name}.json", json.dumps(json_without_secrets(loaded(body)), indent=1, ensure_ascii=False)
        except (ValueError, RecursionError):  # not JSON, or nested too deeply to be searched for secrets
            yield f"{name}.txt", without_secrets(body.decode(errors="replace"))
        if status not in (200, 503):
            yield f"{name}.status.txt", f"{status}\n"


def text_of_file(path: Path, most: int = LOG_BYTES_MAX) -> str:
    """Returns the end of a log, `most` bytes, or a whole configuration file, without secrets."""
    with path.open("rb") as file:
        file.seek(0, io.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - most))
        return without_secrets(file.read().decode(errors="replace"))


def write_bundle(to: Path, files: Mapping[str, str]) -> None:
    """Writes a .tar.gz with these files (name -> text) below one folder. Raises FileExistsError, OSError."""
    folder, now = to.name.removesuffix(".tar.gz"), int(time.time())
    with to.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            data = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(data), now, 0o600
            archive.addfile(member, io.BytesIO(data))
