"""Hostile clients: any program that can connect may send anything, and no request may hurt anybody but its sender."""
