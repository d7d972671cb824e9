"""A hub on localhost: enough of its API for huggingface_hub's own client to upload to and download from."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

TOKEN = "hf_good"


@dataclass
class Repo:
    private: bool = False
    gated: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr((sorted(self.files.items()), self.commits)).encode()).hexdigest()


@dataclass
class FakeHub:
    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: str | None = None
    """A part of a path: requests to it are answered with 500."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    @property
    def is_authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def visible(self, name: str) -> Repo | None:
        """Return the repository, or None after an answer that says why not."""
        repo = self.hub.repos.get(name)
        if self.headers.get("Authorization") and not self.is_authorized:
            self.answer(
                401,
                {"error": "Invalid credentials in Authorization header"},
                X_Error_Message="Invalid credentials in Authorization header",
            )
        elif repo is None or (repo.private and not self.is_authorized):
            self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif repo.gated and "/api/" not in self.path:
            self.answer(403, {"error": "Access is restricted"}, X_Error_Code="GatedRepo")
        else:
            return repo
        return None

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if self.hub.broken and self.hub.broken in path:
            return self.answer(500, {"error": "out of order"})
        if path == "/api/whoami-v2":
            if not self.is_authorized:
                return self.answer(401, {"error": "Invalid username or password."})
            return self.answer(200, {"type": "user", "name": "me", "orgs": []})
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        repo = self.visible(name)
        if repo is None:
            return None
        revision = (parts[5:6] if api else parts[3:4]) or ["main"]
        if revision[0] not in ("main", repo.sha):
            return self.answer(404, {"error": "no"}, X_Error_Code="RevisionNotFound")
        if not api:  # /OWNER/NAME/resolve/REVISION/FILE
            content = repo.files.get("/".join(parts[4:]))
            if content is None:
                return self.answer(404, {"error": "no"}, X_Error_Code="EntryNotFound")
            tag = hashlib.sha1(content).hexdigest()
            return self.answer(200, content, ETag=f'"{tag}"', X_Repo_Commit=repo.sha)
        if parts[4:5] == ["tree"]:
            rows = [
                {"type": "file", "path": p, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                for p, c in repo.files.items()
            ]
            return self.answer(200, rows)
        siblings = [{"rfilename": file} for file in repo.files]
        return self.answer(
            200,
            {
                "id": name,
                "sha": repo.sha,
                "private": repo.private,
                "siblings": siblings,
                "tags": [],
            },
        )

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self.body()
        self.hub.requests.append(f"POST {path}")
        if self.hub.broken and self.hub.broken in path:
            return self.answer(500, {"error": "out of order"})
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if not self.is_authorized:
            return self.answer(401, {"error": "Invalid username or password."})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        name = "/".join(path.split("/")[3:5])
        repo = self.hub.repos[name]
        if "/preupload/" in path:
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": modes})
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "header":
                repo.commits.append(entry["value"]["summary"])
            else:
                value = entry["value"]
                repo.files[value["path"]] = base64.b64decode(value["content"])
        return self.answer(
            200,
            {
                "commitUrl": f"{self.hub.url}/{name}/commit/{repo.sha}",
                "commitOid": repo.sha,
                "success": True,
            },
        )

    def create(self, request: dict[str, Any]) -> None:
        name = f"{request.get('organization') or 'me'}/{request['name']}"
        if not name.startswith("me/"):
            return self.answer(403, {"error": f"You may not write under {name.split('/')[0]}"})
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repos:
            return self.answer(409, {"error": "it is there", **url})
        private = request.get("visibility") == "private" or bool(request.get("private"))
        self.hub.repos[name] = Repo(private=private)
        return self.answer(200, url)


@contextlib.contextmanager
def fake_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Run a hub in this block that huggingface_hub talks to, with a cache of its own and a token."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        huggingface_hub.close_session()  # it keeps connections that the server would wait for
        server.shutdown()
        server.server_close()
        thread.join()
