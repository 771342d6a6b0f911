"""Figures that several packages count."""
