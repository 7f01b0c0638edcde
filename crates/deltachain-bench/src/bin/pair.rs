//! `pair BASE TARGET MEBIBYTES DENSITY`: writes two neighbouring versions of a model that was never
//! trained, as safetensors files of that size, of whose elements about that part differs.

use std::env;
use std::path::Path;

use deltachain_bench::{Pair, Result, save, synthetic};

fn main() -> Result {
    let words: Vec<String> = env::args().skip(1).collect();
    let [base, target, mebibytes, density] = words.as_slice() else {
        return Err("use: pair BASE TARGET MEBIBYTES DENSITY".into());
    };
    let Pair {
        base: old,
        target: new,
        ..
    } = synthetic("pair", mebibytes.parse()?, density.parse()?)?;
    save(Path::new(base), &old)?;
    save(Path::new(target), &new)?;
    Ok(())
}
