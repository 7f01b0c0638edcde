//! Overlap of downloading and building: a follower's time for one version, over a line on which the
//! link takes about as long as building, beside the time of each alone.
//!
//! `cargo bench -p deltachain-store --bench overlap -- [MEBIBYTES [ROUNDS]]`
//!
//! The benchmark writes to the directory for temporary files. If that is a disk with varying speed,
//! `TMPDIR=/dev/shm` avoids it.

#[path = "../../tests/chains/support/mod.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod support;
mod throttled;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltachain::Limits;
use deltachain::chain::{Commit, FileReference, ObjectName};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Dtype, MemoryState};
use deltachain_store::{
    Base, Follower, FollowerOptions, PublishOptions, Publisher, RawObjects, Store, StoreOptions,
    init,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::support::Random;
use crate::support::models::save;
use crate::throttled::ThrottledStore;

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo passes `--bench`.
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let mebibytes = number(512)?;
    let rounds = number(9)?;
    let scratch = tempfile::tempdir()?;
    let objects: Arc<dyn ObjectStore> = {
        std::fs::create_dir(scratch.path().join("store"))?;
        Arc::new(LocalFileSystem::new_with_prefix(
            scratch.path().join("store"),
        )?)
    };
    let store = Store::from_objects(Arc::clone(&objects), "", StoreOptions::default())?;
    let link = publish(&store, mebibytes, scratch.path())?;

    let model = scratch.path().join("model");
    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let build = follow(
            &store,
            &store,
            &model,
            Some((&link, &scratch.path().join("store"))),
        )?;
        let bytes_per_second =
            u64::try_from(u128::from(link.size) * 1_000_000 / build.as_micros().max(1))?;
        let slow: Arc<dyn ObjectStore> =
            Arc::new(ThrottledStore::new(Arc::clone(&objects), bytes_per_second));
        let transfer = fetch(&slow, &link)?;
        let mut options = StoreOptions::default();
        options = options.part_bytes(part_bytes(&link));
        let slow = Store::from_objects(slow, "", options)?;
        let both = follow(&store, &slow, &model, None)?;
        let ratio = both.as_secs_f64() / build.max(transfer).as_secs_f64();
        println!(
            "{round}: {mebibytes} MiB, link {} bytes at {bytes_per_second} bytes/s: transfer \
             {transfer:.2?}, build {build:.2?}, \
             together {both:.2?}, {ratio:.2} times the longer one",
            link.size
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "median: {:.2} times the longer one",
        ratios.get(ratios.len() / 2).copied().unwrap_or_default()
    );
    Ok(())
}

/// Publishes a model and a second version in which about 2 % of the elements differ. Returns the
/// link between them.
fn publish(store: &Store, mebibytes: u64, scratch: &Path) -> Result<FileReference, Box<dyn Error>> {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    let mut random = Random(1);
    // One tensor of half the model, and smaller ones.
    for (name, sixteenths) in [
        ("embedding", 8),
        ("layer.0", 4),
        ("layer.1", 2),
        ("layer.2", 1),
        ("layer.3", 1),
    ] {
        let lanes = (mebibytes << 20) / 32 * sixteenths;
        let mut old = Vec::new();
        let mut new = Vec::new();
        for _ in 0..lanes {
            let [sign, size, mantissa, low, high, ..] = random.next().to_le_bytes();
            let exponent = 123 - u16::try_from(size.leading_zeros())?;
            let value = u16::from(sign & 0x80) << 8 | exponent << 7 | u16::from(mantissa & 0x7f);
            let changed = u16::from_le_bytes([low, high]) < 1311;
            old.extend(value.to_le_bytes());
            new.extend((value ^ u16::from(changed)).to_le_bytes());
        }
        base.insert(name, Dtype::BF16, &[lanes], old)?;
        target.insert(name, Dtype::BF16, &[lanes], new)?;
    }
    for (name, state) in [("base", &base), ("target", &target)] {
        save(state, &scratch.join(name), false);
    }
    init(store)?;
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
    let base = SafetensorsState::open(scratch.join("base"))?;
    publisher.publish(&base, Base::Nothing, &())?;
    publisher.publish(
        &SafetensorsState::open(scratch.join("target"))?,
        Base::State((&base).into()),
        &(),
    )?;
    let commit = store
        .get(ObjectName::Commit(1))?
        .ok_or("there is no commit")?;
    let routes = Commit::parse(&commit, &Limits::default())?.routes;
    let route = routes
        .iter()
        .find(|route| route.from == Some(0))
        .ok_or("there is no link")?;
    Ok(route.files[0])
}

/// Time of a follower from version 0, which it gets from the store `first`, to the switch to
/// version 1 of the store `then`. If `link` is given, the link is in the cache, and only documents
/// are downloaded.
fn follow(
    first: &Store,
    then: &Store,
    model: &Path,
    link: Option<(&FileReference, &Path)>,
) -> Result<Duration, Box<dyn Error>> {
    // A new directory each time, without a cached link.
    if model.exists() {
        std::fs::remove_dir_all(model)?;
    }
    let mut options = FollowerOptions::default();
    // The follower trusts the digests of version 0.
    options = options.trust_directory(true);
    let mut follower = Follower::in_directory(first.clone(), model, options.clone())?;
    let prepared = follower
        .prepare(Some(0), &())?
        .ok_or("version 0 is there")?;
    follower.apply(prepared)?;
    drop(follower);
    if let Some((link, store)) = link {
        let name = format!("{}.dcf", link.digest);
        std::fs::copy(
            store.join("files").join(&name),
            model.join("cache").join(&name),
        )?;
    }
    let mut follower = Follower::in_directory(then.clone(), model, options)?;
    let start = Instant::now();
    let prepared = follower
        .prepare(Some(1), &())?
        .ok_or("version 1 is there")?;
    let switched = follower.apply(prepared)?;
    let time = start.elapsed();
    assert_eq!(switched.from_cache > 0, link.is_some());
    Ok(time)
}

/// Length of a part, for as many parts as a link of 1 GiB has.
fn part_bytes(link: &FileReference) -> u64 {
    link.size.div_ceil(128)
}

/// Time to download the link alone.
fn fetch(objects: &Arc<dyn ObjectStore>, link: &FileReference) -> Result<Duration, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let path = ObjectPath::from(link.name().to_string());
    let start = Instant::now();
    // In parallel parts, as a follower does.
    let starts = (0..link.size).step_by(usize::try_from(part_bytes(link))?);
    let parts = starts
        .map(|start| objects.get_range(&path, start..link.size.min(start + part_bytes(link))));
    let parts = stream::iter(parts)
        .buffer_unordered(8)
        .try_collect::<Vec<_>>();
    let parts = runtime.block_on(parts)?;
    assert_eq!(
        parts.iter().map(|part| part.len() as u64).sum::<u64>(),
        link.size
    );
    Ok(start.elapsed())
}
