//! The programs in `examples`, as functions.

use std::fs;

use crate::support::models::Models;
use crate::support::verify::shown;

#[path = "../../examples/follow.rs"]
#[allow(dead_code, reason = "its main function is for users")]
mod follow;
#[path = "../../examples/publish.rs"]
#[allow(dead_code, reason = "its main function is for users")]
mod publish;

#[test]
fn what_one_publishes_the_other_follows() {
    let folder = tempfile::tempdir().unwrap();
    let chain = folder.path().join("chain");
    let directory = folder.path().join("model");
    let chain = chain.to_str().unwrap();
    let mut models = Models::new(1, 64);
    let checkpoints: Vec<String> = (0..3)
        .map(|version| {
            models.save(version, folder.path());
            folder
                .path()
                .join(format!("version {version}"))
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    publish::publish(chain, &checkpoints[..2]).unwrap();
    follow::follow_until(chain, &directory, 1).unwrap();
    publish::publish(chain, &checkpoints[2..]).unwrap();
    follow::follow_until(chain, &directory, 2).unwrap();
    assert_eq!(shown(&directory).as_ref(), Some(models.state(2)));
    assert!(
        fs::read_link(directory.join("current"))
            .unwrap()
            .to_str()
            .unwrap()
            .contains("00000000002-")
    );
}
