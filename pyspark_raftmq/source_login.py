"""Spark options for a command of `raftmq spark`: the servers and the user, found as other commands find them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from raftmq.commands.shared_options import given_tls, is_context, named_cluster, tell_found
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.user_file import USER_VARIABLES

if TYPE_CHECKING:
    from pyspark_raftmq.options import ReadOptions


def source_options(given: dict[str, str], servers: str | None, **more: str) -> ReadOptions:
    """Adds to `given` the options that say which cluster is read, and as whom; returns all options, with `more` added,
    parsed as the source parses them. Raises OptionError, and LocalError if no cluster is found."""
    from pyspark_raftmq.options import parse_options
    from raftmq.client.discovery import LOCAL_CA, LOCAL_USER, find_servers, found_folder, local_file
    from raftmq.client.tls import Tls
    from raftmq.local.http.contexts import find_servers_context

    tls, user = given_tls(), ""
    try:
        if is_context(servers):
            context = find_servers_context(servers)
            found = tuple(context.servers)
            tls = tls or (Tls(context.tls_ca) if context.tls_ca else None)
        else:
            environ = named_cluster(servers)
            if environ is None:
                tell_found(servers)
            found = find_servers(servers, environ=environ)
            local = found_folder(servers, environ=environ)
            user = local_file(local, LOCAL_USER)
            tls = tls or Tls(local_file(local, LOCAL_CA))
    except ValueError as error:
        why = "the servers come from --servers, RAFTMQ_SERVERS or the local cluster's cluster.json"
        raise LocalError(str(error), why, "--servers 127.0.0.1:9876", ExitCode.USAGE) from error
    files = dict(zip(("tlsCa", "tlsCert", "tlsKey"), tls or (), strict=False))
    if user and not any(os.environ.get(name) for name in USER_VARIABLES):
        files["userFile"] = user
    given.update({"servers": ";".join(found), **{name: path for name, path in files.items() if path}})
    return parse_options({**given, **more})
