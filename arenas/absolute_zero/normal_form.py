"""One text for programs that differ only in notation, to recognise known and held-out tasks."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count
from string import ascii_lowercase

from selfplay.sandbox import parse_program

MARK = "$"
"""First character of a numbered name, which no name of a program has."""
_LOOKERS = frozenset({"dir", "locals", "vars"})
"""Functions that show the names of variables to a program."""

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@lru_cache(maxsize=4_096)
def normal_form(program: str) -> str:
    """Return a text that is equal for programs that differ only in notation.

    It has uniform spacing and quotes. It has no comments, docstrings, annotations, statements
    without an effect, `/` between parameters, and imports that are not used. Parameters and local
    variables are named a, b, c and so on by their first appearance, unless the program can see
    their names. Raises what `ast.parse` raises for a text that is no program.
    """
    tree = parse_program(program)
    tree = _Tidy(_used(tree)).visit(tree)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    others = [node for node in tree.body if node not in imports]
    tree.body = [*sorted(imports, key=ast.unparse), *others]
    kept = _kept(tree)
    if not _LOOKERS & kept:
        numbered = _Numbered(kept)
        tree = numbered.visit(tree)
        _write_letters(tree, kept | numbered.outside)
    return ast.unparse(tree)


def _used(tree: ast.AST) -> set[str]:
    """Return the names that a program reads."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _kept(tree: ast.AST) -> set[str]:
    """Return the names that are not numbered: they can be seen, or belong to no function.

    These are imports, globals, keywords of calls, classes and their attributes, and functions that
    show names.
    """
    kept = _used(tree) & _LOOKERS
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            kept.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Global | ast.Nonlocal):
            kept.update(node.names)
        elif isinstance(node, ast.keyword) and node.arg:
            kept.add(node.arg)
        elif isinstance(node, ast.ClassDef):
            kept.update([node.name, *_bound(node.body)])
    return kept


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that nodes bind in their own scope, and not in one inside it.

    An assignment expression (`:=`) within a comprehension binds its name outside of it.
    """
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, _Comprehension):
            inside = ast.walk(node)
            yield from (each.target.id for each in inside if isinstance(each, ast.NamedExpr))
        elif not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _bound(ast.iter_child_nodes(node))


def _write_letters(tree: ast.AST, taken: set[str]) -> None:
    """Replace numbered names by letters that are not taken."""
    free = (f"{letter}{round_ or ''}" for round_ in count() for letter in ascii_lowercase)
    letters: dict[str, str] = {}
    for node in ast.walk(tree):
        for field in ("id", "arg", "name", "rest"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith(MARK):
                if name not in letters:
                    letters[name] = next(letter for letter in free if letter not in taken)
                setattr(node, field, letters[name])


class _Tidy(ast.NodeTransformer):
    """Transformer that removes everything from a program that has no effect on its results."""

    def __init__(self, used: set[str]) -> None:
        self.used = used

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the children, and remove statements without an effect."""
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                active = [each for each in statements if not _is_idle(each)]
                idle = [ast.Pass()] if field == "body" else []
                setattr(node, field, active or idle)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        """Make positional-only parameters ordinary ones, which removes the `/`."""
        node.args, node.posonlyargs = [*node.posonlyargs, *node.args], []
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Remove the annotation."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove the annotation of the result."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Replace an annotated assignment with one that has no annotation."""
        self.generic_visit(node)
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def visit_Import(self, node: ast.Import) -> ast.AST | list[ast.Import]:
        """Keep the used names, each in its own statement."""
        return [ast.Import(names=[each]) for each in node.names if self._is_used(each)]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.ImportFrom]:
        """Keep the used names, each in its own statement."""
        return [
            ast.ImportFrom(module=node.module, names=[each], level=node.level)
            for each in node.names
            if self._is_used(each)
        ]

    def _is_used(self, alias: ast.alias) -> bool:
        name = (alias.asname or alias.name).partition(".")[0]
        return name == "*" or name in self.used


def _is_idle(node: ast.AST) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass)


class _Numbered(ast.NodeTransformer):
    """Transformer that numbers the parameters and local variables by their first appearance."""

    def __init__(self, kept: set[str]) -> None:
        self.kept = kept
        self.scopes: list[dict[str, str]] = []
        """Name to numbered name, per scope, the outermost first; "" before its first appearance."""
        self.count = 0
        self.outside = set[str]()
        """Other names of the program, such as those of built-in functions."""

    def _name(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                if not scope[name]:
                    scope[name] = f"{MARK}{self.count}"
                    self.count += 1
                return scope[name]
        self.outside.add(name)
        return name

    def _open(self, names: Iterable[str]) -> None:
        self.scopes.append({name: "" for name in names if name not in self.kept})

    def _visit_function(self, node: ast.FunctionDef | ast.Lambda) -> ast.AST:
        given = node.args
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                self.visit(default)  # evaluated outside of the function
        body = node.body if isinstance(node.body, list) else [node.body]
        each = (*given.args, given.vararg, *given.kwonlyargs, given.kwarg)
        parameters = [parameter for parameter in each if parameter is not None]
        self._open([*(parameter.arg for parameter in parameters), *_bound(body)])
        for parameter in parameters:
            parameter.arg = self._name(parameter.arg)
        for statement in body:
            self.visit(statement)
        self.scopes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Number the names of a function."""
        return self._visit_function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Number the names of a lambda expression."""
        return self._visit_function(node)

    def _visit_comprehension(self, node: _Comprehension) -> ast.AST:
        self.visit(node.generators[0].iter)  # evaluated outside of the comprehension
        self._open(_bound(each.target for each in node.generators))
        for place, each in enumerate(node.generators):
            for inner in (each.target, *([each.iter] if place else []), *each.ifs):
                self.visit(inner)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for value in values:
            self.visit(value)
        self.scopes.pop()
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Number a variable."""
        node.id = self._name(node.id)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        """Number the name of an exception."""
        node.name = node.name and self._name(node.name)
        return self.generic_visit(node)

    def _visit_pattern(self, node: ast.MatchAs | ast.MatchStar) -> ast.AST:
        node.name = node.name and self._name(node.name)
        return self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = _visit_pattern

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        """Number the name after `**` in a pattern of a mapping."""
        node.rest = node.rest and self._name(node.rest)
        return self.generic_visit(node)
