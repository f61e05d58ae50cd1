"""Study files: what is accepted, and the sentence for what is not."""

from __future__ import annotations

import pytest

from isogon.errors import IsogonError
from isogon.search import Study

RECIPE = {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1400, "epochs": 3}
TASK = {"net": "cnn4", "net_options": {"width": 4}, "data": "digits", "augmentation": "none"}


def made(recipe=None, task=None, **tables) -> Study:
    return Study.from_tables({"recipe": {**RECIPE, **(recipe or {})}, "task": {**TASK, **(task or {})}, **tables})


@pytest.mark.parametrize("unknown", ["weight_decay", "lr"])
@pytest.mark.parametrize("samples", [1400, 175])
def test_a_trials_recipe_has_the_tuning_factor_asked_for(unknown, samples):
    known = {"weight_decay": 5e-3, "lr": 0.1}
    study = made({**known, unknown: "?"})
    recipe = study.recipe.recipe(tuning_factor=0.2, samples=samples)
    assert recipe.tuning_factor == pytest.approx(0.2, rel=1e-12)
    assert recipe.samples == samples
    other = "lr" if unknown == "weight_decay" else "weight_decay"
    assert getattr(recipe, other) == known[other]


def test_defaults_cost_an_eighth_of_the_full_grid():
    """Seven cells at 1/16 and three at 1/8, against seven at the full size."""
    search = made().search
    assert search.fractions == (1 / 16, 1 / 8)
    grid = search.first_grid
    assert len(grid) == 7
    assert grid[3] == pytest.approx(10 / 128)
    assert grid[4] / grid[3] == pytest.approx(2)
    assert pytest.approx(0.116, abs=5e-4) == (7 / 16 + 3 / 8) / 7


def test_a_file_and_its_tables_are_the_same_study(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        '[recipe]\nlr = 0.1\nweight_decay = "?"\nbatch_size = 50\nsamples = 1400\nepochs = 3\n'
        '[task]\nnet = "cnn4"\nnet_options = { width = 4 }\ndata = "digits"\naugmentation = "none"\n'
        '[search]\nfractions = ["1/4", 0.5]\n'
    )
    study = Study.read(file)
    assert study == made(search={"fractions": [0.25, "1/2"]})
    assert study.key == made(search={"fractions": [0.25, "1/2"]}).key
    assert study.key == made(search={"fractions": [0.25, "1/2"]}, run={"engine": "lanes", "workers": 3}).key
    assert study.key != made().key
    config = study.config(tuning_factor=0.1, samples=350, seed=1)
    assert (config.recipe.samples, config.seed, config.net) == (350, 1, "cnn4")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"recipe": {"weight_decay": 1e-3}}, r"recipe needs exactly one of lr and weight_decay"),
        ({"recipe": {"lr": "?"}}, r"recipe needs exactly one of lr and weight_decay"),
        ({"recipe": {"batchsize": 3}}, r"recipe\.batchsize is none that isogon knows: did you mean batch_size"),
        ({"recipe": {"epochs": "many"}}, r"recipe\.epochs must be .*got 'many'"),
        ({"recipe": {"momentum": 1.5}}, r"momentum must be .*1\.5"),
        ({"task": {"net": "resnet99"}}, None),
        ({"task": {"schedule": "steps"}}, r"schedule must be"),
        ({"task": {"objective": "a:b"}}, r"task needs either data .* or objective"),
        ({"search": {"fractions": ["1/8", "1/16"]}}, r"search\.fractions must be rising"),
        ({"search": {"fractions": ["a half"]}}, r"search\.fractions .*'a half' is neither"),
        ({"search": {"fractions": [2]}}, r"search\.fractions must be rising numbers above 0 and at most 1"),
        ({"search": {"seeds": 0}}, r"search\.seeds must be greater than or equal to 1, got 0"),
        ({"search": {"grid": [0.2, 0.1, 0.4]}}, r"search\.grid must be three or more rising"),
        ({"search": {"sampler": "magic"}}, r"search\.sampler must be"),
        ({"run": {"engine": "slow"}}, r"run\.engine must be"),
        ({"recipe": {"samples": 10**400}}, r"recipe\.samples must be less than or equal to 10+, got 10+"),
        ({"recipe": {"epochs": 0}}, r"recipe\.epochs must be greater than or equal to 1, got 0"),
        ({"recipe": {"samples": 400}}, r"recipe\.batch_size must be at most the 25 samples"),
        ({"extra": {}}, r"study key extra is none that isogon knows"),
    ],
)
def test_slips_get_one_sentence_with_the_key(change, sentence):
    if sentence is None:  # only seen when the network is made
        made(**change)
        return
    with pytest.raises(IsogonError, match=sentence) as caught:
        made(**change)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(IsogonError, match="No such file"):
        Study.read(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[recipe\n")
    with pytest.raises(IsogonError, match="a TOML file"):
        Study.read(bad)
    with pytest.raises(IsogonError, match=r"study key task is missing"):
        Study.from_tables({"recipe": RECIPE})
