"""Reading files a user wrote: safe YAML/JSON with line numbers, tables row by row, every mistake named."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from optmodels.errors import InputError, Mistake, Mistakes, did_you_mean, printable

M = TypeVar("M", bound=BaseModel)
MAX_BYTES = 64 * 2**20
Location = tuple[int | str, ...]


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses duplicate keys, which plain YAML drops in silence."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, str) and name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} a second time", key.start_mark)
            seen.add(name if isinstance(name, str) else str(name))
        return super().construct_mapping(node, deep)


def read_document(path: Path, shown: str | None = None) -> tuple[dict[str, Any], Callable[[Location], int | None]]:
    """Read a YAML or JSON mapping and a function from a location in it to its line.

    Args:
        path: The file.
        shown: How to name it in messages (default: as given).

    Raises:
        InputError: not there, unreadable, too large, no mapping, bad syntax, duplicate keys.
    """
    name = shown or str(path)

    def wrong(value: object, expected: str, line: int | None = None) -> InputError:
        return InputError(Mistake(name, "", value, expected, line))

    try:
        if not path.is_file():
            raise wrong("a folder" if path.is_dir() else "no such file", "a YAML or JSON instance file")
        if path.stat().st_size > MAX_BYTES:
            raise wrong(f"{path.stat().st_size} bytes", f"at most {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise wrong(error.strerror or "unreadable", "a readable file") from None
    except UnicodeDecodeError:
        raise wrong("bytes that are not UTF-8", "a UTF-8 text file") from None
    try:
        if path.suffix == ".json":
            data, node = json.loads(text, object_pairs_hook=_no_duplicates), None
        else:
            loader = _Loader(text)
            node = loader.get_single_node()
            data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise wrong(error.problem or "a syntax error", "valid YAML with every key once", line) from None
    except yaml.YAMLError as error:
        raise wrong(str(error).split("\n")[0], "valid YAML") from None
    except json.JSONDecodeError as error:
        raise wrong(error.msg, "valid JSON", error.lineno) from None
    except _DuplicateKeyError as error:
        raise wrong(f"the key {error} a second time", "valid JSON with every key once") from None
    except (RecursionError, ValueError) as error:
        raise wrong(str(error)[:100], "valid, not excessively nested YAML or JSON") from None
    if not isinstance(data, dict):
        raise wrong(data if data is not None else "an empty file", "a mapping with formulation: and schema:")
    return data, lambda location: _line(node, location)


class _DuplicateKeyError(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise _DuplicateKeyError(key)
        seen[key] = value
    return seen


def _line(node: Any, location: Location) -> int | None:
    """Line of the deepest part of `location` that the file has."""
    if node is None:
        return None
    line = node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    node, line = value, key.start_mark.line + 1
                    break
            else:
                continue  # pydantic names union branches, which the file does not have
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return int(line)


def dotted(location: Location, data: object = None, missing: bool = False) -> str:
    """``('pool', 'machines', 2, 'gpu')`` as ``pool.machines[2].gpu``, without pydantic's union branches.

    A part that the data do not have names a branch of a union, but for the last part of a missing key.
    """
    text = ""
    for i, part in enumerate(location):
        last = i == len(location) - 1
        if isinstance(part, str) and not (missing and last):
            if isinstance(data, dict) and part not in data:
                continue
            if data is not None and not isinstance(data, dict):
                continue
        if isinstance(part, int):
            text += f"[{part}]"
            data = data[part] if isinstance(data, list | tuple) and part < len(data) else None
        else:
            text += f".{part}" if text else str(part)
            data = data.get(part) if isinstance(data, dict) else None
    return text


def validate(
    model: type[M],
    data: Any,
    file: str | None = None,
    line: Callable[[Location], int | None] = lambda _: None,
    prefix: str = "",
) -> M:
    """`model.model_validate`, with pydantic's errors turned into mistakes.

    Raises:
        InputError: every mistake found.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = [_mistake(model, data, e, file, line, prefix) for e in error.errors()]
        raise InputError(_without_union_noise(found)) from None


def _without_union_noise(found: list[Mistake]) -> list[Mistake]:
    """One mistake per path: a union reports every branch that failed."""
    by_path: dict[str, Mistake] = {}
    for m in found:
        old = by_path.get(m.path)
        if old is None:
            by_path[m.path] = m
        elif m.expected not in old.expected:
            by_path[m.path] = Mistake(m.file, m.path, m.value, f"{old.expected}, or {m.expected}", m.line, old.hint)
    paths = list(by_path)
    deepest = [p for p in paths if not any(q != p and q.startswith((p + ".", p + "[")) for q in paths)]
    return [by_path[p] for p in deepest]


_UNIT_OF_SUFFIX = {
    "_usd_per_hour": "USD/h", "_s": "s", "_gib": "GiB", "_gbps": "Gbps", "_tokens": "tokens", "tps": "tokens/s",
    "_bytes_per_s": "B/s", "_flops": "FLOP/s", "on_demand": "USD/h", "spot": "USD/h", "reserved_1y": "USD/h",
    "reserved_3y": "USD/h",
}  # fmt: skip


def _mistake(
    model: type[BaseModel],
    data: Any,
    e: ErrorDetails,
    file: str | None,
    line: Callable[[Location], int | None],
    prefix: str,
) -> Mistake:
    location: Location = e["loc"]
    value: object = None if e["type"] == "missing" else e["input"]
    path = dotted(location, data, missing=e["type"] == "missing")
    expected, hint = e["msg"], None
    context = e.get("ctx", {})
    unit = next((u for s, u in _UNIT_OF_SUFFIX.items() if path.endswith(s)), "")
    match e["type"]:
        case "missing":
            expected = f"a value{f' in {unit}' if unit else ''}"
        case "extra_forbidden":
            known = _known_keys(model, location[:-1])
            expected = f"one of the known keys: {', '.join(known)}" if known else "no such key"
            hint = did_you_mean(location[-1], known, 0.5)
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            sign = {"greater_than": ">", "greater_than_equal": "≥", "less_than": "<", "less_than_equal": "≤"}[e["type"]]
            bound = next(iter(context.values()))
            expected = f"a number {sign} {bound:g}{f' {unit}' if unit else ''}"
        case "finite_number":
            expected = f"a finite number{f' in {unit}' if unit else ''}"
        case "int_type" | "int_parsing" | "int_from_float":
            expected = f"a whole number{f' of {unit}' if unit else ''}"
        case "float_type" | "float_parsing":
            expected = f"a number{f' in {unit}' if unit else ''}"
        case "literal_error" | "enum" | "union_tag_invalid":
            choices = str(context.get("expected", context.get("expected_tags", "")))
            expected = f"one of {choices}"
            words = [w.strip(" '") for w in choices.replace(" or ", ",").split(",")]
            if e["type"] == "union_tag_invalid":
                path = f"{path}.{str(context.get('discriminator', '')).strip(chr(39))}"
                value = context.get("tag")
            hint = did_you_mean(value, words)
        case "union_tag_not_found":
            path = f"{path}.{str(context.get('discriminator', '')).strip(chr(39))}"
            value, expected = None, "the kind of this section"
        case "value_error":
            expected = str(context.get("error", expected))
        case "too_short":
            expected = f"at least {context.get('min_length', 1)} entry"
        case "model_type" | "dict_type" | "model_attributes_type":
            expected = "a section (key: value lines)"
        case "tuple_type" | "list_type":
            expected = "a list"
        case "string_type":
            expected = "a text"
    full = ".".join(filter(None, [prefix, path])) if not path.startswith("[") else prefix + path
    return Mistake(file, full, value, expected, line(location), hint)


def _known_keys(model: Any, location: Location) -> list[str]:
    """Keys of the section at `location` of a pydantic model; best effort."""
    import typing

    for part in location:
        if isinstance(part, int) or not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        candidates: list[Any] = [field.annotation]
        models: list[Any] = []
        while candidates:
            c = candidates.pop(0)
            if isinstance(c, type) and issubclass(c, BaseModel):
                models.append(c)
            candidates.extend(typing.get_args(c))
        tagged = [m for m in models if any(part == p for p in location for part in _tags(m))]
        model = (tagged or models or [None])[0]
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [f.alias or name for name, f in model.model_fields.items()]
    return []


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    import typing

    kind = model.model_fields.get("kind")
    return typing.get_args(kind.annotation) if kind is not None else ()


def read_model(path: Path, model: type[M]) -> M:
    """Read and validate a YAML/JSON file as one model."""
    data, line = read_document(path)
    return validate(model, data, str(path), line)


def read_table(path: Path, model: type[M]) -> tuple[M, ...]:
    """Read a CSV or Parquet file, one validated model per row; empty cells are absent values.

    Raises:
        InputError: every bad row, by line.
    """
    name = str(path)
    rows: Sequence[dict[str, Any]]
    if path.suffix == ".parquet":
        import pandas as pd

        try:
            frame = pd.read_parquet(path)
        except Exception as error:
            raise InputError(Mistake(name, "", str(error).split("\n")[0], "a Parquet file")) from None
        rows = [{str(k): v for k, v in r.items() if not pd.isna(v)} for r in frame.to_dict("records")]
        lines = list(range(1, len(rows) + 1))
    else:
        rows, lines = _csv_rows(path)
    integers = {n for n, f in model.model_fields.items() if "int" in str(f.annotation)}
    wrong = Mistakes()
    good: list[M] = []
    for i, (row, at) in enumerate(zip(rows, lines, strict=True)):
        cells = {k: _integer(v) if k in integers else v for k, v in row.items()}
        with wrong.collecting():
            good.append(validate(model, cells, name, lambda _, at=at: at, f"row {i + 1}"))  # type: ignore[misc]
    wrong.raise_any()
    return tuple(good)


def _integer(cell: Any) -> Any:
    """The whole number a CSV cell holds, or the cell for validation to refuse."""
    text = str(cell).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else cell


def _csv_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows of a CSV file without empty cells, and the line each ends on; lines that start with # are comments.

    Raises:
        InputError: no UTF-8 CSV text, or a column named twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a byte-order mark
        kept = [(i, line) for i, line in enumerate(text.splitlines(keepends=True), 1) if not line.startswith("#")]
        if any(ord(c) < 32 and c not in "\t\r\n" for c in text):
            raise csv.Error("control characters")
        reader = csv.reader((line for _, line in kept), strict=True)
        header = [name.strip() for name in next(reader, [])]
        double = [name for i, name in enumerate(header) if name in header[:i]]
        if double:
            raise InputError(Mistake(str(path), double[0], "a second column of that name", "every column once"))
        rows: list[dict[str, Any]] = []
        lines: list[int] = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) > len(header):
                line = kept[reader.line_num - 1][0]
                where = f"row {len(rows) + 1}"
                raise InputError(
                    Mistake(str(path), where, cells, f"at most {len(header)} cells, as the header has", line)
                )
            rows.append({k: v for k, v in zip(header, cells, strict=False) if v != ""})
            lines.append(kept[reader.line_num - 1][0])
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise InputError(Mistake(str(path), "", printable(str(error), 100), "a UTF-8 CSV file")) from None
    return rows, lines
