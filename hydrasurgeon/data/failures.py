"""What libraries say when they fail, for a message of ours."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """The first line of it, cut to a bearable length; its kind where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
