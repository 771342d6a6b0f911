"""The HTTP API: requests of operators, metrics and the web page.

May import every folder below it. Runs on the event loop. Called by HTTP clients; the node starts it last.
"""
