"""The turns of the event loop: limits on their cost, and measurements."""
