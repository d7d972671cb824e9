"""Dask: python dask_frame.py CHECKPOINT IN.parquet OUT/ — partition by partition, in processes or on a cluster."""

import sys

import dask.dataframe as dd

import hydrasurgeon as hs

checkpoint, source, out = sys.argv[1:]
predictor = hs.Predictor(checkpoint, device="cpu")
table = dd.read_parquet(source)
answers = table.map_partitions(predictor, meta=predictor.schema.empty_table().to_pandas())
answers.to_parquet(out)
