"""GPT and ViT have the published sizes, are Hugging Face's with the same weights, and have the right symmetries."""

from __future__ import annotations

import pytest
import torch

from isogon import check, nets, symmetries
from isogon.errors import ArgumentError

GPT2 = {"norm": "layer", "affine": True, "qk_norm": False, "activation": "gelu", "positions": "learned", "bias": True}


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_published_sizes():
    with torch.device("meta"):
        assert count(nets.gpt(50257, 1024, depth=12, width=768, heads=12, tied=True, **GPT2)) == 124_439_808
        assert count(nets.vit(1000, image_size=224, patch=16)) == 5_717_416


def randomise(model):
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
    return model.double().eval()


def copy_linear(ours, theirs, *, transposed=False):
    ours.weight.data = theirs.weight.data.T if transposed else theirs.weight.data
    if ours.bias is not None:
        ours.bias.data = theirs.bias.data


def test_in_its_form_it_is_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=9, n_embd=12, n_layer=2, n_head=3, activation_function="gelu",
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    theirs = randomise(transformers.GPT2LMHeadModel(config))
    theirs.tie_weights()
    ours = nets.gpt(31, 9, depth=2, width=12, heads=3, tied=True, **GPT2).double().eval()
    ours.embedding.weight.data = theirs.transformer.wte.weight.data
    ours.positions.data = theirs.transformer.wpe.weight.data
    for mine, block in zip(ours.blocks, theirs.transformer.h, strict=True):
        fused = block.attn.c_attn
        for place, layer in enumerate((mine.attention.q, mine.attention.k, mine.attention.v)):
            layer.weight.data = fused.weight.data.T[12 * place : 12 * (place + 1)]
            layer.bias.data = fused.bias.data[12 * place : 12 * (place + 1)]
        copy_linear(mine.attention.o, block.attn.c_proj, transposed=True)
        copy_linear(mine.mlp.up, block.mlp.c_fc, transposed=True)
        copy_linear(mine.mlp.down, block.mlp.c_proj, transposed=True)
        copy_linear(mine.attention_norm, block.ln_1)
        copy_linear(mine.mlp_norm, block.ln_2)
    copy_linear(ours.norm, theirs.transformer.ln_f)
    tokens = torch.randint(31, (2, 9))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-9, atol=1e-9)


def test_in_its_form_it_is_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=12, intermediate_size=32, num_hidden_layers=2, num_attention_heads=3, head_dim=4,
        rms_norm_eps=1e-12,
    )  # fmt: skip
    theirs = randomise(transformers.LlamaForCausalLM(config))
    ours = nets.gpt(31, 9, depth=2, width=12, heads=3, affine=True, qk_norm=False, activation="swiglu").double().eval()
    ours.embedding.weight.data = theirs.model.embed_tokens.weight.data
    ours.norm.weight.data, ours.head.weight.data = theirs.model.norm.weight.data, theirs.lm_head.weight.data
    for mine, block in zip(ours.blocks, theirs.model.layers, strict=True):
        attention, mlp = block.self_attn, block.mlp
        pairs = {
            mine.attention.q: attention.q_proj, mine.attention.k: attention.k_proj, mine.attention.v: attention.v_proj,
            mine.attention.o: attention.o_proj, mine.mlp.gate: mlp.gate_proj, mine.mlp.up: mlp.up_proj,
            mine.mlp.down: mlp.down_proj, mine.attention_norm: block.input_layernorm,
            mine.mlp_norm: block.post_attention_layernorm,
        }  # fmt: skip
        for layer, other in pairs.items():
            layer.weight.data = other.weight.data
    tokens = torch.randint(31, (2, 9))
    # torch's RMS norm has an ε of its own, of rounding size; Llama computes its angles in float32.
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_in_its_form_it_is_hugging_faces_vit():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        num_labels=5, num_channels=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs = randomise(transformers.ViTForImageClassification(config))
    ours = nets.vit(5, 1, image_size=8, patch=4, depth=2, width=12, heads=3).double().eval()
    parameters, stream = dict(theirs.named_parameters()), theirs.vit.embeddings
    ours.class_token.data = stream.cls_token.data
    ours.positions.data = stream.position_embeddings.data[0]
    copy_linear(ours.patches, stream.patch_embeddings.projection)
    copy_linear(ours.head, theirs.classifier)
    names = {
        "attention.q": "q_proj", "attention.k": "k_proj", "attention.v": "v_proj", "attention.o": "o_proj",
        "mlp.up": "fc1", "mlp.down": "fc2", "attention_norm": "layernorm_before", "mlp_norm": "layernorm_after",
    }  # fmt: skip
    for number, block in enumerate(ours.blocks):
        for mine, other in names.items():
            for kind in ("weight", "bias"):
                (source,) = (
                    name for name in parameters if f"layers.{number}." in name and name.endswith(f"{other}.{kind}")
                )
                block.get_submodule(mine).get_parameter(kind).data = parameters[source].data
    (last,) = (name for name in parameters if name.endswith("vit.layernorm.weight"))
    ours.norm.weight.data, ours.norm.bias.data = (
        parameters[last].data,
        parameters[last.replace("weight", "bias")].data,
    )
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-9, atol=1e-9)


def test_no_token_sees_a_later_one():
    model = nets.gpt(31, 9, depth=2, width=12, heads=3).double()
    tokens = torch.randint(31, (2, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 31
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])
    # and a shorter text is the beginning of a longer one
    torch.testing.assert_close(model(tokens[:, :4]), before[:, :4])


@pytest.mark.parametrize(
    ("options", "groups"),
    [({}, 5), ({"activation": "swiglu", "affine": True, "qk_norm": False}, 1), ({"tied": True, "affine": True}, 4)],
    ids=["default", "llama", "tied"],
)
def test_symmetries_of_gpts_are_those_that_are_measured(options, groups):
    model = nets.gpt(31, 8, depth=2, width=16, heads=2, **options)
    answer = symmetries(model, torch.randint(31, (2, 8)), verify=True)
    assert answer.verification.startswith("verified")
    assert answer.holds
    assert len(answer.groups) == groups
    stream = {"embedding.weight", *(f"blocks.{i}.{end}.weight" for i in (0, 1) for end in ("attention.o", "mlp.down"))}
    assert (frozenset(stream) in answer.groups) == (not options.get("tied"))


def test_queries_and_keys_that_are_normalised_are_invariant():
    scale_map = check(nets.gpt(31, 8, depth=2, width=16, heads=2), torch.randint(31, (2, 8)))
    assert set(scale_map.invariant) == {f"blocks.{i}.attention.{x}.weight" for i in (0, 1) for x in "qk"}
    assert not scale_map.disagreements
    plain = check(nets.vit(10, 1, image_size=8, patch=4, depth=1, width=8, heads=2), torch.randn(2, 1, 8, 8))
    assert not plain.invariant or all("k.bias" in name for name in plain.invariant)


def test_dropout_and_stochastic_depth_keep_the_mean():
    torch.manual_seed(0)
    model = nets.vit(3, 1, image_size=8, patch=4, depth=2, width=8, heads=2, drop_path=0.5)
    images = torch.randn(1, 1, 8, 8).expand(4000, -1, -1, -1)
    block, x = model.blocks[1], torch.randn(1, 5, 8).expand(4000, -1, -1)
    with torch.no_grad():
        dropped = block._drop(x)
        # Half of the samples have nothing, the others twice as much; the deviation of 4,000 is 0.8 %.
        kept = dropped.flatten(1).abs().sum(1) > 0
        assert float(kept.float().mean()) == pytest.approx(0.5, abs=0.04)
        torch.testing.assert_close(dropped[kept], 2 * x[kept])
        assert len(torch.unique(model(images).round(decimals=4), dim=0)) > 1
        assert torch.equal(model.eval()(images[:2])[0], model(images[:2])[1])
    assert model.blocks[0].drop_path == 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: nets.gpt(10, 4, width=10, heads=3), "heads must be a divisor of the width 10"),
        (lambda: nets.gpt(10, 4, width=9, heads=3), "heads must be such that a head has an even width"),
        (lambda: nets.gpt(10, 4, norm="batch"), "norm must be one of rms, layer"),
        (lambda: nets.gpt(10, 4, activation="tanh"), "activation must be one of"),
        (lambda: nets.gpt(10, 4, positions="none"), "positions must be one of rope, learned"),
        (lambda: nets.gpt(0, 4), "vocab must be"),
        (lambda: nets.gpt(10, 4, dropout=1.0), "dropout must be"),
        (lambda: nets.vit(image_size=30, patch=4), "patch must be a divisor of the image's side 30"),
        (lambda: nets.vit(pool="max"), "pool must be one of token, mean"),
        (lambda: nets.vit(10, 1, image_size=8)(torch.zeros(1, 1, 28, 28)), "images must be 8 × 8 pixels"),
        (lambda: nets.gpt(10, 4)(torch.zeros(1, 5, dtype=torch.long)), "tokens must be at most the context of 4"),
    ],
)
def test_what_makes_no_network_is_refused(make, match):
    with pytest.raises(ArgumentError, match=match):
        make()
