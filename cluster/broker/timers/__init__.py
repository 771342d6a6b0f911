"""Delivers messages that wait for their due time: reads the due ones and copies them into their queues, or cancels them
before."""
