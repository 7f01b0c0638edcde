//! Tests of the runner from outside: tiny vectors that each test makes, and testees with every kind
//! of fault that a run must notice. `./task conformance` runs all vectors of the repository.

#[cfg(deltachain_rule_switch)]
mod adequacy;
mod indexes;
mod lists;
mod reports;
mod segments;
mod support;
mod testees;
