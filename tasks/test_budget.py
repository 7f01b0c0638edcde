"""Tests that the budget counts correctly and finds words."""

import unittest

from tasks import budget

RUST = """
pub use a::B;
pub(crate) fn hidden() {}
pub struct C {
    pub field: u8,
}
pub const fn d() {}
#[arg(
    long,
    value_name = "N"
)]
every: u64,
#[arg(long = "store", value_parser = ["a", "b"])]
#[expect(unused)]
settings: String,
#[arg(long)]
pub(crate) every: u64,
"""


class Budget(unittest.TestCase):
    def test_numbers_are_exact(self):
        counted = {"tool_options": 5}
        self.assertEqual([len(list(budget.flaws_of({"tool_options": n}, counted))) for n in (4, 5, 6)], [1, 0, 1])
        self.assertEqual(len(list(budget.flaws_of({}, counted))), 1)
        self.assertEqual(len(list(budget.flaws_of(counted | {"lines": 1}, counted))), 1)

    def test_fields_and_what_is_not_public_are_not_counted(self):
        self.assertEqual(budget.public_items("\n".join(map(str.strip, RUST.splitlines()))), 3)

    def test_each_option_is_counted_once(self):
        self.assertEqual(budget.options(RUST), 2)

    def test_code_ends_where_tests_begin(self):
        code = "fn a() {}\n"
        self.assertEqual(budget.rust_code_of(f"{code}#[cfg(test)]\nmod tests {{\n    fn b() {{}}\n}}\n"), code)


if __name__ == "__main__":
    unittest.main()
