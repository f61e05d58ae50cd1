"""Which weights people decay, which are Muon's, and how deep they lie, on our networks and those of others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isogon import nets
from isogon.optim import decayed_weights, depths, hidden_matrices


def test_of_a_gpt_all_matrices_but_embedding_and_head():
    model = nets.gpt(16, 6, depth=2, width=8, heads=2, affine=True, bias=True, positions="learned")
    assert set(decayed_weights(model)) == {
        name for name, weight in model.named_parameters()
        if weight.dim() == 2 and name not in ("embedding.weight", "positions")
    }  # fmt: skip
    assert set(decayed_weights(model)) - set(hidden_matrices(model)) == {"head.weight"}


def test_a_head_that_is_the_embedding_is_neither():
    model = nets.gpt(16, 6, depth=1, width=8, heads=2, tied=True)
    assert not any("embedding" in name or "head" in name for name in decayed_weights(model))
    # and the last block's matrices stay hidden ones
    assert "blocks.0.mlp.up.weight" in hidden_matrices(model)


def test_of_a_vit_neither_class_token_nor_positions():
    model = nets.vit(10, 1, image_size=8, patch=4, depth=1, width=8, heads=2)
    assert not {"class_token", "positions"} & set(decayed_weights(model))
    assert {"patches.weight", "head.weight"} <= set(decayed_weights(model))
    assert "head.weight" not in hidden_matrices(model)


def test_of_a_resnet_the_convolutions():
    model = nets.resnet18(10, width=4)
    assert all(dict(model.named_parameters())[name].dim() >= 2 for name in decayed_weights(model))
    assert len(decayed_weights(model)) == 21
    assert "head.classifier.weight" not in hidden_matrices(model)


def test_frozen_weights_are_nobodys():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False))
    assert decayed_weights(model) == ("0.weight",)


def test_of_hugging_faces_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    assert all(".h." in name for name in hidden_matrices(model))
    assert len(hidden_matrices(model)) == 8
    deep = depths(model)
    assert (deep["transformer.wte.weight"], deep["transformer.h.1.attn.c_attn.weight"]) == (0, 2)
    assert deep["transformer.ln_f.weight"] == 3


def test_depths_without_a_row_of_blocks_are_nil():
    assert set(depths(nn.Linear(2, 2)).values()) == {0}


def test_depths_rise_with_the_order_of_use():
    model = nets.vit(10, 1, image_size=8, patch=4, depth=3, width=8, heads=2)
    deep = depths(model)
    assert deep["patches.weight"] == deep["positions"] == 0
    assert [deep[f"blocks.{i}.mlp.up.weight"] for i in range(3)] == [1, 2, 3]
    assert deep["head.weight"] == deep["norm.weight"] == 4
    assert list(deep) == [name for name, _ in model.named_parameters()]
    assert torch.tensor(list(deep.values())).diff().min() >= 0


def test_the_head_is_the_last_layer_tied_or_not():
    for tied in (False, True):
        names = hidden_matrices(nets.gpt(7, 4, depth=2, width=8, heads=2, tied=tied))
        assert "blocks.1.mlp.down.weight" in names
        assert "head.weight" not in names


def test_depths_are_those_of_blocks_and_not_of_a_blocks_parts():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))

    model = nn.Module()
    model.blocks, model.head = nn.ModuleList([Block(), Block()]), nn.Linear(2, 2)
    answer = depths(model)
    assert {answer[f"blocks.0.experts.{number}.weight"] for number in range(4)} == {1}
    assert {answer[f"blocks.1.experts.{number}.weight"] for number in range(4)} == {2}
    assert answer["head.weight"] == 3
    plain = depths(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    assert plain["0.weight"] < plain["2.weight"]
