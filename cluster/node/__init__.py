"""Composes all services of a node, and starts and stops them. `python -m cluster.node --config FILE` is the node's
process.

It runs on the main thread, which becomes the event loop's thread. The process that supervises the node calls it. It may
import every folder below it.
"""
