"""A structure-aware fuzzer: it knows what every handler is asked for, and asks for nearly that."""
