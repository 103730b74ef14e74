"""Which rows to measure: the variances by hand, the choice against all subsets, and the command to its end."""

import itertools
import json

import numpy as np
import pytest
import yaml

from optmodels.errors import InputError
from optmodels.latency.engines import choice
from optmodels.latency.engines.choice import choose, measurable
from optmodels.latency.engines.document import deployment, read_engine_model
from optmodels.latency.engines.fit import Fitted, Form, Own, pull, sensitivities
from optmodels.latency.engines.own import TARGETS, Loops
from optmodels.latency.engines.terms import Loads

ON = ("--engine", "vllm", "--gpu", "h100", "--model", "qwen2.5-72b", "--precision", "fp8")


def coefficients():
    targets = read_engine_model().targets
    return tuple(targets[t].fitted for t in TARGETS)


def at(tp, *loads):
    columns = np.array(loads, dtype=float).T
    return Loops(deployment("vllm", "h100", "qwen2.5-72b", "fp8", tp), Loads(*columns))


GRID = [at(tp, *itertools.product((1, 32), (256, 4096), (64, 512))) for tp in (4, 8)]


def test_sensitivities_are_derivatives_of_what_is_pulled():
    """A pull by one row of nearly no noise moves its prediction by the gradient's share of each parameter."""
    own = Own({"*": 0.01, "layer": 0.5}, 0.5, 1.0)
    form = Form({"memory": (1.0, 0.5), "layer": (40.0, 0.7)}, {}, {"llm": 0.2}, (0.1, 0.05), own)
    base = Fitted({"memory": 1.5, "layer": 60.0}, {}, {"llm": {}})
    terms, level = {"memory": np.array([6e-3]), "layer": np.array([64e-6])}, {"llm": ["x"], "version": ["v"]}
    total = 1.5 * 6e-3 + 60 * 64e-6
    by_hand = [0.01 * 1.5 * 6e-3 / total, 0.5 * 60 * 64e-6 / total, 0.5 * 0.2]
    (found,) = sensitivities(form, base, terms, level)
    assert found == pytest.approx(by_hand)
    # To first order the mode is prior variance × gradient / (their sum + noise), all along the gradient.
    slightly = pull(form, base, terms, np.array([total * 1.001]), level)
    weight = (3 + 1) / 3  # of Student's t at a small residual
    moved = np.log(slightly.predict(terms, level)[0] / total)
    assert moved == pytest.approx(np.log(1.001) * found @ found / (found @ found + 1 / weight), rel=1e-3)


def covariances(candidates, matter):
    """Of the logarithms of what is measured or matters, before anything is: (their matrix, an own row's noise)."""
    seen = choice.JoinedLoops([*candidates, *matter])
    x = np.log(np.array([
        (c, i, o, s.deployment.gpus)
        for s in (*candidates, *matter)
        for c, i, o in zip(s.loads.concurrency, s.loads.input_tokens, s.loads.output_tokens, strict=True)
    ]))  # fmt: skip
    models = coefficients()
    far = (((x[:, None] - x[None]) / np.array([1.5, 1.5, 3.0, 2.0])) ** 2).sum(-1)
    for form, model, terms in ((choice.STEP_FORM, models[0], seen.step),
                               (choice.FIRST_TOKEN_FORM, models[1], seen.first(models[0]))):  # fmt: skip
        a = sensitivities(form, model, terms, seen.labels)
        yield a @ a.T + form.own.misfit**2 * np.exp(-far / 2), form.own.noise**2 * 1.5


ON_GRID = [*covariances(GRID, GRID)]


def left(rows, candidates=GRID, matter=GRID):
    """The sum to be least, from the statement: covariances conditioned at once, without the product's recursion."""
    n, total = sum(len(s.loads.concurrency) for s in candidates), 0.0
    for C, noise in ON_GRID if candidates is matter is GRID else covariances(candidates, matter):
        R, T = list(rows), np.arange(n, len(C))
        known = np.linalg.inv(C[np.ix_(R, R)] + noise * np.eye(len(R)))
        after = C[np.ix_(T, T)] - C[np.ix_(T, R)] @ known @ C[np.ix_(R, T)]
        total += np.diag(after).mean() / np.diag(C)[T].mean()
    return total


def test_the_choice_is_the_best_of_all_pairs_and_no_exchange_helps_five():
    two = choose(coefficients(), GRID, GRID, 2)
    lengths = [p for _ in (4, 8) for _, *p in itertools.product((1, 32), (256, 4096), (64, 512))]
    best = min((left(p), p) for p in itertools.combinations(range(16), 2) if lengths[p[0]] != lengths[p[1]])
    assert left(two.rows) == pytest.approx(best[0], rel=1e-9)
    five = choose(coefficients(), GRID, GRID, 5).rows.tolist()
    assert len({tuple(lengths[i]) for i in five}) >= 3
    for out, into in itertools.product(five, range(16)):
        other = [*(i for i in five if i != out), into]
        if len(set(other)) == 5 and len({tuple(lengths[i]) for i in other}) >= 3:
            assert left(other) >= left(five) - 1e-8
    by_chance = [left(np.random.default_rng(k).choice(16, 5, replace=False)) for k in range(20)]
    assert left(five) < min(by_chance)


def test_no_measured_value_enters_and_what_is_known_is_not_asked_again():
    chosen = choose(coefficients(), GRID, GRID, 3)
    for t in TARGETS:
        assert (chosen.after[t] < chosen.before[t]).all()
    # The same rows known: what is left to choose starts where they end, and goes elsewhere.
    columns = [np.concatenate([getattr(s.loads, name) for s in GRID]) for name in vars(GRID[0].loads)]
    known = [at(4 if i < 8 else 8, [c[i] for c in columns]) for i in chosen.rows]
    more = choose(coefficients(), GRID, GRID, 2, known)
    for t in TARGETS:
        assert more.before[t] == pytest.approx(chosen.after[t], rel=1e-6)
    assert not set(more.rows) & set(chosen.rows)
    with pytest.raises(InputError, match="at most the 16 candidates"):
        choose(coefficients(), GRID, GRID, 17)


def test_rows_that_matter_draw_the_choice_to_them():
    long = [at(8, (32, 4096, 512))]
    (row,) = choose(coefficients(), GRID, long, 1).rows
    others = [left([i], GRID, long) for i in range(16)]
    assert left([row], GRID, long) == pytest.approx(min(others), rel=1e-9)
    assert GRID[1].loads.input_tokens[row - 8] == 4096 and row >= 8


def test_what_may_be_measured_fits_the_cache_and_the_context():
    d = deployment("vllm", "h100", "llama-3.1-70b", "fp8", 2)
    room = read_engine_model().at(d).kv_tokens(2048)
    found = measurable(d, (1, 16, 4096), [(1024, 1024), (10**6, 1)])
    assert found.loads.concurrency.tolist() == [1.0, 16.0] and 16 * 2048 <= room < 4096 * 2048
    one = deployment("vllm", "h100", "llama-3.1-70b", "fp16", 1)
    assert len(measurable(one, (1,), [(128, 128)]).loads.concurrency) == 0


def test_the_command_chooses_writes_and_its_file_once_filled_in_calibrates(tmp_path, cli):
    out = tmp_path / "rows.csv"
    done = cli("rows-to-measure", *ON, "--out", out, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert len(found["rows"]) == 5 and len({(r["input_tokens"], r["output_tokens"]) for r in found["rows"]}) >= 3
    home = read_engine_model().at(deployment("vllm", "h100", "qwen2.5-72b", "fp8"))
    for target in ("TPOT", "TTFT"):
        name = f"{target.lower()}_s"
        own = home.targets[name].residual_quantiles["own_5"]["0.9"]
        assert found["targets"][target]["safety_09"] == {"now": home.factors(name)["0.9"], "after": own}
        priors = found["targets"][target]["by_the_priors"]
        assert 1 < priors["after"] < priors["now"]
    empty = cli("calibrate", out, "--form", "default", *ON)
    assert empty.status == 2 and "row 1.ttft_s" in empty.err
    head, *lines = out.read_text(encoding="utf-8").split()
    assert head == "concurrency,input_tokens,output_tokens,tp,ttft_s,tpot_s"
    out.write_text("\n".join([head, *(line.replace(",,", ",0.3,0.02") for line in lines)]), encoding="utf-8")
    pulled = cli("calibrate", out, "--form", "default", *ON)
    assert pulled.status == 0 and "5 rows of vllm, qwen2.5-72b in fp8 on h100" in pulled.out, pulled.err
    more = json.loads(cli("rows-to-measure", *ON, "--rows", 2, "--measured", out, "--json").out)
    assert more["targets"]["TTFT"]["by_the_priors"]["now"] == pytest.approx(
        found["targets"]["TTFT"]["by_the_priors"]["after"], rel=1e-6
    )
    assert not [r for r in more["rows"] if r in found["rows"]]


def test_the_commands_that_it_prints_make_the_file_that_calibrate_reads(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line.strip() for line in cli("rows-to-measure", *ON, "--tp", "4,8").out.splitlines()]
    ours = [line.split()[1:] for line in lines if line.startswith("optmodels ")]
    for line in lines:
        if line.startswith("vllm bench serve"):
            words = line.split()
            value = {w: v for w, v in itertools.pairwise(words) if w.startswith("--")}
            n, users = int(value["--num-prompts"]), int(value["--max-concurrency"])
            result = {
                "model_id": "x", "backend": "vllm", "max_concurrency": users, "completed": n,
                "total_input_tokens": n * int(value["--random-input-len"]),
                "total_output_tokens": n * int(value["--random-output-len"]),
                "mean_ttft_ms": 100 + users, "mean_tpot_ms": 10 + users / 8,
            }  # fmt: skip
            (tmp_path / value["--result-filename"]).write_text(json.dumps(result), encoding="utf-8")
    for command in ours:
        words = [w for word in command for w in (sorted(tmp_path.glob(word)) if "*" in word else [word])]
        done = cli(*words)
        assert done.status == 0, (command, done.err)
    assert (tmp_path / "own.yaml").is_file()


def test_each_benchmark_s_own_command_is_printed(cli):
    of = {tool: cli("rows-to-measure", *ON, "--tp", "4", "--tool", tool, "--json") for tool in ("sglang", "guidellm")}
    first = {tool: json.loads(done.out)["commands"][0] for tool, done in of.items()}
    assert "sglang.bench_serving" in first["sglang"] and "--random-range-ratio 1" in first["sglang"]
    assert "guidellm benchmark" in first["guidellm"] and "prompt_tokens=" in first["guidellm"]
    assert cli("rows-to-measure", *ON, "--tool", "ab").status == 2


def test_an_instance_says_which_loops_matter(tmp_path, cli):
    instance = {
        "formulation": "cost_efficiency", "schema": 1, "name": "two-gpus", "model": "llama-3.1-70b",
        "workload": {"batch": 16, "input_tokens": 3000, "output_tokens": 200}, "serving": "continuous",
        "slo": {"kind": "real_time", "tps": 100, "ttft_s": 5.0, "tpot_s": 0.1},
        "strategies": {"families": ["high_end"]},
        "pool": {"machines": [
            {"machine": f"eight-{gpu}", "gpu": gpu, "gpu_count": 8, "vram_gib": 80, "prices": {"on_demand": 30.0}}
            for gpu in ("h100", "a100-80g")
        ]},
        "latency": {"model": "default"},
    }  # fmt: skip
    (tmp_path / "i.yaml").write_text(yaml.safe_dump(instance), encoding="utf-8")
    which = cli("rows-to-measure", tmp_path / "i.yaml")
    assert which.status == 2 and "--gpu: missing; expected one of the problem's: a100-80g, h100" in which.err
    done = cli("rows-to-measure", tmp_path / "i.yaml", "--gpu", "h100", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["engine"], found["llm"], found["precision"]) == ("vllm", "llama-3.1-70b", "fp16")
    # Five levels of concurrency at most on each GPU and TP matter, all of the instance's lengths.
    assert 10 <= found["predicted"] <= 40 < found["candidates"]
    peaks = {k: v for k, v in instance.items() if k != "latency"} | {"serving": "static"}
    (tmp_path / "i.yaml").write_text(yaml.safe_dump(peaks), encoding="utf-8")
    refused = cli("rows-to-measure", tmp_path / "i.yaml", "--gpu", "h100")
    assert refused.status == 2 and "latencies of engines' steps" in refused.err


@pytest.mark.parametrize(("options", "said"), [
    (("--gpu", "h100"), "--engine: missing"),
    ((*ON, "--rows", 5, "--tp", "8", "--concurrency", "1", "--input-tokens", "64", "--output-tokens", "64"),
     "--rows: got 5; expected at most the 1 candidates"),
    ((*ON[:-4], "--model", "deepseek-v3", "--precision", "fp8", "--tp", "1"), "GPUs that hold deepseek-v3 in fp8"),
    ((*ON, "--out", "rows.parquet"), "a file ending in .csv"),
    ((*ON, "--candidates", "none.csv"), "none.csv"),
    ((*ON, "--tp", "0"), "--tp"),
])  # fmt: skip
def test_what_cannot_be_chosen_from_is_refused_in_words(options, said, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("rows-to-measure", *options)
    assert done.status == 2 and said in done.err, done.err


def test_candidates_of_ones_own_need_no_latencies(tmp_path, cli):
    lines = ["concurrency,input_tokens,output_tokens,tp"]
    lines += [f"{c},{i},{o},4" for c, i, o in itertools.product((2, 50), (300, 5000), (70, 600))]
    (tmp_path / "may.csv").write_text("\n".join(lines), encoding="utf-8")
    found = json.loads(cli("rows-to-measure", *ON, "--candidates", tmp_path / "may.csv", "--json").out)
    assert found["candidates"] == 8 and {r["tp"] for r in found["rows"]} == {4}
    assert {r["concurrency"] for r in found["rows"]} <= {2, 50}
    (tmp_path / "may.csv").write_text("\n".join([*lines, "0,1,1,4"]), encoding="utf-8")
    done = cli("rows-to-measure", *ON, "--candidates", tmp_path / "may.csv")
    assert done.status == 2 and "row 9.concurrency" in done.err


def test_more_than_can_be_compared_is_refused_not_cut(monkeypatch):
    monkeypatch.setattr(choice, "MOST_PAIRS", 500)
    with pytest.raises(InputError, match="candidates: got 16; expected at most 500 pairs"):
        choose(coefficients(), GRID, GRID, 3)
