"""Tools that come with the library: a calculator, Python in a sandbox, search over a folder of texts."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.agents.included_tools_folder_search import FolderSearch, snippet
from headway.agents.included_tools_python_sandbox import Sandbox, SandboxLimits, need_walls, run_python
from headway.agents.tools import Tool, make_tool

MAX_LENGTH = 500
MAX_BITS = 4096
"""Of a whole number, on the way as well as at the end: computing with it takes no time worth mentioning."""
MAX_EXPONENT = 1024
MAX_FACTORIAL = 300

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "gcd": math.gcd,
    "log": math.log,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_NAMES = {"pi": math.pi, "e": math.e}


def calculator(expression: str) -> str:
    """Computes an arithmetic expression with + - * / // % **, brackets and functions like sqrt, log, round, factorial.

    :param expression: for example (3 + 4) * 5 / 2
    """
    text = expression.strip().rstrip("=").strip().replace("^", "**").replace("×", "*").replace("÷", "/")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    try:
        tree = ast.parse(text, mode="eval")
        value = _value(tree.body)
    except SyntaxError:
        raise ValueError(f"{expression.strip()!r} is no arithmetic expression") from None
    except RecursionError:
        raise ValueError("the expression has too many brackets") from None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _bounded(_OPERATORS[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _bounded(_power(_value(node.left), _value(node.right)))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _bounded(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _bounded(_function(node.func.id, [_value(one) for one in node.args]))
    raise ValueError(f"only numbers, + - * / // % ** and functions are allowed, not {type(node).__name__}")


def _function(name: str, values: list[Any]) -> Any:
    if name == "factorial":
        if len(values) != 1 or not isinstance(values[0], int) or not 0 <= values[0] <= MAX_FACTORIAL:
            raise ValueError(f"factorial takes a whole number from 0 to {MAX_FACTORIAL}")
        return math.factorial(values[0])
    if name == "round" and len(values) == 2 and abs(values[1]) > 30:
        raise ValueError("round takes at most 30 digits")
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no function {name}; there are {', '.join([*_FUNCTIONS, 'factorial'])}")
    return _FUNCTIONS[name](*values)


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"exponents are at most {MAX_EXPONENT}")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise ValueError("the result is too large")
    return base**exponent


def _bounded(value: Any) -> Any:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is too large, or no number")
    return value


def python_tool(limits: SandboxLimits | None = None, sandbox: Sandbox = "kernel") -> Tool:
    """Returns a tool `python` that runs programs in the sandbox, with these limits. Raises BadEnvironment where the
    kernel has no walls for it; `sandbox="none"` runs programs with the rights of this user."""
    if sandbox == "kernel":
        need_walls()

    def python(program: str) -> str:
        """Runs a Python program with the standard library and returns what it prints.

        :param program: the whole program; print what you want to see
        """
        return run_python(program, limits, sandbox).text

    return make_tool(python)


def search_tool(folder: str | Path, top: int = 3, snippet_chars: int = 300) -> Tool:
    """Returns a tool `search` over the texts in a folder, which is read now."""
    texts = FolderSearch(folder)

    def search(query: str) -> str:
        """Searches a collection of texts and returns the passages that fit best.

        :param query: the words to look for
        """
        found = texts.search(query, top)
        return "\n".join(f"[{one.place}] {snippet(one.text, query, snippet_chars)}" for one in found) or "nothing found"

    return make_tool(search)
