"""A REST catalog for Iceberg tables on a real socket, over pyiceberg's catalog in a file, that breaks its answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import CommitTableRequest, Table

from raftmq.tables.iceberg_place import IcebergPlace
from tests.support.pace import at_most

LOST_BEFORE, LOST_AFTER, LATER = "lost before", "lost after", "later"
"""What may happen to a commit: the request is lost, or the answer, or the catalog carries it out when it is told to,
long after the client has given up."""
CODES = {500: "CommitStateUnknownException", 502: "BadGateway", 503: "Unavailable", 504: "Timeout", 409: "CommitFailed"}
"""Answers of a proxy to a commit that the catalog has carried out."""


class RestCatalogServer:
    """The server. `faults` has what happens to the next commits, one each; "" for none. `held` are the commits that are
    carried out later."""

    def __init__(self, folder: Path, port: int = 0, store: Mapping[str, str] = MappingProxyType({})) -> None:
        """`store`: pyiceberg's properties for the store of the tables' metadata."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        uri, warehouse = f"sqlite:///{folder / 'rest.db'}", f"file://{folder}"
        self.catalog = SqlCatalog("rest", uri=uri, warehouse=warehouse, **store)
        self.faults: list[str | int] = []
        self.held: list[Callable[[], object]] = []
        self.commits = 0
        self._lock = threading.Lock()
        serves = type("Serves", (_Handler,), {"server_of": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), serves)

    @property
    def place(self) -> IcebergPlace:
        uri = f"http://127.0.0.1:{self._http.server_port}"
        return IcebergPlace(properties={"uri": uri, "raftmq.timeout-s": str(at_most(2))})

    def again(self) -> RestCatalogServer:
        """A server in the place of this one, which has ended."""
        return RestCatalogServer(self._folder, self._http.server_port)

    @contextmanager
    def running(self) -> Iterator[RestCatalogServer]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()
            self.catalog.close()

    def next_fault(self) -> str | int:
        with self._lock:
            self.commits += 1
            return self.faults.pop(0) if self.faults else ""

    def commit(self, name: tuple[str, ...], body: bytes) -> Any:
        """Carries out a commit, one at a time."""
        request = CommitTableRequest.model_validate_json(body)
        with self._lock:
            return self.catalog.commit_table(self.catalog.load_table(name), request.requirements, request.updates)


class _Handler(BaseHTTPRequestHandler):
    server_of: RestCatalogServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        _, _, *parts = unquote(self.path).split("?")[0].split("/")
        if parts == ["config"]:
            self._answer(200, {"defaults": {}, "overrides": {}})
        else:
            self._table(lambda: self.server_of.catalog.load_table((parts[1], parts[3])))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        _, _, *parts = unquote(self.path).split("/")
        if parts == ["namespaces"]:
            told = json.loads(body)
            try:
                self.server_of.catalog.create_namespace(tuple(told["namespace"]))
            except NamespaceAlreadyExistsError as error:
                self._refuse(409, "AlreadyExists", str(error))
            else:
                self._answer(200, told)
        elif len(parts) == 3:
            asked = CreateTableRequest.model_validate_json(body)
            self._table(
                lambda: self.server_of.catalog.create_table(
                    (parts[1], asked.name),
                    asked.table_schema,
                    asked.location,
                    asked.partition_spec,
                    properties=asked.properties,
                )
            )
        else:
            self._commit((parts[1], parts[3]), body)

    def _commit(self, name: tuple[str, ...], body: bytes) -> None:
        fault = self.server_of.next_fault()
        if fault == LOST_BEFORE:
            self._hang_up()
        elif fault == LATER:
            self.server_of.held.append(lambda: self.server_of.commit(name, body))
            self._hang_up()
        else:
            try:
                done = self.server_of.commit(name, body)
            except CommitFailedException as error:
                self._refuse(409, "CommitFailed", str(error))
            else:
                if fault == LOST_AFTER:
                    self._hang_up()
                elif isinstance(fault, int):
                    self._refuse(fault, CODES[fault], "the answer of a proxy")
                else:
                    self._answer(200, json.loads(done.model_dump_json(by_alias=True)))

    def _table(self, got: Callable[[], Table]) -> None:
        try:
            table = got()
        except NoSuchTableError as error:
            self._refuse(404, "NoSuchTableException", str(error))
        else:
            told = json.loads(table.metadata.model_dump_json())
            self._answer(200, {"metadata-location": table.metadata_location, "metadata": told, "config": {}})

    def _refuse(self, code: int, kind: str, why: str) -> None:
        self._answer(code, {"error": {"message": why, "type": kind, "code": code}})

    def _answer(self, code: int, told: Any) -> None:
        data = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
