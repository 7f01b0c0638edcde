//! Wrong, damaged and hostile inputs: the tool refuses each with its class and rule, and leaves
//! nothing behind.

use crate::round_trips::chain;
use crate::support::{Folder, bytes_file, reseal, safetensors, step};

/// Creates a folder with the link 1.dcf of steps 0 and 1, changed by `edit`.
fn damaged(edit: impl FnOnce(&mut Vec<u8>)) -> Folder {
    let folder = Folder::new();
    folder
        .run(&["diff", &step(0), &step(1), "-o", "1.dcf"])
        .good();
    let mut link = folder.read("1.dcf");
    edit(&mut link);
    folder.write("1.dcf", link);
    folder
}

/// Checks that every command that reads a link refuses this one.
fn all_refuse(folder: &Folder, class: &str, rule: &str) {
    for arguments in [
        &["apply", "--base", &step(0), "1.dcf", "-o", "out"][..],
        &["inspect", "1.dcf"],
        &["verify", "1.dcf"],
        &["verify", "1.dcf", "--base", &step(0)],
    ] {
        let error = folder.refused(arguments, class, Some(rule));
        assert_eq!(error["file"], "1.dcf");
        assert!(
            error["section"].is_string() || matches!(rule, "R-HDR-09" | "R-HDR-10"),
            "{error}"
        );
        assert!(error["offset"].is_u64(), "{error}");
        assert!(!error["advice"].as_str().unwrap().is_empty());
    }
}

#[test]
fn damaged_links() {
    let flip = |link: &mut Vec<u8>, place: usize| link[place] ^= 0x10;
    all_refuse(&damaged(|link| flip(link, 0)), "NOT_DCF", "R-HDR-01");
    all_refuse(&damaged(|link| flip(link, 60)), "CORRUPT", "R-HDR-03");
    all_refuse(&damaged(|link| flip(link, 140)), "CORRUPT", "R-IDX-01");
    all_refuse(
        &damaged(|link| *link.last_mut().unwrap() ^= 1),
        "CORRUPT",
        "R-SEG-01",
    );
    all_refuse(
        &damaged(|link| link.truncate(link.len() - 1)),
        "TRUNCATED",
        "R-HDR-09",
    );
    all_refuse(&damaged(|link| link.truncate(100)), "TRUNCATED", "R-HDR-02");
    all_refuse(&damaged(Vec::clear), "TRUNCATED", "R-HDR-02");
    all_refuse(&damaged(|link| link.push(0)), "MALFORMED", "R-HDR-10");
    all_refuse(
        &damaged(|link| {
            link.splice(.., *b"PK\x03\x04 something else")
                .for_each(drop);
        }),
        "NOT_DCF",
        "R-HDR-01",
    );
}

#[test]
fn links_of_the_future() {
    let set = |place: usize, value: u8| {
        damaged(|link| {
            link[place] = value;
            reseal(link);
        })
    };
    all_refuse(&set(8, 2), "UNSUPPORTED", "R-HDR-04");
    all_refuse(&set(12, 0x80), "UNSUPPORTED", "R-HDR-05");
    all_refuse(&set(20, 1), "MALFORMED", "R-HDR-06");
    // Unknown compatible features are ignored.
    let folder = set(19, 0x80);
    assert_eq!(
        folder.json(&["inspect", "1.dcf"])["compatible_features"],
        0x8000_0000_u32
    );
    folder
        .run(&["apply", "--base", &step(0), "1.dcf", "-o", "out"])
        .good();
}

#[test]
fn wrong_bases() {
    let folder = Folder::new();
    chain(&folder, "compact");
    let refused = |arguments: &[&str], rule| folder.refused(arguments, "WRONG_BASE", Some(rule));
    refused(
        &["apply", "--base", &step(1), "1.dcf", "-o", "out"],
        "R-APP-01",
    );
    refused(&["apply", "1.dcf", "-o", "out"], "R-APP-01");
    refused(
        &["apply", "--base", &step(0), "0.dcf", "-o", "out"],
        "R-APP-01",
    );
    // Applying a link a second time is refused, too.
    refused(
        &["apply", "--base", &step(0), "1.dcf", "1.dcf", "-o", "out"],
        "R-APP-06",
    );
    let error = refused(
        &["apply", "--base", &step(0), "1.dcf", "3.dcf", "-o", "out"],
        "R-APP-06",
    );
    assert_eq!(error["file"], "3.dcf");
    refused(
        &["apply", "2.dcf", "1.dcf", "0.dcf", "-o", "out"],
        "R-APP-06",
    );
    refused(&["apply", "0.dcf", "2.dcf", "-o", "out"], "R-APP-06");
    refused(
        &["apply", "1.dcf", "2.dcf", "-o", "out", "--base", &step(2)],
        "R-APP-01",
    );
    folder.write("half", bytes_file(&[]));
    refused(&["verify", "1.dcf", "--base", "half"], "R-APP-01");
}

#[test]
fn damage_that_shows_late() {
    // The second of two links is bad: the state between them is discarded with everything else.
    let folder = Folder::new();
    chain(&folder, "compact");
    let mut link = folder.read("2.dcf");
    *link.last_mut().unwrap() ^= 1;
    folder.write("2.dcf", link);
    let error = folder.refused(
        &["apply", "0.dcf", "1.dcf", "2.dcf", "3.dcf", "-o", "out"],
        "CORRUPT",
        Some("R-SEG-01"),
    );
    assert_eq!(error["file"], "2.dcf");
    // A link whose result differs from the target that it declares.
    let mut link = folder.read("1.dcf");
    link[56] ^= 1;
    reseal(&mut link);
    folder.write("1.dcf", link);
    folder.json(&["verify", "1.dcf"]);
    let refused =
        |arguments: &[&str]| folder.refused(arguments, "STATE_MISMATCH", Some("R-APP-05"));
    refused(&["verify", "1.dcf", "--base", &step(0)]);
    refused(&["apply", "1.dcf", "--base", &step(0), "-o", "out"]);
}

#[test]
fn states_that_are_none() {
    let folder = Folder::new();
    let tensor = r#""t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let files: [(&str, Vec<u8>); 9] = [
        ("empty", Vec::new()),
        ("text", b"this is not a safetensors file".to_vec()),
        ("short", safetensors(&format!("{{{tensor}}}"), b"")),
        ("long", safetensors(&format!("{{{tensor}}}"), b"12")),
        (
            "twice",
            safetensors(&format!("{{{tensor},{tensor}}}"), b"1"),
        ),
        ("list", safetensors("[]", b"")),
        ("huge header", u64::MAX.to_le_bytes().to_vec()),
        (
            "huge tensor",
            safetensors(
                r#"{"t":{"dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,1]}}"#,
                b"1",
            ),
        ),
        ("directory/readme.txt", b"nothing here".to_vec()),
    ];
    folder.write("good", bytes_file(&[("t", b"1")]));
    folder.run(&["snapshot", "good", "-o", "good.dcf"]).good();
    for (name, bytes) in files {
        folder.write(name, bytes);
        let name = name.split('/').next().unwrap();
        folder.refused(&["digest", name], "USAGE", None);
        folder.refused(&["snapshot", name, "-o", "out"], "USAGE", None);
        folder.refused(&["diff", name, "good", "-o", "out"], "USAGE", None);
        folder.refused(&["diff", "good", name, "-o", "out"], "USAGE", None);
        folder.refused(
            &["apply", "good.dcf", "--base", name, "-o", "out"],
            "USAGE",
            None,
        );
    }
    folder.refused(&["digest", "missing"], "USAGE", None);
    folder.refused(&["inspect", "missing"], "USAGE", None);
    folder.refused(&["inspect", "directory"], "USAGE", None);
    folder.refused(&["snapshot", "good", "-o", "missing/out"], "IO", None);
    folder.refused(&["apply", "good.dcf", "-o", "missing/out"], "IO", None);
}

#[test]
fn outputs_that_exist() {
    let folder = Folder::new();
    chain(&folder, "direct");
    folder.write("precious", "precious");
    for arguments in [
        &["diff", &step(0), &step(1), "-o", "precious"][..],
        &["snapshot", &step(0), "-o", "precious"],
        &["apply", "0.dcf", "-o", "precious"],
        &["diff", &step(0), &step(1), "-o", "3.dcf"],
    ] {
        let error = folder.refused(arguments, "USAGE", None);
        assert!(
            error["message"].as_str().unwrap().contains("--force"),
            "{error}"
        );
        let before = folder.contents();
        folder.run(&[arguments, &["--force"]].concat()).good();
        assert!(folder.contents() != before);
        folder.write("precious", "precious");
    }
    folder.refused(&["snapshot", &step(0), "-o", ".."], "USAGE", None);
    folder.refused(&["snapshot", &step(0), "-o", ".", "--force"], "USAGE", None);
}

#[test]
fn notes_that_make_no_sense() {
    let folder = Folder::new();
    let snapshot = |note: &str, other: &str| {
        let ran = folder.run(&[
            "snapshot",
            &step(0),
            "-o",
            "out",
            "--meta",
            note,
            "--meta",
            other,
        ]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(folder.contents().is_empty());
    };
    snapshot("a", "b=c");
    snapshot("deltachain.layout=x", "b=c");
    snapshot("a=b", "a=c");
}

/// A handmade snapshot of one tensor of 2^40 zero bytes in 2 MiB, nearly all of which are digests
/// of its pieces.
fn huge() -> Vec<u8> {
    let pieces = 1 << 16;
    let mut index = vec![0, 0, 1, 1, b't', 1, 5, 1];
    // 2^40 in seven-bit groups: five of zeros, then 2^5.
    index.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x20]);
    index.extend(vec![0; pieces]);
    index.extend(vec![0; 32 * pieces]);
    let folder = Folder::new();
    folder.write("good", bytes_file(&[("t", b"1")]));
    folder.run(&["snapshot", "good", "-o", "good.dcf"]).good();
    let mut link = folder.read("good.dcf");
    link.truncate(128);
    link[88..96].copy_from_slice(&(index.len() as u64).to_le_bytes());
    link[96..104].copy_from_slice(&(index.len() as u64).to_le_bytes());
    link[104..112].fill(0);
    link[120..124].copy_from_slice(&crc32fast::hash(&index).to_le_bytes());
    link.extend(index);
    reseal(&mut link);
    link
}

#[test]
fn links_that_ask_for_too_much() {
    let folder = Folder::new();
    folder.write("1.dcf", huge());
    for arguments in [
        &["apply", "1.dcf", "-o", "out"][..],
        &["inspect", "1.dcf"],
        &["verify", "1.dcf"],
    ] {
        folder.refused(arguments, "LIMIT", Some("R-LIM-04"));
    }
    // The user can raise the limits.
    let shown = folder.json(&["inspect", "1.dcf", "--limit", "none"]);
    assert_eq!(shown["tensors"][0]["lanes"], 1_u64 << 40);
    folder.json(&["inspect", "1.dcf", "--limit", "new=1T"]);
    folder.refused(
        &["inspect", "1.dcf", "--limit", "index=64K"],
        "LIMIT",
        Some("R-LIM-01"),
    );
    let whole = damaged(|_| {});
    let base = step(0);
    for arguments in [
        &["apply", "1.dcf", "--base", &base, "-o", "out"][..],
        &["inspect", "1.dcf"],
        &["verify", "1.dcf"],
    ] {
        let arguments = [arguments, &["--limit", "coded=1"]].concat();
        whole.refused(&arguments, "LIMIT", Some("R-LIM-08"));
    }
    whole.json(&["verify", "1.dcf", "--limit", "coded=1G"]);
    let folder = damaged(|link| {
        link[96..104].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        reseal(link);
    });
    all_refuse(&folder, "LIMIT", "R-LIM-01");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk() {
    let folder = Folder::new();
    chain(&folder, "compact");
    let before = folder.contents();
    for arguments in [
        &["snapshot", &step(0), "-o", "out"][..],
        &["apply", "0.dcf", "-o", "out"],
        &["apply", "0.dcf", "1.dcf", "-o", "out"],
        &["apply", "0.dcf", "-o", "2.dcf", "--force"],
    ] {
        // The shell limits the size of files, and ignores the signal that would end the program.
        let ran = folder.run_in_shell(r#"trap "" XFSZ; ulimit -f 16; exec "$0" "$@""#, arguments);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.starts_with("error: IO: "), "{ran:?}");
        assert!(folder.contents() == before, "{arguments:?}");
    }
}

#[test]
fn no_secret_is_shown() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    folder.write("m.safetensors", bytes_file(&[("a", b"x")]));
    let key = "PRIVATE+KEY+run7+0a1b2c3d+hidden/hidden+hidden=";
    let web = "http://me:hidden@127.0.0.1:1/chain";
    let query = "http://127.0.0.1:1/chain?token=hidden";
    let commands: [&[&str]; 18] = [
        &["key", "show", key],
        &["publish", "chain", "m.safetensors", "--sign-key", key],
        &["publish", "chain", "m.safetensors", "--trust", key],
        &["log", "chain", "--trust", key],
        &["sign", "chain", "--sign-key", key],
        &["inspect", key],
        &["log", "chain", key],
        &["log", "chain", "--last", key],
        &["log", web, "--store", "retries=0"],
        &["log", query, "--store", "retries=0"],
        &["pull", web, "model", "--store", "retries=0"],
        &["doctor", web, "--store", "retries=0"],
        &[
            "follow", "chain", "model", "--engine", "vllm", "--server", web,
        ],
        &["mirror", "chain", web],
        &[
            "mirror",
            "chain",
            "copy",
            "--to",
            "secret_access_key:hidden",
        ],
        &[
            "pull",
            "chain",
            "model",
            "--copy",
            "s3://bucket/chain,secret_access_key:hidden,unknown=hidden",
        ],
        &[
            "log",
            "s3://bucket/chain",
            "--store",
            "secret_access_key:hidden",
        ],
        &[
            "log",
            "s3://me:hidden@bucket/chain",
            "--store",
            "unknown=hidden",
        ],
    ];
    for command in commands {
        for more in [&[][..], &["--json"]] {
            let ran = folder.run(&[command, more].concat());
            assert!(
                ran.code != Some(0) && !format!("{ran:?}").contains("hidden"),
                "{command:?}: {ran:?}"
            );
        }
    }
}

#[test]
fn values_that_are_not_finite() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    let header = r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    let model = |name: &str, a: [u16; 2], b: f32| {
        let data = [
            &a[0].to_le_bytes()[..],
            &a[1].to_le_bytes(),
            &b.to_le_bytes(),
        ]
        .concat();
        folder.write(name, safetensors(header, &data));
    };
    model("good.safetensors", [0x3F80, 0x8000], f32::MAX);
    model("bad.safetensors", [0x7FC0, 0xFF80], f32::INFINITY);
    let publish = |model| {
        folder.run(&[
            "publish",
            "chain",
            model,
            "--refuse-nonfinite",
            "--profile",
            "local,compact",
        ])
    };
    for last in 0..2 {
        let ran = publish("bad.safetensors");
        assert!(
            ran.code == Some(2)
                && ran
                    .stderr
                    .contains(r#""a" (2), "b" (1); nothing was published"#),
            "{ran:?}"
        );
        if last == 0 {
            publish("good.safetensors").good();
        }
    }
    assert_eq!(
        folder.json(&["log", "chain"])["versions"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    folder.run(&["publish", "chain", "bad.safetensors"]).good();
}

#[test]
fn a_home_directory_that_the_shell_has_not_replaced() {
    let folder = Folder::new();
    let own = step(0);
    for arguments in [
        &["init", "~/chain"][..],
        &["log", "~/chain"],
        &["pull", "chain", "~/copy"],
        &["publish", "~/chain", &own],
        &["publish", "chain", "~/model"],
        &["publish", "chain", &own, "--work=~/work"],
        &["follow", "chain", "out", "--copy=~/chain"],
        &["pull", "chain", "out", "--trust=~/keys"],
        &["mirror", "chain", "~/chain"],
        &["snapshot", &own, "-o", "~/0.dcf"],
        &["digest", "~"],
    ] {
        let ran = folder.run(arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("write $HOME instead"), "{ran:?}");
    }
    assert!(folder.contents().is_empty());
    // Inside a path, `~` is not the home directory.
    folder.run(&["init", "./~"]).good();
}
