//! Parallel work on items that are begun in order, and whose results are used in order.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::error::Result;

/// Calls `make` for each item, on all threads and with a context for each thread, and `take` for
/// the results, one by one in the order of the items. Free threads begin the items in this order,
/// too: if items come over a slow network, no thread waits for one while an earlier one is
/// available. Early results wait for their turn.
///
/// # Errors
/// The first failure in the order of the items, whatever the threads did. No item is begun after a
/// failure is known.
pub(crate) fn in_order<I: Sync, C, T: Send>(
    items: &[I],
    context: impl Fn() -> C + Send + Sync,
    make: impl Fn(&mut C, &I) -> Result<T> + Send + Sync,
    take: impl FnMut(&I, T) -> Result<()> + Send,
) -> Result<()> {
    let line = Mutex::new(ResultQueue {
        taken: 0,
        early: BTreeMap::new(),
        has_failed: false,
        take,
        result: Ok(()),
    });
    let lock = || line.lock().unwrap_or_else(PoisonError::into_inner);
    let numbers = (0..items.len()).take_while(|_| !lock().has_failed);
    numbers
        .par_bridge()
        .map_init(context, |context, number| {
            (number, make(context, &items[number]))
        })
        .for_each(|(number, made)| lock().add(items, number, made));
    line.into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .result
}

/// The results so far.
struct ResultQueue<T, F> {
    /// Number of items done.
    taken: usize,
    early: BTreeMap<usize, Result<T>>,
    /// True after any failure, which need not be the first one in order.
    has_failed: bool,
    take: F,
    result: Result<()>,
}

impl<T, F> ResultQueue<T, F> {
    fn add<I>(&mut self, items: &[I], number: usize, made: Result<T>)
    where
        F: FnMut(&I, T) -> Result<()>,
    {
        self.has_failed |= made.is_err();
        self.early.insert(number, made);
        while self.result.is_ok()
            && let Some(made) = self.early.remove(&self.taken)
        {
            self.result = made.and_then(|made| (self.take)(&items[self.taken], made));
            self.has_failed |= self.result.is_err();
            self.taken += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Error;

    /// Takes the longer the smaller the item is, so that results are early.
    fn work(item: u64) -> u64 {
        (0..(1000 - item) * 50).fold(item, |sum, i| sum.wrapping_mul(31).wrapping_add(i)) | 1
    }

    #[test]
    fn results_are_taken_in_order() {
        let items: Vec<u64> = (0..1000).collect();
        let mut taken = Vec::new();
        let make = |(): &mut (), &item: &u64| Ok((item, work(item)));
        in_order(
            &items,
            || (),
            make,
            |&item, (made, _)| {
                assert_eq!(item, made);
                taken.push(item);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(taken, items);
    }

    #[test]
    fn the_first_failure_counts() {
        let items: Vec<u64> = (0..1000).collect();
        let begun = AtomicUsize::new(0);
        let make = |(): &mut (), &item: &u64| {
            begun.fetch_add(1, Ordering::Relaxed);
            work(item);
            if item >= 100 {
                Err(Error::usage(item.to_string()))
            } else {
                Ok(item)
            }
        };
        let mut taken = 0;
        let failed = in_order(
            &items,
            || (),
            make,
            |_, _| {
                taken += 1;
                Ok(())
            },
        );
        assert_eq!((failed.unwrap_err().message(), taken), ("100", 100));
        assert!(begun.into_inner() <= 100 + rayon::current_num_threads());

        let failed = in_order(
            &items,
            || (),
            |(), &item| Ok(item),
            |_, item| {
                if item < 7 {
                    Ok(())
                } else {
                    Err(Error::usage(item.to_string()))
                }
            },
        );
        assert_eq!(failed.unwrap_err().message(), "7");
        assert!(in_order(&[] as &[u64], || (), |(), _| Ok(()), |_, ()| Ok(())).is_ok());
    }
}
