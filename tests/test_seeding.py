import torch

from evclplus.seeding import derived_seed, generator, own_random_state


def test_every_seed_task_and_purpose_has_random_numbers_of_its_own() -> None:
    purposes = [(0, 0, "train"), (0, 1, "train"), (0, 0, "gather"), (1, 0, "train")]
    seeds = [derived_seed(*purpose) for purpose in purposes]
    assert len(set(seeds)) == 4
    assert derived_seed(0, 0, "train") == seeds[0]
    first, second = (torch.rand(5, generator=generator(0, task, "train")) for task in (0, 1))
    assert not torch.equal(first, second)


def test_the_global_state_is_put_back_and_follows_the_seed_inside() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with own_random_state(0, "a"):
        first = torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(8)
    with own_random_state(0, "a"):
        assert torch.equal(first, torch.rand(3))
    with own_random_state(0, "b"):
        assert not torch.equal(first, torch.rand(3))
