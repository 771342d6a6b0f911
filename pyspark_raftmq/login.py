"""The options with which a read or a write authenticates its user and speaks TLS.

`accessKey` and `secretKey` have names that Spark hides in plans and logs (spark.redaction.regex). They travel to the
tasks with the plan, and never into a checkpoint. A file, `userFile`, keeps the secret out of the plan, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import raftmq
from pyspark_raftmq.errors import OptionError, write
from raftmq.client.environment import IncompleteUser, user_of

OPTIONS = ("accessKey", "secretKey", "userFile", "tlsCa", "tlsCert", "tlsKey")
"""The names of the login options as documented; Spark compares them without case."""


class Login(NamedTuple):
    """The user of a read or a write, and its TLS. Paths are those of files on the driver and on each executor."""

    access_key: str = ""
    secret_key: str = ""
    user_file: str = ""
    """The file with name and secret of the user; "" if the options or the environment name the user."""
    tls: raftmq.Tls | None = None
    """The TLS that the options ask for; None if RAFTMQ_TLS and RAFTMQ_TLS_CA decide."""

    def __repr__(self) -> str:
        """Returns a text without the secret, because options are shown in errors."""
        return f"Login({self.access_key or self.user_file!r}, {self.tls})"

    def connect(self, servers: str) -> raftmq.Client:
        """Returns a client of the cluster. Raises OptionError for files that cannot be used."""
        try:
            name, secret = user_of(Path(self.user_file)) if self.user_file else (self.access_key, self.secret_key)
            return raftmq.connect(servers, access_key=name, secret_key=secret, tls=self.tls)
        except IncompleteUser as error:
            told = f"{error.given} is set, and {error.missing} is not"
            why = "the environment of this process names half a user, and no option names one"
            raise OptionError(told, why, write("userFile", "/etc/raftmq/user")) from None
        except ValueError as error:
            why = "userFile, tlsCa, tlsCert and tlsKey are files on the driver and on each executor"
            raise OptionError(str(error), why, "copy the file to the same path on each machine") from None


def parse_login(given: Mapping[str, str]) -> Login:
    """Parses the options, whose names are in lower case. Raises OptionError, whose text has no secret."""
    values = {name: given.get(name.lower(), "").strip() for name in OPTIONS}
    if bool(values["accessKey"]) != bool(values["secretKey"]):
        raise OptionError(
            "only one of the options accessKey and secretKey is given",
            "they are the name and the secret of a user",
            write("userFile", "/etc/raftmq/user") + ", or give both, or none",
        )
    if values["accessKey"] and values["userFile"]:
        raise OptionError("accessKey and userFile are both given", "each names the user", "keep one of them")
    files = [values[name] for name in ("tlsCa", "tlsCert", "tlsKey")]
    if bool(files[1]) != bool(files[2]):
        raise OptionError(
            "only one of the options tlsCert and tlsKey is given",
            "they are a certificate and its key",
            "give both, or none",
        )
    tls = raftmq.Tls(*files) if any(files) else None
    return Login(values["accessKey"], values["secretKey"], values["userFile"], tls)
