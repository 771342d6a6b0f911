"""The sink: Spark writes into a topic."""
