use deltachain::tensor::{Layout, SafetensorsState, StagedSafetensors, StateDigests};
use deltachain::*;
fn main() -> Result<()> {
    let a: Vec<String> = std::env::args().collect();
    if a[1] == "diff" {
        let base = SafetensorsState::open(&a[2])?;
        let target = SafetensorsState::open(&a[3])?;
        let profile = if a.get(7).is_some_and(|p| p == "direct") { Profile::Direct } else { Profile::Compact };
        let mut f = std::fs::File::create(&a[5]).unwrap();
        let r = if a[2] == a[3] {
            diff(&tensor::MemoryState::new(), &target, &DiffOptions::default(), &mut f)?
        } else {
            diff(&base, &target, &DiffOptions { profile, ..Default::default() }, &mut f)?
        };
        println!("{r:?}",);
    } else {
        let base = SafetensorsState::open(&a[3])?;
        let link = LinkReader::open(FileSource::open(&a[4])?, &Limits::default())?;
        let d = StateDigests::of(&base, &())?;
        let app = Application::new(&base, &d, &link)?;
        let layout = Layout::of_target(&link.index().metadata, Some(base.layout()), app.tensors())?;
        let out = StagedSafetensors::create(a[6].as_ref(), app.tensors(), &layout, Some(&base), true)?;
        app.run(&out, &())?;
        out.commit()?;
    }
    Ok(())
}
