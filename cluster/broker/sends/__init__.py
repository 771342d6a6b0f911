"""Takes sends: checks them, tells re-sends from new ones, queues them, and stores again what a consumer gives back."""
