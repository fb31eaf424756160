"""Read tables over trees with Hive's own input formats and SerDes, and print their rows (``tests/spark/test_hive.py``).

Two arguments: a directory for the metastore, and a JSON object of tables, each with its base and a DDL without a place.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

directory, tables = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.warehouse.dir": f"{directory}/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{directory}/metastore;create=true",
    "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
    # Otherwise Spark puts its own readers in the place of Hive's.
    "spark.sql.hive.convertMetastoreParquet": "false",
    "spark.sql.hive.convertMetastoreOrc": "false",
}
builder = SparkSession.builder.master("local[1]").enableHiveSupport()
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
found = {}
for table, (base, ddl) in json.loads(tables).items():
    spark.sql(f"{ddl} LOCATION 'file:{base}'")
    spark.sql(f"MSCK REPAIR TABLE {table}")
    frame = spark.table(table)
    plan = frame._jdf.queryExecution().toString()
    if "Scan hive" not in plan:
        raise SystemExit(f"Spark reads {table} by itself:\n{plan}")
    found[table] = [tuple(row) for row in frame.collect()]
sys.stdout.write(json.dumps(found))
spark.stop()
