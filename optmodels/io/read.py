"""Reading documents a user wrote: safe YAML/JSON with line numbers, within stated limits, every mistake named."""

from __future__ import annotations

import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from optmodels.errors import InputError, Mistake, did_you_mean
from optmodels.io.pipes import settled
from optmodels.limits import SPELLED, spellings

M = TypeVar("M", bound=BaseModel)
MAX_BYTES = 64 * 2**20
MAX_YAML_VALUES = 500_000  # aliases written out; JSON, which takes a hundredth of the memory, has no such limit
MAX_DEPTH = 60
MAX_INTEGER = 2**63
LEAST = sys.float_info.min  # below it digits are lost, and one over it is infinite
Location = tuple[int | str, ...]
_SHALLOW = f"valid YAML or JSON of at most {MAX_DEPTH} levels"


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses duplicate keys, which plain YAML drops in silence, and values that their tag is not."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values = 0
        self.at: list[int | str] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.values += 1
        if self.values > MAX_YAML_VALUES:
            raise _TooLargeError
        if parent is None:
            return super().compose_node(parent, index)
        known = isinstance(index, int | yaml.ScalarNode)
        self.at.append((index if isinstance(index, int) else str(index.value)) if known else "?")
        if len(self.at) > MAX_DEPTH:
            raise _TooDeepError(tuple(self.at), self.peek_event().start_mark.line + 1)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.at.pop()
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
            raise yaml.constructor.ConstructorError(
                None, None, f"a value that is no !!{kind}", node.start_mark
            ) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, str) and name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} a second time", key.start_mark)
            seen.add(name if isinstance(name, str) else str(name))
        return super().construct_mapping(node, deep)


class _TooLargeError(Exception):
    pass


class _TooDeepError(Exception):
    """The location of a value with more than `MAX_DEPTH` levels above it, and its line."""

    def __init__(self, location: Location, line: int | None) -> None:
        super().__init__(location, line)
        self.location, self.line = location, line


def read_document(path: Path, shown: str | None = None) -> tuple[dict[str, Any], Callable[[Location], int | None]]:
    """Read a YAML or JSON mapping and a function from a location in it to its line.

    Args:
        path: The file.
        shown: How to name it in messages (default: as given).

    Raises:
        InputError: not there, unreadable, no UTF-8 text, no mapping, bad syntax, duplicate keys, or over a limit: on
            bytes, on values of YAML, on nesting, on digits.
    """
    name = shown or str(path)

    def wrong(value: object, expected: str, line: int | None = None) -> InputError:
        return InputError(Mistake(name, "", value, expected, line))

    text = read_text(path, "a YAML or JSON problem file", shown=name)
    data, node = (parsed_json(text, name), None) if path.suffix == ".json" else _parsed_yaml(text, name)
    if not isinstance(data, dict):
        raise wrong(data if data is not None else "an empty file", "a mapping with formulation: and schema:")

    def line(location: Location) -> int | None:
        if node is None and len(location) > MAX_DEPTH:
            return next((at for place, at in _deep_in_json(text) if place == location[:MAX_DEPTH]), None)
        return _line(node, location)

    refuse_strange(data, name, line)
    return data, line


def parsed_yaml(text: str, name: str) -> dict[str, Any]:
    """YAML text as a mapping.

    Args:
        text: one document.
        name: name of its file, for messages.

    Raises:
        InputError: no mapping, bad syntax, duplicate keys, or over a limit: on values, on nesting.
    """
    data, _ = _parsed_yaml(text, name)
    if not isinstance(data, dict):
        raise InputError(Mistake(name, "", data, "a mapping"))
    return data


def _parsed_yaml(text: str, name: str) -> tuple[Any, Any]:
    """YAML text as data and as the node with its lines."""

    def wrong(value: object, expected: str, line: int | None = None) -> InputError:
        return InputError(Mistake(name, "", value, expected, line))

    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        _refuse_aliases(node)
        return (loader.construct_document(node) if node is not None else None), node
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark.line + 1 if error.problem_mark else None
        raise wrong(error.problem or "a syntax error", "valid YAML with every key once", at) from None
    except yaml.YAMLError as error:
        raise wrong(str(error).split("\n")[0], "valid YAML") from None
    except _TooLargeError:
        expected = f"at most {MAX_YAML_VALUES:,} values, aliases written out: write larger ones as JSON"
        raise wrong("a large YAML file", expected) from None
    except _TooDeepError as error:
        raise InputError(_too_deep(name, error.location, error.line)) from None
    except RecursionError:
        raise wrong("deeply nested sections", _SHALLOW) from None


def read_text(path: Path, what: str, *, shown: str | None = None) -> str:
    """The text of a file of at most `MAX_BYTES`, without a byte-order mark.

    Args:
        path: The file.
        what: is expected there, in words.
        shown: How to name it in messages (default: as given).

    Raises:
        InputError: not there, unreadable, too large, no UTF-8 text.
    """
    name = shown or str(path)

    def wrong(value: object, expected: str) -> InputError:
        return InputError(Mistake(name, "", value, expected))

    path = settled(path, what)
    try:
        if not path.is_file():
            raise wrong("a folder" if path.is_dir() else "no such file", what)
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise wrong(error.strerror or "unreadable", "a readable file") from None
    except ValueError:  # a NUL in the name
        raise wrong("no name of a file", what) from None
    if len(data) > MAX_BYTES:
        raise wrong("a larger file", f"at most {MAX_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise wrong(not_utf8(data), "a UTF-8 text file: save it again as that") from None


def not_utf8(data: bytes) -> str:
    """Encoding of a file that is no UTF-8 text, by its first bytes."""
    return "UTF-16 text" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "bytes that are not UTF-8"


def _refuse_aliases(top: Any) -> None:
    """Refuse aliases of a node inside itself, and aliases that multiply to more than `MAX_YAML_VALUES` values.

    Raises:
        ConstructorError: a node that contains itself.
        _TooLargeError: too many values, each alias counted as its values.
    """
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        known = sizes.get(id(node))
        if known == 0:
            raise yaml.constructor.ConstructorError(None, None, "an alias inside of what it names", node.start_mark)
        if known is None:
            sizes[id(node)] = 0
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            known = 1 + sum(size(n) for part in inner for n in (part if isinstance(part, tuple) else (part,)))
            if known > MAX_YAML_VALUES:
                raise _TooLargeError
            sizes[id(node)] = known
        return known

    if top is not None:
        size(top)


def refuse_strange(
    data: Any, file: str | None = None, line: Callable[[Location], int | None] = lambda _: None, computed: bool = False
) -> None:
    """Refuse data that are no document whatever its schema: nested too deeply, half characters, endless numbers.

    Args:
        data: data of the document.
        file, line: for the message.
        computed: numbers may be rounding of 0.

    Raises:
        InputError: the first such place.
    """
    least = 0.0 if computed else LEAST
    for location, value in _places(data, least):
        if len(location) > MAX_DEPTH:
            raise InputError(_too_deep(file, location, line(location)))
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            expected = "text of whole characters (this has half of a surrogate pair)"
        elif type(value) is int and abs(value) >= MAX_INTEGER:
            expected = f"a whole number below {MAX_INTEGER:.2e} (larger ones as 1.0e+20)"
        elif type(value) is float and 0.0 < abs(value) < least:
            expected = f"0, or a number of at least {LEAST:.2e}"
        else:
            continue
        raise InputError(Mistake(file, dotted(location), value, expected, line(location)))


def _too_deep(file: str | None, location: Location, line: int | None) -> Mistake:
    return Mistake(file, dotted(location[:MAX_DEPTH]), "deeply nested sections", _SHALLOW, line)


_JSON_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{}:,]|[^][{}:,"\s]++', re.DOTALL)


def _deep_in_json(text: str) -> Iterator[tuple[Location, int]]:
    """The sections with `MAX_DEPTH` levels above them that are not empty: location, and line of their contents."""
    at: list[int | str] = []  # in every open section the entry or key that is being read
    key, line, seen = "", 1, 0
    for token in _JSON_TOKEN.finditer(text):
        kind = token[0]
        if len(at) == MAX_DEPTH + 1 and kind not in ("]", "}", ":", ","):
            line, seen = line + text.count("\n", seen, token.start()), token.start()
            yield tuple(at[:MAX_DEPTH]), line
        if kind in ("[", "{"):
            at.append(0 if kind == "[" else "")
        elif kind in ("]", "}"):
            del at[-1:]
        elif kind == ":" and at:
            at[-1] = _key(key)
        elif kind == "," and at and isinstance(at[-1], int):
            at[-1] += 1
        elif kind[0] == '"':
            key = kind


def _key(token: str) -> str:
    """A key as the reader of JSON has it, without its quotes and escapes."""
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token


def _places(data: Any, least: float) -> Iterator[tuple[Location, Any]]:
    """Every value and every key of nested data with its location; no deeper than one level below `MAX_DEPTH`."""
    stack: list[tuple[Location, Iterable[tuple[Any, Any]]]] = [((), [((), data)])]
    while stack:
        above, inner = stack.pop()
        for part, value in inner:
            location = above if part == () else (*above, part)
            if isinstance(part, str):
                yield above, part
            yield location, value
            if len(location) > MAX_DEPTH:
                continue
            if isinstance(value, Mapping):
                stack.append((location, value.items()))
            elif isinstance(value, list | tuple) and not _numbers(value, least):
                stack.append((location, enumerate(value)))


def _numbers(values: list[Any] | tuple[Any, ...], least: float) -> bool:
    """Whether a list holds numbers of usual size only: nothing to look for in a long one."""
    kinds = set(map(type, values))
    if not kinds <= {int, float} or (
        least and float in kinds and min(filter(None, map(abs, values)), default=1) < least
    ):
        return False
    return kinds <= {float} or -MAX_INTEGER < min(values) <= max(values) < MAX_INTEGER


def parsed_json(text: str, name: str) -> Any:
    """JSON text as data.

    Args:
        text: one JSON value.
        name: name of its file, for messages.

    Raises:
        InputError: bad syntax, duplicate keys, nested too deeply, more digits than Python reads.
    """

    def wrong(value: object, expected: str, line: int | None = None) -> InputError:
        return InputError(Mistake(name, "", value, expected, line))

    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise wrong(error.msg, "valid JSON", error.lineno) from None
    except _DuplicateKeyError as error:
        raise wrong(f"the key {error} a second time", "valid JSON with every key once") from None
    except RecursionError:
        location, at = next(_deep_in_json(text), ((), None))
        raise InputError(_too_deep(name, location, at)) from None
    except ValueError:
        raise wrong("a number of thousands of digits", f"whole numbers below {MAX_INTEGER:.2e}") from None


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
            for key, value in reversed(node.value):  # merged-in keys come first
                if key.value == str(part):
                    node, line = value, key.start_mark.line + 1
                    break
            else:
                continue  # pydantic names union branches, which the file does not have
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return int(line)


_NOT_THERE = object()


def dotted(location: Location, data: object = _NOT_THERE, missing: bool = False) -> str:
    """``('pool', 'machines', 2, 'gpu')`` as ``pool.machines[2].gpu``, without pydantic's union branches.

    A part that the data do not have names a branch of a union, but for the last part of a missing key.
    """
    text = ""
    for i, part in enumerate(location):
        last = i == len(location) - 1
        if isinstance(part, str) and not (missing and last):
            if isinstance(data, dict) and part not in data:
                continue
            if data is not _NOT_THERE and not isinstance(data, dict):
                continue
        if isinstance(part, int):
            text += f"[{part}]"
            data = data[part] if isinstance(data, list | tuple) and part < len(data) else _NOT_THERE
        else:
            text += f".{part}" if text else str(part)
            data = data.get(part, _NOT_THERE) if isinstance(data, dict) else _NOT_THERE
    return text


def validate(
    model: type[M], data: Any, file: str | None = None, line: Callable[[Location], int | None] = lambda _: None,
    prefix: str = "",
) -> M:  # fmt: skip
    """`model.model_validate`, with pydantic's errors turned into mistakes.

    Raises:
        InputError: every mistake found.
    """
    try:
        return model.model_validate(data)
    except InputError as error:  # of a validator that knows its path
        raise InputError(replace(m, file=file, line=line(tuple(m.path.split(".")))) for m in error.mistakes) from None
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


def as_written(location: Location, data: Any) -> Location:
    """The location of a schema's fields with the keys that a document uses."""
    found: list[str | int] = []
    for part in location:
        if isinstance(data, Mapping) and part not in data:
            part = next((other for other in spellings(str(part)) if other in data), part)
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
            data = data[part]  # else the tag of a union
        found.append(part)
    return tuple(found)


_UNIT_OF_SUFFIX = {  # the first that ends a name
    "requests_per_s": "requests/s", "_bytes_per_s": "B/s", "_usd_per_hour": "USD/h", "_s": "s", "_gib": "GiB",
    "_gbps": "Gbps", "_tokens": "tokens", "tps": "tokens/s", "_flops": "FLOP/s", "on_demand": "USD/h",
    "spot": "USD/h", "reserved_1y": "USD/h", "reserved_3y": "USD/h",
}  # fmt: skip


def _mistake(
    model: type[BaseModel], data: Any, e: ErrorDetails, file: str | None, line: Callable[[Location], int | None],
    prefix: str,
) -> Mistake:  # fmt: skip
    location: Location = as_written(e["loc"], data)
    value: object = None if e["type"] == "missing" else e["input"]
    path = dotted(location, data, missing=e["type"] == "missing")
    expected, hint = e["msg"], None
    context = e.get("ctx", {})
    unit = next((u for s, u in _UNIT_OF_SUFFIX.items() if path.endswith(s)), "")
    match e["type"]:
        case "missing":
            expected = _wanted(model, location) or f"a value{f' in {unit}' if unit else ''}"
        case "extra_forbidden":
            known = _known_keys(model, location[:-1])
            expected = f"one of the known keys: {', '.join(known)}" if known else "no such key"
            hint = did_you_mean(location[-1], known, 0.5)
            if (key := SPELLED.get(str(location[-1]))) in known:
                expected = f"either {key} or {location[-1]}, its older spelling"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            sign = {"greater_than": ">", "greater_than_equal": "≥", "less_than": "<", "less_than_equal": "≤"}[e["type"]]
            bound = next(iter(context.values()))
            expected = f"a number {sign} {bound:g}{f' {unit}' if unit else ''}"
            if bound == 1 and sign in "<≤" and isinstance(value, int | float) and 1 < value <= 100:
                hint = f"a share, not per cent: did you mean {value / 100:g}?" if value < 100 or sign == "≤" else None
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
            known = _known_keys(model, location)
            expected = "a section (key: value lines)" + (f" with some of {', '.join(known)}" if known else "")
            if isinstance(value, str | int | float):
                hint = _in_a_section(_section(model, location), value)
        case "tuple_type" | "list_type":
            expected = "a list"
        case "string_type":
            expected = "a text"
    full = ".".join(filter(None, [prefix, path])) if not path.startswith("[") else prefix + path
    return Mistake(file, full, value, expected, line(location), hint)


def _wanted(model: type[BaseModel], location: Location) -> str | None:
    """The values that a missing key may have, with their meanings; None: any."""
    section, name = _section(model, location[:-1]), location[-1]
    for key, field in section.model_fields.items() if section is not None else ():
        if name in (key, field.alias) and typing.get_origin(field.annotation) is Literal:
            values = " or ".join(map(str, typing.get_args(field.annotation)))
            return f"{values} ({field.description})" if field.description else values
    return None


def _in_a_section(section: type[BaseModel] | None, value: object) -> str | None:
    """The key of a section, all others left out, that a value alone would be right for."""
    if section is None:
        return None
    for name in _keys(section):
        try:
            section.model_validate({name: value})
        except ValidationError:
            continue
        return f"did you mean {{{name}: {value}}}?"
    return None


def _known_keys(model: Any, location: Location) -> list[str]:
    """Keys of the section at `location` of a pydantic model; best effort."""
    section = _section(model, location)
    return [] if section is None else _keys(section)


def _keys(section: type[BaseModel]) -> list[str]:
    return [f.alias or name for name, f in section.model_fields.items()]


def _section(model: Any, location: Location) -> type[BaseModel] | None:
    """The section at `location` of a pydantic model; best effort."""
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
        tagged = [m for m in models if any(part == p for p in location for part in (*_tags(m), m.__name__))]
        model = (tagged or models or [None])[0]
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    kind = model.model_fields.get("kind")
    return typing.get_args(kind.annotation) if kind is not None else ()


def read_model(path: Path, model: type[M]) -> M:
    """Read and validate a YAML/JSON file as one model."""
    data, line = read_document(path)
    return validate(model, data, str(path), line)
