"""A structure-aware fuzzer, which knows the requests of every handler and sends almost valid ones."""
