//! Layouts that commits name, and the proof of a layout along a path (SPEC section 25).

use std::collections::BTreeMap;

use crate::chain::{Commit, Hop, names};
use crate::error::{Error, Result};
use crate::rules::{self, ensure};
use crate::tensor::Digest;

const KEY: &str = "deltachain.layouts";

/// Reads the digests of the layouts of `shards` shards from the metadata of their commit (SPEC
/// section 25.1). Returns `None` if the key is missing or its value has another form.
pub fn named_layouts(metadata: &BTreeMap<String, String>, shards: usize) -> Option<Vec<Digest>> {
    let text = metadata.get(KEY)?;
    let named = text
        .split(' ')
        .map(names::digest)
        .collect::<Option<Vec<Digest>>>()?;
    (named.len() == shards).then_some(named)
}

fn value(layouts: &[Digest]) -> String {
    layouts
        .iter()
        .map(Digest::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

impl Commit {
    /// Names the digest of the [layout](crate::files::Layout::digest) of each shard, in order.
    pub fn name_layouts(&mut self, layouts: &[Digest]) {
        self.metadata.insert(KEY.to_owned(), value(layouts));
    }
}

/// The state of the proof of one shard's layout, while the files of a path are applied (SPEC
/// section 25.2). The default starts from nothing, and [`held`](Self::held) from a held version.
#[derive(Debug, Clone, Default)]
pub struct LayoutProof {
    is_proven: bool,
    /// Number of routes followed.
    routes: usize,
    /// The route that the layout comes from, which is at fault if the layout is wrong. `None` if it
    /// comes from the held version.
    origin: Option<usize>,
    /// The last route that proves nothing by itself.
    unproven: Option<usize>,
}

impl LayoutProof {
    /// Starts from a held version, whose layout was recorded as proven or not.
    pub fn held(is_proven: bool) -> Self {
        Self {
            is_proven,
            ..Self::default()
        }
    }

    /// Whether the layout is proven.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Continues the proof after the route's file for this shard has been applied. `states` says
    /// whether the file states a layout, `is_hashed` whether the whole file is hashed; `layout`
    /// computes the digest of the layout after it.
    ///
    /// # Errors
    /// R-LAY-03 (`STATE_MISMATCH`) if the commit of the version that the route leads to names
    /// another layout. The [link](Error::link) of the error is the number of the route at fault;
    /// without one, the held version is at fault.
    pub fn follow(
        &mut self,
        hop: &Hop,
        shard: usize,
        (states, is_hashed): (bool, bool),
        layout: impl FnOnce() -> Digest,
    ) -> Result<()> {
        let is_new = states || hop.from.is_none();
        if is_new || self.is_proven {
            self.origin = Some(self.routes);
        }
        let stands = is_hashed && hop.is_in_commit;
        if !stands {
            self.unproven = Some(self.routes);
        }
        self.routes += 1;
        self.is_proven = stands && (is_new || self.is_proven);
        self.compare(
            hop.layouts.as_deref().and_then(|named| named.get(shard)),
            layout,
        )
    }

    /// Compares the digest of the layout with the one that a commit names, if it names one.
    ///
    /// # Errors
    /// Same errors as [`follow`](Self::follow).
    pub fn compare(
        &mut self,
        named: Option<&Digest>,
        layout: impl FnOnce() -> Digest,
    ) -> Result<()> {
        let Some(named) = named else { return Ok(()) };
        let layout = layout();
        ensure(layout == *named, &rules::LAY_03, || {
            format!(
                "the layout has the digest {layout}, but the commit names {named}: files, metadata \
                 or places differ"
            )
        })
        .map_err(|error| at_fault(error, self.origin))?;
        self.is_proven = true;
        Ok(())
    }

    /// Checks at the end of a path that the layout is proven, for a reader with
    /// [trust](crate::chain::Trust).
    ///
    /// # Errors
    /// R-LAY-03 (`STATE_MISMATCH`) if the layout is not proven. The link of the error means the
    /// same as that of [`follow`](Self::follow).
    pub fn check_proven(&self) -> Result<()> {
        ensure(self.is_proven, &rules::LAY_03, || {
            "no signed commit names the layout, and it does not come from files of commits alone"
                .into()
        })
        .map_err(|error| at_fault(error, self.unproven))
    }
}

fn at_fault(error: Error, route: Option<usize>) -> Error {
    match route {
        Some(route) => error.of_link(route),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::of_bytes(name.as_bytes())
    }

    #[test]
    fn the_key_has_one_form() {
        let named = |text: &str, shards| {
            named_layouts(&BTreeMap::from([(KEY.to_owned(), text.to_owned())]), shards)
                .map(|named| named.len())
        };
        let (a, b) = (digest("a").to_string(), digest("b").to_string());
        assert_eq!(named(&a, 1), Some(1));
        assert_eq!(named(&format!("{a} {b}"), 2), Some(2));
        for (text, shards) in [
            (String::new(), 0),
            (String::new(), 1),
            (a.clone(), 2),
            (format!("{a} {b}"), 1),
            (format!("{a}  {b}"), 2),
            (format!("{a} {b} "), 2),
            (a.to_uppercase(), 1),
            (a[1..].to_owned(), 1),
        ] {
            assert_eq!(named(&text, shards), None, "{text:?}");
        }
        assert_eq!(named_layouts(&BTreeMap::new(), 1), None);
    }

    /// A path of routes: from nothing or not, in the commit or not, whether the file states a
    /// layout, what is named.
    fn follow(
        held: Option<bool>,
        path: &[(bool, bool, bool, Option<Digest>)],
    ) -> (LayoutProof, Option<Error>) {
        let mut proof = held.map_or_else(LayoutProof::default, LayoutProof::held);
        for (version, &(is_from_nothing, is_in_commit, states, named)) in (1..).zip(path) {
            let layouts = named.map(|named| vec![named]);
            let from = (!is_from_nothing).then_some(version - 1);
            let hop = Hop {
                version,
                from,
                files: Vec::new(),
                shards: Vec::new(),
                layouts,
                is_in_commit,
            };
            if let Err(error) = proof.follow(&hop, 0, (states, true), || digest("layout")) {
                return (proof, Some(error));
            }
        }
        let error = proof.check_proven().err();
        (proof, error)
    }

    #[test]
    fn who_is_at_fault() {
        let (right, other) = (Some(digest("layout")), Some(digest("other")));
        let fault = |held, path: &[_]| {
            follow(held, path)
                .1
                .map(|error| (error.rule().unwrap(), error.link()))
        };
        let at = |route| Some(("R-LAY-03", route));
        let (nothing, version) = (true, false);
        // From nothing, by files of commits.
        assert_eq!(
            fault(
                None,
                &[(nothing, true, false, None), (version, true, false, None)]
            ),
            None
        );
        assert_eq!(
            fault(
                None,
                &[(nothing, false, false, right), (version, true, false, None)]
            ),
            None
        );
        // A file that only a routes document names proves nothing, and a commit that names the
        // layout does.
        assert_eq!(fault(None, &[(nothing, false, true, None)]), at(Some(0)));
        assert_eq!(
            fault(
                None,
                &[(nothing, false, true, None), (version, true, false, right)]
            ),
            None
        );
        assert_eq!(
            fault(
                None,
                &[(nothing, false, true, None), (version, true, false, other)]
            ),
            at(Some(0))
        );
        assert_eq!(
            fault(
                None,
                &[(nothing, true, false, right), (version, true, false, other)]
            ),
            at(Some(1))
        );
        assert_eq!(
            fault(
                None,
                &[(nothing, true, false, None), (version, true, true, other)]
            ),
            at(Some(1))
        );
        // The layout of the version held may be wrong.
        assert_eq!(
            fault(Some(false), &[(version, true, false, other)]),
            at(None)
        );
        assert_eq!(
            fault(Some(true), &[(version, true, false, other)]),
            at(Some(0))
        );
        assert_eq!(
            fault(Some(false), &[(version, true, false, None)]),
            at(None)
        );
        assert_eq!(fault(Some(false), &[(version, true, true, None)]), None);
        assert_eq!(
            fault(
                Some(false),
                &[(version, false, false, None), (version, true, false, None)]
            ),
            at(Some(0))
        );
        assert_eq!(
            fault(Some(true), &[(version, false, false, None)]),
            at(Some(0))
        );
        assert_eq!(fault(Some(false), &[]), at(None));
    }
}
