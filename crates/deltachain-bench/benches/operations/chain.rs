//! The path of a version through a chain: the publisher's step alone, and the whole path from files
//! to a follower's file.

use std::path::Path;
use std::sync::Arc;

use deltachain::files::SafetensorsState;
use deltachain::tensor::MemoryState;
use deltachain_bench::{Result, save};
use deltachain_store::{
    Base, Follower, FollowerOptions, PublishOptions, Publisher, Snapshots, Store, StoreOptions,
    init,
};
use object_store::memory::InMemory;
use rayon::ThreadPool;

use crate::{Group, threaded};

impl Group<'_> {
    /// Times all work of a publisher for a version, with its objects in memory: with the last
    /// published state as the base, and with another base, whose state must be hashed.
    pub(crate) fn publisher(&mut self, pool: &ThreadPool) -> Result {
        let states = [&self.pair.base, &self.pair.target];
        for (name, is_last) in [
            ("publish, base published last", true),
            ("publish, base given", false),
        ] {
            let store =
                Store::from_objects(Arc::new(InMemory::new()), "chain", StoreOptions::default())?;
            init(&store)?;
            let options = PublishOptions::default().snapshots(Snapshots::Never);
            let mut publisher = Publisher::open(store, options)?;
            publisher.publish(states[0], Base::Nothing, &())?;
            let mut turn = 0;
            let mut publish = || {
                let old = states[turn % 2];
                let new = states[(turn + 1) % 2];
                turn += 1;
                let base = if is_last {
                    Base::Last(old.into())
                } else {
                    Base::State(old.into())
                };
                pool.install(|| publisher.publish(new, base, &()))
            };
            publish()?;
            self.group
                .bench_function(threaded(pool, name), |bencher| bencher.iter(&mut publish));
        }
        Ok(())
    }

    /// Times publishing a version into a directory and following it there, with everything written
    /// to disk, on all threads.
    pub(crate) fn chain(&mut self, place: &Path) -> Result {
        let pair = self.pair;
        let path = |name: &str| place.join(format!("{}-{name}", pair.name));
        let files = [path("0.safetensors"), path("1.safetensors")];
        for (file, state) in files.iter().zip([&pair.base, &pair.target]) {
            save(file, state)?;
        }
        let states = [
            SafetensorsState::open(&files[0])?,
            SafetensorsState::open(&files[1])?,
        ];
        let store = Store::create(
            path("chain")
                .to_str()
                .ok_or("the folder's name is not Unicode")?,
            StoreOptions::default(),
        )?;
        init(&store)?;
        let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
        publisher.publish(&states[0], Base::Nothing, &())?;
        let mut subscriber =
            Follower::in_directory(store, &path("follower"), FollowerOptions::default())?;
        let mut follow = || {
            let prepared = subscriber.prepare(None, &())?.ok_or("nothing new")?;
            Result::Ok(subscriber.apply(prepared)?)
        };
        follow()?;

        self.group
            .bench_function("copy of a file, 1 thread", |bencher| {
                bencher.iter(|| std::fs::copy(&files[0], path("copy")));
            });
        let mut turn = 0;
        self.group
            .bench_function("publish and follow, all threads", |bencher| {
                bencher.iter(|| {
                    let old = &states[turn % 2];
                    let new = &states[(turn + 1) % 2];
                    turn += 1;
                    let published = publisher.publish(new, Base::State(old.into()), &())?;
                    let switched = follow()?;
                    if switched.state == published.state {
                        Ok(())
                    } else {
                        Err("the follower holds another state".into()) as Result
                    }
                });
            });
        if turn == 0 {
            Ok(())
        } else {
            follow_is_exact(&states[turn % 2], &path("follower"))
        }
    }
}

fn follow_is_exact(state: &SafetensorsState, directory: &Path) -> Result {
    let held = std::fs::read_dir(directory.join("current"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "safetensors")
        })
        .ok_or("the follower holds no file")?;
    let held = MemoryState::copy_of(&SafetensorsState::open(held)?)?;
    if held == MemoryState::copy_of(state)? {
        Ok(())
    } else {
        Err("the follower's state is not exact".into())
    }
}
