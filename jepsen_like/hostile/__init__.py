"""Clients that mean harm: whoever can connect may send anything, and no request may hurt anybody but its sender."""
