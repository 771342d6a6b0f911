"""The Python client, speaking RocketMQ remoting."""
