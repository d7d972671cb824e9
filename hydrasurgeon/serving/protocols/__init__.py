"""Protocols that a server answers: one file for each, and its line in the list."""

from __future__ import annotations

from hydrasurgeon.serving.protocols.base import Protocol
from hydrasurgeon.serving.protocols.open_inference import OpenInference
from hydrasurgeon.serving.protocols.own_api import OwnApi
from hydrasurgeon.serving.protocols.system_one import SystemOne

PROTOCOLS: tuple[Protocol, ...] = (
    OwnApi(),
    SystemOne(),
    OpenInference(),
)
"""Every protocol; a server names the path of the first."""
