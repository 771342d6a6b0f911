"""The tier of a local cluster in a directory: it can be cut off from the nodes, and compared with their states."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128

from jepsen_like.live.subjects.raftmq_nodes import until_answered
from raftmq.local.http.list_pages import SINCE

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

STORE = "store"
"""The folder of the tier, beside the nodes' folders."""
KEPT_SEGMENTS = 4


def environment(store: Path, segment_bytes: int) -> dict[str, str]:
    """Returns the environment variables of every node: a directory as tier, and few segments that stay on the nodes."""
    return {
        "RAFTMQ_TIER__URL": store.absolute().as_uri(),
        "RAFTMQ_TIER__EVICT": "true",
        "RAFTMQ_RETENTION__HOURS": "0",
        "RAFTMQ_RETENTION__BYTES_MAX": str(KEPT_SEGMENTS * segment_bytes),
        "RAFTMQ_RETENTION__DELETE_WHEN": "",
        "RAFTMQ_RETENTION__EVERY_MS": "1000",
    }


class TierProbe:
    """Examines the tier and cuts it off. Methods raise OSError if a node does not answer."""

    def __init__(self, subject: RaftMQSubject) -> None:
        self._subject = subject
        self.store = subject.data / STORE

    def view(self, node: int) -> dict[str, Any]:
        """Returns the node's view of its tier."""
        answer: dict[str, Any] = self._subject.request(node, "GET", "/v1/tier")
        return answer

    def rows(self, node: int) -> list[dict[str, Any]]:
        """Returns every tiered segment in the node's state, lowest first."""
        rows: list[dict[str, Any]] = self._subject.whole(node, "/v1/tier/segments", "segments", cursor=SINCE)[
            "segments"
        ]
        return rows

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """A context in which every call to the store fails."""
        away = self.store.with_name(f"{STORE}.away")
        self.store.rename(away)
        self.store.write_text("not a directory\n", encoding="utf-8")
        try:
            yield
        finally:
            self.store.unlink()
            away.rename(self.store)

    def wait_verified(self, node: int, position: int, timeout_s: float) -> bool:
        """Waits until the tier and its manifest contain all of the log up to `position`; returns False if not in
        time."""

        def verified() -> bool:
            return self.view(node)["verified_to"] >= position and self.published_end() >= position

        return until_answered(verified, timeout_s, 0.1) is True

    def scrub(self, node: int, timeout_s: float) -> dict[str, Any]:
        """Runs a scrub on `node`, the leader, which reads all of the tier and sweeps it; returns what it found. Raises
        OSError if it fails or does not end in time.
        """
        begun = self._subject.request(node, "POST", "/v1/tier/scrub", {"sweeps": True})["number"]
        view: dict[str, Any] = {}

        def ended() -> bool:
            view.update(self._subject.request(node, "GET", "/v1/tier/scrub"))
            return view["number"] >= begun and not view["running"]

        if not until_answered(ended, timeout_s, 0.1) or view["failure"]:
            raise OSError(f"the scrub of the tier did not end: {view}")
        return view

    def published_end(self) -> int:
        """Returns the position at which the newest manifest's last segment ends; 0 without one."""
        segments = self._manifest()[1]
        return int(segments[-1]["end"]) if segments else 0

    def _manifest(self) -> tuple[str, list[dict[str, Any]]]:
        """Returns (what is wrong with the newest manifest, its segments)."""
        folder = self._folder()
        if folder is None or not (folder / "manifest/HEAD").exists():
            return "there is no manifest", []
        head = json.loads((folder / "manifest/HEAD").read_bytes())
        body = (folder / head["key"]).read_bytes()
        wrong = "" if sha256(body).hexdigest() == head["sha256"] else f"{head['key']} is not what HEAD says"
        manifest = json.loads(body)
        older = [json.loads((folder / page["name"]).read_bytes()) for page in manifest.get("pages", ())]
        return wrong, [*itertools.chain.from_iterable(older), *manifest["segments"]]

    def _folder(self) -> Path | None:
        """Returns the cluster's folder in the store; None if there is none."""
        found = [path for path in self.store.iterdir() if not path.name.startswith(".")] if self.store.is_dir() else []
        return found[0] if found else None

    def differences(self, position: int) -> list[str]:
        """Returns the differences between states, manifest and listing, up to that position of the log: each segment
        and its index must exist once, verified, and the store must contain nothing else."""
        wrong, segments = self._manifest()
        found = [wrong] if wrong else []
        for node in self._subject.node_ids:
            found += self._state_differences(node, segments)
        found += self._content_differences(segments)
        end = segments[-1]["end"] if segments else 0
        if end < position:
            found.append(f"the manifest ends at {end}, the last closed segment at {position}")
        temporary = self.store / ".raftmq/tmp"
        left = [path.name for path in temporary.iterdir()] if temporary.exists() else []
        return [*found, *(f"a temporary file was left: {name}" for name in left)]

    def _state_differences(self, node: int, segments: list[dict[str, Any]]) -> Iterator[str]:
        rows = self.rows(node)
        for row in rows:
            if row["state"] != "verified":
                yield f"node {node} has the segment at {row['base']} as {row['state']}"
        states = [(row["base"], row["end"], sorted(row["parts"])) for row in rows]
        listed = [
            (one["base"], one["end"], sorted(part["name"] for part in (*one["parts"], *one["index"])))
            for one in segments
        ]
        if states != listed:
            yield f"node {node} knows {len(states)} segments, the manifest has {len(listed)}, or others"

    def _content_differences(self, segments: list[dict[str, Any]]) -> Iterator[str]:
        folder = self._folder()
        if folder is None:
            yield "the store is empty"
            return
        end, listed = 0, set()
        for segment in segments:
            if segment["base"] != end:
                yield f"the segment at {segment['base']} does not follow the one that ends at {end}"
            end = segment["end"]
            if len(segment["index"]) != 1:
                yield f"the segment at {segment['base']} has {len(segment['index'])} index files"
            for part in (*segment["parts"], *segment["index"]):
                listed.add(part["name"])
                path = folder / part["name"]
                if not path.exists() or xxh3_128(path.read_bytes()).hexdigest() != part["xxh3"]:
                    yield f"{part['name']} is not there, or not right"
        stored = {str(path.relative_to(folder)) for kind in ("log", "index") for path in (folder / kind).iterdir()}
        for name in sorted(stored - listed):
            yield f"{name} is an orphan"
