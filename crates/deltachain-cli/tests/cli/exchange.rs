//! Deltas of other systems: written and read back, as links and as versions of a chain. Whether those systems agree is proven by
//! `./task exchange`.

use crate::round_trips::chain;
use crate::support::{Folder, step};

const LAYOUTS: [(&str, [&str; 3]); 4] = [
    ("slime", ["weight_v000001", "weight_v000002", "weight_v000003"]),
    ("arc2", ["step_000001.safetensors", "step_000002.safetensors", "step_000003.safetensors"]),
    ("pulsept1", ["step_000001.pulse", "step_000002.pulse", "step_000003.pulse"]),
    ("trl", ["deltas/step_000001.safetensors", "deltas/step_000002.safetensors", "deltas/step_000003.safetensors"]),
];

/// Exports three steps, and gives the paths of what was written.
fn exported(folder: &Folder, layout: &str, names: [&str; 3]) -> Vec<String> {
    chain(folder, "compact");
    folder.json(&["export", "--to", layout, "--base", &step(0), "1.dcf", "2.dcf", "3.dcf", "-o", "out"]);
    names.map(|name| folder.at("out").join(name).to_str().unwrap().to_owned()).to_vec()
}

#[test]
fn links_come_back_from_every_layout() {
    for (layout, names) in LAYOUTS {
        let folder = Folder::new();
        let deltas = exported(&folder, layout, names);
        let (base, mut arguments) = (step(0), vec!["import", "--from", layout, "--base"]);
        arguments.push(&base);
        arguments.extend(deltas.iter().map(String::as_str));
        let made = folder.json(&[&arguments[..], &["-o", "back"]].concat());
        for number in 1..4 {
            let link = &made["links"][number - 1];
            assert_eq!(link["target"], folder.json(&["digest", &step(number)])["state"], "{layout} {number}");
        }
        folder.refused(&[&arguments[..], &["-o", "back"]].concat(), "USAGE", None);
    }
}

#[test]
fn a_chain_gets_a_version_for_each_delta() {
    let (layout, names) = LAYOUTS[0];
    let folder = Folder::new();
    let deltas = exported(&folder, layout, names);
    let [first, second, third] = deltas.as_slice() else { panic!("three steps") };
    let (base, import) = (step(0), ["import", "--from", layout, "--chain", "the chain", "--base"]);
    folder.run(&["init", "the chain"]).good();

    let made = folder.json(&[&import[..], &[&base, first, second, "--meta", "run=7"]].concat());
    let versions = made["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 3, "{made}");
    for (number, version) in versions.iter().enumerate() {
        assert_eq!(version["version"], number);
        assert_eq!(version["state"], folder.json(&["digest", &step(number)])["state"], "{number}");
    }
    assert_eq!(versions[2]["imported"]["base_version"], "000001");
    let shown = folder.json(&["show", "the chain"]);
    assert_eq!(shown["metadata"]["run"], "7", "{shown}");

    // It goes on from the head, and from nothing else.
    folder.refused(&[&import[..], &[&step(1), second]].concat(), "CHAIN", Some("R-PUB-01"));
    let made = folder.json(&[&import[..], &[&step(2), third]].concat());
    assert_eq!(made["versions"][0]["version"], 3, "{made}");
    folder.run(&["pull", "the chain", "pulled"]).good();
    assert_eq!(folder.json(&["digest", "pulled/current"])["state"], folder.json(&["digest", &step(3)])["state"]);
    assert_eq!(folder.run(&["import", "--from", layout, "--base", &base, first]).code, Some(2));
}
