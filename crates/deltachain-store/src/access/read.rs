//! Planning against a store (SPEC section 19, steps 1 to 4).

use deltachain::Result;
use deltachain::chain::{Plan, Planner};

use crate::access::store::Store;

/// Does what the planner asks for until it has a plan. One with trust needs notes.
///
/// # Errors
/// As for [`Planner::step`], and IO.
pub(crate) fn plan(store: &Store, planner: &mut Planner, with_notes: bool) -> Result<Plan> {
    let list = |from| if with_notes { store.listing_with_notes(from) } else { store.listing(from) };
    planner.plan_with(list, |names, held| store.get_all_agreed(names, held))
}
