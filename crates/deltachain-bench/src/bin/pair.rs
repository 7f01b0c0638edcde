//! `pair BASE TARGET MEBIBYTES DENSITY`: writes two neighbouring versions of a synthetic model as
//! safetensors files of this size, in which about this part of the elements differs.

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
