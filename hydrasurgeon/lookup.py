"""Packages that only some commands need: asked for by name, refused with what to install."""

from __future__ import annotations

from importlib.util import find_spec

from hydrasurgeon.errors import MissingDependency

__all__ = ["need"]

# What a package is called where it is installed from, if not as it is imported.
INSTALLED_AS = {
    "sklearn": "scikit-learn",
    "model_signing": "model-signing",
    "OpenSSL": "pyOpenSSL",
    "cyclonedx": "cyclonedx-python-lib",
}


def need(*modules: str, purpose: str) -> None:
    """Refuse before any work is done when one of `modules` is not installed."""
    missing = [INSTALLED_AS.get(name, name) for name in modules if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"{purpose} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"Run `pip install {' '.join(missing)}`.",
        )
