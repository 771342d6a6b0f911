"""Names of the tier's objects, below the cluster's folder (docs/adr/0060)."""

from __future__ import annotations

import re
from typing import NamedTuple

from xxhash import xxh3_128

LOG, INDEX = "log", "index"
HEAD = "manifest/HEAD"
"""The one object that is ever replaced; it names the newest manifest."""
MANIFESTS = "manifest"
PAGES = "manifest/pages"
_SUFFIX = {LOG: "seg", INDEX: "idx"}
_MANIFEST = re.compile(r"manifest/(\d{20})\.[0-9a-f]{16}\.json", re.ASCII)
_PAGE = re.compile(r"manifest/pages/(\d{20})-\d{20}\.[0-9a-f]{16}(?:-[1-9]\d*)?\.json", re.ASCII)
_PART = re.compile(r"(log|index)/(\d{20})-(\d{20})\.([0-9a-f]{16})(?:-([1-9]\d*))?\.(seg|idx)", re.ASCII)


class PartName(NamedTuple):
    """The facts in the name of a part."""

    folder: str
    base: int
    end: int
    """The end of the log's bytes [base, end) that the part stands for. Both are positions."""
    digest: str
    """The first 16 digits of the content's XXH3 with 128 bits."""
    copy: int = 0
    """The number of earlier copies that read back wrong. Each copy has a name of its own, because objects are never
    replaced."""

    def __str__(self) -> str:
        copy = f"-{self.copy}" if self.copy else ""
        return f"{self.folder}/{self.base:020d}-{self.end:020d}.{self.digest}{copy}.{_SUFFIX[self.folder]}"

    def is_of(self, data: bytes) -> bool:
        """Returns True if the digest in the name is that of `data`."""
        return self.digest == xxh3_128(data).hexdigest()[:16]


def parse(name: str) -> PartName | None:
    """Parses a part's name; returns None if it is not one."""
    found = _PART.fullmatch(name)
    if found is None or _SUFFIX[found[1]] != found[6]:
        return None
    return PartName(found[1], int(found[2]), int(found[3]), found[4], int(found[5] or 0))


def part_base(name: str) -> int | None:
    """Returns the position at which a part begins; None if `name` is not a part's name. The suffix may be that of
    either folder."""
    found = _PART.fullmatch(name)
    return None if found is None else int(found[2])


def manifest_name(version: int, digest: str) -> str:
    """Returns the name of a manifest. A manifest is immutable, so its name contains a digest of its content."""
    return f"{MANIFESTS}/{version:020d}.{digest}.json"


def manifest_version(name: str) -> int | None:
    """Returns the version in a manifest's name; None if it is not one."""
    found = _MANIFEST.fullmatch(name)
    return None if found is None else int(found[1])


def page_name(base: int, end: int, digest: str, copy: int = 0) -> str:
    """Returns the name of a page of the manifest that lists the segments of the log's bytes [base, end). `copy` as in
    PartName."""
    number = f"-{copy}" if copy else ""
    return f"{PAGES}/{base:020d}-{end:020d}.{digest}{number}.json"


def page_base(name: str) -> int | None:
    """Returns the position at which a page begins; None if `name` is not a page's name."""
    found = _PAGE.fullmatch(name)
    return None if found is None else int(found[1])
