"""Every verb is a function of `optmodels` with the names and options of the command line, and its file is named so."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from keyword import iskeyword
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_group

import optmodels
from optmodels.api import VERBS, VERBS_BY_JOB
from optmodels.cli import command_line
from optmodels.errors import InputError

ROOT = Path(__file__).parent.parent
COMMANDS = get_group(command_line()).commands
# Options that no function has, with the reason; verb and option, `*` for every verb.
COMMANDS_ONLY = {
    "* help": "Python has help()",
    "* json": "functions return the document",
    "plan show_problem": "functions return the problem in the result",
    "new interactive": "it asks at a terminal",
    "report open": "it opens a browser",
    "tables rows": "how many rows the terminal shows",
    "measure model": "hidden: its message names --set",
}
# Options whose help is not the first sentence of the function's argument, with the reason.
OWN_HELP = {
    "as text what Python has as mappings": {
        "* column", "* where", "* set", "* quota", "plan skip_bad", "sweep vary", "stress inflate"
    },
    "files alone where Python takes documents, too": {
        "solve problem", "explain problem", "fewest_gpus problem", "sweep problem", "compare problems", "check plan",
        "replay plan", "export plan", "stress plan", "migrate plan", "max_rate plan", "report results", "replan file",
        "tables source",
    },
    "written without being asked": {"solve out", "replay out", "sweep out", "report out", "export out"},
}  # fmt: skip
# Arguments that only Python can give: callbacks, an event, what is known only there.
PYTHON = {
    "cancel", "command", "how", "policies", "on_event", "on_note", "on_question", "on_result", "on_row", "on_skip",
    "on_step",
}  # fmt: skip


def options_of(verb: str) -> dict[str, Any]:
    """Its parameters on the command line, by the name that Python gives them."""
    found = {}
    for p in COMMANDS[verb.replace("_", "-")].params:
        longest = max(p.opts, key=len) if p.param_type_name == "option" else p.name
        name = (p.opts[0] if p.param_type_name == "option" else longest).lstrip("-").replace("-", "_").lower()
        found[f"{name}_" if iskeyword(name) else name] = p
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_options_have_the_same_names(verb: str) -> None:
    """A function has the options of its command, and others that only Python can give."""
    here = set(inspect.signature(getattr(optmodels, verb)).parameters) - PYTHON
    there = {name for name in options_of(verb) if not COMMANDS_ONLY.keys() & {f"* {name}", f"{verb} {name}"}}
    assert there == here


def test_options_without_a_function_are_those_listed() -> None:
    options = {f"{who} {name}" for verb in VERBS for name in options_of(verb) for who in ("*", verb)}
    arguments = {f"{verb} {name}" for verb in VERBS for name in inspect.signature(getattr(optmodels, verb)).parameters}
    assert set(COMMANDS_ONLY) - options == {"* help"} and not set(COMMANDS_ONLY) & arguments
    hidden = {f"{verb} {name}" for verb in VERBS for name, p in options_of(verb).items() if getattr(p, "hidden", False)}
    assert hidden == {"measure model"}


def test_help_is_the_first_sentence_of_the_argument() -> None:
    """As the docstring of the function has it, read by another reader than that of the command line."""
    own, seen = {key for keys in OWN_HELP.values() for key in keys}, set()
    for verb in VERBS:
        of_api = inspect.signature(getattr(optmodels, verb)).parameters
        sentences = first_sentences(getattr(optmodels, verb))
        assert sentences.keys() == of_api.keys(), verb  # each argument has an entry
        for name, option in options_of(verb).items():
            if getattr(option, "hidden", False):
                continue
            assert option.help and option.help.endswith("."), (verb, name)
            if name not in of_api or words_of(option.help)[: len(sentences[name])] == sentences[name]:
                continue
            [key] = own & {f"* {name}", f"{verb} {name}"} or [f"{verb} {name} has another help: {option.help}"]
            seen.add(key)
    assert seen == own


def first_sentences(function: Any) -> dict[str, list[str]]:
    """Words of the first sentence of every entry below ``Args:``."""
    found: dict[str, str] = {}
    lines = iter((inspect.getdoc(function) or "").splitlines())
    for line in lines:
        if line == "Args:":
            break
    names: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            break
        if re.match(r"    \w", line):
            start, _, line = line.strip().partition(": ")
            names = start.split(", ")
        for name in names:
            found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: words_of(re.split(r"\.(?:\s|$)", text)[0]) for name, text in found.items()}


def words_of(text: str) -> list[str]:
    """Words in lower case without marks; a default of None is called default, options and FILE as parameters."""
    text = re.sub(r" \(`\w+\.[^)]*\)| \(file, mapping or `Problem`\)", "", text).replace("None: ", "default: ")
    text = re.sub(r"--([a-z][\w-]*)", lambda m: m[1].replace("-", "_"), text)
    return re.sub(r"[`.,;:()]", " ", text.replace("`files`", "file").lower()).split()


@pytest.mark.parametrize("verb", VERBS)
def test_defaults_are_the_same(verb: str) -> None:
    """But for files, which a function writes only where it is told to, and lists that are text on the command line."""
    signature = inspect.signature(getattr(optmodels, verb)).parameters
    for name, option in options_of(verb).items():
        if name not in signature or name == "workers" or option.required:
            continue
        here, there = signature[name].default, option.default
        text = not isinstance(here, str) and isinstance(there, str)
        given = [type(here[0])(x) for x in there.split(",")] if text and here else there  # "1,2,4" of (1, 2, 4)
        assert (here or None) == (given or None) or list(here) == given or there is None, (name, here, there)


def test_files_are_named_as_their_verbs() -> None:
    for layer in ("api", "cli"):
        for verb in VERBS:
            text = (ROOT / "optmodels" / layer / f"{verb}.py").read_text(encoding="utf-8")
            assert text.startswith(f'"""`{verb.replace("_", "-")}`: ')
            assert re.search(rf"^def {verb}\(", text, flags=re.M)
    assert set(COMMANDS) == {verb.replace("_", "-") for verb in VERBS}
    more = {"load", "InputError", "NotWrittenError"}
    assert {n for n in dir(optmodels) if n[0] != "_"} == {*VERBS, *more} == set(optmodels.__all__)


def test_help_groups_the_verbs_by_job(cli: Any) -> None:
    """Each line is a whole sentence that fits, and says what the verb does."""
    lines = cli("--help").out.splitlines()
    for job, verbs in VERBS_BY_JOB.items():
        at = lines.index(f"{job.capitalize()}:")
        for verb, line in zip(verbs, lines[at + 1 :], strict=False):
            name, sentence = line.split(maxsplit=1)
            assert name == verb.replace("_", "-") and sentence.endswith(".") and not sentence.endswith("...")
            assert not re.match(r"(What|Why|Of|The|A|An|How|Where|Which)\b", sentence), line


def test_importing_is_light() -> None:
    """No solver, table or plot comes with the package; nor with the names of its verbs."""
    heavy = "{'numpy', 'pandas', 'pydantic', 'pyomo', 'highspy', 'typer', 'rich', 'scipy', 'numba'}"
    code = f"import sys, optmodels; dir(optmodels); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ------------------------------------------------------------------------------------------ every verb from Python


@pytest.fixture
def solved(tiny: Any, tmp_path: Path) -> tuple[Path, Path]:
    """An instance file and the folder of its result."""
    file = tmp_path / "instance.yaml"
    file.write_text(yaml.safe_dump(tiny()), encoding="utf-8")
    result = optmodels.solve(file, out=tmp_path / "results")
    return file, Path(result.log["folder"])


def test_plan_from_python(tmp_path: Path) -> None:
    asked = {"input": 500, "output": "200", "rate": "5/s", "gpu": "l4", "ttft_p95": "2 s"}
    result = optmodels.plan("llama-3.1-8b", **asked, write=tmp_path / "same.yaml")
    assert result.status == "optimal" and "command" not in result.log
    assert optmodels.solve(tmp_path / "same.yaml").objective == result.objective
    seen = optmodels.replay(result, seed=1, parquet=True, out=tmp_path / "seen")
    assert seen["report"]["policies"] and list((tmp_path / "seen").rglob("*.parquet"))
    with pytest.raises(InputError, match="--ttft-p95"):
        optmodels.plan("llama-3.1-8b", **asked | {"ttft_p95": -1.0})
    with pytest.raises(InputError, match="one limit"):
        optmodels.plan("llama-3.1-8b", **asked, ttft=1.0)


def test_verbs_about_an_instance_from_python(solved: tuple[Path, Path], tmp_path: Path) -> None:
    file, _ = solved
    assert optmodels.explain(file, max_solves=5, next=0).model_dump()["instance"] == str(file)
    rows = optmodels.compare([file.parent], ["exact", "greedy"], out=tmp_path / "compared")
    assert [r["method"] for r in rows] == ["exact", "greedy"] and list((tmp_path / "compared").rglob("compare.json"))
    found = optmodels.sweep(file, {"slo.tps": [1.0, 2.0]})
    assert len(found.rows) == 2
    assert optmodels.tables(file, out=tmp_path / "points.csv") is not None
    assert (tmp_path / "points.csv").exists() and (tmp_path / "points-curves.csv").exists()


def test_verbs_about_a_plan_from_python(solved: tuple[Path, Path], tmp_path: Path) -> None:
    _, folder = solved
    assert optmodels.check(folder).ok
    assert "<html" in optmodels.report(folder, out=tmp_path / "page.html")
    assert optmodels.export(folder, "lp", out=tmp_path / "model").files
    with pytest.raises(InputError, match="existing file"):
        optmodels.export(folder, "lp", out=tmp_path / "model")


def test_reference_from_python(tmp_path: Path) -> None:
    assert {r["name"] for r in optmodels.list()} >= {"fleet", "orchestration"}
    assert {r["region"] for r in optmodels.list("machines", cloud="gcp", region="europe-west4")} == {"europe-west4"}
    assert optmodels.schema("fleet")["title"] and str(optmodels.schema("fleet", keys=True)).startswith("#")
    assert optmodels.new("fleet", tmp_path / "fleet.yaml") == (tmp_path / "fleet.yaml").read_text(encoding="utf-8")
    assert Path(optmodels.new("formulation", "my_own", tmp_path)).is_dir()
    with pytest.raises(InputError, match="from"):
        optmodels.new("formulation", "another", tmp_path, from_="x")


def test_simulations_from_python(tmp_path: Path) -> None:
    found = optmodels.simulate("llama-3.1-8b", "h100", "poisson:2:50:20:3", latencies="roofline", ttft_limit=0.5)
    assert found["report"]["requests"] > 0 and found["limits"]["ttft_s"] == 0.5
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 1024, "output_length": 8, "hash_ids": [0, i % 3]}
            for i in range(20)]  # fmt: skip
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert optmodels.prefix_hits(trace, [1e6], [1, 2], out=tmp_path / "hits.json")["optmodels_version"]


def test_backtest_from_python(tmp_path: Path) -> None:
    history = tmp_path / "history.csv"
    lines = [f"2026-01-{1 + m // 1440:02}T{m // 60 % 24:02}:{m % 60:02}:00Z,{60 + m % 1440 // 12}"
             for m in range(3 * 1440)]  # fmt: skip
    history.write_text("time,requests\n" + "\n".join(lines), encoding="utf-8")
    found = optmodels.backtest(history=history, replica=(2.0, 10.0), train="2d", judge="1d", methods=["static"])
    assert found["judge_min"] == 1440 and found["rows"][0]["method"] == "static"
    with pytest.raises(InputError, match="duration"):
        optmodels.backtest(history=history, replica="2:10", train="7")


def test_latencies_from_python(tmp_path: Path) -> None:
    """Measured, fitted, tabulated, divided, and turned into rows of an instance."""
    steps = tmp_path / "steps.csv"
    cells = [(b, c) for b in (1, 2, 4, 8, 16, 32) for c in (100, 500, 1000, 2000)]
    steps.write_text("n,ctx,ms\n" + "".join(f"{b},{c},{10 + 1e-4 * b * c + 0.1 * b}\n" for b, c in cells))
    column = {"decode_requests": "n", "decode_context_tokens": "ctx", "latency_s": "ms:ms"}
    model = optmodels.calibrate(steps, form="two_segment", column=column, out=tmp_path / "model.yaml")
    assert model.model == "two_segment"
    batch = {"schema": 1, "requests": [{"id": "a", "tenant": "x", "tokens": 1, "context_tokens": 900}]}
    shares = optmodels.attribute(batch, tmp_path / "model.yaml")
    assert shares["requests"][0]["share_s"] == pytest.approx(shares["latency_s"])
    limits = optmodels.batch_limits(
        1e5, input_mean=500, output_mean=100, latencies=tmp_path / "model.yaml", limit_s=0.02
    )
    assert 0 < limits["batch"] <= limits["b_sla"]
    curve = optmodels.tables(tmp_path / "model.yaml", x="decode_requests=1:32", y="latency_s", max_error=0.01,
                             set={"decode_context_tokens": 500})  # fmt: skip
    assert curve.max_error <= 0.01
    rows = optmodels.operating_points(
        "default", machine="one", batch=8, input_tokens=500, output_tokens=100, engine="vllm", gpu="h100",
        model="llama-3.1-8b",
    )["operating_points"]  # fmt: skip
    assert rows[0]["e2e_s"] > 0
    chosen = optmodels.rows_to_measure(engine="vllm", gpu="h100", model="llama-3.1-8b", tp=[1], rows=2)
    assert len(chosen["rows"]) == 2 and chosen["commands"]
    served = tmp_path / "served.csv"
    served.write_text("concurrency,input_tokens,output_tokens,tp,ttft_s,tpot_s\n8,500,100,1,0.1,0.02\n")
    measured = optmodels.measure([served], out=tmp_path / "rows.csv")
    assert measured["kind"] == "served" and (tmp_path / "rows.csv").exists()


def test_fewest_gpus_and_evaluate_from_python() -> None:
    """Of a formulation that counts none they say which can."""
    instance = ROOT / "instances" / "cost_efficiency" / "textbook"
    file = sorted(instance.glob("*.yaml"))[0]
    with pytest.raises(InputError, match="a problem file of fleet"):
        optmodels.fewest_gpus(file)
    with pytest.raises(InputError, match="a problem file of fleet"):
        optmodels.evaluate({"instance": "x", "formulation": "fleet"}, problem=file)


def test_older_names_of_arguments_are_read_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="list: pool is called cloud now"):
        older = optmodels.list("machines", pool="gcp")  # type: ignore[call-arg]
    assert older == optmodels.list("machines", cloud="gcp")
    file = tmp_path / "none.csv"
    for older_names in ({"model": "steps"}, {"model": "steps", "llm": "llama-3.1-8b", "gpu": "h100"}):
        with pytest.warns(DeprecationWarning, match="model is called form now"), pytest.raises(InputError):
            optmodels.calibrate(file, **older_names)  # type: ignore[arg-type]
