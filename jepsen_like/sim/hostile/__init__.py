"""Hostile clients: they send senseless requests and halves of frames, and dial the peer port without the cluster's
secret."""
