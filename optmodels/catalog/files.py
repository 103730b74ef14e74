"""Entries of the catalogue that a user describes in files: an LLM's configuration, a GPU's data sheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from optmodels import catalog
from optmodels.catalog import spelling
from optmodels.catalog.config import config_file, read_config
from optmodels.catalog.types import Architecture, Gpu
from optmodels.errors import InputError, Mistake
from optmodels.io.read import read_document, read_model, validate
from optmodels.limits import Price
from optmodels.units import UsdPerHour

_MODEL_KEYS = ("model", "llm", "architecture", "draft")


def llm_file(name: str | None) -> tuple[str, Architecture, str | None] | None:
    """Key, shape and weight precision of an LLM that a file describes; None: the name is no file's.

    Args:
        name: a `config.json` or a folder with one, also of the local Hugging Face cache; or a YAML file with the keys
            of the catalogue's entries, which states no precision.

    Raises:
        InputError: a file that is not read.
    """
    if name is None or name in catalog.llms():
        return None
    file = config_file(name)
    if file is not None:
        shape, weights = read_config(file)
        return _key(shape), shape, weights
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        shape = read_model(Path(name), Architecture)
        return Path(name).stem, shape, None
    return None


class GpuFile(Gpu):
    """A GPU of one's own; with a price it can be planned on although no cloud's list has it."""

    usd_per_hour: Annotated[UsdPerHour | None, Price()] = Field(default=None, description="price of one, on demand")

    @property
    def data(self) -> dict[str, Any]:
        """Its entry in an instance's `gpus`."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"usd_per_hour"})


def gpu_file(name: str | None) -> tuple[str, GpuFile] | None:
    """Key and data of a GPU that a YAML file describes; None: the name is no file's.

    With `gpu`, one of the catalogue, the file states a price and whatever differs.

    Raises:
        InputError: a file that is not read.
    """
    if name is None or name in catalog.gpus() or not name.endswith((".yaml", ".yml")) or not Path(name).is_file():
        return None
    path = Path(name)
    data, line = read_document(path)
    known = spelling.gpu(data.get("gpu"))
    if known is None:
        return path.stem, validate(GpuFile, data, str(path), line)
    if known not in catalog.gpus():
        raise InputError(replace(spelling.unknown_gpu("gpu", str(known), catalog.gpus(), "a GPU of the catalogue"),
                                 file=str(path), line=line(("gpu",))))  # fmt: skip
    own = {k: v for k, v in data.items() if k != "gpu"}
    made = validate(GpuFile, catalog.gpus()[known].model_dump(exclude_none=True) | own, str(path), line)
    return (known if own.keys() <= {"usd_per_hour"} else path.stem), made


@contextmanager
def described(llm: str | None = None, gpu: str | None = None) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Within the block the catalogue has the files' contents: LLM, GPU and weight precision by their keys.

    Names that are no files are passed through.

    Raises:
        InputError: a file that is not read.
    """
    model, device = llm_file(llm), gpu_file(gpu)
    gpus = {} if device is None else {device[0]: device[1]}
    llms = {} if model is None else {model[0]: model[1]}
    with catalog.with_own(gpus, llms):
        yield (model[0] if model else llm), (device[0] if device else gpu), (model[2] if model else None)


def _key(shape: Architecture) -> str:
    """The catalogue's key of the same shape, by which its measurements are found; else the checkpoint's name."""
    same = [key for key, known in catalog.llms().items() if known.same_shape(shape)]
    return next((k for k in same if catalog.llms()[k].title == shape.title), same[0] if same else shape.title)


def with_models_read(data: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """An instance in which every model given as ``{config: FILE}`` or by a `config.json` is its shape.

    The weight precision that the file states stands in the section where that has none.

    Args:
        data: the document.
        folder: folder that names of files are relative to; None: the document names none.

    Raises:
        InputError: a file that is not read.
    """
    formulation = data.get("formulation")
    # these have weights and kv in the section of the model; requests name the models of orchestration
    return dict(_read(data, folder, "", formulation in ("orchestration", "reserved_capacity"),
                      formulation == "orchestration"))  # fmt: skip


def _read(data: Any, folder: Path | None, path: str, flat: bool, named: bool) -> Any:
    if isinstance(data, list):
        return [_read(part, folder, f"{path}[{i}]", flat, named) for i, part in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    found = {k: _read(v, folder, f"{path}.{k}".removeprefix("."), flat, named) for k, v in data.items()}
    for key in _MODEL_KEYS:
        file = _file_of(data.get(key))
        if file is None:
            continue
        where = f"{path}.{key}".removeprefix(".")
        if folder is None:
            raise InputError(
                Mistake(None, where, file, "an LLM of the catalogue, or its shape: inline data has no folder")
            )
        there = config_file(str(folder / Path(file).expanduser()))
        if there is None:
            raise InputError(Mistake(None, where, file, "a config.json, or a folder with one"))
        shape, weights = read_config(there)
        written = shape.model_dump(mode="json", exclude_defaults=True)
        if named and key == "model":
            found |= {"name": data.get("name", shape.title), "model": written}
        else:
            found[key] = written
        if key != "draft":
            _state_precision(found, weights, flat)
    return found


def _file_of(value: Any) -> str | None:
    """The file in ``{config: FILE}``, or a `config.json` by its path."""
    if isinstance(value, Mapping):
        file = value.get("config")
        return file if set(value) == {"config"} and isinstance(file, str) else None
    return value if isinstance(value, str) and value.endswith(".json") else None


def _state_precision(section: dict[str, Any], weights: str, flat: bool) -> None:
    """Write a weight precision into a section that states none."""
    given = section.get("precision")
    if weights == "fp16" or "weights" in section or (isinstance(given, Mapping) and "weights" in given):
        return
    if flat:
        section["weights"] = weights
    elif given is None or isinstance(given, Mapping):
        section["precision"] = {**(given or {}), "weights": weights}
