"""The HTTP API of a node: requests of operators, metrics and the web page.

It runs on the node's event loop, and the node starts it last. It may import every layer below it.
"""
