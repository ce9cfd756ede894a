"""Break the package on purpose, one small break at a time, and see whether a test notices.

The breaks are drawn by a seed and spread over all folders. Each is made in a copy of the checkout, where
tests run until one fails: first those of its folder, then quick ones of folders that import the module. If
all pass, a break at the same place that nothing survives tells whether they execute it at all: if they do, a
test is missing or the break changes nothing that matters.
"""

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "stickytoken"
TESTS = ROOT / "tests"
SECONDS = 1200  # tests that take longer do not end
_OPPOSITES = ("Lt GtE", "Gt LtE", "Eq NotEq", "In NotIn", "Is IsNot", "And Or", "Add Sub", "Mult Div")
OPPOSITE = dict(pair for names in _OPPOSITES for pair in (names.split(), names.split()[::-1]))
BOUNDARY = {"Lt": "LtE", "LtE": "Lt", "Gt": "GtE", "GtE": "Gt"}


def alternatives(node):  # noqa: PLR0912 - one branch for each kind
    """Every break of a syntax node: its kind, the node that is replaced, and what takes its place."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            for kind, table in (("comparison flipped", OPPOSITE), ("boundary moved", BOUNDARY)):
                if other := table.get(type(operator).__name__):
                    yield kind, node, ast.Compare(left, [getattr(ast, other)()], right)
        case ast.BoolOp(op=operator, values=values):
            yield "and / or", node, ast.BoolOp(getattr(ast, OPPOSITE[type(operator).__name__])(), values)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator).__name__ in OPPOSITE:
            other = getattr(ast, OPPOSITE[type(operator).__name__])()
            yield "arithmetic", node, ast.BinOp(left, other, right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not dropped", node, operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield "constant changed", node, ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return value dropped", value, ast.Constant(None)
        case ast.Call(func=called, args=[first, second, *rest], keywords=keywords):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield "arguments swapped", node, ast.Call(called, [second, first, *rest], keywords)
        case ast.If(test=test) if ast.unparse(test) != "TYPE_CHECKING":
            yield "branch removed", test, ast.Constant(False)
        case ast.IfExp(orelse=other):
            yield "branch removed", node, other
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement removed", node, ast.Pass()


def breaks_below(node):
    """The same of all nodes below, but for error texts, annotations, decorators, f-strings and `__all__`."""
    children = ast.iter_child_nodes(node)
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Assign(targets=[ast.Name(id="__all__")]):
            return
        case ast.AnnAssign(value=value):
            children = [value] if value else []
        case ast.FunctionDef(args=arguments, body=body):
            children = [*arguments.defaults, *filter(None, arguments.kw_defaults), *body]
        case ast.ClassDef(body=body):
            children = body
    yield from alternatives(node)
    for child in children:
        yield from breaks_below(child)


def drawn(count, seed):
    """Draw breaks, folders in turn: path, kind, source before and after, source that fails when executed."""
    generator = random.Random(seed)
    folders = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for kind, node, other in breaks_below(ast.parse(path.read_bytes())):
            folders.setdefault(path.parent, {}).setdefault(kind, []).append((path, node, other))
    order = generator.sample(list(folders), len(folders))
    for number in range(count):
        kinds = folders[order[number % len(order)]]
        kind = generator.choice(sorted(kinds))
        path, node, other = generator.choice(kinds[kind])
        source = path.read_bytes()
        lines = source.splitlines(keepends=True)
        start = len(b"".join(lines[: node.lineno - 1])) + node.col_offset
        end = len(b"".join(lines[: node.end_lineno - 1])) + node.end_col_offset
        code = ast.unparse(ast.fix_missing_locations(other))
        pieces = ("pass", "1 / 0") if code == "pass" else (f"({code})", "(1 / 0)")
        yield path, kind, source, *(source[:start] + piece.encode() + source[end:] for piece in pieces)


def tests_of(path):
    """Test modules of a module's folder and those that import it; and those of the folders that import it."""
    parts = [name for name in path.relative_to(PACKAGE).with_suffix("").parts if name != "__init__"]
    parts = parts or ["project"]  # the front door
    names = [r"\.".join(["stickytoken", *each]) for each in (parts, parts[:-1])]
    importing = re.compile(rf"(?:from|import) {names[0]}\b|from {names[1]} import .*\b{parts[-1]}\b")
    tests = {test.relative_to(ROOT): test.read_text("utf-8") for test in sorted(TESTS.rglob("test_*.py"))}

    def of_folder(parts):
        folders = [Path("tests", *parts[:length]) for length in range(len(parts), 0, -1)]
        tests_by_folder = ([test for test in tests if folder in test.parents] for folder in folders)
        return next(filter(None, tests_by_folder), [test for test in tests if parts[0] in test.stem])

    near = [test for test in tests if importing.search(tests[test])] + of_folder(parts)
    # Commands are tested beside what they call.
    for name in re.findall(r"^def ([a-z]\w*)", path.read_text("utf-8"), re.MULTILINE) * (parts[0] == "cli"):
        called = re.compile(rf"""(?:command|assert_refused)\(\s*"{name.replace("_", "-")}\b""")
        near += [test for test in tests if called.search(tests[test])]
    near += [test for test in tests if parts[0] == "cli" and "cli" in test.stem]
    users = {user.parent for user in PACKAGE.rglob("*.py") if importing.search(user.read_text("utf-8"))}
    far = [test for user in sorted(users - {PACKAGE}) for test in of_folder(user.relative_to(PACKAGE).parts)]
    return [
        list(dict.fromkeys(test_group)) for test_group in (near, [test for test in far if test not in near])
    ]


def failing_test(copy, tests):
    """Run tests in the copy until one fails, and return its id; None if all pass."""
    for some, marked in zip(tests, ("not nightly", "not slow and not browser and not nightly"), strict=True):
        if not some:
            continue
        command = [sys.executable, *"-m pytest -qx -p no:cacheprovider --tb=no -m".split(), marked, *some]
        options = {"cwd": copy, "env": os.environ | {"PYTHONPATH": str(copy / "src")}, "timeout": SECONDS}
        try:
            done = subprocess.run(command, **options, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            return "a test that does not end"
        if done.returncode not in (0, 5):
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout.decode(), re.MULTILINE)
            return failed[1] if failed else "pytest, which did not start"
    return None


def outcome(copy, path, before, after, fatal, stamp):
    """Make a break in the copy and run the tests: noticed or not, and by what."""
    target = copy / path.relative_to(ROOT)
    tests = tests_of(path)
    outcomes = []
    for index, source in enumerate((after, fatal, before)):
        target.write_bytes(source)
        os.utime(target, (stamp + index, stamp + index))  # its compiled file is no other's
        outcomes.append(failing_test(copy, tests) if source != before and not any(outcomes) else None)
    return (
        f"noticed by {outcomes[0]}"
        if outcomes[0]
        else f"NOT NOTICED, {'' if outcomes[1] else 'not '}executed"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="number of breaks")
    parser.add_argument("--seed", type=int, default=1, help="seed that they are drawn by")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of those to try; without any, none is")
    arguments = parser.parse_args()
    totals = Counter()
    left_out = shutil.ignore_patterns(".venv*", "__pycache__", "build", "dist", "runs")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=left_out)
        (copy.parent / "shared").symlink_to(ROOT.parent / "shared")
        for number, (path, kind, *sources) in enumerate(drawn(arguments.count, arguments.seed), start=1):
            lines = (text.decode().splitlines() for text in sources[:2])
            print(
                f"{number}. {kind}",
                *difflib.unified_diff(*lines, str(path.relative_to(ROOT)), lineterm="", n=0),
                sep="\n",
            )
            if arguments.only is None or number in arguments.only:
                outcome_text = outcome(copy, path, *sources, stamp=10 * number)
                totals[outcome_text.partition(" by ")[0]] += 1
                print(f"   {outcome_text}\n", flush=True)
    print(dict(totals))


if __name__ == "__main__":
    main()
