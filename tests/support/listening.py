"""A server in this process, at a socket of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydrasurgeon.options.deciding import ServeOptions
from hydrasurgeon.stages.serve import _app, _opened


@contextmanager
def serving(*paths: str | Path, token: str | None = None, **options: Any) -> Iterator[str]:
    """Run a server in a thread; yield its address."""
    import socket

    from hydrasurgeon.serving.connections import server_of

    arguments = ServeOptions(checkpoints=paths, device="cpu", **options)
    app, _ = _app(_opened(arguments), arguments, None, token)
    server = server_of(app)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
