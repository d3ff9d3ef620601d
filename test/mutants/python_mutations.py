"""Mutations of Python files, as JSON. typescript-mutations.ts has those of TypeScript.

    python3 python_mutations.py CLEANUP_NAME FILE ...   # all mutations of the files
    python3 python_mutations.py --compile <SOURCE       # ends with 1 if it does not compile

Offsets are those of JavaScript strings, in UTF-16 units.
"""

import ast
import json
import re
import sys

OPERATORS = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
LONGEST_GUARD = 3


class Finder(ast.NodeVisitor):
    def __init__(self, file, text, cleanup_name):
        self.file = file
        self.text = text
        self.cleanup_name = cleanup_name
        self.found = []
        self.scope = 0
        self.is_cleanup = False
        self.lines = [0]
        for line in text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def offset(self, line, column):
        """The index in the text. A column of ast counts bytes of UTF-8."""
        begin = self.lines[line - 1]
        row = self.text[begin : self.lines[line]]
        return begin + len(row.encode()[:column].decode())

    def begin(self, node):
        return self.offset(node.lineno, node.col_offset)

    def end(self, node):
        return self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node):
        return self.text[self.begin(node) : self.end(node)]

    def units(self, index):
        return len(self.text[:index].encode("utf-16-le")) // 2

    def add(self, kind, begin, end, replacement):
        self.found.append(
            {
                "file": self.file,
                "kind": kind,
                "begin": self.units(begin),
                "end": self.units(end),
                "replacement": replacement,
                "scope": self.scope,
            }
        )

    def swap(self, kind, first, second):
        texts = self.source(first), self.source(second)
        between = self.text[self.end(first) : self.begin(second)]
        if texts[0] != texts[1]:
            self.add(kind, self.begin(first), self.end(second), texts[1] + between + texts[0])

    def operator(self, kind, left, right, old, new):
        """Replaces an operator, of which ast does not tell the place. A comment may stand before it."""
        begin, end = self.end(left), self.begin(right)
        between = re.sub(r"#.*", lambda match: " " * len(match[0]), self.text[begin:end])
        word = r"\b%s\b" if old.isalpha() else "%s"
        place = re.search(word % old, between)
        if place:
            self.add(kind, begin + place.start(), begin + place.end(), new)

    # Statements

    def block(self, statements, is_cleanup=False):
        before = self.is_cleanup
        self.is_cleanup = before or is_cleanup
        for first, second in zip(statements, statements[1:]):
            if is_call(first) and is_call(second) and first.end_lineno < second.lineno:
                self.swap("order", first, second)
        for statement in statements:
            if self.is_cleanup and is_effect(statement):
                self.add("cleanup", self.begin(statement), self.end(statement), "pass")
            self.visit(statement)
        self.is_cleanup = before

    def generic_visit(self, node):
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                self.block(value, name == "finalbody" or isinstance(node, ast.ExceptHandler))
            elif isinstance(value, ast.AST):
                self.visit(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item)

    def visit_FunctionDef(self, node):
        if any("overload" in self.source(each) for each in node.decorator_list):
            return
        defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each)]
        before = self.scope, self.is_cleanup
        # As Python numbers functions: with their decorators.
        self.scope = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        self.is_cleanup = self.is_cleanup or bool(self.cleanup_name.match(node.name))
        for each in defaults:
            if isinstance(each, ast.Constant):
                self.constant("default", each)
        self.block(node.body)
        self.scope, self.is_cleanup = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node):
        if "TYPE_CHECKING" in self.source(node.test):
            return
        leaves = isinstance(node.body[-1], EXITS) and len(node.body) <= LONGEST_GUARD
        if leaves and not node.orelse and self.source(node).startswith("if"):
            self.add("guard", self.begin(node), self.end(node), "pass")
        self.generic_visit(node)

    # Expressions

    def visit_Await(self, node):
        keyword = re.match(r"await\s*", self.source(node))
        if keyword:
            self.add("await", self.begin(node), self.begin(node) + keyword.end(), "")
        self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in ("any", "all"):
            other = "all" if node.func.id == "any" else "any"
            self.add("quantifier", self.begin(node.func), self.end(node.func), other)
        for first, second in zip(node.args, node.args[1:]):
            if form(first) and form(first) == form(second):
                self.swap("arguments", first, second)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for first, second in zip(node.values, node.values[1:]):
            self.operator("logic", first, second, *words)
        self.generic_visit(node)

    def visit_Compare(self, node):
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:]):
            if type(operator) in OPERATORS:
                self.operator("limit", left, right, *OPERATORS[type(operator)])
        self.generic_visit(node)

    def visit_Constant(self, node):
        if not isinstance(node.value, bool):
            self.constant("constant", node)

    def constant(self, kind, node):
        if isinstance(node.value, bool):
            self.add(kind, self.begin(node), self.end(node), str(not node.value))
        elif isinstance(node.value, (int, float)):
            self.add(kind, self.begin(node), self.end(node), repr(node.value + 1))

    def visit_JoinedStr(self, node):
        """Older versions of Python do not know where the parts of such a string are."""


def is_call(statement):
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return isinstance(value.value if isinstance(value, ast.Await) else value, ast.Call)


def is_effect(statement):
    """Whether a statement does something that others see. Names must stay bound."""
    if isinstance(statement, (ast.Raise, ast.Delete)):
        return True
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        targets = getattr(statement, "targets", None) or [statement.target]
        return all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets)
    return False


def form(argument):
    """Arguments of the same form may have the same type: no compiler checks it."""
    if isinstance(argument, (ast.Name, ast.Attribute, ast.Subscript)):
        return "place"
    return type(argument.value).__name__ if isinstance(argument, ast.Constant) else None


def main(arguments):
    if arguments == ["--compile"]:
        try:
            compile(sys.stdin.buffer.read(), "source", "exec")
        except SyntaxError as error:
            sys.exit(str(error))
        return
    name, *files = arguments
    found = []
    for file in files:
        with open(file, encoding="utf-8", newline="") as source:
            text = source.read()
        finder = Finder(file, text, re.compile(name, re.IGNORECASE))
        finder.visit(ast.parse(text))
        found += sorted(finder.found, key=lambda each: (each["begin"], each["end"]))
    json.dump(found, sys.stdout)


main(sys.argv[1:])
