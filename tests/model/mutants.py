"""Mutation test of constraint families: wrong versions of a family's source that its golden rows should notice."""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from optmodels.model import Family, Model
from optmodels.model.golden import GoldenStatement, differences, rows_of

SENSES = {"at_most": ("at_least", "equal"), "at_least": ("at_most", "equal"), "equal": ("at_most", "at_least")}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A wrong version of a function, and what is wrong: ``line 3: a + b → a - b``."""

    description: str
    function: Callable


def mutants(function: Callable) -> Iterator[Mutant]:
    """Every version of a function with one thing wrong, run in the function's own globals."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    nodes = [node for statement in _body(tree) for node in ast.walk(statement)]
    seen = set()
    tests = {id(node.test) for node in nodes if isinstance(node, ast.If | ast.IfExp)}
    for i, node in enumerate(nodes):
        negated = [ast.UnaryOp(ast.Not(), node)] if id(node) in tests else []
        for wrong in [*_wrong(node), *negated]:
            description = f"line {node.lineno}: {ast.unparse(node)} → {ast.unparse(wrong)}"
            if description in seen:
                continue
            seen.add(description)
            changed = copy.deepcopy(tree)
            old = [n for statement in _body(changed) for n in ast.walk(statement)][i]
            changed = ast.fix_missing_locations(_Replace(old, wrong).visit(changed))
            yield Mutant(description, _run(changed, function))


def survivors(
    family: Family, cases: Sequence[tuple[Model, GoldenStatement]], equivalent: Mapping[str, str] | None = None
) -> list[str]:
    """Mutants of a family whose rows no case tells from the golden ones.

    Args:
        family: a function of a model.
        cases: models with the family's golden rows.
        equivalent: description of a mutant → why it says the same; one that is noticed after all, or that does not
            exist, comes back too, so that the list stays true.
    """
    excused = dict(equivalent or {})
    for model, golden in cases:
        wrong = differences(golden, rows_of(model, family, family(model)))
        assert not wrong, f"the golden rows of {family.__name__} are others: {wrong[:5]}"
    left = []
    for mutant in mutants(family):
        noticed = any(_noticed(mutant.function, family.__name__, *case) for case in cases)
        if excused.pop(mutant.description, None) is not None:
            if noticed:
                left.append(f"{mutant.description}: said to be equivalent, but noticed")
        elif not noticed:
            left.append(mutant.description)
    return left + [f"{description}: said to be equivalent, but there is no such mutant" for description in excused]


def _noticed(function: Callable, name: str, model: Model, golden: GoldenStatement) -> bool:
    try:
        return bool(differences(golden, rows_of(model, name, function(model))))
    except Exception:
        return True  # a family that fails is noticed by whoever builds the model


def _body(tree: ast.Module) -> list[ast.stmt]:
    """Statements of the one function, without its docstring."""
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return function.body[1:] if ast.get_docstring(function) else function.body


def _wrong(node: ast.AST) -> Iterator[ast.expr]:
    """Wrong versions of one expression."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            yield ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right)
            yield left
            yield right if isinstance(op, ast.Add) else ast.UnaryOp(ast.USub(), right)
        case ast.BinOp(left, ast.Mult(), right):
            yield left
            yield right
            if isinstance(left, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                yield ast.UnaryOp(ast.USub(), node)
        case ast.BinOp(left, ast.Div(), right):
            yield left
            yield ast.BinOp(left, ast.Mult(), right)
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
            if value:
                yield ast.Constant(-value)
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.Subscript(value, ast.Tuple(elements) as index):
            for changed in _swapped(elements):
                yield ast.Subscript(value, ast.Tuple(changed, index.ctx), node.ctx)
        case ast.Call(ast.Name(name), arguments, keywords):
            for other in SENSES.get(name, ()):
                yield ast.Call(ast.Name(other, ast.Load()), arguments, keywords)
            if name == "between":
                yield ast.Call(node.func, [arguments[1], arguments[0], *arguments[2:]], keywords)
        case ast.Call(ast.Attribute(_, "by" | "at"), arguments, keywords):
            if len(arguments) > 1 and all(isinstance(a, ast.Constant) for a in arguments):
                for changed in _swapped(arguments):
                    yield ast.Call(node.func, changed, keywords)
            if len(arguments) > 1 and isinstance(arguments[1], ast.Tuple):
                for changed in _swapped(arguments[1].elts):
                    labels = ast.Tuple(changed, ast.Load())
                    yield ast.Call(node.func, [arguments[0], labels, *arguments[2:]], keywords)


def _swapped(elements: list[ast.expr]) -> Iterator[list[ast.expr]]:
    for i in range(len(elements) - 1):
        yield [*elements[:i], elements[i + 1], elements[i], *elements[i + 2 :]]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().visit(node)


def _run(tree: ast.Module, function: Callable) -> Callable:
    """The function of a changed source, with the original's globals and what it closes over; other modules' senses."""
    import optmodels.model as kernel

    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    names = {sense: getattr(kernel, sense) for sense in SENSES} | dict(function.__globals__)
    names |= inspect.getclosurevars(function).nonlocals
    exec(compile(tree, f"<mutant of {function.__name__}>", "exec"), names)
    return names[function.__name__]
