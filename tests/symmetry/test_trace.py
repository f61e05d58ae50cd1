"""How models become graphs: as people call them, and with one sentence where that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isogon.symmetry import ExportError, check, symmetries

IDS = torch.tensor([[3, 14, 15, 9, 2, 6, 5, 35], [8, 9, 7, 9, 3, 2, 38, 46]])


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y[y > 0].sum()


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else -y  # the branch


@pytest.mark.parametrize("ask", [check, symmetries])
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Masked(), r"Masked makes a tensor whose size depends on values .*y\[y > 0\]"),
        (Branching(), r"cannot export Branching with these inputs, at test_trace.py:\d+ \(return y if"),
    ],
)
def test_what_depends_on_values_gets_one_sentence(ask, model, sentence, capfd):
    with pytest.raises(ExportError, match=sentence) as refused:
        ask(model, torch.randn(3, 4))
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_meta_tensors_are_enough():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4)).to("meta")
    x = torch.randn(3, 4, device="meta")
    assert check(model, x).invariant == ("0.weight",)
    assert symmetries(model, x).alone == ("0.weight",)


@pytest.mark.parametrize("name", ["OPT", "Bart"])
def test_layers_are_not_dropped_while_a_model_in_training_is_traced(name):
    transformers = pytest.importorskip("transformers")
    options = {"vocab_size": 50, "max_position_embeddings": 32, "bos_token_id": None, "eos_token_id": None}
    if name == "OPT":
        config = transformers.OPTConfig(
            hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16,
            layerdrop=0.1, **options,
        )  # fmt: skip
        model = transformers.OPTForCausalLM(config).train()
    else:
        sizes = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (
            ("layers", 1), ("attention_heads", 2), ("ffn_dim", 32), ("layerdrop", 0.1))}  # fmt: skip
        model = transformers.BartModel(transformers.BartConfig(d_model=16, **sizes, **options)).train()
    answer = check(model, IDS)
    assert any("layerdrop" in sentence for sentence in answer.assumptions)
    # The model keeps its own rate.
    assert all(isinstance(module.layerdrop, float) for module in model.modules() if hasattr(module, "layerdrop"))


class Skips(nn.Module):
    """Leaves its layer out as some numbers say that numpy draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.layerdrop = nn.Linear(4, 4), 0.9

    def forward(self, x: Tensor) -> Tensor:
        return x if np.random.uniform(0, 1) < self.layerdrop else self.layer(x)


def test_layers_are_not_dropped_as_numpy_says():
    assert check(Skips(), torch.randn(3, 4)).alone["layer.weight"].verdict == "not invariant"


def test_models_with_a_cache_are_traced_without_it():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.inner(ids).logits
            return logits

    assert len(check(Wrapped(), IDS).alone) == len(list(model.parameters()))
    assert config.use_cache
    batch = transformers.BatchEncoding({"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS})
    assert any("use_cache=False" in sentence for sentence in check(model, batch).assumptions)
