"""Published checkpoints: which LLM of the catalogue and which weight precision each name states."""

import pytest
from published_names import CLOSED, OTHER_FORMATS, OTHER_MODELS, SAME, STATED

from optmodels import catalog
from optmodels.catalog.spelling import _words, llm_of, precision_of, unknown_llm

TABLE = [(name, key, None) for key, names in SAME.items() for name in names.split()]
TABLE += [(name, key, p) for p, models in STATED.items() for key, names in models.items() for name in names.split()]


def test_every_published_name_is_its_model_and_states_its_precision():
    wrong = [(n, llm_of(n), precision_of(n)) for n, key, p in TABLE if (llm_of(n), precision_of(n)) != (key, p)]
    assert wrong == []
    assert len(TABLE) == len({name for name, *_ in TABLE}) >= 200
    assert {key for _, key, _ in TABLE} == set(catalog.llms())


def test_names_of_other_models_are_nobody_s():
    assert [(n, llm_of(n)) for n in OTHER_MODELS if llm_of(n) is not None] == []


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_a_weight_format_without_latencies_is_no_precision(name):
    assert llm_of(name) is None and precision_of(name) is None


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_model_is_called_closed(name):
    mistake = unknown_llm("--model", name)
    assert "closed" in mistake.expected and "optmodels list catalog" in mistake.expected


def test_an_unknown_model_gets_the_command_and_at_most_three_names():
    for name in OTHER_MODELS:
        mistake = unknown_llm("--model", name)
        assert "closed" not in mistake.expected and "optmodels list catalog" in mistake.expected
        assert (mistake.hint or "").count(",") + (mistake.hint or "").count(" or ") <= 2
    assert unknown_llm("--model", "Qwen3-30B").hint.startswith("did you mean qwen3-30b-a3b")


def test_changing_one_number_of_a_known_name_never_keeps_the_model():
    import re

    same = {_words(n) for n, *_ in TABLE}  # versions of one shape: Qwen3.6-27B is Qwen3.5-27B's
    for name, key, _ in TABLE:
        for m in re.finditer(r"\d+", name.rpartition("/")[2]):
            changed = name.rpartition("/")[2]
            changed = changed[: m.start()] + str(int(m[0]) + 1) + changed[m.end() :]
            kept = llm_of(changed) == key and precision_of(changed) == precision_of(name)
            assert not kept or _words(changed) in same, (name, changed)
