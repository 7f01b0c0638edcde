//! Compares the cheapest path with a search through all paths.

use proptest::prelude::*;

use super::*;

/// Routes in force, by the version that they lead to.
type Graph = BTreeMap<u64, Vec<(Route, bool)>>;

/// The order of paths: bytes of avoided routes, bytes, number of routes, versions, and the place of
/// each route among those of its version.
type Cost = (u128, u128, usize, Vec<u64>, Vec<usize>);

/// Returns all paths to `wanted` along these routes, some of which are avoided, each with the
/// version that it starts from.
fn all_paths(graph: &Graph, held: Option<u64>, wanted: u64) -> Vec<(Cost, Option<u64>)> {
    let mut paths = Vec::new();
    for (place, (route, is_avoided)) in graph.get(&wanted).into_iter().flatten().enumerate() {
        let avoided = if *is_avoided { route.bytes() } else { 0 };
        if route.from.is_none() || route.from == held {
            paths.push((
                (avoided, route.bytes(), 1, vec![wanted], vec![place]),
                route.from,
            ));
        }
        for ((before, bytes, count, mut versions, mut places), start) in route
            .from
            .into_iter()
            .flat_map(|from| all_paths(graph, held, from))
        {
            versions.push(wanted);
            places.push(place);
            paths.push((
                (
                    before + avoided,
                    bytes + route.bytes(),
                    count + 1,
                    versions,
                    places,
                ),
                start,
            ));
        }
    }
    paths
}

/// Generates the routes of each version: their starts and sizes. Sizes are small, so that many
/// paths cost the same.
fn any_routes() -> impl Strategy<Value = Vec<Vec<(Option<u64>, Vec<u64>)>>> {
    let route = (proptest::option::of(0..7_u64), 1..4_u64, 0..3_u64);
    proptest::collection::vec(proptest::collection::vec(route, 0..5), 1..8).prop_map(|versions| {
        let routes = (0..).zip(versions).map(|(version, mut routes)| {
            routes.retain(|(from, ..)| *from < Some(version));
            // These routes have the same cost, but different files.
            routes
                .into_iter()
                .map(|(from, size, other)| (from, vec![size + other, 3 - other]))
                .collect()
        });
        routes.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_cheapest_path_is_that_of_a_search_through_all(
        given in any_routes(),
        held in proptest::option::of(0..8_u64),
        failing in proptest::collection::vec(any::<proptest::sample::Index>(), 16),
        // A bit for each route of each version; and the kind of path: the cheapest, the cheapest
        // direct one, or the cheapest in place.
        marks in proptest::collection::vec(any::<u8>(), 8),
        order in 0..3,
    ) {
        let is_direct = order == 1; let is_in_place = order == 2;
        let mut store = Store::new(); let mut graph = Graph::new();
        for (version, routes) in (0..).zip(&given) {
            let routes: Vec<_> = routes.iter().map(|(from, sizes)| (*from, sizes.as_slice())).collect();
            let ordered = routes_of(version, &routes);
            let bits = marks[usize::try_from(version).unwrap()];
            let marked: Vec<usize> = (0..ordered.len()).filter(|place| bits >> place & 1 == 1).collect();
            store = if is_in_place && !routes.is_empty() {
                store.add_in_place(&routes, &marked)
            } else {
                // The commit's routes are not in force, so that a routes document can give all of
                // them.
                store.add(&[(None, &[1, 1])])
            };
            store = store.with_routes(version, 1, &routes);
            store.mark(ObjectName::Routes { version, generation: 1 }, &marked);
            let is_avoided = |(place, route): &(usize, Route)| {
                (is_direct || is_in_place) && route.from.is_some() && !marked.contains(place)
            };
            let routes = ordered.into_iter().enumerate().map(|route| (route.1.clone(), is_avoided(&route)));
            graph.insert(version, routes.collect());
        }
        let wanted = given.len() as u64 - 1;
        let held = held.filter(|held| *held < wanted);
        let mut planner = planner(None, held.and_then(|held| store.held(held)));
        if is_direct {
            planner = planner.direct();
        } else if is_in_place {
            planner = planner.in_place();
        }
        for (count, which) in failing.iter().enumerate() {
            let found = store.drive(&mut planner);
            // Places count the routes that are left, whose order stays the same.
            let mut paths = all_paths(&graph, held, wanted);
            // No route of a path from nothing is applied in place.
            paths.iter_mut().filter(|(_, start)| is_in_place && start.is_none()).for_each(|(cost, _)| cost.0 = cost.1);
            let Some(((_, bytes, _, versions, places), start)) = paths.into_iter().min() else {
                let first = if count == 0 { "R-CHN-08" } else { "R-CHN-09" };
                prop_assert_eq!(found.unwrap_err().rule(), Some(first));
                break;
            };
            let (plan, _) = found.unwrap();
            prop_assert_eq!((plan.bytes, path(&plan)), (bytes, (start, versions.clone())));
            prop_assert_eq!(plan.start.is_some(), start.is_some());
            for ((hop, version), place) in plan.hops.iter().zip(&versions).zip(&places) {
                let (Route { from, files }, _) = &graph[version][*place];
                prop_assert_eq!((hop.from, &hop.files), (*from, files));
            }
            let failed = which.index(plan.hops.len());
            graph.get_mut(&versions[failed]).unwrap().remove(places[failed]);
            planner.fail_route(&plan.hops[failed], plan.hops[failed].files[0].missing());
        }
    }
}
