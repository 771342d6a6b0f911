"""Figures that several rooms of the server count."""
