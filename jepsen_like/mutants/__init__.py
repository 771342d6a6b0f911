"""Mutants: small random changes of the product, each judged by the product's unit tests and the simulator (`make
mutants`).

Planted bugs (`jepsen_like.seeded_bugs`) are chosen by their authors. Mutants are drawn, so they show gaps that no
author thought of. Cosmic Ray makes and tries them; it comes with the development packages.
"""
