"""What all instance files share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from optmodels.catalog.spelling import own_gpus
from optmodels.catalog.types import Entry
from optmodels.errors import InputError, Mistake


class Problem(Entry):
    """Base of every formulation's instance schema."""

    formulation: str = Field(description="formulation of the file")
    schema_version: Literal[1] = Field(alias="schema", description="version of the schema")
    name: str = Field(default="", max_length=200, description="name for people and results; default: the file's name")
    title: str = Field(default="", description="one line for people")
    notes: str = Field(default="", description="further notes for people")

    _file: str | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _with_own_gpus(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        own = data.get("gpus") if isinstance(data, Mapping) else None
        with own_gpus(own if isinstance(own, Mapping) else ()):
            return handler(data)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Mistakes that the block raises without a file are in this instance's file, if it has one."""
        try:
            yield
        except InputError as error:
            raise type(error)(m if m.file else replace(m, file=self._file) for m in error.mistakes) from None

    def beside(self, file: str, path: str) -> Path:
        """A file named in the instance, which must lie in the instance's folder or below it.

        Raises:
            InputError: outside the folder, or not there.
        """
        if self._folder is None:
            raise InputError(Mistake(None, path, file, "inline data: this problem was not loaded from a file"))
        try:
            target = (self._folder / file).resolve()
            there = target.is_file() or target.is_fifo()
        except (OSError, ValueError):  # a name too long for the disk, or with a NUL
            raise InputError(Mistake(None, path, file, "the name of a file")) from None
        if not target.is_relative_to(self._folder.resolve()):
            raise InputError(Mistake(None, path, file, "a file in the problem's own folder or below it"))
        if not there:
            raise InputError(Mistake(None, path, file, f"an existing file in {self._folder}"))
        return target

    @abstractmethod
    def resolve(self) -> Any:
        """Look up everything the file refers to; the object that tables are built from."""

    def own_trace(self) -> Any:
        """The requests of the instance one by one (`traces.types.Trace`); None where it has none."""
        return None

    @abstractmethod
    def inline(self) -> Problem:
        """The same problem with everything it refers to written out, so that it stands alone."""
