//! The commands of README.md, run in their order as they stand there.

#![cfg(target_os = "linux")]

use std::fs;

use crate::support::{Folder, step};

/// The lines of README.md's shell blocks that run the tool.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let mut is_shell = false;
    let mut commands = Vec::new();
    for line in readme.lines() {
        if line.starts_with("```") {
            is_shell = line == "```sh";
        } else if is_shell && line.starts_with("deltachain ") {
            commands.push(line.to_owned());
        }
    }
    commands
}

#[test]
fn its_commands_work() {
    let folder = Folder::new();
    for number in [0, 1] {
        folder.write(&format!("step{number}/model.safetensors"), fs::read(step(number)).unwrap());
    }
    let commands = commands();
    assert_eq!(commands.len(), 7);
    for command in commands {
        // It would go on for ever.
        let command = command.replace("deltachain follow ", "deltachain follow --once ");
        folder.run_in_shell(&format!("deltachain() {{ \"$0\" \"$@\"; }}\n{command}"), &[]).good();
    }
    let last = fs::read(step(1)).unwrap();
    for built in ["served/current/model.safetensors", "copy/model.safetensors"] {
        assert!(folder.read(built) == last, "{built}");
    }
}
