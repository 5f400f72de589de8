"""What replies teach: a prefill rate from bounds that hold whatever order the engine works in."""

import pytest

from router.core.estimates import Estimates, PrefillMeter, nudge

SEED = 8000.0


def serve(meter: PrefillMeter, start: float, tokens: int, rate: float) -> float:
    """One prompt alone on the engine; the time when it is done."""
    end = start + tokens / rate
    meter.owes(tokens, start)
    meter.computed(tokens)
    meter.owes(0, end)
    meter.proved(tokens, end - start)
    return end


@pytest.mark.parametrize("real", [2000.0, 4000.0, 16_000.0])
def test_one_prompt_after_another_teaches_the_rate(real: float) -> None:
    meter, now = PrefillMeter(SEED), 0.0
    for _ in range(30):
        now = serve(meter, now, 60_000, real) + 1.0
    assert meter.rate == pytest.approx(real, rel=0.05)


def test_a_long_queue_that_answers_nobody_yet_says_nothing() -> None:
    """Thirty prompts share the engine by chunks: for minutes no first byte, then all at once."""
    meter = PrefillMeter(SEED)
    for number in range(30):
        meter.owes(100_000 * (number + 1), float(number))
    meter.owes(3_100_000, 200.0)
    assert meter.rate == SEED
    for left in range(30, -1, -1):
        meter.computed(100_000)
        meter.owes(100_000 * left, 380.0 + (30 - left) / 10)
    assert meter.rate == pytest.approx(SEED, rel=0.05)


def test_a_queue_that_never_ends_teaches_too() -> None:
    """Always a million tokens behind: what is done outgrows what is owed."""
    meter, now = PrefillMeter(12_000.0), 0.0
    meter.owes(1_000_000, now)
    for _ in range(400):
        now += 5.0
        meter.computed(20_000)
        meter.owes(1_000_000, now)
    assert meter.rate == pytest.approx(4000.0, rel=0.26)  # the two bounds are that far apart


def test_one_reply_against_expectation_throws_nothing() -> None:
    meter = PrefillMeter(SEED)
    meter.owes(150_000, 0.0)
    meter.computed(150_000)
    meter.owes(0, 0.1)  # it was all cached
    assert meter.rate == pytest.approx(SEED, rel=0.01)
    meter.owes(3_000, 10.0)
    meter.computed(3_000)
    meter.owes(0, 30.0)  # it was all lost: 160,000 tokens, and nobody knew
    meter.corrected(157_000, 0)
    meter.proved(160_000, 20.0)
    assert meter.rate > 0.75 * SEED


def test_requests_that_left_unanswered_may_have_been_computed() -> None:
    meter = PrefillMeter(SEED)
    meter.owes(400_000, 0.0)
    meter.abandoned(400_000)
    meter.owes(0, 50.0)
    assert meter.rate == SEED


def test_among_others_requests_the_best_proof_stands() -> None:
    meter = PrefillMeter(12_000.0)
    for number in range(400):
        meter.owes(50_000, 60.0 * number, alone=False)
        meter.owes(0, 60.0 * number + 30.0, alone=False)
        seconds = 6.25 if number % 5 == 0 else 30.0  # now and then nobody else is there
        meter.proved(50_000, seconds, alone=False)
    assert meter.rate == pytest.approx(8000.0, rel=0.15)


def test_bytes_per_token_ignore_what_is_no_text() -> None:
    estimates = Estimates(4.0)
    estimates.prompt("m", 10**9, 10)
    estimates.prompt("m", 0, 10)
    assert estimates.bytes_per_token("m") == 4.0
    for _ in range(50):
        estimates.prompt("m", 3000, 1000)
    assert estimates.tokens("m", 3000) == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(("sample", "moved"), [(100.0, 11.0), (10.5, 10.5), (1.0, 9.0)])
def test_a_nudge_moves_by_a_tenth_at_most(sample: float, moved: float) -> None:
    assert nudge(10.0, sample) == moved


def test_how_much_repeats_is_learned_slowly() -> None:
    estimates = Estimates(4.0)
    for _ in range(128):
        estimates.repeated(0, 100_000)  # a hundred agents begin at once
    assert estimates.reuse > 0.7
    for _ in range(3000):
        estimates.repeated(0, 1_000)
    assert estimates.reuse < 0.01
    estimates.repeated(5, 0)
    for _ in range(3000):
        estimates.repeated(990, 1_000)
    assert estimates.reuse > 0.95
