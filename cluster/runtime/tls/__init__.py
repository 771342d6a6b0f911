"""TLS (docs/adr/0090): the acceptor of ports, handshakes, certificates, and connections over TLS.

Imports `cluster.config` and the runtime. Runs on the event loop. The ports for clients call it; the port for HTTP uses
the acceptor in plain text.
"""
