"""`schema`: the JSON Schema of input files and documents."""

from __future__ import annotations

from typing import Any


def schema(name: str, *, keys: bool = False) -> dict[str, Any] | str:
    """The JSON Schema (2020-12) of a kind of document, or its keys in words.

    Args:
        name: a formulation (its problem files), ``current`` (what `evaluate` reads), ``plan``, ``explanation``,
            ``compare``, ``sweep`` or ``replay``.
        keys: every key of a formulation's problem files in words (Markdown), in place of the schema.

    Raises:
        InputError: unknown name.
    """
    if keys:
        from optmodels.keys import reference

        return reference(name)
    from optmodels.schemas import schema as found

    return found(name)
