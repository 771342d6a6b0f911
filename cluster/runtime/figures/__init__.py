"""Figures that several rooms count."""
