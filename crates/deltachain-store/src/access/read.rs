//! Planning against a store (SPEC section 19, steps 1 to 4).

use deltachain::Result;
use deltachain::chain::{Plan, Planner};

use crate::access::store::Store;

/// Does what the planner asks for until it has a plan.
///
/// # Errors
/// As for [`Planner::step`], and IO.
pub(crate) fn plan(store: &Store, planner: &mut Planner) -> Result<Plan> {
    planner.plan_with(|from| store.listing(from), |names, held| store.get_all_agreed(names, held))
}
