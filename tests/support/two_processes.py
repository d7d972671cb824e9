"""One command in two processes, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys


def in_two_processes(*words: str, program: tuple[str, ...] = ("-m", "hydrasurgeon")) -> str:
    """Run `hydrasurgeon …`, or another program, in two processes that meet at a free port; return
    what it prints.
    """
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *program,
    ]
    done = subprocess.run(
        [sys.executable, *launch, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
