from router.core.budget import RetryBudget


def test_retries_are_a_share_of_requests_plus_a_reserve() -> None:
    """F55"""
    budget = RetryBudget(0.2, reserve=10)
    allowed = 0
    for _ in range(1000):
        budget.deposit()
        allowed += budget.withdraw()
    assert 200 <= allowed <= 210


def test_no_ratio_means_no_retries() -> None:
    budget = RetryBudget(0.0)
    budget.deposit()
    assert not budget.withdraw()
