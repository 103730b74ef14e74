"""`new`: a problem file to start from, or a formulation of one's own."""

from __future__ import annotations

from pathlib import Path

from optmodels import formulation as registry
from optmodels import shipped
from optmodels.api.sources import File
from optmodels.errors import InputError, Mistake
from optmodels.io.write import write_text
from optmodels.loading import load


def new(
    formulation: str, file: File | None = None, folder: File | None = None, *, from_: str | None = None,
    force: bool = False,
) -> str:  # fmt: skip
    """A commented problem template, a copy of a shipped problem file, or a package for a formulation of one's own.

    Args:
        formulation: a formulation (optmodels list formulations); or ``current``, the file that `evaluate` reads; or the
            word ``formulation``, for one of your own.
        file: the file to write; files that a shipped problem file refers to are written next to it. Or the new
            formulation's name.
        folder: parent folder of a new formulation (default: the working folder).
        from_: a shipped problem file: optmodels list problems; None: the template. For
            ``current`` the problem file whose workloads run today.
        force: replace existing files.

    Returns:
        The problem's text; or the folder of the new formulation, ready to run, test and install.

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
        raise InputError(Mistake(None, "folder", str(folder), "nothing after the problem file"))
    target = None if file is None else Path(file)
    if formulation == "current":
        return _new_current(from_, target, force)
    form = registry.get(formulation)
    if from_ is not None:
        return shipped.copy(form.name, from_, target, overwrite=force)
    if target is not None:
        write_text(target, form.template, overwrite=force)
    return form.template


def _new_current(instance: str | None, target: Path | None, overwrite: bool) -> str:
    """A file of today's deployments for a problem file, which lies next to it or below."""
    from optmodels.plans.current import start_text

    if instance is None:
        raise InputError(Mistake(None, "--from", None, "the problem file whose workloads run today"))
    problem = load(Path(instance))
    form = registry.get(problem.formulation)
    if form.start is None:
        able = [n for n in registry.names() if registry.get(n).start is not None]
        raise InputError(Mistake(instance, "formulation", form.name, f"a problem file of {', '.join(able)}"))
    folder = (Path() if target is None else target.parent).resolve()
    there = Path(instance).resolve()
    if not there.is_relative_to(folder):
        raise InputError(Mistake(None, "--from", instance, f"a problem file in {folder} or below"))
    text = start_text(there.relative_to(folder).as_posix(), form.start(problem))
    if target is not None:
        write_text(target, text, overwrite=overwrite)
    return text
