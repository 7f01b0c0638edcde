//! All tests of the store from outside, as one program: each further program would take half a
//! minute to build.

mod another_server;
mod answers;
mod assets;
mod buckets;
mod chain;
mod common;
mod credentials;
mod damage;
#[cfg(unix)]
mod disk;
mod every;
mod examples;
mod faults;
mod files_of_copies;
mod folders;
mod hostile;
mod in_place;
mod interleaving;
mod keeping;
mod kill;
mod late;
mod lists;
mod losses;
mod maintenance;
mod mirror;
mod parts;
mod promotions;
mod proxy;
mod publisher;
mod reading_back;
mod requests;
mod shards_of_head;
mod signatures;
mod store;
mod subscriber;
mod support;
