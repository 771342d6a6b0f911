"""The sink: writes a Spark data frame to a topic."""
