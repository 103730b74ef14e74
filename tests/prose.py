"""Measures of prose: sentences, banned words, patterns and word counts of pages, docstrings and ``--help``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BANNED = {
    "aggregated, disaggregated": r"\bapart\b(?! from\b)|\btogether or\b",
    "speculative decoding, draft tokens": r"\bdrafts\b|\bdraft\b(?! (?:model|token|head|length))",
    "near-integral right-hand side": r"\bhairs?\b",
    "running requests, concurrency": r"\bcrowds?\b",
    "meets the SLO": r"\bin time\b(?! bins?\b)|\bwithin the limits\b|\blimits? (?:is|are) kept\b"
    r"|\bkeeps? (?:its|their|the|every|all) (?:limits?|SLOs?|promises?)\b",
    "SLO, predicted, worst case": r"\bpromis(?:e|es|ed|ing)\b",
    "shadow price": r"\bone more is worth\b|\bworth of one more\b",
    "at random, Poisson": r"\bby chance\b",
    "closed-loop run": r"(?<!closed-)(?<!open-)(?<!control )(?<!for )\bloops?\b|\bclosed loops?\b",
    "binding constraints": r"\bwhat binds\b|\bwhat it hangs on\b",
    "computed for the mean request length": r"\bof mean lengths\b",
    "excluded": r"\b(?:took|takes?) no part\b",
    "default, unmodified, as published": r"\bas it is\b|\bas they are\b|\bas printed\b",
    "less expensive, most expensive": r"\bcheap\b|\bdear(?:er|est|ly)?\b",
    "verifier, accepted, unverified": r"\bjudge[ds]?\b|\bhands\b|\bbelieve[ds]?\b|\bon (?:its word|trust)\b",
    "represents, states, reports": r"\banswers for\b|\bstands? for\b|\bsays of\b|\btells? of\b",
    "relaxed": r"\blooser\b",
    "recomputed": r"\bmade (?:again|anew)\b",
    "in transfer": r"\bon the way\b",
    "upper prediction bound": r"\bpessimistic end\b|\bat that end\b",
    "no measurement available": r"\bnobody has measured\b|\bmeasured by nobody\b",
}  # fmt: skip
PATTERNS = {
    "what … as a noun": r"\bwhat (?:it|they|he|she|a|an|the|that|those|this|these|is|are|was|were|has|had|can|no|any"
    r"|every|each|one|some|comes?|runs?|made)\b",
    "of those, that of": r"\bof (?:those|all|what|which|it)\b|\b(?:that|those) of\b",
    "said, says": r"\bsaid\b|\bsays?\b",
    "beside, anew, alike": r"\bbeside\b|\banew\b|\balike\b|\blikewise\b",
    "so many": r"\bso (?:many|much|long|few)\b",
    "nobody": r"\b(?:nobody|somebody|whoever)\b",
}  # fmt: skip
CEILINGS = {  # per 1,000 words
    "what … as a noun": 0.5,
    "of those, that of": 1.0,
    "said, says": 0.2,
    "beside, anew, alike": 0.2,
    "so many": 0.1,
    "nobody": 0.1,
}
MEAN_WORDS, MOST_WORDS = 20.0, 40
GENERATED = re.compile(r"<!-- (families|measured|compared|left out)\b.*?<!-- \1: end -->", flags=re.S)
FENCED = re.compile(r"^```.*?^```\s*$", flags=re.M | re.S)
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|cf|etc|Fig|eq|eqs|No|p|Nov|al)\.")
WORD = re.compile(r"[^\W_]")
LETTER = re.compile(r"[^\W\d_]")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"”)*_]*\s+(?=[\"“(*_]*[A-Z0-9`κλφρωαβΣ¤–-])")


@dataclass(frozen=True)
class Measure:
    """Figures of one text."""

    words: int  # on the page, with a letter; code blocks and generated tables are left out
    mean: float  # words a sentence of running text
    longest: int
    longest_sentence: str
    banned: tuple[str, ...]


def _inline(text: str) -> str:
    """Code and formulas count as one word each; links as their text."""
    text = re.sub(r"`[^`]*`", "¤c", text)
    text = re.sub(r"\$[^$]*\$", "¤m", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", " ", text)
    return ABBREVIATIONS.sub(lambda m: m[1].replace(".", "") + "·", text)


def running_text(markdown: str) -> str:
    """A page without code blocks, display formulas and generated tables."""
    markdown = FENCED.sub("\n", markdown)
    markdown = GENERATED.sub("\n", markdown)
    markdown = re.sub(r"<!--.*?-->", "", markdown, flags=re.S)
    return re.sub(r"\$\$.*?\$\$", "\n\n", markdown, flags=re.S)


def blocks(markdown: str) -> Iterator[tuple[bool, str]]:
    """Paragraphs and list items (True), then cells of tables (False), headings left out."""
    block: list[str] = []
    for line in [*running_text(markdown).splitlines(), ""]:
        row = line.lstrip().startswith("|")
        if block and (not line.strip() or row or re.match(r"\s*(?:[-*+]|\d+\.)\s|#|>", line)):
            yield True, " ".join(block)
            block = []
        if row:
            if not re.fullmatch(r"[\s|:-]*", line):
                yield from ((False, cell) for cell in re.split(r"(?<!\\)\|", line) if WORD.search(cell))
        elif line.strip() and not line.startswith("#") and not line.startswith("!!!"):
            block.append(re.sub(r"^\s*(?:[-*+]|\d+\.|>)\s+", "", line).strip())


def sentences(text: str) -> list[str]:
    """Sentences of one paragraph."""
    return [s for s in SENTENCE_END.split(_inline(text)) if WORD.search(s)]


def words(text: str) -> int:
    """Tokens with a letter or a digit."""
    return sum(bool(WORD.search(token)) for token in text.split())


def measure(markdown: str) -> Measure:
    """Figures of a page."""
    prose = [s for is_text, block in blocks(markdown) if is_text for s in sentences(block)]
    cells = [s for is_text, block in blocks(markdown) if not is_text for s in sentences(block)]
    lengths = [words(s) for s in prose]
    longest = max([*prose, *cells], key=words, default="")
    text = " \n".join([*prose, *cells])
    return Measure(
        words=sum(bool(LETTER.search(token)) for token in FENCED.sub("", GENERATED.sub("", markdown)).split()),
        mean=sum(lengths) / len(lengths) if lengths else 0.0,
        longest=words(longest),
        longest_sentence=longest,
        banned=tuple(m[0] for p in BANNED.values() for m in re.finditer(p, text, flags=re.I)),
    )


def rates(text: str) -> dict[str, float]:
    """Occurrences of every pattern per 1,000 words."""
    total = max(words(text), 1)
    return {name: 1000 * len(re.findall(p, text, flags=re.I)) / total for name, p in PATTERNS.items()}


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMMENT = re.compile(r"(?:^ *|  )# (.*)$", flags=re.M)


def code_prose(paths: Iterable[Path]) -> str:
    """Docstrings and comments of Python files, code in backticks left out."""
    found: list[str] = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, DOCUMENTED))
        found += [ast.get_docstring(node) or "" for node in nodes]
        found += COMMENT.findall(source)
    return "\n".join(re.sub(r"``?[^`]*``?", "¤c", text) for text in found)


ENTRY = re.compile(r"^ {4}(?:\w+|\*\*?\w+): (.*)$", flags=re.M)


def entries(paths: Iterable[Path]) -> tuple[int, int]:
    """Entries of Args and Attributes: how many, and how many begin without a noun."""
    total = bad = 0
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED):
                doc = ast.get_docstring(node) or ""
                for section in re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)+)", doc, flags=re.M):
                    stated = ENTRY.findall(section)
                    total += len(stated)
                    bad += sum(
                        bool(re.match(r"(?i)(?:of|that|as|what|which|where|if|by|in|to|for)\b", s)) for s in stated
                    )
    return total, bad
