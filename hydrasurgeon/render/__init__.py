"""What people see: tables, progress, errors. The only folder that prints, and the only one that
knows rich.
"""

from hydrasurgeon.render.console import (
    as_json,
    failed,
    finish_streams,
    prepare_streams,
    progress,
    raw,
    say,
    show,
    writing,
)
from hydrasurgeon.render.described import (
    benched,
    evaluated,
    inspected,
    monitored,
    verified,
)
from hydrasurgeon.render.made import (
    built,
    calibrated,
    exported,
    finetuned,
    fused,
    predicted,
    pruned,
    scored,
    served,
)
