//! Planning against a store (SPEC section 19, steps 1 to 4).

use deltachain::Result;
use deltachain::chain::{Plan, Planner, Step};

use crate::store::Store;

/// Does what the planner asks for until it has a plan. `above` is the version that a reader holds who needs to know only
/// what lies above. That is not all of the routes to the versions below, so what fails then has to be planned anew with
/// `None`.
///
/// # Errors
/// As for [`Planner::step`], and IO.
pub(crate) fn plan(store: &Store, planner: &mut Planner, above: Option<u64>) -> Result<Plan> {
    loop {
        match planner.step()? {
            Step::List => planner.list(store.listing(above)?),
            Step::Fetch(names) => {
                for (name, content) in store.get_all(&names)? {
                    planner.supply(name, content.as_deref());
                }
            }
            Step::Follow(plan) => return Ok(plan),
        }
    }
}
