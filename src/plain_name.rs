//! Names that are safe as names of files and folders on every system (SPEC section 12): of files in
//! a layout and of assets.

/// Maximum number of parts of a path name.
pub(crate) const MOST_PARTS: usize = 8;
/// Maximum bytes of a path name.
const MOST_BYTES: usize = 1024;

/// The reason why this is not a *path name*, as the end of "the name ..."; `None` if it is one.
pub(crate) fn flaw_of_path_name(name: &str) -> Option<&'static str> {
    let (folders, _) = name.rsplit_once('/').unwrap_or_default();
    let mut parts = name.split('/');
    if name.len() > MOST_BYTES {
        Some("is longer than 1024 bytes")
    } else if parts.clone().count() > MOST_PARTS {
        Some("has more than 8 parts")
    } else if let Some(flaw) = parts.clone().find_map(flaw_of_plain_name) {
        Some(flaw)
    } else if parts.any(|part| part.ends_with([' ', '.'])) {
        Some("ends in a space or a dot, or a folder in it does")
    } else if folders.split('/').any(is_of_tensors) {
        Some("has a folder with the name of a file of tensors")
    } else {
        None
    }
}

/// Whether this is the name of a file of tensors or of their index; case is ignored.
pub(crate) fn is_of_tensors(name: &str) -> bool {
    let folded = fold_case(name);
    folded.ends_with(".safetensors") || folded.ends_with(".safetensors.index.json")
}

/// Whether a path name is that of a file in a folder of this name; case is ignored.
pub(crate) fn lies_in(name: &str, folder: &str) -> bool {
    fold_case(name)
        .strip_prefix(&fold_case(folder))
        .is_some_and(|rest| rest.starts_with('/'))
}

/// The folder of a path name: up to and including its last `/`.
pub(crate) fn folder_of(name: &str) -> &str {
    &name[..name.rfind('/').map_or(0, |last| last + 1)]
}

/// The reason why this is not a *plain* name, as the end of "the name ..."; `None` if it is one.
pub(crate) fn flaw_of_plain_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > 255 {
        Some("is longer than 255 bytes")
    } else if name.contains(['/', '\\', ':']) || name.starts_with('.') {
        Some("is a path or hidden")
    } else if name.contains(char::is_control) {
        Some("holds a control character")
    } else if is_device_name(name) {
        Some("is a Windows device name")
    } else {
        None
    }
}

/// Whether Windows takes the name for a device. It takes `con.safetensors` for the console, and
/// `con .txt`, too: only the part before the first dot counts, without spaces at its end.
fn is_device_name(name: &str) -> bool {
    let stem = name
        .split('.')
        .next()
        .unwrap_or_default()
        .trim_end_matches(' ')
        .to_ascii_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        _ => stem
            .strip_prefix("COM")
            .or_else(|| stem.strip_prefix("LPT"))
            .is_some_and(|port| {
                port.chars().count() == 1
                    && port.contains(|c| "0123456789\u{b9}\u{b2}\u{b3}".contains(c))
            }),
    }
}

/// Folds the case of a name. Names with the same folded form may be the same file on systems that
/// ignore case.
pub(crate) fn fold_case(name: &str) -> String {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_are_plain_names_in_folders() {
        let part = "x".repeat(255);
        let longest = [&part[..], &part, &part, &part].join("/");
        assert_eq!(longest.len(), 1023);
        for name in [
            "a",
            "vae/a.safetensors",
            "1_Pooling/config.json",
            "a/b/c/d/e/f/g/h",
            "a.b/c. d",
            &longest,
        ] {
            assert_eq!(flaw_of_path_name(name), None, "{name:?}");
        }
        for (name, flaw) in [
            ("", "is empty"),
            ("/", "is empty"),
            ("/a", "is empty"),
            ("a/", "is empty"),
            ("a//b", "is empty"),
            ("../a", "hidden"),
            ("a/./b", "hidden"),
            ("a/.b", "hidden"),
            ("a/b\\c", "is a path"),
            ("con/a", "device"),
            ("a/nul.txt", "device"),
            ("a/b\n", "control"),
            ("a/b/c/d/e/f/g/h/i", "8 parts"),
            ("a ", "space or a dot"),
            ("a./b", "space or a dot"),
            ("a/b.", "space or a dot"),
            ("a.safetensors/b", "with the name of"),
            ("a/b.SAFETENSORS.Index.Json/c", "with the name of"),
            (&format!("{longest}/x"), "1024"),
            (&format!("a/{}", "x".repeat(256)), "255"),
        ] {
            assert!(
                flaw_of_path_name(name).is_some_and(|found| found.contains(flaw)),
                "{name:?}"
            );
        }
        assert!(lies_in("Vae/x", "vAE") && lies_in("a/b/c", "a") && lies_in("a/b/c", "a/b"));
        assert!(!lies_in("vae", "vae") && !lies_in("vae2/x", "vae") && !lies_in("a", "a/b"));
        assert_eq!(["a", "a/b", "a/b/c"].map(folder_of), ["", "a/", "a/b/"]);
    }

    #[test]
    fn only_plain_names_are_accepted() {
        let longest = "x".repeat(255);
        for name in [
            "model.safetensors",
            "a b\u{1F9EE}",
            "a.",
            "a ",
            " ",
            " con",
            "console",
            "com",
            "com10",
            "com\u{2074}",
            "com\u{b9}\u{b2}",
            "lpt\u{663}",
            "conin",
            "conout$$",
            "con\u{a0}.x",
            "a\u{a0}\u{200b}",
            &longest,
        ] {
            assert_eq!(flaw_of_plain_name(name), None, "{name:?}");
        }
        let too_long = "\u{e4}".repeat(128);
        for name in [
            "",
            ".",
            "..",
            ".a",
            "/a",
            "../a",
            "a/b",
            "a\\b",
            "C:a",
            "\0",
            "a\n",
            "a\u{1f}",
            "a\u{7f}",
            "a\u{80}",
            "a\u{9f}",
            "con",
            "NUL.txt",
            "Aux .txt",
            "prn  ",
            "prn.x.safetensors",
            "com0",
            "LPT9.a",
            "com\u{b9}.a",
            "Lpt\u{b2}",
            "lpt\u{b3} .a",
            "conin$",
            "ConOut$ .log",
            &too_long,
        ] {
            assert!(flaw_of_plain_name(name).is_some(), "{name:?}");
        }
    }
}
