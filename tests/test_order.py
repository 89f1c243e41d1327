import collections
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.order import Permutation


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 700),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
)
def test_every_element_comes_exactly_once_for_any_size_and_seed(size, seed, epoch):
    order = Permutation(size, seed=seed, epoch=epoch)
    assert sorted(order[i] for i in range(size)) == list(range(size))


def test_a_size_beyond_memory_costs_nothing_and_stays_in_range():
    size = 10**15 + 7
    order = Permutation(size, seed=3)
    values = [order[i] for i in range(1000)] + [order[size - 1]]
    assert len(set(values)) == 1001
    assert max(values) < size
    assert max(values) > size // 2


def test_seed_and_epoch_each_change_the_order_and_nothing_else_does():
    def first(seed: int, epoch: int) -> list[int]:
        order = Permutation(1000, seed=seed, epoch=epoch)
        return [order[i] for i in range(1000)]

    assert first(1, 0) == first(1, 0)
    assert len({tuple(first(s, e)) for s in (1, 2, -1) for e in (0, 1)}) == 6


def test_known_orders_stay_what_they_are():
    """A change of the shuffle would make continued runs read other blocks."""
    order = Permutation(10, seed=2608)
    assert [order[i] for i in range(10)] == [9, 2, 5, 4, 7, 6, 3, 8, 0, 1]


def test_every_place_is_equally_likely_over_seeds():
    """Chi-square over 16 places: 37.7 is its 99.9 % point with 15 degrees of freedom."""
    num_seeds = 4000
    counts = collections.Counter(Permutation(16, seed=s)[5] for s in range(num_seeds))
    expected = num_seeds / 16
    assert sum((counts[i] - expected) ** 2 / expected for i in range(16)) < 37.7


def test_neighbours_do_not_stay_together():
    order = Permutation(5000, seed=1)
    values = [order[i] for i in range(5000)]
    together = sum(b - a == 1 for a, b in itertools.pairwise(values))
    assert together < 12  # a uniform shuffle has 1 on average
