"""Another method's predictions beside ours: what it answered, as arrays in one .npz, becomes a file that `eval
--predictions-in` reads.

    python examples/predictions.py answers.npz vilu.safetensors
    hydrasurgeon eval vit hydra --data D --ood near:NAME=D --predictions-in vilu.safetensors
    hydrasurgeon eval --predictions-in vilu.safetensors --ood-score vilu

The archive has, of as many samples in one order: `logits` [sample, class] or [sample, member, class] (log-probabilities
do as well), `labels` [sample]; of each
OOD set `ood.NAME.logits`. Nothing else is needed for a pruned or distilled model (OBA), or for samples of a
posterior as members (BayesVLM: logits with member = draw).
A method that tells OOD samples by a number of its own (ViLU: its predicted probability of an error) adds
`scores.METHOD` [sample] and, of each set, `ood.NAME.scores.METHOD`,
higher = more foreign. A set may have scores and no
logits: then `--ood-score METHOD` is all that can be asked of the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def convert(source: Path, target: Path) -> list[str]:
    """Convert arrays to floating-point numbers and whole labels under the same names; return the
    names.
    """
    with np.load(source, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    tensors = {
        name: np.ascontiguousarray(array, dtype=np.int64 if name.endswith("labels") else np.float64)
        for name, array in arrays.items()
    }
    save_file(tensors, target)
    return sorted(tensors)


if __name__ == "__main__":
    sys.stdout.write("\n".join(convert(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
