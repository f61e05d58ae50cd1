"""The order of samples: a function of seed and epoch, and what replacement and the last batch make of it."""

from __future__ import annotations

import torch

from isogon.lab.run._batch_order import epoch_of, generator


def test_it_remembers_nothing(make_config):
    config = make_config(augmentation="crop-flip")
    first = epoch_of(config, 3)
    torch.manual_seed(1)
    for epoch in (0, 7, 2):
        epoch_of(config, epoch)
    again = epoch_of(config, 3)
    assert torch.equal(first.samples, again.samples)
    assert torch.equal(first.drawn, again.drawn)
    before = torch.get_rng_state()
    epoch_of(config, 4)
    assert torch.equal(before, torch.get_rng_state())


def test_it_differs_by_seed_and_epoch_alone(make_config):
    config = make_config(augmentation="crop-flip")
    orders = [epoch_of(config, 0), epoch_of(config, 1), epoch_of(make_config(augmentation="crop-flip", seed=1), 0)]
    for name in ("samples", "drawn"):
        assert len({tuple(getattr(order, name).flatten().tolist()) for order in orders}) == 3
    same = epoch_of(make_config(augmentation="crop-flip", lr=0.5, init_seed=3, epochs=9, precision="float64"), 0)
    assert torch.equal(orders[0].samples, same.samples)
    assert torch.equal(orders[0].drawn, same.drawn)


def test_streams_have_nothing_in_common():
    seeds = [
        generator(seed, purpose, epoch).initial_seed()
        for seed in (0, 1, 11)
        for purpose in "ab"
        for epoch in (0, 1, 11)
    ]
    assert len(set(seeds)) == len(seeds)


def test_without_replacement_an_epoch_is_a_permutation(make_config):
    order = epoch_of(make_config(), 2)
    assert order.samples.sort().values.tolist() == list(range(200))
    assert order.samples.tolist() != list(range(200))
    batches = list(order.batches())
    assert [len(places) for places, _ in batches] == [50] * 4
    assert torch.cat([places for places, _ in batches]).equal(order.samples)
    assert torch.cat([drawn for _, drawn in batches]).equal(order.drawn)


def test_with_replacement_samples_come_again(make_config):
    order = epoch_of(make_config(replacement=True), 0).samples
    assert len(order) == 200
    assert order.min() >= 0
    assert order.max() < 200
    # 1 − 1/e of 200 are 126, give or take 4.4
    assert 105 < len(order.unique()) < 147
    everything = torch.cat([epoch_of(make_config(replacement=True), epoch).samples for epoch in range(20)])
    assert len(everything.unique()) == 200


def test_a_last_batch_is_dropped_or_kept(make_config):
    for replacement in (False, True):
        sizes = {}
        for last in ("drop", "keep"):
            config = make_config(batch_size=60, last_batch=last, replacement=replacement)
            sizes[last] = [len(places) for places, _ in epoch_of(config, 0).batches()]
            assert len(sizes[last]) == config.steps_per_epoch
        assert sizes == {"drop": [60, 60, 60], "keep": [60, 60, 60, 20]}
    dropped = [set(epoch_of(make_config(batch_size=60), epoch).samples.tolist()) for epoch in range(2)]
    assert dropped[0] != dropped[1]  # the same samples are not left out for ever


def test_a_full_batch_is_everything_in_one_order(make_config):
    """Another order each epoch would make other ghost batches; the file's own may be sorted by class."""
    for batch in (200, 500):
        config = make_config(batch_size=batch, last_batch="keep")
        ((first, _),) = epoch_of(config, 0).batches()
        ((second, _),) = epoch_of(config, 1).batches()
        assert torch.equal(first, second)
        assert first.sort().values.tolist() == list(range(200))
        assert first.tolist() != list(range(200))
