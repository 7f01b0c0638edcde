//! `seeds ROOT OUT`: writes the seeds of each target into the target's folder below OUT.
//! `./task fuzz` runs this program.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;

use deltachain_fuzz::seeds::{check_counts, collect};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, out] = arguments.as_slice() else {
        return Err("usage: seeds ROOT OUT".into());
    };
    let seeds = collect(Path::new(root))?;
    let mut written: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for seed in &seeds {
        let folder = Path::new(out).join(seed.target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(seed.name()), &seed.bytes)?;
        written.entry(seed.target).or_default().insert(seed.name());
    }
    for (target, names) in &written {
        println!("{target:14} {:5} seeds", names.len());
    }
    Ok(check_counts(&seeds)?)
}
