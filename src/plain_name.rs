//! Names that are safe as file names on every system (SPEC section 12): names of files in a layout and of assets.

/// Why this is not a *plain* name, as an end of "the name ..."; `None` if it is one.
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

/// Windows takes `con.safetensors` for the console, and `con .txt` too: what counts is the part before the first dot,
/// without spaces at its end.
fn is_device_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ').to_ascii_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        _ => stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT")).is_some_and(|port| {
            port.chars().count() == 1 && port.contains(|c| "0123456789\u{b9}\u{b2}\u{b3}".contains(c))
        }),
    }
}

/// Names with the same folded form may be the same file where case does not count.
pub(crate) fn fold_case(name: &str) -> String {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

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
