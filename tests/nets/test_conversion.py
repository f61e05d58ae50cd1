"""`convert` on models it has never seen, judged by rescaling rather than by the checker it is built on."""

from __future__ import annotations

import copy
import functools
import importlib.util
import io
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from isogon import nets
from isogon.errors import ArgumentError, IsogonError
from isogon.nets import GhostBatchNorm2d, _conversion, convert

ZOO_PATH = Path(__file__).with_name("strangers_zoo.py")


def load_zoo():
    name = "strangers_zoo"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ZOO_PATH)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


ZOO = load_zoo()
CONVERTIBLE = [ZOO.resnet, ZOO.vgg_bn, ZOO.densenet, ZOO.mobilenet_v2]


def example(factory, batch=8):
    torch.manual_seed(0)
    return factory(num_classes=3), ZOO.EXAMPLES[factory](batch)


@functools.cache
def convert_once(factory, style):
    """The model, its inputs and what `convert` made of it; no test may change them."""
    model, inputs = example(factory)
    return model, inputs, convert(model, *inputs, style=style)


def change_on_rescaling(model, inputs, factor=3.0):
    """Relative change of the output when all trainable parameters are multiplied by `factor`, in float64, ε → 0."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 1e-30
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    inputs = [x.double() if x.is_floating_point() else x for x in inputs]
    outputs = []
    for scale in (1.0, factor):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(scale)
            outputs.append(model(*inputs))
    return float((outputs[1] - outputs[0]).norm() / outputs[0].norm())


@pytest.mark.parametrize("style", ["affine", "plain"])
@pytest.mark.parametrize("factory", CONVERTIBLE, ids=lambda f: f.__name__)
def test_networks_become_invariant(factory, style):
    model, inputs, done = convert_once(factory, style)
    assert change_on_rescaling(model, inputs) > 1e-3
    assert done.scale_map.is_invariant
    assert done.scale_map.disagreements == ()
    assert change_on_rescaling(done.model, inputs) < 1e-9
    assert any("the classifier, at its" in sentence for sentence in done.changes)
    if style == "plain":
        norms = [m for m in done.model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert all(not m.weight.requires_grad and torch.all(m.weight == 1) and torch.all(m.bias == 0) for m in norms)
    else:
        assert any(isinstance(m, nn.BatchNorm2d) and m.weight.requires_grad for m in done.model.modules())


@pytest.mark.parametrize("factory", CONVERTIBLE, ids=lambda f: f.__name__)
def test_the_copy_trains_saves_and_exports_and_the_original_is_untouched(factory):
    model, inputs, done = convert_once(factory, "affine")
    before, _ = example(factory)
    assert model.state_dict().keys() == before.state_dict().keys() <= done.model.state_dict().keys()
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items())
    flags = [{name: p.requires_grad for name, p in net.named_parameters()} for net in (model, before)]
    assert flags[0] == flags[1]

    trained = copy.deepcopy(done.model)
    optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=0.1)
    trained(*inputs).square().mean().backward()
    optimizer.step()
    assert all(p.grad is not None for p in trained.parameters() if p.requires_grad)

    buffer = io.BytesIO()
    torch.save(trained.state_dict(), buffer)
    buffer.seek(0)
    again = convert(model, *inputs).model
    again.load_state_dict(torch.load(buffer, weights_only=True))
    trained.eval()
    again.eval()
    assert torch.equal(again(*inputs), trained(*inputs))
    clone = copy.deepcopy(trained)
    assert torch.equal(clone(*inputs), trained(*inputs))


def test_biases_before_batch_norm_go_without_changing_the_function():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    x = torch.randn(6, 3, 8, 8)
    done = convert(model, x, style="affine")
    assert any("Dropped the biases of 0" in sentence for sentence in done.changes)
    assert torch.all(done.model[0].bias == 0)
    assert not done.model[0].bias.requires_grad
    # up to the added norm the function is the same
    torch.testing.assert_close(done.model[:3](x), model[:3](x))


class Shortcut(nn.Module):
    """A residual block whose shortcut is a bare convolution; `before` puts the norms first, as PreResNet does."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.after = nn.BatchNorm2d(12)
        self.shortcut = nn.Conv2d(8, 12, 1, bias=False)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        x = self.stem(x)
        if self.before:
            y = self.conv(torch.relu(self.norm(x)))
        else:
            x = torch.relu(self.norm(x))
            y = self.after(self.conv(x))
        y = torch.relu(self.after(y + self.shortcut(x))) if self.before else torch.relu(y + self.shortcut(x))
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize("style", ["affine", "plain"])
@pytest.mark.parametrize("before", [False, True])
def test_a_shortcut_of_unequal_degree_gets_a_norm(before, style):
    torch.manual_seed(0)
    model, x = Shortcut(before), torch.randn(8, 3, 8, 8)
    done = convert(model, x, style=style)
    assert any(sentence.startswith("Added BatchNorm2d") for sentence in done.changes) or (before and style == "affine")
    assert done.scale_map.is_invariant
    assert change_on_rescaling(done.model, (x,)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("style", ["affine", "plain"])
def test_the_papers_published_networks_convert(style):
    torch.manual_seed(0)
    model, x = nets.preresnet32(width=4), torch.randn(8, 3, 16, 16)
    done = convert(model, x, style=style)
    assert done.scale_map.is_invariant
    assert change_on_rescaling(done.model, (x,)) < 1e-9


def test_ghost_batches_keep_weights_and_keys():
    model, inputs = example(ZOO.resnet, batch=16)
    done = convert(model, *inputs, ghost_batch=4)
    ghosts = [m for m in done.model.modules() if isinstance(m, GhostBatchNorm2d)]
    assert len(ghosts) == sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert all(m.ghost_batch == 4 for m in ghosts)
    assert "ghost batch norms of 4" in " ".join(done.changes)
    assert torch.equal(done.model.bn1.weight, model.bn1.weight)
    assert done.scale_map.is_invariant


@pytest.mark.parametrize(
    ("factory", "style"),
    [(ZOO.se_net, "affine"), (ZOO.se_net, "plain"), (ZOO.transformer_encoder, "plain")],
    ids=["se_net-affine", "se_net-plain", "transformer_encoder-plain"],
)
def test_what_has_no_cure_is_named_and_left(factory, style):
    _, _, done = convert_once(factory, style)
    assert not done.scale_map.is_invariant
    assert any(sentence.startswith("Left as it is:") for sentence in done.changes)
    assert done.scale_map.disagreements == ()
    assert any("without affine before" in sentence for sentence in done.changes)
    # biases that would have to go for nothing stay trainable
    biases = [n for n, p in done.model.named_parameters() if n.endswith("linear1.bias") or "squeeze.2.bias" in n]
    assert biases
    assert all(done.model.get_parameter(name).requires_grad for name in biases)


def test_convolutions_before_norms_stay_invariant_alone_in_a_gated_network():
    model, _, done = convert_once(ZOO.se_net, "affine")
    convolutions = {n for n, p in model.named_parameters() if p.ndim == 4}
    assert convolutions <= set(done.scale_map.invariant)


def test_eval_mode_is_left_behind_and_said():
    model, inputs = example(ZOO.resnet)
    done = convert(model.eval(), *inputs)
    assert done.model.training
    assert "Put the model in training mode." in done.changes
    assert not model.training


def test_group_and_layer_norm_networks():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    x = torch.randn(4, 3, 8, 8)
    done = convert(model, x)
    assert any("LayerNorm without affine before 5" in sentence for sentence in done.changes)
    assert change_on_rescaling(done.model, (x,)) < 1e-9


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"style": "fancy"}, "style must be one of affine, plain"),
        ({"ghost_batch": 0}, "ghost_batch must be"),
    ],
)
def test_bad_arguments_are_named(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        convert(nn.Linear(2, 2), torch.randn(2, 2), **arguments)
    with pytest.raises(ArgumentError, match=r"model must be a torch\.nn\.Module"):
        convert("resnet", torch.randn(2, 2))
    with pytest.raises(ArgumentError, match="linear or convolution"):
        convert(nn.ReLU(), torch.randn(2, 2))


class Branches(nn.Module):
    """Branches of two convolutions with biases each, of which the first ends in a GELU: nothing to be done there."""

    def __init__(self, gelu=True):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.GELU() if gelu and not i else nn.ReLU())
            for i in range(4)
        )
        self.classifier, self.flatten = nn.Conv2d(4, 5, 1, bias=False), nn.Flatten()

    def forward(self, x):
        return self.flatten(self.classifier(sum(branch(x) for branch in self.branches).mean((2, 3), keepdim=True)))


def test_it_stops_where_nothing_can_be_done(monkeypatch):
    checks = []
    check = _conversion.check
    monkeypatch.setattr(_conversion, "check", lambda *a, **b: checks.append(1) or check(*a, **b))
    done = convert(Branches(), torch.randn(2, 3, 8, 8))
    # Biases that have no effect, three tries, biases that have none of the copy that is returned, and the answer.
    assert len(checks) <= 7
    assert [s for s in done.changes if s.startswith("Left as it is:")] == [
        "Left as it is: branches.0.3 (GELU) needs degree 0 and gets a tensor of degree 2 (in branches.0.3)."
    ]
    assert "isogon.symmetries" in str(done)


def test_a_classifier_that_is_flattened_afterwards_is_normalised():
    done = convert(Branches(gelu=False), torch.randn(8, 3, 8, 8))
    assert done.scale_map.is_invariant
    assert not any(sentence.startswith("Left as it is:") for sentence in done.changes)


def test_the_keys_that_old_checkpoints_lack_are_named():
    model, inputs = example(ZOO.resnet)
    done = convert(model, *inputs)
    lacking = done.model.load_state_dict(model.state_dict(), strict=False)
    assert lacking.missing_keys
    assert not lacking.unexpected_keys
    assert lacking.missing_keys[0] in done.notes[0]
    assert "strict=False" in done.notes[0]


def test_a_tokenizers_batch_is_taken_and_what_does_not_fit_gets_a_sentence():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.act, self.head = nn.Embedding(9, 8), nn.GELU(), nn.Linear(8, 9, bias=False)
            self.mix = nn.Linear(8, 8)
            self.head.weight = self.embed.weight

        def forward(self, input_ids):
            return self.head(self.act(self.mix(self.embed(input_ids))))

    done = convert(Text(), {"input_ids": torch.randint(0, 9, (2, 5))})
    # Nothing is left that scales along the stream, and the text says what to do.
    assert any("untie them" in note for note in done.notes)
    assert "Cure" not in str(done).splitlines()[-2]
    with pytest.raises(IsogonError, match=r"torch\.export cannot export Text with these inputs"):
        convert(Text(), "words")


def test_a_tied_classifier_says_what_it_freezes():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.norm(self.embedding(tokens)))

    done = convert(Tied(), torch.randint(0, 5, (3, 6)))
    assert any("and with it embedding.weight" in sentence for sentence in done.changes)
    assert done.scale_map.is_invariant


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_a_wrapped_model_is_converted_as_the_model_inside(wrap):
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

    x = torch.randn(4, 3, 8, 8)
    plain, wrapped = convert(made(), x), convert(wrap(made()), x)
    assert wrapped.changes == plain.changes
    assert wrapped.scale_map.is_invariant == plain.scale_map.is_invariant
    assert [name for name, _ in wrapped.model.named_parameters()] == [
        name for name, _ in plain.model.named_parameters()
    ]
