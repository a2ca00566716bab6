"""A basket of things with prices."""


def total(prices, discount=0):
    """The sum of the prices, less a discount in percent."""
    return sum(prices) - discount


def cheapest(prices):
    """The lowest price, None where there is none."""
    return min(prices)
