"""The rates of clients, against a model that keeps every amount, and Kafka's figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.access.quota_rates import TokenBucket, Window, WindowedRate

KAFKA = Window(11, 1000)
STEPS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 1_000_000)), max_size=60)


class EveryAmount:
    """The same rate, computed from a list of all amounts."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: list[tuple[int, list[int]]] = []

    def record(self, amount: int, now_ms: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= self._window.size_ms:
            self._samples.append((now_ms, []))
        self._samples[-1][1].append(amount)

    def delay_ms(self, limit: float, now_ms: int) -> int:
        num, size_ms = self._window
        kept = [each for each in self._samples if now_ms - each[0] < num * size_ms]
        total = sum(sum(amounts) for _, amounts in kept)
        elapsed_ms = now_ms - kept[0][0] if kept else 0
        missing = max(0, num - 1 - elapsed_ms // size_ms)
        window_ms = max(elapsed_ms + missing * size_ms, size_ms)
        rate = total * 1000 / window_ms
        return round((rate - limit) / limit * window_ms) if rate > limit else 0


@given(
    st.builds(Window, st.integers(2, 12), st.integers(1, 2000)), STEPS, st.integers(1, 1_000_000)
)
def test_a_rate_is_that_of_the_samples_in_the_window(
    window: Window, steps: list[tuple[int, int]], limit: int
) -> None:
    rate, model = WindowedRate(window), EveryAmount(window)
    now_ms = 7
    for pause_ms, amount in steps:
        now_ms += pause_ms
        rate.record(amount, now_ms)
        model.record(amount, now_ms)
        assert rate.delay_ms(limit, now_ms) == model.delay_ms(limit, now_ms)
        now_ms += pause_ms
        assert rate.delay_ms(limit, now_ms) == model.delay_ms(limit, now_ms)


@given(STEPS)
def test_a_rate_keeps_a_bounded_number_of_samples_and_forgets_them(
    steps: list[tuple[int, int]],
) -> None:
    rate = WindowedRate(KAFKA)
    now_ms = 0
    for pause_ms, amount in steps:
        now_ms += pause_ms
        rate.record(amount, now_ms)
        assert len(rate._samples) <= KAFKA.num
    assert rate.is_idle(1, now_ms + KAFKA.kept_ms)
    assert rate.total == 0


@given(STEPS, st.integers(1, 100_000))
def test_a_client_that_pauses_as_told_stays_near_its_limit(
    steps: list[tuple[int, int]], limit: int
) -> None:
    """Whatever the sizes of its requests, it sends at most the limit and one request more."""
    rate = WindowedRate(KAFKA)
    now_ms = sent = 0
    for _, size in steps:
        rate.record(size, now_ms)
        sent += size
        now_ms += rate.delay_ms(limit, now_ms)
    allowed = (now_ms + KAFKA.kept_ms) / 1000 * limit
    assert sent <= allowed + max([size for _, size in steps], default=0) * 2


def test_the_delay_is_that_of_kafka() -> None:
    rate = WindowedRate(KAFKA)
    rate.record(20_000, 0)
    assert rate.delay_ms(1000, 0) == 10_000  # (2000 - 1000) / 1000 * 10 s
    assert rate.delay_ms(2000, 0) == 0
    rate.record(-20_000, 0)
    assert rate.delay_ms(1, 0) == 0


@pytest.mark.parametrize(("after_ms", "delay_ms"), [(0, 9000), (27, 8973), (9000, 0)])
def test_twenty_changes_at_one_per_second_take_the_tokens_of_eleven_seconds(
    after_ms: int, delay_ms: int
) -> None:
    bucket = TokenBucket(KAFKA)
    assert bucket.delay_ms(1, 0) == 0
    bucket.take(20, 1, 0)
    assert bucket.delay_ms(1, after_ms) == delay_ms


def test_a_bucket_is_idle_when_it_is_full_again() -> None:
    bucket = TokenBucket(KAFKA)
    assert bucket.is_idle(2, 5)
    bucket.take(4, 2, 10)
    assert not bucket.is_idle(2, 1000)
    assert bucket.is_idle(2, 2010)
