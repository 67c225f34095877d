"""Lists suspicious sentences of this project, each with file, line and the number of a rule. `python -m tests.prose --count` counts them.

Only patterns are matched, and about one hit in thirteen is a false alarm, so a reader decides. The rules are:

- R1: a docstring is made of whole sentences, with a finite verb. R2: no imaginary persons ("nobody", "whoever").
- R3: participles are not names. R4: a noun, not a relative clause ("what it said").
- R5: a docstring can be read without its neighbours. R6: a sentence does not begin with "Of" or "Beside".
- R7: a comment is not the tail of the code before it. R8: "if" is for conditions, "where" for places.
- R9: return values are not hung behind a semicolon. R10: no metaphors. R13: at most 35 words in a sentence. R14: plain verbs and negations.

`tests/test_prose.py` requires that R2, R5 and R6 hold, except for WAIVERS.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import pathlib
import random
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PACKAGE = "pytest_agentbench"  # the only folder whose *.py files are read
SKIPPED = {".git", ".venv", "tests", "changelog", "example", "examples", "scenarios", "reports"}  # folders outside of the package
LONG, FRAGMENT = 35, 12  # words: a longer sentence is too long; a fragment up to this length is accepted
ALL = "docstring comment markdown message"


class Hit(NamedTuple):
    """A sentence that breaks a rule."""

    path: str  # relative to the root of the project
    line: int
    rule: str
    kind: str  # one of ALL, or "name"
    text: str


ROOT = pathlib.Path(__file__).parents[1]
PROVEN = ("R2", "R5", "R6")  # rules that a test requires

#: Part of a sentence -> why it may break one of the rules that are required.
WAIVERS: Mapping[str, str] = {
    "You are alone with it": "a prompt of an agent, whose text is part of its hash",
}

# (rule, kinds of text, regular expression). A caret anchors the pattern to the start of a sentence.
PATTERNS = [
    ("R2", ALL, r"\b(nobody|somebody|anybody|everybody|whoever|whomever)\b"),
    ("R4", "docstring", r"^(What|Who|Whom|Whose|How|Why|Where|Which|That(?! (is|are|was)\b))\b(?!.*\?$)"),
    (
        "R4",
        ALL,
        r"\b(what|all that|those that) (it|they|he|\w+s|(?:the|a|an) \w+) (said|says?|told|tells?|asked|asks?|found)\b",
    ),
    ("R6", "docstring markdown message", r"^(Of|Behind|Beside|Beneath)\b"),
    (
        "R7",
        "comment",
        r"^(of|that|which|who|whose|whom|what|where|by|beside|behind|asked|said|told|and|or|but|as|from when|in which|to which)\b",
    ),
    ("R8", ALL, r"\b(none|null|empty|nothing|false|true|0|zero|unknown|raises \w+) where\b"),
    (
        "R8",
        ALL,
        r"\bwhere (there (?:is|are|was|were) (?:none|no|one|any)|nothing|it is (?:not|known)|that (?:fails|is not|cannot))\b",
    ),
    ("R9", "docstring", r"; (whether|None|empty|nothing|how many|what|where)\b"),
    ("R10", ALL, r"\b(autops\w+|obituar\w+|ladder|rungs?|under one roof|reap(?:s|ed)?|culprits?|condemned|farewell|climbs?)\b"),
    ("R14", ALL, r"(?<!\bthere )\b(is|are|was|were) no (?!longer|more|less|different|better|worse|such|further)[a-z]"),
    (
        "R14",
        ALL,
        r"\b(go|goes|going|gone) on with\b|\bto be had\b|\bthat there (is|are) not\b|\bstands? (in|on(?! its own)|behind|beside|there)\b",
    ),
]
COMPILED = [(rule, kinds.split(), re.compile(pattern, 0 if pattern[0] == "^" else re.IGNORECASE)) for rule, kinds, pattern in PATTERNS]
# R5: a first sentence that needs its neighbour. R3: participles as the whole name of a function, class, argument or variable.
NEIGHBOUR = re.compile(r"(The same\b|It\b|Its\b|As (?!well|soon|long|if)|Those\b|These\b|That of\b|All of (it|them)\b|Nobody\b)")
SENSES = re.compile(
    r"_*(found|said|told|asked|heard|seen|looked|meant|wanted|sayings|lacks|ails|robbed|doubts?|gone|there|away|came|met)$", re.IGNORECASE
)
# R1: a rough search for the finite verb of the main clause. A subordinate clause with only one verb is cut out first.
CLAUSE = re.compile(
    r"\b(that|which|who|whose|whom|where|when|if|whether|because|as|what|how|since|until|while|although|than|unless)\b[^,;.]*",
    re.IGNORECASE,
)
VERBS = """
accept add allow answer apply ask become begin belong boot break bring build call carry change check choose close come compare contain copy
count cover cut decide depend describe differ end exist explain fail fall find follow get give go hang have hold import join keep know lead
leave let lie list live load look lose make mark match mean measure miss move name need offer open pass point print promise put raise reach
read record refuse release replace report rest return run say score see send serve set share show sit speak spend stand start stay stop
store take tell test think travel treat try turn use vary wait want watch win work write yield is are was were be has had does do did can
cannot could may might must shall should will would began came fell found gave got held kept knew left lost made meant met ran said saw sent
stood took told went
"""
FINITE = re.compile(rf"^[A-Z][a-z]+s\b|\b({'|'.join(VERBS.split())})(s|es|ed|d)?\b")


def sentences(text: str) -> list[str]:
    """Splits a paragraph into sentences; code becomes one word, and a link its text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", text))
    return [" ".join(part.split()) for part in re.split(r"(?<=[\w)][.!?])\s+(?=[A-Za-z*(])|\n\s*\n", text) if part.strip()]


def check(path: str, line: int, kind: str, text: str) -> Iterator[Hit]:
    """Yields a hit for each rule that a sentence breaks."""
    rules = {rule for rule, kinds, pattern in COMPILED if kind in kinds and pattern.search(text)}
    words = len(text.split())
    rules |= {"R13"} if words > LONG else set()
    if (
        kind in ("docstring", "markdown")
        and words > FRAGMENT
        and not re.search(r"^Whether|:|\?$|\.\.\.", text)
        and not rules & {"R4", "R6"}
    ):
        main = CLAUSE.sub(lambda clause: "is" if len(FINITE.findall(clause[0])) > 1 else " ", text) if kind == "docstring" else text
        rules |= set() if FINITE.search(main) else {"R1"}
    yield from (Hit(path, line, rule, kind, text) for rule in sorted(rules))


def python_hits(path: str, source: str) -> Iterator[Hit]:
    """Checks the docstrings, names, messages and comments of a module."""
    tree = ast.parse(source)
    skipped = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield from _docstring_hits(path, node.body[0].lineno, doc)
        yield from _name_hits(path, node)
    for node in ast.walk(tree):
        if id(node) not in skipped:
            yield from _message_hits(path, node)
    yield from _comment_hits(path, source)


def _docstring_hits(path: str, line: int, doc: str) -> Iterator[Hit]:
    for number, sentence in enumerate(sentences(doc)):
        if number == 0 and NEIGHBOUR.match(sentence):
            yield Hit(path, line, "R5", "docstring", sentence)
        yield from check(path, line, "docstring", sentence)


def _name_hits(path: str, node: ast.AST) -> Iterator[Hit]:
    is_name = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.arg)
    if is_name or isinstance(getattr(node, "ctx", None), ast.Store):
        for name in (getattr(node, each, None) for each in ("name", "arg", "id", "attr")):
            if isinstance(name, str) and SENSES.match(name):
                yield Hit(path, node.lineno, "R3", "name", name)  # type: ignore[attr-defined]


def _message_hits(path: str, node: ast.AST) -> Iterator[Hit]:
    """Checks a text in the code. An expression in an f-string counts as one word."""
    parts: list[ast.expr] = node.values if isinstance(node, ast.JoinedStr) else [node] if isinstance(node, ast.Constant) else []
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
    if len(text.split()) >= 4 and not re.search(r"[{}\\<>]|^\W|::|==", text):
        for sentence in sentences(text):
            yield from check(path, node.lineno, "message", sentence)  # type: ignore[attr-defined]


def _comment_hits(path: str, source: str) -> Iterator[Hit]:
    """Checks the comments. A comment of several lines is checked by its first one."""
    previous = 0  # row of the last whole-line comment, which the next row continues
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, text, alone = token.start[0], token.string.lstrip("#: "), token.line.lstrip().startswith("#")
            is_continued, previous = alone and previous == row - 1, row if alone else previous
            if not is_continued and not re.match(r"noqa|type:|fmt:|pragma", text):
                for sentence in sentences(text):
                    yield from check(path, row, "comment", sentence)


def markdown_hits(path: str, source: str) -> Iterator[Hit]:
    """Checks paragraphs, list items and table cells; code and headings are skipped."""
    is_code, text, begin = False, "", 0
    for row, line in enumerate([*source.splitlines(), ""], 1):
        is_code ^= line.lstrip().startswith("```")
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        is_prose = bool(line.strip()) and not is_code and not line.startswith(("    ", "```", "|", "<", "#", "!"))
        if text and (item or not is_prose):
            yield from (hit for sentence in sentences(text) for hit in check(path, begin, "markdown", sentence))
            text = ""
        if is_prose:
            text, begin = f"{text} {line[item.end() if item else 0 :].strip()}".strip(), begin if text else row
        for cell in line.split("|") if line.startswith("|") and not is_code else ():  # cells are fragments by design
            yield from (hit for each in sentences(cell) for hit in check(path, row, "markdown", each) if hit.rule not in ("R1", "R6"))


def hits(rules: Sequence[str] = ()) -> list[Hit]:
    """Returns the sentences of the project that break one of these rules (default: any rule), by file."""
    found: list[Hit] = []
    for path in sorted([*ROOT.rglob("*.md"), *(ROOT / PACKAGE).rglob("*.py")]):
        name = path.relative_to(ROOT)
        if name.parts[0] == PACKAGE or not SKIPPED & {*name.parts}:
            read = python_hits if path.suffix == ".py" else markdown_hits
            found += [hit for hit in read(str(name), path.read_text(encoding="utf-8")) if not rules or hit.rule in rules]
    return found


def main() -> None:
    """Prints the hits, or their number by folder and rule."""
    parser = argparse.ArgumentParser(description="List suspicious sentences.")
    parser.add_argument("--count", action="store_true", help="print the number of hits by folder and rule")
    parser.add_argument("--sample", type=int, metavar="N", help="print N random hits, the same ones each time")
    parser.add_argument("--rule", nargs="+", default=[], metavar="R", help="check only these rules, for example R2 R13")
    options = parser.parse_args()
    found = hits(options.rule)
    if options.count:
        print_counts(found)
        return
    for hit in random.Random(0).sample(found, min(options.sample, len(found))) if options.sample else found:
        print(f"{hit.path}:{hit.line}: {hit.rule} {hit.kind}: {hit.text}")


def print_counts(found: Sequence[Hit]) -> None:
    """Prints a table: folder and rule."""
    counts = collections.Counter((folder, hit.rule) for hit in found for folder in ("/".join(hit.path.split("/")[:-1][:2]) or ".", "~ all"))
    rules = sorted({hit.rule for hit in found}, key=lambda rule: int(rule[1:]))
    print(f"{'folder':<32}", *(f"{rule:>5}" for rule in (*rules, "all")))
    for folder in sorted({folder for folder, _ in counts}):
        numbers = [counts[folder, rule] for rule in rules]
        print(f"{folder.removeprefix('~ '):<32}", *(f"{number:>5}" for number in (*numbers, sum(numbers))))


if __name__ == "__main__":
    main()
