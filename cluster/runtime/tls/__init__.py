"""TLS (docs/adr/0090): the acceptor of ports, handshakes, certificates, and connections over TLS.

Imports `cluster.config` and the runtime. Runs on the event loop. Called by the ports for clients; that for HTTP uses
the acceptor in plain text.
"""
