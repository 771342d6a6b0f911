"""Mutants: small random changes of the product, each judged by its unit tests and the simulator (`make mutants`).

Planted bugs (`jepsen_like.seeded_bugs`) are chosen by those who plant them. Mutants are drawn, so they show what nobody
thought of. Cosmic Ray makes and tries them; it comes with the development packages.
"""
