"""pysyncobj replaces `socket.inet_ntop`, also on Linux, in the process that imports it. Here others go on in that
process, so it is put back."""

from __future__ import annotations

import importlib
import socket

_inet_ntop = socket.inet_ntop
importlib.import_module("pysyncobj.tcp_connection")
socket.inet_ntop = _inet_ntop
