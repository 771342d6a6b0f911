"""Takes sends: checks them, tells repeated sends from new ones, queues them, and stores again the messages that
consumers send back."""
