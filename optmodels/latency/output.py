"""Writers of latency models, tables and pictures."""

from __future__ import annotations

from typing import Any

from optmodels.io.write import write_bytes, write_text

__all__ = ["write_bytes", "write_text", "yaml_text"]


def yaml_text(document: dict[str, Any]) -> str:
    """A document as YAML, keys in order."""
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
