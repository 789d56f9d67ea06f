"""The command `gyrograd`: check, grad, explain, info.

Exit codes: 0 all right, 1 a case failed, 2 the input was refused, 130 interrupted.
"""

import argparse
import dataclasses
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import gyrograd
from gyrograd import _core
from gyrograd._inputs import DTYPES, MODES, InputError, format_shape, parse_dtype, parse_mode, parse_shape

OK, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
RESULTS = ("dx", "dcos", "dsin")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parser().parse_args(arguments)
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
    print(f"gyrograd {options.command}: {message}", file=sys.stderr)
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


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Numbers to the right, texts to the left."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(markup=False, highlight=False).print(table)


# -- the arguments ----------------------------------------------------------------------------------------------------


def _argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """A parser whose own message argparse shows."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number of at most 18 digits")
    return int(text)


def _result_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in RESULTS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a result; results are {', '.join(RESULTS)}")
    return tuple(name for name in RESULTS if name in names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gyrograd",
        description="Gradients of rotary position embedding on the CPU.",
        epilog="Exit codes: 0 all right, 1 a case failed, 2 the input was refused.",
    )
    parser.add_argument("--version", action="version", version=f"gyrograd {gyrograd.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_check(commands)
    _add_grad(commands)
    _add_explain(commands)
    _add_info(commands)
    return parser


def _add_command(commands, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    command.add_argument("--json", action="store_true", help="print one JSON object, for machines")
    return command


def _add_execution(command: argparse.ArgumentParser) -> None:
    targets = ("best", "avx512", "avx2", "neon", "portable")
    command.add_argument("--threads", type=_argument(_positive), metavar="N", help="use at most N threads")
    command.add_argument("--target", choices=targets, help="the CPU target to use")


def _add_rotary(command: argparse.ArgumentParser) -> None:
    names = ", ".join(f"{name} ({number})" for number, name in enumerate(MODES))
    command.add_argument("--mode", type=_argument(parse_mode), default="half", help=f"{names}; default half")
    command.add_argument("--per-pair-tables", action="store_true", help="one table value for both members of a pair")
    command.add_argument(
        "--rotary-dim", type=_argument(_integer), metavar="R", help="how many channels turn; default all"
    )
    command.add_argument(
        "--rotary-offset", type=_argument(_integer), default=0, metavar="O", help="the first channel that turns"
    )
    command.add_argument(
        "--outputs", type=_argument(_result_names), metavar="NAMES", help="the results wanted, such as dx,dcos"
    )


def _rotary_keywords(options: argparse.Namespace) -> dict[str, object]:
    return {
        "mode": options.mode,
        "per_pair_tables": options.per_pair_tables,
        "rotary_dim": options.rotary_dim,
        "rotary_offset": options.rotary_offset,
        "outputs": options.outputs,
        "threads": options.threads,
        "cpu_target": options.target,
    }


def _require_target(options: argparse.Namespace) -> None:
    available = _core.cpu_targets()
    if options.target not in (None, "best", *available):
        raise InputError(f"--target {options.target}: not available here; available: {', '.join(available)}")


# -- check ------------------------------------------------------------------------------------------------------------


def _add_check(commands) -> None:
    command = _add_command(commands, "check", _run_check, "Run the problems of a CSV file against the reference.")
    command.add_argument("cases", type=Path, metavar="CASES.csv", help="a problem a line")
    command.add_argument("--id", action="append", metavar="ID", help="only the case of this id (may be repeated)")
    command.add_argument("--limit", type=_argument(_positive), metavar="N", help="only the first N cases")
    _add_execution(command)


def _run_check(options: argparse.Namespace) -> int:
    from gyrograd import _check  # imports the reference, which nothing else needs

    _require_target(options)
    cases = _check.select(_check.read_cases(options.cases), options.id, options.limit)
    start = time.perf_counter()
    outcomes = [
        _check.run_case(case, options.threads, options.target)
        for case in _with_progress(cases, "checking", hidden=options.json)
    ]
    seconds = time.perf_counter() - start
    failed = [outcome for outcome in outcomes if not outcome.ok]
    groups = _group(outcomes)
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
    _print_groups(groups)
    for outcome in failed:
        _print_failure(outcome)
    print(f"{len(outcomes) - len(failed)} passed" + (f", {len(failed)} failed" if failed else ""))
    return FAILED if failed else OK


def _with_progress(items: Sequence, text: str, hidden: bool) -> Iterator:
    console = Console(stderr=True)
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        yield from progress.track(items)


def _group(outcomes: Sequence) -> list[dict[str, object]]:
    """What a mode and a type came to; in the order of MODES and DTYPES."""
    groups = []
    for mode in MODES:
        for dtype in DTYPES:
            members = [outcome for outcome in outcomes if (outcome.case.mode, outcome.case.dtype) == (mode, dtype)]
            if not members:
                continue
            passed = sum(outcome.ok for outcome in members)
            groups.append(
                {
                    "mode": mode,
                    "dtype": dtype,
                    "cases": len(members),
                    "passed": passed,
                    "failed": len(members) - passed,
                    "dx_wrong": sum(outcome.verdicts["dx"].mismatches for outcome in members),
                    "dcos_worst": _worst(outcome.verdicts["dcos"].worst for outcome in members),
                    "dsin_worst": _worst(outcome.verdicts["dsin"].worst for outcome in members),
                }
            )
    return groups


def _worst(errors: Iterator[float]) -> float:
    """The largest; a NaN is worse than anything."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def _print_groups(groups: Sequence[dict[str, object]]) -> None:
    columns = ("mode", "type", "cases", "passed", "failed", "dx", "dcos", "dsin")
    title = "dx: elements whose bits differ; dcos, dsin: largest error / bound (the last rounding alone can reach 1)"
    _print_table(title, columns, [tuple(group.values()) for group in groups])


def _failure(outcome) -> dict[str, object]:
    bad = {name: verdict for name, verdict in outcome.verdicts.items() if not verdict.ok}
    return {
        "id": outcome.case.id,
        "line": outcome.case.line,
        "results": {name: dataclasses.asdict(verdict) for name, verdict in bad.items()},
    }


def _print_failure(outcome) -> None:
    case = outcome.case
    print(
        f"FAILED {case.id} (line {case.line}): {case.mode} {case.dtype} "
        f"dy {format_shape(case.dy)} cos {format_shape(case.cos)}"
    )
    for name, verdict in outcome.verdicts.items():
        if not verdict.ok:
            print(f"  {name}: {verdict.mismatches} elements; {verdict.message}")


# -- grad -------------------------------------------------------------------------------------------------------------


def _add_grad(commands) -> None:
    command = _add_command(commands, "grad", _run_grad, "Compute dx, and dcos and dsin where x is given, from files.")
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a .npz or .safetensors file with the tensors dy, cos, sin and, if wanted, x; or dy.npy, cos.npy ... "
        "each; or dy=FILE.npy",
    )
    command.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUTPUT",
        help="a .npz or .safetensors file; a folder that gets dx.npy, dcos.npy, dsin.npy; for one result a .npy file. "
        "NumPy's files forget the name of bfloat16: read it back with .view(ml_dtypes.bfloat16), or use .safetensors",
    )
    _add_rotary(command)
    _add_execution(command)


def _run_grad(options: argparse.Namespace) -> int:
    from gyrograd import _files

    _require_target(options)
    tensors = _files.read_tensors(options.inputs, ("dy", "cos", "sin", "x"))
    missing = [name for name in ("dy", "cos", "sin") if name not in tensors]
    if missing:
        raise InputError(f"{' '.join(options.inputs)}: no tensor {', '.join(missing)}")
    wanted = options.outputs or (RESULTS if "x" in tensors else RESULTS[:1])
    files = _files.plan_outputs(options.output, wanted)
    _files.require_apart(options.inputs, files.values())
    start = time.perf_counter()
    results = _rotary_backward(tensors, options)
    seconds = time.perf_counter() - start
    _files.write_tensors(files, results)
    rows = [
        {"name": name, "shape": list(results[name].shape), "dtype": results[name].dtype.name, "file": str(files[name])}
        for name in wanted
    ]
    if options.json:
        _print_json({"outputs": rows, "seconds": round(seconds, 6)})
    else:
        cells = [(row["name"], format_shape(row["shape"]), row["dtype"], row["file"]) for row in rows]
        _print_table("written", ("tensor", "shape", "type", "file"), cells)
    return OK


def _rotary_backward(tensors: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, np.ndarray]:
    try:
        results = gyrograd.rotary_backward(**tensors, **_rotary_keywords(options))
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    results = results if isinstance(results, tuple) else (results, None, None)
    return {name: result for name, result in zip(RESULTS, results, strict=True) if result is not None}


# -- explain ----------------------------------------------------------------------------------------------------------


def _add_explain(commands) -> None:
    text = "Say which products take a problem, which rule refuses, and what plan would run here."
    command = _add_command(commands, "explain", _run_explain, text)
    shape = _argument(parse_shape)
    command.add_argument("--dy", type=shape, required=True, metavar="SHAPE", help="dy's shape, such as 2x4096x32x128")
    command.add_argument("--cos", type=shape, required=True, metavar="SHAPE", help="the tables' shape")
    command.add_argument("--dtype", type=_argument(parse_dtype), default="bf16", help="f64, f32, f16 or bf16 (default)")
    command.add_argument("--table-dtype", type=_argument(parse_dtype), help="the tables' type; default dy's")
    command.add_argument("--no-x", action="store_true", help="x is not given: dx alone")
    _add_rotary(command)
    _add_execution(command)


def _run_explain(options: argparse.Namespace) -> int:
    _require_target(options)
    table_dtype = options.table_dtype or options.dtype
    plan, refusal = None, None
    try:
        plan = _core.describe_rotary_backward(
            options.dy,
            options.cos,
            options.dtype,
            table_dtype,
            with_x=not options.no_x,
            **_rotary_keywords(options),
        )
    except (TypeError, ValueError) as error:
        refusal = str(error)
    products = _products(options, table_dtype, refusal)
    if options.json:
        value = {"accepted": refusal is None, "products": products, "plan": plan}
        _print_json(value if refusal is None else value | {"error": refusal})
    else:
        _print_table("which products take it", ("products", "take it", "why"), _product_rows(products))
        print(plan.rstrip() if refusal is None else f"refused: {refusal}")
    return OK if refusal is None else REFUSED


def _products(options: argparse.Namespace, table_dtype: str, refusal: str | None) -> list[dict[str, object]]:
    """Every product's verdict; "native" is the library itself."""
    wanted = options.outputs or (RESULTS[:1] if options.no_x else RESULTS)
    native, *products = _core.explain_rotary_backward(
        options.dy,
        options.cos,
        options.dtype,
        table_dtype,
        table_gradients=bool({"dcos", "dsin"} & set(wanted)),
        mode=options.mode,
        per_pair_tables=options.per_pair_tables,
        rotary_dim=options.rotary_dim,
    )
    return [native | {"accepted": refusal is None, "rule": refusal or ""}, *products]


def _product_rows(products: Sequence[dict[str, object]]) -> list[tuple[str, str, str]]:
    """Products with the same answer share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for verdict in products:
        answer = _readings(verdict["readings"]) or verdict["rule"] or "no limits beyond the operator's"
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
