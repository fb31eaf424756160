"""The sink inside Spark. Besides it only two modules of ``readers`` import pyspark."""
