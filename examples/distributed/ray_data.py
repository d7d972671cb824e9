"""Ray Data: python ray_data.py CHECKPOINT IN.parquet OUT/ — one loaded model for each worker."""

import sys

import ray

import hydrasurgeon as hs

checkpoint, source, out = sys.argv[1:]


class Answer(hs.Predictor):
    """Loads on a worker's first batch, and stays."""

    def __init__(self) -> None:
        super().__init__(checkpoint, engine="torch", device="cpu")


table = ray.data.read_parquet(source)
answers = table.map_batches(
    Answer, batch_size=1024, batch_format="pandas", concurrency=2, num_cpus=0.5
)
answers.write_parquet(out)
