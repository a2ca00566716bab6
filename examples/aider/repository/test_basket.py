import unittest

from shop.basket import cheapest, total


class Basket(unittest.TestCase):
    def test_a_sum(self):
        self.assertEqual(total([2, 3]), 5)

    def test_a_discount_is_in_percent(self):
        self.assertEqual(total([100, 100], discount=20), 160)

    def test_an_empty_basket_has_no_cheapest(self):
        self.assertIsNone(cheapest([]))


if __name__ == "__main__":
    unittest.main()
