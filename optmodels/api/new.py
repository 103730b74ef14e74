"""`new`: an instance file to start from, or a formulation of one's own."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from optmodels import formulation as registry
from optmodels import shipped
from optmodels.errors import InputError, Mistake
from optmodels.io.write import write_text


def new(
    formulation: str, file: str | PathLike[str] | None = None, folder: str | PathLike[str] | None = None, *,
    from_: str | None = None, force: bool = False,
) -> str:  # fmt: skip
    """A commented instance template, a copy of a shipped instance, or a package for a formulation of one's own.

    Args:
        formulation: ``optmodels list formulations``; or the word ``formulation``, for one of your own.
        file: the file to write; files that a shipped instance refers to are written beside it. Or the new
            formulation's name.
        folder: parent folder of a new formulation (default: the working folder).
        from_: name of a shipped instance, as ``optmodels.list("instances")`` has it; None: the template.
        force: replace existing files.

    Returns:
        The instance's text; or the folder of the new formulation, ready to run, test and install.

    Raises:
        InputError: an unknown name, a file or folder that exists or cannot be written, options that exclude another.
    """
    if formulation == "formulation":
        if from_ is not None or force:
            name, value = ("force", force) if force else ("from", from_)
            raise InputError(Mistake(None, name, value, "neither --from nor --force for a formulation"))
        if file is None:
            raise InputError(Mistake(None, "name", None, "a name for the new formulation"))
        from optmodels.scaffold import write_formulation

        return str(write_formulation(str(file), Path(folder or ".")))
    if folder is not None:
        raise InputError(Mistake(None, "folder", str(folder), "nothing after the instance file"))
    form = registry.get(formulation)
    target = None if file is None else Path(file)
    if from_ is not None:
        return shipped.copy(form.name, from_, target, overwrite=force)
    if target is not None:
        write_text(target, form.template, overwrite=force)
    return form.template
