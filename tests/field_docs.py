"""The descriptions of a class's fields, which are the comments behind or above them."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import textwrap
import tokenize

LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def docs_of(kind: type) -> dict[str, str]:
    """Field -> the comment behind it, or in the lines above it. A field without a comment has that of a base class."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__annotations__" in vars(each) and each.__module__.startswith("pytest_agentbench"):
            docs |= {name: doc for name, doc in _own_docs(each).items() if doc or name not in docs}
    return docs


@functools.cache
def _own_docs(kind: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT}
    alone = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    (body,) = (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    found = {}
    for node in (node for node in body if isinstance(node, ast.AnnAssign)):
        above = node.lineno
        while above - 1 in alone:
            above -= 1
        lines = [comments[line] for line in range(above, (node.end_lineno or node.lineno) + 1) if line in comments]
        found[ast.unparse(node.target)] = re.sub(r"\bNone\b", "null", " ".join(lines))
    return found
