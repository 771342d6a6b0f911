"""The data pipeline: Spark source and jobs (the name Spark registers by itself)."""
