"""Mutants: small random changes of the product, each judged by its unit tests and the simulator (`make mutants`).

Planted bugs (`jepsen_like.seeded_bugs`) are chosen by those who plant them. Mutants are drawn, so they show what nobody
thought of. The operators are Cosmic Ray's and one of our own; needs the development packages.
"""
