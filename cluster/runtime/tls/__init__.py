"""TLS (docs/adr/0090): the acceptor of ports, handshakes, certificates, and connections over TLS.

Imports `cluster.config` and the runtime. Runs on the event loop. The ports for clients, for other nodes and for HTTP
use it.
"""
