"""All scale symmetries: what is found on the models people train, against what measuring finds."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isogon.errors import ArgumentError
from isogon.symmetry import DisagreementWarning, Symmetries, check, register_rule, remove_rule, symmetries
from isogon.symmetry.groups._null_space import groups_of_ones

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
WIDTH, VOCABULARY = 32, 50
IDS = torch.tensor([[3, 14, 15, 9, 2, 6, 5, 35], [8, 9, 7, 9, 3, 2, 38, 46]])
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}
#: no token of these models is special
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
PICTURES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4}


def rms(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


class Block(nn.Module):
    """A block as small language models have it: normalised queries and keys, relu², no affine."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.fc, self.proj = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = rms(x)
        q, k, v = (layer(y).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(rms(q), rms(k), v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.proj(F.relu(self.fc(rms(x))).square())


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.h = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = rms(self.wte(ids))
        for block in self.h:
            x = block(x)
        return 15 * torch.tanh(self.head(rms(x)) / 15)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.norm = nn.Embedding(VOCABULARY, 8), nn.LayerNorm(8)
        self.lstm, self.head = nn.LSTM(8, 16, num_layers=2, batch_first=True), nn.Linear(16, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.norm(self.wte(ids)))[0])
        return out


class TwoConvs(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(4, out)
        self.c2, self.n2 = nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.n2(self.c2(torch.relu(self.n1(self.c1(x))))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.right = TwoConvs(3, 8), TwoConvs(8, 16), TwoConvs(16, 8)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left = self.down(x)
        below = self.up(self.middle(F.max_pool2d(left, 2)))
        out: Tensor = self.out(self.right(torch.cat([left, below], 1)))
        return out


def _transformers(model: str, config: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made.eval()


def _text(model: str, config: str, **options: Any) -> Built:
    return _transformers(model, config, **{**SIZES, **NO_TOKENS, **options}), (IDS,), {}


def _image(model: str, config: str, **options: Any) -> Built:
    return _transformers(model, config, image_size=32, **options), (torch.randn(2, 3, 32, 32),), {}


def _t5() -> Built:
    options = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return _transformers("T5ForConditionalGeneration", "T5Config", **options), (IDS,), {"decoder_input_ids": IDS[:, :4]}


QUICK: dict[str, Callable[[], Built]] = {
    "gpt2": lambda: (
        _transformers(
            "GPT2LMHeadModel",
            "GPT2Config",
            n_layer=2, n_head=4, n_embd=WIDTH, vocab_size=VOCABULARY, n_positions=16, **NO_TOKENS,
        ),
        (IDS,),
        {},
    ),
    "llama": lambda: _text("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2),
    "olmo2": lambda: _text("Olmo2ForCausalLM", "Olmo2Config", num_key_value_heads=2),
    "vit": lambda: _image("ViTForImageClassification", "ViTConfig", patch_size=8, **PICTURES),
    "bert": lambda: _text("BertForMaskedLM", "BertConfig"),
    "mixtral": lambda: _text(
        "MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4
    ),
    "plain gpt": lambda: (Plain(), (IDS,), {}),
    "lstm": lambda: (Recurrent(), (IDS,), {}),
    "u-net": lambda: (UNet(), (torch.randn(2, 3, 16, 16),), {}),
}  # fmt: skip
SLOW: dict[str, Callable[[], Built]] = {
    "mistral": lambda: _text("MistralForCausalLM", "MistralConfig", num_key_value_heads=2),
    "qwen2": lambda: _text("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    "qwen3": lambda: _text("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8),
    "gemma2": lambda: _text("Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=8),
    "gemma3": lambda: _text("Gemma3ForCausalLM", "Gemma3TextConfig", num_key_value_heads=2, head_dim=8),
    "deit": lambda: _image("DeiTForImageClassification", "DeiTConfig", patch_size=8, **PICTURES),
    "swin": lambda: _image(
        "SwinForImageClassification", "SwinConfig",
        patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4,
    ),
    "convnext": lambda: _image(
        "ConvNextForImageClassification", "ConvNextConfig",
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 32, 64], layer_scale_init_value=0.5,
    ),
    "t5": _t5,
}  # fmt: skip

#: what people should find there: each set of powers is a symmetry ({} in a name stands for every layer's number)
FOUND: dict[str, list[dict[str, int]]] = {
    "gpt2": [
        {"transformer.h.{}.attn.c_attn.weight[q]": 1, "transformer.h.{}.attn.c_attn.bias[q]": 1,
         "transformer.h.{}.attn.c_attn.weight[k]": -1},
        {"transformer.h.{}.attn.c_attn.bias[k]": 1},
        {"transformer.h.{}.attn.c_attn.weight[v]": 1, "transformer.h.{}.attn.c_attn.bias[v]": 1,
         "transformer.h.{}.attn.c_proj.weight": -1},
    ],
    "llama": [
        {"model.layers.{}.self_attn.q_proj.weight": 1, "model.layers.{}.self_attn.k_proj.weight": -1},
        {"model.layers.{}.self_attn.v_proj.weight": 1, "model.layers.{}.self_attn.o_proj.weight": -1},
        {"model.layers.{}.mlp.up_proj.weight": 1, "model.layers.{}.mlp.down_proj.weight": -1},
        {"model.layers.{}.input_layernorm.weight": 1, "model.layers.{}.self_attn.q_proj.weight": -1,
         "model.layers.{}.self_attn.k_proj.weight": -1, "model.layers.{}.self_attn.v_proj.weight": -1},
        {"model.norm.weight": 1, "lm_head.weight": -1},
    ],
    "mistral": [
        {"model.layers.{}.self_attn.q_proj.weight": 1, "model.layers.{}.self_attn.k_proj.weight": -1},
        {"model.layers.{}.self_attn.v_proj.weight": 1, "model.layers.{}.self_attn.o_proj.weight": -1},
    ],
    "qwen2": [  # biases travel with their weights
        {"model.layers.{}.self_attn.q_proj.weight": 1, "model.layers.{}.self_attn.q_proj.bias": 1,
         "model.layers.{}.self_attn.k_proj.weight": -1, "model.layers.{}.self_attn.k_proj.bias": -1},
        {"model.layers.{}.self_attn.v_proj.weight": 1, "model.layers.{}.self_attn.v_proj.bias": 1,
         "model.layers.{}.self_attn.o_proj.weight": -1},
    ],
    "qwen3": [
        {"model.layers.{}.self_attn.q_proj.weight": 1},
        {"model.layers.{}.self_attn.q_norm.weight": 1, "model.layers.{}.self_attn.k_norm.weight": -1},
    ],
    "gemma2": [  # norms follow each projection into the stream, and 1 + γ has no scale of its own
        {"model.layers.{}.self_attn.o_proj.weight": 1},
        {"model.layers.{}.self_attn.q_proj.weight": 1, "model.layers.{}.self_attn.k_proj.weight": -1},
    ],
    "gemma3": [{"model.layers.{}.self_attn.q_proj.weight": 1}, {"model.layers.{}.mlp.down_proj.weight": 1}],
    "deit": [
        {"deit.layers.{}.attention.k_proj.bias": 1},
        {"deit.layers.{}.attention.q_proj.weight": 1, "deit.layers.{}.attention.q_proj.bias": 1,
         "deit.layers.{}.attention.k_proj.weight": -1},
    ],
    "swin": [
        {"swin.encoder.layers.{}.blocks.0.attention.v_proj.weight": 1,
         "swin.encoder.layers.{}.blocks.0.attention.v_proj.bias": 1,
         "swin.encoder.layers.{}.blocks.0.attention.o_proj.weight": -1},
        {"swin.layernorm.weight": 1, "swin.layernorm.bias": 1, "classifier.weight": -1},
    ],
    "convnext": [
        {"convnext.encoder.stages.{}.layers.0.dwconv.weight": 1, "convnext.encoder.stages.{}.layers.0.dwconv.bias": 1},
        {"convnext.encoder.stages.{}.layers.0.pwconv2.weight": 1, "convnext.encoder.stages.{}.layers.0.pwconv2.bias": 1,
         "convnext.encoder.stages.{}.layers.0.layer_scale_parameter": -1},
    ],
    "t5": [
        {"decoder.block.{}.layer.1.EncDecAttention.q.weight": 1,
         "decoder.block.{}.layer.1.EncDecAttention.k.weight": -1},
        {"encoder.block.{}.layer.1.DenseReluDense.wi.weight": 1,
         "encoder.block.{}.layer.1.DenseReluDense.wo.weight": -1},
    ],
    "olmo2": [{"model.layers.{}.self_attn.q_norm.weight": 1, "model.layers.{}.self_attn.k_norm.weight": -1}],
    "vit": [{"vit.layernorm.weight": 1, "vit.layernorm.bias": 1, "classifier.weight": -1}],
    "bert": [{"bert.encoder.layer.{}.attention.self.key.bias": 1}],
    "mixtral": [{"model.layers.{}.mlp.experts.gate_up_proj[up]": 1, "model.layers.{}.mlp.experts.down_proj": -1}],
    "plain gpt": [{"h.{}.fc.weight": 1, "h.{}.proj.weight": -2}, {"h.{}.q.weight": 1}, {"wte.weight": 1}],
    "lstm": [{"norm.weight": 1, "norm.bias": 1, "lstm.weight_ih_l0": -1}, {"wte.weight": 1}],
    "u-net": [{"right.n2.weight": 1, "right.n2.bias": 1, "out.weight": -1}],
}  # fmt: skip
#: weights of which one group is the residual stream, and some that are in none
STREAM = {
    "llama": {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    },
    "mixtral": {"model.embed_tokens.weight", "model.layers.1.mlp.experts.down_proj"},
    "mistral": {"model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"},
    "qwen2": {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"},
    "qwen3": {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"},
    "deit": {"deit.embeddings.cls_token", "deit.embeddings.distillation_token", "deit.layers.1.mlp.fc2.bias"},
    "vit": {"vit.embeddings.position_embeddings", "vit.embeddings.cls_token", "vit.layers.1.mlp.fc2.bias"},
}


def build(make: Callable[[], Built]) -> Built:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return make()


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_answer_is_all_that_measuring_finds(name, measured_rank):
    model, inputs, kwargs = build({**QUICK, **SLOW}[name])
    answer = symmetries(model, *inputs, kwargs=kwargs, verify=True)
    assert answer.verification.startswith("verified")
    assert answer.incomplete == ()
    assert measured_rank(model, inputs, kwargs, answer) == len(answer.basis)
    for powers in FOUND.get(name, ()):
        layered = any("{}" in weight for weight in powers)
        for layer in range(2) if layered else (0,):
            assert answer.allows({weight.format(layer): power for weight, power in powers.items()}), powers
            # Not by chance: no single power of them can be changed unless that weight has no scale of its own.
            first = next(iter(powers)).format(layer)
            assert answer.allows({first: 1}) == (len(powers) == 1)
    if name in STREAM:
        (stream,) = [group for group in answer.groups if STREAM[name] <= group]
        assert answer.allows(dict.fromkeys(stream, 1))
        assert not any(answer.allows(dict.fromkeys(stream - {weight}, 1)) for weight in STREAM[name])


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_alone_and_jointly_are_two_questions_which_check_answers_alike(name):
    model, inputs, kwargs = build({**QUICK, **SLOW}[name])
    answer, scale_map = symmetries(model, *inputs, kwargs=kwargs), check(model, *inputs, kwargs=kwargs)
    assert set(scale_map.invariant) == {weight for weight in scale_map.alone if answer.allows({weight: 1})}
    assert scale_map.is_invariant == answer.is_invariant


def test_a_tied_embedding_leaves_one_vector_and_no_group():
    model, inputs, _ = build(QUICK["gpt2"])
    answer = symmetries(model, *inputs)
    (stream,) = [vector for vector in answer.basis if "transformer.wte.weight" in vector]
    assert stream["transformer.wpe.weight"] == stream["transformer.h.1.mlp.c_proj.bias"] == 1
    assert stream["transformer.ln_f.weight"] == stream["transformer.ln_f.bias"] == -1
    assert all("bias[k]" in name for group in answer.groups for name in group)
    assert answer.allows({"lm_head.weight": 1}) == answer.allows({"transformer.wte.weight": 1}) is False


def test_gammas_that_are_one_plus_a_weight_have_no_power():
    model, inputs, _ = build(SLOW["gemma3"])
    answer = symmetries(model, *inputs)
    assert not any("norm" in name for vector in answer.basis for name in vector)


def test_what_has_no_effect_asks_for_nothing():
    """A branch that is computed and thrown away."""

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            F.gelu(self.unused(x))
            return F.layer_norm(self.used(x), (4,))

    answer = symmetries(Unused(), torch.randn(3, 4), verify=True)
    assert answer.allows({"unused.weight": 1})
    assert answer.without_effect == ("unused.weight",)
    assert answer.holds


def test_what_is_written_through_a_view_has_an_effect():
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            left = y[:, :4]
            left.copy_(self.b(x))
            return y

    answer = symmetries(Written(), torch.randn(3, 4), verify=True)
    assert answer.without_effect == ()
    assert not answer.allows({"b.weight": 1})
    assert "no effect" not in check(Written(), torch.randn(3, 4)).explain("b.weight")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda answer: answer.allows({"weight": "a"}), r"powers\['weight'\] must be a finite number, got 'a'"),
        (lambda answer: answer.allows({"weight": float("nan")}), r"powers\['weight'\] must be a finite number"),
        (lambda answer: answer.allows("weight"), "powers must be a mapping of weights to powers"),
        (lambda answer: answer.explain(["weight"]), "powers must be a mapping of weights to powers"),
        (lambda answer: symmetries(nn.Linear(4, 3), torch.randn(5, 4), kwargs=[1]), "kwargs must be a mapping"),
        (lambda answer: symmetries(nn.Linear(4, 3), torch.randn(5, 4), largest_eps=-1), "largest_eps must be"),
    ],
)
def test_bad_questions_get_one_sentence(call, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        call(symmetries(nn.Linear(4, 3), torch.randn(5, 4)))


def test_the_bound_below_which_a_constant_is_small_is_an_argument():
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.w
            return y / (y.square().mean() + 5e-3).sqrt()

    assert not symmetries(Root(), torch.randn(3, 4)).allows({"w": 1})
    answer = symmetries(Root(), torch.randn(3, 4), largest_eps=1e-2, verify=True)
    assert answer.allows({"w": 1})
    assert answer.verification.startswith("verified")


def test_slices_of_equal_powers_are_one_name():
    model, inputs, _ = build(QUICK["llama"])
    answer = symmetries(model, *inputs)
    # Rotary embeddings take queries apart in halves, which scale alike.
    assert sorted(answer.names) == sorted(name for name, _ in model.named_parameters())


def test_without_effect_and_outputs():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.normalize(self.used(x), dim=-1)

    answer = symmetries(Unused(), torch.randn(3, 4))
    assert answer.without_effect == ("unused.weight",)
    assert set(answer.alone) == {"used.weight", "unused.weight"}
    assert answer.is_invariant
    assert not symmetries(nn.Linear(4, 4), torch.randn(3, 4)).basis
    with pytest.raises(ArgumentError, match="floating-point"):
        symmetries(nn.Identity(), torch.ones(2, dtype=torch.long))


def test_shifts_ask_for_nothing_where_a_norm_removes_them():
    def net(norm: nn.Module) -> Symmetries:
        return symmetries(nn.Sequential(nn.Conv2d(3, 4, 3), norm), torch.randn(2, 3, 6, 6))

    assert net(nn.BatchNorm2d(4, affine=False)).alone == ("0.weight", "0.bias")
    together = net(nn.GroupNorm(2, 4, affine=False))
    assert together.alone == ()
    assert together.groups == (frozenset({"0.weight", "0.bias"}),)


def test_a_softmax_written_by_hand_and_logarithms():
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.o = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.layer_norm(self.o((q @ k.transpose(1, 2)).softmax(-1) @ v), (4,))

    answer = symmetries(Attend(), torch.randn(2, 5, 4), verify=True)
    assert answer.holds
    assert answer.allows({"qkv.weight[q]": 1, "qkv.bias[q]": 1, "qkv.weight[k]": -1})
    assert answer.allows({"qkv.bias[k]": 5, "o.weight": Fraction(1, 3)})
    assert not answer.allows({"qkv.weight": 1})

    class Logs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(4, 4) + 0.1)

        def forward(self, x: Tensor) -> Tensor:
            return (x.abs() @ self.w).log().softmax(-1)

    assert symmetries(Logs(), torch.randn(3, 4)).alone == ("w",)
    # Where nothing removes what the logarithm makes of the scale, it is there.
    assert symmetries(nn.Sequential(nn.Linear(4, 4, bias=False), Log()), torch.randn(3, 4)).basis == ()


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()


def test_one_bias_in_two_factors_ties_both():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
            self.b = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm((x @ self.w + self.b) * (x @ self.v + self.b), (4,))

    answer = symmetries(Net(), torch.randn(5, 4), verify=True)
    assert answer.verification.startswith("verified")
    assert answer.basis == ({"w": 1, "b": 1, "v": 1},)


def test_no_group_has_a_part_that_is_one():
    one = Fraction(1)
    # 0 and 1 are free: a basis may have them in one vector, a group may not. 2 goes with 3, 4 with nothing.
    equations = [{2: one, 3: -one}, {4: one}]
    assert groups_of_ones(equations, 5, [{0: one, 1: one}]) == [{0}, {1}, {2, 3}]


def test_what_has_no_rule_asks_more_and_is_named():
    @torch.library.custom_op("isogon_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)  # type: ignore[arg-type]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(twice(self.a(x)))

    net, x = Net(), torch.randn(2, 4)
    answer = symmetries(net, x)
    assert answer.basis == ()
    assert len(answer.incomplete) == 1
    assert "isogon_tests.twice" in answer.incomplete[0]
    register_rule("isogon_tests.twice")(lambda op, x: op.keep(x))
    try:
        assert symmetries(net, x).basis == ({"a.weight": 1, "b.weight": -1},)
    finally:
        remove_rule("isogon_tests.twice")


def test_a_wrong_rule_is_contradicted_by_measuring():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.erf(x @ self.w)

    register_rule("aten.erf.default")(lambda op, x: op.constant())
    try:
        with pytest.warns(DisagreementWarning, match="w"):
            answer = symmetries(Net(), torch.randn(3, 4), verify=True)
    finally:
        remove_rule("aten.erf.default")
    assert not answer.holds


def test_questions_and_explanations():
    model, inputs, _ = build(QUICK["llama"])
    answer = symmetries(model, *inputs)
    sentence = answer.explain("model.layers.0.self_attn.q_proj.weight")
    assert "model.layers.0.self_attn" in sentence
    assert "k_proj.weight" in sentence
    assert "stays as it is" in answer.explain({"model.norm.weight": 1, "lm_head.weight": -1})
    with pytest.raises(ArgumentError, match=re.escape("did you mean")):
        answer.allows({"model.layers.0.self_attn.qproj.weight": 1})
    text = str(answer)
    assert "2 ×  model.layers.0…1.self_attn.q_proj.weight · c, model.layers.0…1.self_attn.k_proj.weight / c" in text
    content = answer.to_dict()
    assert len(content["basis"]) == len(answer.basis)
    assert set(content["weights"]) == set(answer.names)


def test_hugging_face_models_are_called_as_in_training():
    transformers = pytest.importorskip("transformers")
    model, inputs, _ = build(QUICK["gpt2"])
    assert model.config.use_cache  # type: ignore[union-attr]
    batch = transformers.BatchEncoding({"input_ids": inputs[0], "attention_mask": torch.ones_like(inputs[0])})
    by_name = symmetries(model, batch)
    assert any("use_cache=False" in sentence for sentence in by_name.assumptions)
    assert model.config.use_cache  # type: ignore[union-attr]
    # A loss is an output like any other.
    with_loss = symmetries(model, kwargs={"input_ids": inputs[0], "labels": inputs[0]})
    assert len(with_loss.basis) == len(by_name.basis) == 2 * 5 + 1
