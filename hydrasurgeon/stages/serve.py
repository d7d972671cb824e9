"""serve: answer over HTTP as `predict` does, many requests in one pass; a stop answers what was
taken.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.data.readers import TEXTS
from hydrasurgeon.data.word_tokens import WORDS
from hydrasurgeon.engines import check_engine, chosen, engine_of, fitted_otherwise, open_any
from hydrasurgeon.errors import CheckpointError, HydraError, UsageError
from hydrasurgeon.files.atomic import check_ending, not_written, output_file
from hydrasurgeon.files.rows import Appended
from hydrasurgeon.lookup import need
from hydrasurgeon.measuring.sets import NAMED, kind_read
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import ServeOptions
from hydrasurgeon.tasks.row_columns import columns_of, without_state

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.serving.service import RequestCounts, Service

MEGABYTE = 1 << 20
"""Bytes of a megabyte."""
MOST_BYTES = {"text": MEGABYTE, "image": 32 * MEGABYTE}
"""Bytes of a request, at most, by what the model reads."""
WAITING = 256
"""Inputs that may wait or be answered at once; more are refused with 429."""
PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
"""Packages of the extra `serve`."""
Models = Mapping[str, "Checkpoint"]
"""The checkpoints that answer, by name; every protocol can ask the first."""


@dataclass(frozen=True)
class Served:
    """A server that has stopped."""

    address: str
    inputs: int
    """Inputs that were answered."""
    path: Path | None
    """File with the answers."""
    stop: BaseException | None
    """The signal that ended it."""

    def require(self) -> None:
        """End as the signal would have ended it."""
        if self.stop is not None:
            raise self.stop


@stage(ServeOptions)
def serve(arguments: ServeOptions) -> Served:
    """Answer requests until a signal comes."""
    need(*PACKAGES, purpose="serve", extra="serve")
    check_engine(arguments, arguments.dtype)
    token = _token(arguments.token_env)
    models = _opened(arguments)
    for opened in models.values():
        opened.check_weights()
    place, option = arguments.answers, "--answers"
    if place is not None:  # behind what is there already
        hint = "Answers are appended as lines of JSON."
        check_ending(place, ".jsonl", option=option, hint=hint)
        place = output_file(place, option=option, force=True, inputs=arguments.sources)
    with _bound(arguments) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        server = _Server(arguments, listener, place, token)
        run = _alone if arguments.workers == 1 else _several
        inputs, stop = run(server, models, _ready_line(models, address))
        return Served(address, inputs, place, stop)


def _ready_line(models: Models, address: str) -> str:
    """Return a line that says where models answer."""
    from hydrasurgeon.serving.protocols import PROTOCOLS

    named, first = [opened.name for opened in models.values()], PROTOCOLS[0].path
    if len(named) == 1:
        return f"{named[0]} answers at {address}{first}"
    paths = [protocol.path for protocol in PROTOCOLS if protocol.asks_all]
    if not paths:
        raise UsageError(
            "no protocol can name one of several checkpoints", hint="Serve one checkpoint."
        )
    return f"{', '.join(named)} answer at {address}{paths[0]}, the first at {first}"


@dataclass(frozen=True)
class _Server:
    """The settings that each of its processes has."""

    arguments: ServeOptions
    listener: socket.socket
    place: Path | None
    """File for the answers."""
    token: str | None


def _opened(arguments: ServeOptions) -> Models:
    """Open the checkpoints, and check that they have classes."""
    models: dict[str, Checkpoint] = {}
    for place in arguments.checkpoints:
        match = None if os.path.exists(place) else NAMED.fullmatch(str(place))
        place = place if match is None else match[2]
        opened = open_any(place, arch=arguments.arch, engine=arguments.engine)
        opened = classifying(opened, arguments)
        need_classes(opened.manifest, opened.path)
        name = opened.stem if match is None else match[1]
        if name in models:
            raise UsageError(f"{name}: occurs twice", hint="Name them: NAME=CKPT.")
        models[name] = opened
    if not models:
        raise UsageError("CKPT is required")
    if len(models) > 1 and arguments.answers is not None:
        raise UsageError(
            "--answers is for one model only, as `monitor` compares one",
            hint="Serve one checkpoint, or leave it out.",
        )
    for name, opened in models.items():
        if len(models) > 1 and kind_read(opened.manifest) != "text":
            raise UsageError(
                f"{name}: reads images",
                hint="Several checkpoints can be served only if all read texts.",
            )
    return models


def _alone(server: _Server, models: Models, ready_line: str) -> tuple[int, BaseException | None]:
    """Answer in this process until a signal comes; return the number of inputs and the signal."""
    from hydrasurgeon.serving.connections import BACKLOG, server_of

    with _kept(server.place) as kept:
        app, counts = _app(models, server.arguments, kept, server.token)
        server.listener.listen(BACKLOG)  # who reads the next line may connect at once
        server.arguments.say(ready_line)
        running = server_of(app)
        stop: BaseException | None = None
        try:
            running.run([server.listener])
        except (SystemExit, KeyboardInterrupt) as signal:
            stop = signal  # raised when all that was taken is answered
        return _inputs(counts.registry), stop


def _several(server: _Server, models: Models, ready_line: str) -> tuple[int, BaseException | None]:
    """Answer in several processes until a signal comes; return the number of inputs and the signal."""
    from prometheus_client.multiprocess import mark_process_dead

    from hydrasurgeon.serving.connections import BACKLOG
    from hydrasurgeon.serving.service import summed
    from hydrasurgeon.serving.workers import supervise

    unsaid = [ready_line]

    def up(notes: list[str]) -> None:
        server.listener.listen(BACKLOG)  # a process that begins sets it to its own
        while unsaid:
            for line in (*notes, unsaid.pop()):
                server.arguments.say(line)

    with TemporaryDirectory(prefix="hydrasurgeon-") as name:
        folder = Path(name)
        quiet = replace(server, arguments=server.arguments.but(say=print))
        work = partial(_work, quiet, folder, _identity(models))
        stop: BaseException | None = None
        try:
            supervise(
                work,
                server.arguments.workers,
                up=up,
                on_exit=lambda pid: mark_process_dead(pid, folder),
            )
        except (SystemExit, KeyboardInterrupt) as signal:
            stop = signal
        return _inputs(summed(folder)), stop


def _work(server: _Server, folder: Path, identity: Identity, reports: Connection) -> None:
    """Answer in one of several processes."""
    from hydrasurgeon.serving.workers import obey

    obey()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    from hydrasurgeon.runtime.threads import share_threads
    from hydrasurgeon.serving.connections import server_of

    arguments = server.arguments
    share_threads(arguments.workers)
    notes: list[str] = []
    try:
        models = _opened(arguments)
        for opened, now, then in zip(models.values(), _identity(models), identity, strict=True):
            if now != then:
                raise CheckpointError(
                    f"{opened.path}: has changed since the server started", hint="Start it again."
                )
        with _kept(server.place) as kept:
            app, _ = _app(models, arguments.but(say=notes.append), kept, server.token, folder)
            server_of(app, announce=lambda: reports.send(notes)).run([server.listener])
    except HydraError as error:
        reports.send(error)


Identity = Sequence[tuple[str, str]]


def _identity(models: Models) -> Identity:
    """Return the hash and manifest of each checkpoint, to notice that a file has changed."""
    return [
        (opened.record(opened.digests()).sha256, opened.manifest.model_dump_json())
        for opened in models.values()
    ]


def _inputs(registry: CollectorRegistry) -> int:
    """Return the number of answered inputs."""
    return int(registry.get_sample_value("hydrasurgeon_inputs_total") or 0)


def _app(
    models: Models,
    arguments: ServeOptions,
    kept: Appended | None,
    token: str | None = None,
    folder: Path | None = None,
) -> tuple[FastAPI, RequestCounts]:
    """Return the app with its models, each of which has answered once, and its counters. With a
    folder, counters are shared through its files.
    """
    from hydrasurgeon.serving.http_app import app_of
    from hydrasurgeon.serving.service import RequestCounts

    counts = RequestCounts(folder)
    services = [_ready(name, opened, arguments, kept, counts) for name, opened in models.items()]
    return app_of(services, token), counts


def _ready(
    name: str,
    opened: Checkpoint,
    arguments: ServeOptions,
    kept: Appended | None,
    counts: RequestCounts,
) -> Service:
    """Load a model, answer once with it, and return it as the protocols use it."""
    from hydrasurgeon.data.batches import batch_size_of
    from hydrasurgeon.serving.inputs import Bodies
    from hydrasurgeon.serving.service import Batcher, ServedModel, Service, shortened

    engine = chosen(
        opened, arguments.engine, device=arguments.device, dtype=arguments.dtype, rows=0
    )
    model = engine_of(opened, engine=engine, device=arguments.device, dtype=arguments.dtype)

    def answer(samples: list[Any]) -> list[dict[str, Any]]:
        batch = model.collated([prepared for _, prepared, _ in samples])
        answers = model.answered(batch, cascade=arguments.cascade)
        top = max(top for _, _, top in samples)
        row_prefixes = [{"id": name} for name, _, _ in samples]
        rows = model.rows(answers, row_prefixes, top, lambda: [text for _, text, _ in samples])
        token_counts = _tokens_of(batch, model.transform) or [{}] * len(rows)
        return [{**row, **count} for row, count in zip(rows, token_counts, strict=True)]

    reads = getattr(model.transform, "kind", "image")
    # What cannot answer fails before it listens.
    (example_row,) = answer([(0, _first(reads, model.transform), arguments.top)])
    uncalibrated = without_state(opened.name) if model.state is None else None
    otherwise = fitted_otherwise(opened, engine)
    for note in filter(None, (opened.note, uncalibrated, otherwise, *model.notes)):
        arguments.say(f"note: {note}")

    def counted(samples: list[Any]) -> list[dict[str, Any]]:
        rows = answer(samples)
        counts.add(rows, model.members, model.task)
        if kept is not None:
            # Positions recur in each request: `monitor` tells such rows apart by their key.
            for row in rows:
                if not isinstance(row["id"], str):
                    row["key"] = secrets.token_hex(8)
            counts.answers_lost.inc(kept.add(shortened(rows, arguments.top)))
        return rows

    batch = batch_size_of(arguments.batch_size)
    batcher = Batcher(counted, batch=batch, wait=arguments.wait / 1000, size=WAITING)
    most = MOST_BYTES[reads]
    if arguments.max_body is not None:
        most = arguments.max_body * MEGABYTE
    model_facts = opened.manifest.model
    columns = columns_of(model.task, cut=model_facts.max_tokens is not None)
    if "label" not in columns and "labels" in columns:
        columns["answer"] = "names"
    labels = model_facts.labels or range(model_facts.num_classes)
    if "top" not in columns or len({*labels}) < len(labels):
        labels = ()  # their probabilities could not be told apart
    levels = model_facts.levels or ()
    reach = None
    if levels and model.state is not None:
        reach = model.state.record.conformal.threshold
    written = datetime.fromtimestamp(opened.path.stat().st_mtime, UTC).date().isoformat()
    served = ServedModel(
        name, reads, columns, labels, levels, example=example_row, released=written, reach=reach
    )
    return Service(batcher, counts, model.transform, Bodies(most), arguments.top, served)


def _tokens_of(batch: Any, transform: Any) -> list[dict[str, int]]:
    """Count the tokens that the model reads of each text; return none for images and windows."""
    from hydrasurgeon.serving.inputs import TOKENS

    if isinstance(batch, dict) and TEXTS in batch:
        batch = transform.inner.arrays(batch[TEXTS].tolist())
    if not isinstance(batch, dict) or "attention_mask" not in batch or WORDS in batch:
        return []
    return [{TOKENS: count} for count in batch["attention_mask"].sum(1).tolist()]


def _token(variable: str | None) -> str | None:
    """Return the token in an environment variable."""
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise UsageError(
            f"--token-env {variable}: this variable is not set",
            hint=f"Set it: {variable}=… hydrasurgeon serve …",
        )
    return token


def _first(reads: str, transform: Callable[[Any], Any]) -> Any:
    """Return a dummy input, for the first answer."""
    if getattr(transform, "inputs", None) == "text_pair":
        return transform(("a", "b"))
    if reads == "text":
        return transform("a")
    from PIL import Image

    return transform(Image.new("RGB", (64, 64)))


@contextlib.contextmanager
def _bound(arguments: ServeOptions) -> Iterator[socket.socket]:
    """Bind the socket before the model is loaded."""
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                arguments.host, arguments.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )[0]
            # asyncio turns Nagle's algorithm off only where the protocol is said to be TCP.
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            message = (
                f"--host {arguments.host} --port {arguments.port}: cannot be listened at "
                f"({error.strerror})"
            )
            raise UsageError(
                message, hint="Give another --port; 0 takes any that is free."
            ) from error
        yield listener


def _kept(place: Path | None) -> contextlib.AbstractContextManager[Appended | None]:
    """Open the file that answers are appended to, if there is one."""
    if place is None:
        return contextlib.nullcontext()
    try:
        return contextlib.closing(Appended(place))
    except OSError as error:
        raise not_written(place, error, "Give --answers another place.") from error
