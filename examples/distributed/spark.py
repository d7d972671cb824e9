"""Spark: spark-submit spark.py CHECKPOINT IN.parquet OUT/ — one loaded model for each Python worker."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import hydrasurgeon as hs

checkpoint, source, out = sys.argv[1:]
predictor = hs.Predictor(checkpoint, device="cpu")
spark = SparkSession.builder.appName("hydrasurgeon").getOrCreate()
table = spark.read.parquet(source)
answers = table.mapInPandas(
    lambda frames: map(predictor, frames), from_arrow_schema(predictor.schema)
)
answers.write.parquet(out)
