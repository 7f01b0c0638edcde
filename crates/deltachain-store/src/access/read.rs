//! Planning against a store (SPEC section 19, steps 1 to 4).

use deltachain::Result;
use deltachain::chain::{Plan, Planner, Step};

use crate::access::store::Store;

/// Does what the planner asks for until it has a plan.
///
/// # Errors
/// As for [`Planner::step`], and IO.
pub(crate) fn plan(store: &Store, planner: &mut Planner) -> Result<Plan> {
    loop {
        match planner.step()? {
            Step::List { from } => planner.list(store.listing(from)?),
            Step::Fetch(names) => {
                for (name, content) in store.get_all_agreed(&names, planner.held_version())? {
                    planner.supply(name, content.as_deref());
                }
            }
            Step::Follow(plan) => return Ok(plan),
        }
    }
}
