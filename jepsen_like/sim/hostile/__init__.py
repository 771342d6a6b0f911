"""Clients that mean harm: senseless requests, halves of frames, strangers at the peer port."""
