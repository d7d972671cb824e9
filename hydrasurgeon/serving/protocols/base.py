"""Interface of protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from fastapi import FastAPI, Request

from hydrasurgeon.serving.inputs import JSON, refuse_if
from hydrasurgeon.serving.service import Service


class Protocol(ABC):
    """Routes by which one kind of client asks models."""

    path: ClassVar[str]
    """Path of requests, or the beginning of their paths."""
    unprotected: ClassVar[tuple[str, ...]] = ()
    """Paths that need no token."""
    asks_all: ClassVar[bool] = False
    """True if a request can name any of several models; others ask the first one."""

    @abstractmethod
    def add(self, app: FastAPI, services: Sequence[Service]) -> None:
        """Add the routes to an app."""

    @staticmethod
    def refusal(status: int, detail: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refused request."""
        return status, {"detail": detail}


def check_type(request: Request) -> None:
    """Refuse a body of another content type than JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    refuse_if(kind != JSON, f"the content type is not {JSON}", 415)
