"""Real processes under real faults: subjects, proxies, nemeses, scenarios and the run that puts them together."""
