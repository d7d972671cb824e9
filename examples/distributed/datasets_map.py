"""datasets: python datasets_map.py CHECKPOINT IN.parquet OUT.parquet — the columns of the data, and the answers beside them."""

import sys

from datasets import load_dataset

import hydrasurgeon as hs

checkpoint, source, out = sys.argv[1:]
table = load_dataset("parquet", data_files=source, split="train")
answers = table.map(hs.Predictor(checkpoint, device="cpu"), batched=True, batch_size=1024)
answers.to_parquet(out)
