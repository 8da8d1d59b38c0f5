"""Every regular expression of the product, and texts made to slow each of them down."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from re import _parser as sre  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # pragma: no cover
    import sre_parse as sre  # type: ignore[no-redef]

import dflash_assets

_FUNCTIONS = {"compile", "sub", "subn", "search", "match", "fullmatch", "findall", "finditer", "split"}


def source_files() -> list[Path]:
    """Modules of the product, each once (`dflash_assets/resources` is a link)."""
    return sorted({path.resolve() for path in Path(dflash_assets.__file__).parent.glob("**/*.py")} | _linked())


def _linked() -> set[Path]:
    return {path.resolve() for path in (Path(dflash_assets.__file__).parent / "resources").resolve().rglob("*.py")}


def all_patterns() -> dict[str, re.Pattern[Any]]:
    """Compiled patterns by `module:what`: whatever a module holds at any depth, and what calls of `re` are given as text."""
    found: dict[str, re.Pattern[Any]] = {}
    for info in pkgutil.walk_packages(dflash_assets.__path__, "dflash_assets."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            for pattern in _inside(value, 4):
                found.setdefault(f"{info.name}:{name}:{pattern.pattern!r:.40}", pattern)
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FUNCTIONS:
                called = node.func.value
                first = node.args[0] if node.args else None
                if isinstance(called, ast.Name) and called.id == "re" and isinstance(first, ast.Constant):
                    flags = re.DOTALL if "DOTALL" in ast.unparse(node) else 0
                    found.setdefault(f"{path.name}:{node.lineno}:{first.value!r:.40}", re.compile(first.value, flags))
    unique: dict[tuple[Any, int], tuple[str, re.Pattern[Any]]] = {}
    for name, pattern in found.items():
        unique.setdefault((pattern.pattern, pattern.flags), (name, pattern))
    return dict(unique.values())


def _inside(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _inside(item, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _inside(item, depth - 1)
    elif depth and hasattr(value, "__slots__") and type(value).__module__.startswith("dflash_assets"):
        for name in type(value).__slots__:
            yield from _inside(getattr(value, name, None), depth - 1)


def attacks(pattern: re.Pattern[Any], size: int, seed: int = 0) -> list[Any]:
    """Texts of about `size` characters: beginnings of matches, and parts of them, repeated and left without their end."""
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    rng = random.Random(seed)
    tree = sre.parse(text, pattern.flags & ~re.UNICODE if isinstance(source, bytes) else pattern.flags)
    seeds: set[str] = set()
    for _ in range(6):
        sample = _sample(tree, rng)
        seeds |= {sample, sample[: len(sample) // 2], sample[:-1]}
        for part in _repeated(tree):
            piece = _sample(part, rng)
            seeds |= {piece, piece * 2}
            for at in range(0, len(sample), max(1, len(sample) // 4)):
                seeds.add("\0pump" + sample[:at] + "\0" + piece)
    made: list[str] = []
    for seed_text in sorted(seeds):
        if seed_text.startswith("\0pump"):
            head, _, piece = seed_text[5:].partition("\0")
            if piece:
                made.append(head + piece * (size // len(piece)) + "\x01")
        elif seed_text:
            made.append(seed_text * (size // len(seed_text)) + "\x01")
    return [one.encode("utf-8", "replace") for one in made] if isinstance(source, bytes) else made


def _repeated(tree: Any) -> Iterator[Any]:
    for operator, argument in tree:
        name = str(operator)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            yield argument[2]
            yield from _repeated(argument[2])
        elif name == "SUBPATTERN":
            yield from _repeated(argument[3])
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from _repeated(branch)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from _repeated(argument[1])
        elif name == "ATOMIC_GROUP":
            yield from _repeated(argument)


def _sample(tree: Any, rng: random.Random) -> str:
    return "".join(_one(str(operator), argument, rng) for operator, argument in tree)


def _one(name: str, argument: Any, rng: random.Random) -> str:
    if name == "LITERAL":
        return chr(argument)
    if name == "NOT_LITERAL":
        return "a" if argument != ord("a") else "b"
    if name == "ANY":
        return "a"
    if name == "IN":
        return _of_class(argument, rng)
    if name == "BRANCH":
        return _sample(rng.choice(argument[1]), rng)
    if name == "SUBPATTERN":
        return _sample(argument[3], rng)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = argument
        return "".join(_sample(inner, rng) for _ in range(max(least, min(int(most), 2))))
    if name == "ATOMIC_GROUP":
        return _sample(argument, rng)
    if name == "CATEGORY":
        return _of_class([(name, argument)], rng)
    return ""  # anchors and looks round take no text


_OF_CATEGORY = {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "w", "CATEGORY_NOT_WORD": "-", "CATEGORY_NOT_SPACE": "x"}


def _of_class(items: Any, rng: random.Random) -> str:
    choices: list[str] = []
    for operator, argument in items:
        name = str(operator)
        if name == "NEGATE":
            taken = re.compile(_class_text(items))
            return next(char for char in 'aA0 -.<"\n' if taken.match(char) is None)
        if name == "LITERAL":
            choices.append(chr(argument))
        elif name == "RANGE":
            choices.append(chr(rng.randint(*argument)))
        elif name == "CATEGORY":
            choices.append(_OF_CATEGORY.get(str(argument), "x"))
    return rng.choice(choices)


def _class_text(items: Any) -> str:
    body = ""
    for operator, argument in items:
        name = str(operator)
        if name == "LITERAL":
            body += re.escape(chr(argument))
        elif name == "RANGE":
            body += f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
        elif name == "CATEGORY":
            body += {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}.get(str(argument), "")
    return f"[{body}]" if body else "(?!)"
