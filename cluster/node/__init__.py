"""The node: composes all services, starts and stops them. `python -m cluster.node --config FILE` is its process.

May import every folder. Runs on the main thread, which becomes the event loop's. The process that supervises the node
calls it.
"""
