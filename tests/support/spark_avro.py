"""Spark's reader of Avro, which is a package of its own: its jar, fetched once, in a session that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maven_jars import maven_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_AVRO_VERSION = "4.1.1"
"""The newest that Maven Central has here."""


def with_avro(spark: SparkSession) -> SparkSession:
    """Add the reader to a session.

    Raises:
        MissingProgram: The jar is not in the cache and there is no Maven.
        RuntimeError: Maven could not fetch it.
    """
    artifacts = [("org.apache.spark", "spark-avro_2.13", SPARK_AVRO_VERSION)]
    what = f"The jars of spark-avro {SPARK_AVRO_VERSION}"
    name = f"spark-avro-{SPARK_AVRO_VERSION}"
    (jar,) = maven_jars(name, artifacts, what=what, skip="spark_avro", alone=True).glob("*.jar")
    spark.sql(f"ADD JAR '{jar}'")
    return spark
