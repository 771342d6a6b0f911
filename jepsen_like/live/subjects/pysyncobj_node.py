"""One node of a pysyncobj cluster: a replicated list of message ids, served over lines of text.

    append N ID PADDING  ->  N ok OFFSET | N fail WHY | N unknown WHY
    state N              ->  N state TERM LEADS LEADER APPLIED COMMITTED
    read N FROM COUNT    ->  N read ID ID …        (this replica's own list)

It uses unmodified pysyncobj with its journal and its dumps on disk, except that peers are dialled at other ports.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import TCPNode

LINE_MAX = 1 << 22
_REFUSED = frozenset({FAIL_REASON.QUEUE_FULL, FAIL_REASON.MISSING_LEADER, FAIL_REASON.REQUEST_DENIED})
"""Failure reasons which mean that the request never entered any log. Requests with other reasons may still be carried
out."""


class ProxiedNode(TCPNode):  # type: ignore[misc]  # no types
    """A peer that is known by its own address and dialled at the port of a proxy."""

    def __init__(self, address: str, dial_port: int) -> None:
        super().__init__(address)
        self._dial_port = dial_port

    @property
    def port(self) -> int:
        """The port to connect to."""
        return self._dial_port


class ReplicatedList(SyncObj):  # type: ignore[misc]  # no types
    """The replicated object: ids in the order of the log; the offset of an id is its place in the list."""

    def __init__(self, address: str, peers: dict[str, int], folder: Path) -> None:
        conf = SyncObjConf(
            journalFile=str(folder / "journal"),
            fullDumpFile=str(folder / "dump"),
            connectionRetryTime=0.3,
            commandsWaitLeader=False,
        )
        super().__init__(TCPNode(address), [ProxiedNode(peer, port) for peer, port in peers.items()], conf)
        self.ids: list[str] = []

    @replicated  # type: ignore[untyped-decorator]
    def append(self, message_id: str, padding: str) -> int:
        """Stores the id; the padding only makes the entry as large as a real one."""
        self.ids.append(message_id)
        return len(self.ids) - 1


class LineServer:
    """Answers the line protocol."""

    def __init__(self, replica: ReplicatedList, loop: asyncio.AbstractEventLoop) -> None:
        self._replica = replica
        self._loop = loop

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        try:
            while line := await reader.readline():
                self._on_line(line.decode("ascii").split(), writer)
        except OSError:
            pass
        finally:
            writer.close()

    def _on_line(self, words: list[str], writer: asyncio.StreamWriter) -> None:
        verb, number = words[0], words[1]
        if verb == "append":
            done = self._answer_later(number, writer)
            self._replica.append(words[2], words[3], callback=done)
        elif verb == "state":
            writer.write(f"{number} state {self._state()}\n".encode())
        elif verb == "read":
            first = int(words[2])
            ids = self._replica.ids[first : first + int(words[3])]
            writer.write(f"{number} read {' '.join(ids)}\n".encode())

    def _answer_later(self, number: str, writer: asyncio.StreamWriter) -> Any:
        def done(result: int | None, error: int) -> None:  # on pysyncobj's own thread
            if error == FAIL_REASON.SUCCESS:
                text = f"{number} ok {result}\n"
            else:
                text = f"{number} {'fail' if error in _REFUSED else 'unknown'} reason-{error}\n"
            self._loop.call_soon_threadsafe(self._write, writer, text.encode())

        return done

    def _write(self, writer: asyncio.StreamWriter, text: bytes) -> None:
        if not writer.is_closing():
            writer.write(text)

    def _state(self) -> str:
        replica = self._replica
        leader = replica._getLeader()
        return " ".join(
            (
                str(replica.raftCurrentTerm),
                str(int(replica._isLeader())),
                str(leader) if leader is not None else "-",
                str(replica.raftLastApplied),
                str(replica.raftCommitIndex),
            )
        )


async def main(settings: dict[str, Any]) -> None:
    """Serves until the process is killed."""
    replica = ReplicatedList(settings["address"], settings["peers"], Path(settings["folder"]))
    server = LineServer(replica, asyncio.get_running_loop())
    listening = await asyncio.start_server(server.serve, "127.0.0.1", settings["port"], limit=LINE_MAX)
    await listening.serve_forever()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
