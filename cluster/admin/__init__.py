"""The HTTP API: requests of operators, metrics and the web page.

May import every folder below it. Runs on the event loop. HTTP clients call it; the node starts it last.
"""
