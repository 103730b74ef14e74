"""`report`: one HTML page of results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels.api.sources import File
from optmodels.errors import one_of
from optmodels.io.write import safe_name, write_text
from optmodels.plans.outcome import Result

Document = File | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Result


def report(
    results: Document | Iterable[Document], *, out: File | None = None, figures: File | None = None,
    format: str = "png", title: str | None = None, force: bool = False,
) -> str:  # fmt: skip
    """One self-contained HTML page of one or several results or comparisons.

    Args:
        results: result files, documents or `Result` objects; a comparison is a list of rows, its file a JSON list.
        out: the HTML file to write.
        figures: a folder to write every chart to, too.
        format: picture format: ``png``, ``svg`` or ``pdf``.
        title: title of the page.
        force: replace existing files.

    Returns:
        The page.

    Raises:
        InputError: a document that is none, a file that exists.
    """
    from optmodels.reporting import page
    from optmodels.reporting.charts import FORMATS, save_chart
    from optmodels.schemas import refuse_damaged

    given = [results] if isinstance(results, str | PathLike | Mapping | Result) else list(results)
    found = page.articles(given, refuse_damaged)
    one_of("format", format, FORMATS)
    files = [str(g) for g in given if isinstance(g, str | PathLike)]
    with page.as_written(files[0], refuse_damaged) if files else contextlib.nullcontext():
        text = page.render(found, title)
        if figures is not None:
            for number, (article, picture) in enumerate(((a, c) for a in found for c in a.charts()), 1):
                of = "" if len(found) == 1 else f"{article.title}: "
                name = safe_name(f"{of}{picture.title}".lower(), 60)
                target = Path(figures) / f"{number:02d}-{name}.{format}"
                save_chart(picture, target, article.title, overwrite=force)
    if out is not None:
        write_text(Path(out), text, overwrite=force)
    return text
