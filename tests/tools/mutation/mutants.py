"""Find the mutants of a source file: small changes, each of which a test should notice.

A mutant replaces a few bytes of the source and keeps the number of lines, so that it can be shown as a diff of one line
and line numbers stay the same. Its name has no line number: ``backoff:full_jitter:lt->le:2`` is the second ``<`` that
became ``<=`` in that function.

Not mutated: annotations, docstrings, code that only type checkers read, ``__all__``, ``__slots__``, and the expressions
in f-strings, whose positions Python 3.11 does not know.
The set has little redundancy: a condition of one comparison is made true and made false, which is stronger than negating
it; an operand of ``and`` and ``or`` is made neutral, which is stronger than making the whole condition true.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
NEGATION = {
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
ARITHMETIC = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "/",
    "%": "*",
    "**": "*",
    "|": "&",
    "&": "|",
    "^": "&",
    "<<": ">>",
    ">>": "<<",
    "@": "*",
}
SPELLED = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.MatMult: "@",
    ast.And: "and",
    ast.Or: "or",
}
NAMED = {
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "is not": "isnot",
    "not in": "notin",
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "|": "bitor",
    "&": "bitand",
    "^": "bitxor",
    "<<": "lshift",
    ">>": "rshift",
    "@": "matmul",
}
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
FOR_TYPE_CHECKERS = {"overload", "final", "override", "abstractmethod", "runtime_checkable", "no_type_check"}
SETS_OF_CHARACTERS = {"strip", "lstrip", "rstrip"}
LEFT_ALONE = {"__all__", "__slots__", "__match_args__", "TYPE_CHECKING"}
OPENING = re.compile(rb"[A-Za-z]*('''|\"\"\"|'|\")")


class Mutant(NamedTuple):
    """One change of one source file."""

    name: str
    start: int
    """Where the replaced bytes begin, and where they end."""
    end: int
    text: bytes
    line: int
    """The first line that changes, and the last."""
    last_line: int
    span: tuple[int, int]
    """The lines of the mutant: a test that executes one of them executes the mutant."""
    inside: bool
    """Whether it is inside of a function or lambda, so that importing the module does not run it."""
    target: str
    """Outside of functions: the name that is being defined."""

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def qualname(self) -> str:
        """Return the qualified name of the function or class that it is in."""
        return self.name.split(":")[1]

    def applied(self, source: bytes) -> bytes:
        """Return the mutated source."""
        return source[: self.start] + self.text + source[self.end :]

    def diff(self, source: bytes) -> tuple[str, str]:
        """Return the changed line before and after, without indentation."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        after = source[first : self.start] + self.text + source[self.end : last]
        return _one_line(source[first:last]), _one_line(after)


def mutants_of(source: bytes, module: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of the source."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    found, seen, ordinals = [], set(), dict[str, int]()
    for start, end, text, operator, place in sorted(finder.found, key=lambda each: each[:4]):
        if (start, end, text) in seen:
            continue
        seen.add((start, end, text))
        label = f"{module}:{place.qualname}:{operator}"
        ordinals[label] = ordinal = ordinals.get(label, 0) + 1
        line = source.count(b"\n", 0, start) + 1
        last = line + source.count(b"\n", start, end)
        span = place.span or (line, last)
        found.append(
            Mutant(f"{label}:{ordinal}", start, end, text, line, last, span, place.inside, place.target)
        )
    return found


def _one_line(text: bytes) -> str:
    return re.sub(r"\s*\\?\n\s*", " ", text.decode()).strip()


class _Place(NamedTuple):
    """The position of the finder: function or class, and counts of the mutants in it."""

    qualname: str = "<module>"
    span: tuple[int, int] | None = None
    inside: bool = False
    target: str = ""
    names: tuple[str, ...] = ()


class _Finder(ast.NodeVisitor):
    """Walk over a module and collect its mutants."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.found: list[tuple[int, int, bytes, str, _Place]] = []
        self._lines = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._place = _Place()
        # Nodes that another mutant already covers.
        self._conditions: set[ast.AST] = set()
        self._skipped: set[ast.AST] = set()

    # Places and texts

    def _bounds(self, node: ast.AST) -> tuple[int, int]:
        start = self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def _add(self, operator: str, start: int, end: int, text: str, *, statement: bool = False) -> None:
        lines = self.source.count(b"\n", start, end)
        padding = "\n" * lines if statement else " \\\n" * lines
        new = (text + padding).encode()
        if new != self.source[start:end]:
            self.found.append((start, end, new, operator, self._place))

    def _replace(self, operator: str, node: ast.AST, text: str, *, statement: bool = False) -> None:
        self._add(operator, *self._bounds(node), text, statement=statement)

    def _swap(self, left: ast.AST, right: ast.AST, old: str, new: str, operator: str | None = None) -> None:
        """Change an operator between two operands."""
        start, end = self._bounds(left)[1], self._bounds(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        pattern = re.escape(old).replace(r"\ ", r"\s+")
        if old.isalpha() or " " in old:
            pattern = rf"\b{pattern}\b"
        found = re.search(pattern.encode(), gap)
        if found:
            operator = operator or f"{NAMED.get(old, old)}->{NAMED.get(new, new)}"
            self._add(operator, start + found.start(), start + found.end(), new)

    def visit(self, node: ast.AST) -> None:
        if node in self._skipped:
            return
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            super().visit(node)
            return
        before = self._place
        if not isinstance(node, ast.match_case):
            self._place = before._replace(span=_header(node))
        super().visit(node)
        self._place = before

    def _at(self, place: _Place, nodes: list[ast.AST]) -> None:
        before, self._place = self._place, place
        for node in nodes:
            self.visit(node)
        self._place = before

    # Definitions

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = {_last_name(decorator) for decorator in node.decorator_list}
        if "overload" in decorators:
            return
        outer = self._place
        names = (*outer.names, node.name)
        own = outer._replace(names=names, qualname=".".join(names), target=outer.target or node.name)
        around = own if outer.inside else own._replace(span=(node.lineno, node.end_lineno or node.lineno))
        self._place = around
        self._remove_decorators(node)
        self._defaults(node.args)
        self._at(own._replace(inside=True), list(node.body))
        self._place = outer

    visit_FunctionDef = _function  # noqa: N815
    visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        span = self._place.span if self._place.inside else (node.lineno, node.end_lineno or node.lineno)
        self._at(self._place._replace(inside=True, span=span), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._place
        names = (*outer.names, node.name)
        self._place = outer._replace(names=names, qualname=".".join(names), target=node.name)
        self._remove_decorators(node)
        self._at(self._place._replace(target=""), list(node.body))
        self._place = outer

    def _remove_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            if _last_name(decorator) in FOR_TYPE_CHECKERS:
                continue
            start, end = self._bounds(decorator)
            self._add("decorator->none", self.source.rfind(b"@", 0, start), end, "", statement=True)
            self.visit(decorator)

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is None:
                continue
            if not isinstance(default, ast.Constant):
                self._replace("default->None", default, "None")
            self.visit(default)

    # Statements

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if names & LEFT_ALONE:
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace("assign->pass", node, "pass", statement=True)
        self._value(node, sorted(names))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            return
        if isinstance(node.target, ast.Attribute | ast.Subscript):
            self._replace("assign->pass", node, "pass", statement=True)
        self._value(node, [node.target.id] if isinstance(node.target, ast.Name) else [])

    def _value(self, node: ast.Assign | ast.AnnAssign, names: list[str]) -> None:
        place = self._place
        if names and not place.inside:
            within = (*place.names, names[0])
            place = place._replace(target=names[0], qualname=".".join(within))
        parts: list[ast.AST] = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None:
            parts.append(node.value)
        self._at(place, parts)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace("augassign->pass", node, "pass", statement=True)
        old = SPELLED[type(node.op)]
        new = ARITHMETIC[old]
        label = f"{NAMED[old]}->{NAMED[new]}"
        self._swap(node.target, node.value, f"{old}=", f"{new}=", label)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call | ast.Await):
            self._replace("call->pass", node, "pass", statement=True)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace("raise->pass", node, "pass", statement=True)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace("del->pass", node, "pass", statement=True)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("continue->break", node, "break", statement=True)
        self._replace("continue->pass", node, "pass", statement=True)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("break->continue", node, "continue", statement=True)

    def visit_Return(self, node: ast.Return) -> None:
        self._given(node.value, "return->None")

    def visit_Yield(self, node: ast.Yield) -> None:
        self._given(node.value, "yield->None")

    def _given(self, value: ast.expr | None, operator: str) -> None:
        if value is None:
            return
        if not isinstance(value, ast.Constant):
            self._replace(operator, value, "None")
        self.visit(value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        name = None if node.type is None else _last_name(node.type)
        if node.type is not None and name != "BaseException":
            wider = "BaseException" if name == "Exception" else "Exception"
            self._replace(f"except->{wider}", node.type, wider)
        for statement in node.body:
            self.visit(statement)

    # Conditions

    def visit_If(self, node: ast.If) -> None:
        if _last_name(node.test) == "TYPE_CHECKING" or "__name__" in ast.unparse(node.test):
            return
        self._condition(node.test, "if")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        # Not made true: that has no end, and takes long to tell.
        self._condition(node.test, "while", true=False)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test, "ifelse")
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self._condition(node.test, "assert", true=False)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test, "for-if")
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._condition(node.guard, "case-if")
        self.generic_visit(node)

    def _condition(self, test: ast.expr, operator: str, *, true: bool = True) -> None:
        if isinstance(test, ast.Constant):
            return
        self._conditions.add(test)
        joined = type(test.op) if isinstance(test, ast.BoolOp) else None
        if true and joined is not ast.And:
            self._replace(f"{operator}->True", test, "True")
        if joined is not ast.Or:
            self._replace(f"{operator}->False", test, "False")

    # Expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        whole = node in self._conditions and len(node.ops) == 1
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            old = SPELLED[type(operator)]
            if old in BOUNDARY:
                self._swap(left, right, old, BOUNDARY[old])
            if not whole:
                self._swap(left, right, old, NEGATION[old])
            if isinstance(operator, ast.Is | ast.IsNot) and isinstance(right, ast.Constant):
                self._skipped.add(right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old = SPELLED[type(node.op)]
        neutral = "True" if old == "and" else "False"
        for value in node.values:
            self._conditions.add(value)
            self._replace(f"{old}-operand->{neutral}", value, neutral)
        self._swap(node.values[0], node.values[1], old, "or" if old == "and" else "and")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        old = SPELLED[type(node.op)]
        self._swap(node.left, node.right, old, ARITHMETIC[old])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        constant = isinstance(node.operand, ast.Constant)
        if isinstance(node.op, ast.Not) and node not in self._conditions:
            self._sign(node, "not->none")
        elif isinstance(node.op, ast.USub) and not constant:
            self._sign(node, "minus->none")
        self.generic_visit(node)

    def _sign(self, node: ast.UnaryOp, operator: str) -> None:
        start = self._bounds(node)[0]
        self._add(operator, start, start + (3 if isinstance(node.op, ast.Not) else 1), "")

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED_CALLS:
            old = node.func.id
            self._replace(f"{old}->{SWAPPED_CALLS[old]}", node.func, SWAPPED_CALLS[old])
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._replace("keyword->none", keyword, "**{}")
        if _last_name(node) in SETS_OF_CHARACTERS:
            for argument in node.args:
                self._whole_string(argument)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if value is None:
            self._replace("None->True", node, "True")
        elif isinstance(value, bool):
            self._replace(f"{value}->{not value}", node, str(not value))
        elif isinstance(value, int | float):
            for new in _other_numbers(value):
                self._replace("number", node, repr(new))
        elif isinstance(value, str | bytes):
            self._string(node)

    def _whole_string(self, node: ast.expr) -> None:
        """Replace a string that is a set of characters, for which two more make little difference."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            self._skipped.add(node)
            self._replace("string", node, "b'XX'" if isinstance(node.value, bytes) else "'XX'")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._string(node)

    visit_TemplateStr = visit_JoinedStr  # noqa: N815

    def _string(self, node: ast.AST) -> None:
        start = self._bounds(node)[0]
        opening = OPENING.match(self.source, start)
        if opening:
            self._add("string", opening.end(), opening.end(), "XX")


def _header(node: ast.AST) -> tuple[int, int]:
    """Return the lines of a statement without those of the statements inside of it."""
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    body = getattr(node, "cases", None) or getattr(node, "body", None)
    if not body:
        return first, last
    inner = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    begins = min([inner.lineno, *(each.lineno for each in getattr(inner, "decorator_list", ()))])
    return first, max(first, begins - 1)


def _last_name(node: ast.AST) -> str | None:
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


def _other_numbers(value: float) -> Iterator[float]:
    if value == 1:
        yield type(value)(0)
    more = value + 1
    yield more if more != value else value * 2
