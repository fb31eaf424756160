"""The sink inside Spark. The only package that imports pyspark."""
