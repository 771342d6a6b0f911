"""Chaos runs: real processes under real faults, with subjects, proxies, nemeses, scenarios and the run that combines
them."""
