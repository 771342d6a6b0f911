"""The HTTP API: what operators ask and tell, the metrics page and the web pages.

May import every folder below it. Runs on the event loop. Called by HTTP clients; the node starts it last.
"""
