"""The command `gyrograd`: check, accuracy, grad, bench, explain, models, info.

Exit codes: 0 all right, 1 a case failed, 2 the input was refused, 130 interrupted.
"""

import argparse
import dataclasses
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import gyrograd
from gyrograd import _bench_report, _core, _models
from gyrograd._inputs import KINDS, InputError, format_shape, parse_count, printable, require_writable
from gyrograd._operators import OPERATORS, WITH_PROBLEMS, Operator, argument, operators_of

OK, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
SECONDS_BETWEEN_LINES = 15.0  # of progress, where there is no terminal for a bar


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser(_operator_of(arguments)).parse_args(arguments)
    except _Misuse as misuse:
        return _refuse_arguments(misuse, as_json="--json" in arguments)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except InputError as error:
        return _refuse(options, str(error))
    except MemoryError as error:
        return _refuse(options, f"not enough memory: {error}" if str(error) else "not enough memory")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone; there is nobody left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _refuse(options: argparse.Namespace, message: str) -> int:
    if options.json:
        _print_json({"error": message})
    print(printable(f"gyrograd {options.command}: {message}"), file=sys.stderr)
    return REFUSED


class _Misuse(Exception):
    """Arguments that a parser refuses."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    """One that leaves it to main how a refusal is shown."""

    def error(self, message: str) -> NoReturn:
        raise _Misuse(self, message)


def _refuse_arguments(misuse: _Misuse, as_json: bool) -> int:
    if as_json:
        _print_json({"error": str(misuse)})
    else:
        misuse.parser.print_usage(sys.stderr)
    print(f"{misuse.parser.prog}: {misuse}", file=sys.stderr)
    return REFUSED


def _print_json(value: object) -> None:
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value):
    """JSON has no word for infinities and NaN: they become texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Numbers to the right, texts to the left."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(markup=False, highlight=False).print(table)


# -- the arguments ----------------------------------------------------------------------------------------------------


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def _operator_of(arguments: Sequence[str]) -> Operator:
    """The operator that grad and explain are asked for: their other options are its. The command refuses others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--operator", nargs="?")
    return OPERATORS.get(parser.parse_known_args(arguments)[0].operator, OPERATORS["rotary"])


def _add_operator(command: argparse.ArgumentParser, names: Sequence[str]) -> None:
    command.add_argument(
        "--operator",
        choices=names,
        default="rotary",
        help=f"{', '.join(names)}; default rotary. The other options, as --help lists them, are this operator's",
    )


class _Foreign(argparse.Action):
    """An option that other operators have: `const` is what to say."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        parser.error(f"{option_string} {self.const}")


def _add_foreign(
    command: argparse.ArgumentParser,
    operator: Operator,
    names: Sequence[str],
    add: Callable[[Operator, argparse.ArgumentParser], None],
) -> None:
    """The options that `add` would give the command for other operators."""
    owners: dict[str, list[str]] = {}
    for name in names:
        parser = argparse.ArgumentParser(add_help=False)
        add(OPERATORS[name], parser)
        for option in parser._option_string_actions:  # argparse lists them nowhere else
            owners.setdefault(option, []).append(name)
    for option, its in owners.items():
        if operator.name in its:
            continue
        text = f"is an option of --operator {' and '.join(its)}, not of {operator.name}"
        command.add_argument(
            option, action=_Foreign, nargs="?", const=text, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _parser(operator: Operator) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gyrograd",
        description="Gradients of rotary position embedding, and of the norms around it, on the CPU.",
        epilog="Exit codes: 0 all right, 1 a case failed, 2 the input was refused.",
    )
    parser.add_argument("--version", action="version", version=f"gyrograd {gyrograd.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_check(commands)
    _add_accuracy(commands)
    _add_grad(commands, operator)
    _add_bench(commands)
    _add_explain(commands, operator)
    _add_models(commands)
    _add_info(commands)
    return parser


def _add_command(commands, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    command.set_defaults(run=run)
    command.add_argument("--json", action="store_true", help="print one JSON object, for machines")
    return command


def _add_execution(command: argparse.ArgumentParser) -> None:
    targets = ("best", "avx512", "avx2", "neon", "portable")
    command.add_argument("--threads", type=argument(_positive), metavar="N", help="use at most N threads")
    command.add_argument("--target", choices=targets, help="the CPU target to use")


def _require_target(options: argparse.Namespace) -> None:
    available = _core.cpu_targets()
    if options.target not in (None, "best", *available):
        raise InputError(f"--target {options.target}: not available here; available: {', '.join(available)}")


# -- check ------------------------------------------------------------------------------------------------------------


def _add_check(commands) -> None:
    command = _add_command(commands, "check", _run_check, "Run the problems of a CSV file against the reference.")
    command.add_argument(
        "cases",
        metavar="CASES.csv",
        help="a problem a line; docs/rotary.md and docs/norm_rope_concat.md have the columns. Or one problem as a "
        "line of text, such as rotary:types=bf16,dy=2x64x8x128,tables=1x64x1x128; docs/performance.md has its fields",
    )
    command.add_argument("--operator", choices=WITH_PROBLEMS, help="default: the one that has the file's columns")
    command.add_argument("--id", action="append", metavar="ID", help="only the case of this id (may be repeated)")
    command.add_argument("--limit", type=argument(_positive), metavar="N", help="only the first N cases")
    _add_execution(command)


def _run_check(options: argparse.Namespace) -> int:
    from gyrograd import _check  # imports the reference, which nothing else needs

    _require_target(options)
    if _check.is_problem(options.cases):
        cases = _check.read_text(options.cases)
    else:
        cases = _check.read_cases(Path(options.cases), options.operator)
    cases = _check.select(cases, options.id, options.limit)
    start = time.perf_counter()
    running = _check.run_cases(cases, threads=options.threads, cpu_target=options.target)
    outcomes = list(_with_progress(running, len(cases), "checking", hidden=options.json))
    seconds = time.perf_counter() - start
    failed = [outcome for outcome in outcomes if not outcome.ok]
    groups = _check.summarize(outcomes)
    if options.json:
        _print_json(
            {
                "file": str(options.cases),
                "cases": len(outcomes),
                "passed": len(outcomes) - len(failed),
                "failed": len(failed),
                "seconds": round(seconds, 3),
                "groups": groups,
                "failures": [_failure(outcome) for outcome in failed],
            }
        )
        return FAILED if failed else OK
    operator = cases[0].operator
    _print_table(operator.TITLE, operator.HEADERS, [tuple(group.values()) for group in groups])
    for outcome in failed:
        _print_failure(outcome)
    print(f"{len(outcomes) - len(failed)} passed" + (f", {len(failed)} failed" if failed else ""))
    return FAILED if failed else OK


def _with_progress(items: Iterator, total: int, text: str, hidden: bool) -> Iterator:
    """On a terminal a bar, elsewhere a line now and then: both on standard error."""
    console = Console(stderr=True)
    if not hidden and not console.is_terminal:
        yield from _with_lines(items, total, text)
        return
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        yield from progress.track(items, total=total)


def _with_lines(items: Iterator, total: int, text: str) -> Iterator:
    last = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if count < total and time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            print(f"{text}: {count} of {total}", file=sys.stderr, flush=True)
            last = time.monotonic()


def _failure(outcome) -> dict[str, object]:
    bad = {name: verdict for name, verdict in outcome.verdicts.items() if not verdict.ok}
    return {
        "id": outcome.case.id,
        "line": outcome.case.line,
        "results": {name: dataclasses.asdict(verdict) for name, verdict in bad.items()},
    }


def _print_failure(outcome) -> None:
    print(f"FAILED {printable(outcome.case.id)} (line {outcome.case.line}): {outcome.case.problem}")
    for name, verdict in outcome.verdicts.items():
        if not verdict.ok:
            print(f"  {name}: {verdict.mismatches} elements; {verdict.message}")


# -- accuracy ---------------------------------------------------------------------------------------------------------


def _add_accuracy(commands) -> None:
    text = "Measure the largest errors over families of hard numbers, in units of what is promised."
    command = _add_command(commands, "accuracy", _run_accuracy, text)
    several = "(may be repeated; default all)"
    command.add_argument("--operator", action="append", choices=tuple(OPERATORS), help=f"only this one {several}")
    types = f"only rows of this type, or of the first beside tables and weights of the second {several}"
    command.add_argument("--type", action="append", choices=tuple(KINDS), help=types)
    command.add_argument("--seed", type=argument(parse_count), default=0, metavar="N", help="of the numbers; default 0")
    command.add_argument(
        "--cases",
        type=argument(_positive),
        default=3,
        metavar="N",
        help="of each family for each type and mode; default 3",
    )
    command.add_argument("--without-torch", action="store_true", help="leave PyTorch's errors out")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write every result of every case, too")
    command.add_argument("--page", type=Path, metavar="FILE", help="write docs/accuracy.md, too")


def _run_accuracy(options: argparse.Namespace) -> int:
    from gyrograd import _accuracy  # imports the reference

    for option, path in (("--csv", options.csv), ("--page", options.page)):
        if path:
            require_writable(option, path)
    running = _with_progress(_accuracy.measure(options), len(_accuracy.jobs(options)), "measuring", hidden=options.json)
    measured = [one for of_job in running for one in of_job]
    rows, exceeding = _accuracy.summarize(measured), _accuracy.exceeding(measured)
    if options.csv:
        _accuracy.write("--csv", options.csv, _accuracy.as_csv(measured))
    if options.page:
        _accuracy.write("--page", options.page, _accuracy.page(rows, options))
    if options.json:
        _print_json(_accuracy.as_object(rows, measured, options))
    else:
        for name, of_operator in rows.items():
            _print_table(name, *_accuracy.table(name, of_operator))
        print(_accuracy.UNITS)
        for one in exceeding:
            print(f"EXCEEDS: {' '.join(map(str, one.job))}: {one.result}: {one.message}")
        print(f"{len(measured)} results" + (f", {len(exceeding)} beyond what is promised" if exceeding else ""))
    return FAILED if exceeding else OK


# -- grad -------------------------------------------------------------------------------------------------------------


def _add_grad(commands, operator: Operator) -> None:
    command = _add_command(commands, "grad", _run_grad, "Compute the gradients of tensors in files.")
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=f"a .npz or .safetensors file of tensors; or a .npy file called after its tensor, such as "
        f"{operator.tensors[0]}.npy; or {operator.tensors[0]}=FILE.npy. Tensors: {operator.needs}",
    )
    command.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUTPUT",
        help=f"a .npz or .safetensors file; a folder that gets {operator.results[0]}.npy, {operator.results[1]}.npy "
        "...; for one result a .npy file. NumPy's files forget the name of bfloat16: read it back with "
        ".view(ml_dtypes.bfloat16), or use .safetensors",
    )
    _add_operator(command, tuple(OPERATORS))
    operator.add_options(command)
    _add_foreign(command, operator, tuple(OPERATORS), lambda other, parser: other.add_options(parser))
    _add_execution(command)


def _run_grad(options: argparse.Namespace) -> int:
    from gyrograd import _files

    _require_target(options)
    operator = OPERATORS[options.operator]
    tensors = _files.read_tensors(options.inputs, _files.Known(operator.tensors, _operator_hint))
    missing = [name for name in operator.required if name not in tensors]
    if missing:
        raise InputError(f"{' '.join(options.inputs)}: no tensor {', '.join(missing)}")
    start = time.perf_counter()
    try:
        results = operator.gradients(tensors, options)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    seconds = time.perf_counter() - start
    files = _files.plan_outputs(options.output, tuple(results))
    _files.require_apart(options.inputs, files.values())
    _files.write_tensors(files, results)
    rows = [
        {"name": name, "shape": list(result.shape), "dtype": result.dtype.name, "file": str(files[name])}
        for name, result in results.items()
    ]
    if options.json:
        _print_json({"outputs": rows, "seconds": round(seconds, 6)})
    else:
        many = len(set(files.values())) > 1
        print(f"written to {Path(options.output, 'TENSOR.npy') if many else next(iter(files.values()))}")
        cells = [(row["name"], format_shape(row["shape"]), row["dtype"]) for row in rows]
        _print_table(None, ("tensor", "shape", "type"), cells)
    return OK


def _operator_hint(names: Iterable[str]) -> str:
    others = operators_of(names)
    return f"; hint: --operator {' or '.join(others)}" if others else ""


# -- bench ------------------------------------------------------------------------------------------------------------


def _add_bench(commands) -> None:
    text = "Time the backward of a problem against plain copies of its bytes, PyTorch and JAX."
    _bench_report.add_arguments(_add_command(commands, "bench", _run_bench, text), argument(_positive))


def _run_bench(options: argparse.Namespace) -> int:
    return _report(options, _bench_report)


def _report(options: argparse.Namespace, report: ModuleType) -> int:
    """Measures, and shows in each of the ways that are asked for."""
    result = report.measure(options)
    if options.plot:
        report.plot(result, options.plot)
    if options.json:
        _print_json(result)
    else:
        report.show(result, Console())
    return OK


# -- explain ----------------------------------------------------------------------------------------------------------


def _add_explain(commands, operator: Operator) -> None:
    text = "Say which products take a problem, which rule refuses, and what plan would run here."
    command = _add_command(commands, "explain", _run_explain, text)
    if operator.name not in WITH_PROBLEMS:
        operator = OPERATORS["rotary"]
    _add_operator(command, WITH_PROBLEMS)
    _add_problem(operator, command)
    _add_foreign(command, operator, WITH_PROBLEMS, _add_problem)
    _add_execution(command)


def _add_problem(operator: Operator, command: argparse.ArgumentParser) -> None:
    operator.add_problem(command)
    operator.add_options(command)
    command.set_defaults(**operator.problem_defaults)


def _run_explain(options: argparse.Namespace) -> int:
    _require_target(options)
    operator = OPERATORS[options.operator]
    plan, refusal = None, None
    try:
        plan = operator.plan(options)
    except (TypeError, ValueError) as error:
        refusal = str(error)
    native, *products = operator.products(options)
    products = [native | {"accepted": refusal is None, "rule": refusal or ""}, *products]
    if options.json:
        value = {"accepted": refusal is None, "products": products, "plan": plan}
        _print_json(value if refusal is None else value | {"error": refusal})
    else:
        _print_table("which products take it", ("products", "take it", "why"), _product_rows(products))
        print(plan.rstrip() if refusal is None else f"refused: {refusal}")
    return OK if refusal is None else REFUSED


def _product_rows(products: Sequence[dict[str, object]]) -> list[tuple[str, str, str]]:
    """Products with the same answer share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for verdict in products:
        answer = _readings(verdict["readings"]) or verdict["rule"] or verdict["limits"]
        why = "; ".join((answer, *verdict["remarks"]))
        rows.setdefault(("yes" if verdict["accepted"] else "no", why), []).append(verdict["product"])
    return [(", ".join(names), *row) for row, names in rows.items()]


def _readings(readings: Sequence[dict[str, str]]) -> str:
    """Layouts with the same tables are named together."""
    layouts: dict[str, list[str]] = {}
    for reading in readings:
        layouts.setdefault(reading["tables"], []).append(reading["layout"])
    texts = [f"{' or '.join(names)}, tables {tables}" for tables, names in layouts.items()]
    return "read as " + "; or as ".join(texts) if texts else ""


# -- models -----------------------------------------------------------------------------------------------------------


def _add_models(commands) -> None:
    text = "How much of a small model's training step rotary and QK-norm take, before and after the switch."
    _models.add_arguments(_add_command(commands, "models", _run_models, text), argument(_positive))


def _run_models(options: argparse.Namespace) -> int:
    return _report(options, _models)


# -- info -------------------------------------------------------------------------------------------------------------


def _add_info(commands) -> None:
    _add_command(commands, "info", _run_info, "Version, CPU targets, threads.")


def _run_info(options: argparse.Namespace) -> int:
    facts = dataclasses.asdict(gyrograd.info()) | {"python": platform.python_version(), "numpy": np.__version__}
    if options.json:
        _print_json(facts)
    else:
        cells = [(key, ", ".join(fact) if isinstance(fact, tuple) else str(fact)) for key, fact in facts.items()]
        _print_table("what runs here", ("fact", "value"), cells)
    return OK


if __name__ == "__main__":
    sys.exit(main())
