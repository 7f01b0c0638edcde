//! The tool's output: figures of `inspect`, digests, checks, the demo, help.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

use crate::round_trips::chain;
use crate::support::{Folder, TOOL, bytes_file, excerpt, step};

#[test]
fn inspect_adds_up() {
    for base in [step(0), excerpt("f32_step0"), excerpt("fp8_step0")] {
        let folder = Folder::new();
        let target = base.replace("step0", "step1");
        let made = folder.json(&[
            "diff",
            &base,
            &target,
            "-o",
            "link",
            "--meta",
            "run=erster Versuch",
            "--meta",
            "n=1",
        ]);
        let shown = folder.json(&["inspect", "link"]);
        for field in ["base", "target", "bytes"] {
            assert_eq!(shown[field], made[field]);
        }
        assert_eq!(
            (&shown["metadata"]["run"], &shown["metadata"]["n"]),
            (&json!("erster Versuch"), &json!("1"))
        );
        assert_eq!(
            (&shown["version"], &shown["compatible_features"]),
            (&json!(1), &json!(0))
        );
        assert_eq!(
            (&shown["snapshot"], &shown["direct"]),
            (&json!(false), &json!(false))
        );
        let number = |value: &Value| value.as_u64().unwrap();
        let lengths =
            ["index_bytes", "segments_bytes", "extension_bytes"].map(|part| number(&shown[part]));
        let sizes = lengths.iter().sum::<u64>() + 128;
        assert_eq!(sizes, number(&shown["bytes"]));
        let tensors = shown["tensors"].as_array().unwrap();
        assert_eq!(number(&made["tensors"]), tensors.len() as u64);
        for field in ["bytes", "coded", "lanes"] {
            let sum: u64 = tensors.iter().map(|tensor| number(&tensor[field])).sum();
            assert_eq!(sum, number(&shown["total"][field]), "{field}");
        }
        assert_eq!(
            number(&shown["total"]["bytes"]),
            number(&shown["segments_bytes"])
        );
        assert!(number(&shown["total"]["coded"]) >= number(&made["changed"]));
        for tensor in tensors {
            assert_eq!(tensor["operation"], "patch");
            assert!(!tensor["dtype"].is_null() && !tensor["shape"].is_null());
            assert!(
                tensor["codings"]
                    .as_array()
                    .is_some_and(|codings| !codings.is_empty())
            );
            assert!((1..=16).contains(&number(&tensor["contexts"])));
            assert!(number(&tensor["coded"]) <= number(&tensor["lanes"]));
        }
        let text = folder.run(&["inspect", "link"]).good();
        assert!(
            text.contains("run = erster Versuch")
                && text.contains("encoder.layer.0.attention.self.query.weight")
        );
        assert!(!text.contains('\u{1b}'), "colours without a terminal");
    }
}

#[test]
fn inspect_writes_a_page_with_the_link_inside() {
    let folder = Folder::new();
    let link = "step 1 & \"more\".dcf";
    folder.run(&["diff", &step(0), &step(1), "-o", link]).good();
    let said = folder.json(&["inspect", link, "--html", "page.html"]);
    let page = String::from_utf8(folder.read("page.html")).unwrap();
    assert_eq!(said["bytes"], page.len());
    assert_eq!(said["html"], "page.html");
    // The page contains one file, the link.
    let begin = "class=\"data\" data-name=\"step 1 &amp; &quot;more&quot;.dcf\">";
    assert_eq!(page.matches("class=\"data\" data-name").count(), 1);
    let (_, rest) = page.split_once(begin).unwrap();
    let (inside, rest) = rest.split_once("</script>").unwrap();
    assert_eq!(Base64::decode_vec(inside).unwrap(), folder.read(link));
    assert!(rest.trim_start().starts_with("<!--/data-->"));
    // The page sends no requests by itself, and an existing page is replaced only with `--force`.
    assert!(page.contains("default-src 'none'"));
    folder.refused(&["inspect", link, "--html", "page.html"], "USAGE", None);
    folder.json(&["inspect", link, "--html", "page.html", "--force"]);
    // A damaged link gives no page.
    let mut bytes = folder.read(link);
    *bytes.last_mut().unwrap() ^= 1;
    folder.write("damaged.dcf", bytes);
    folder.refused(
        &["inspect", "damaged.dcf", "--html", "other.html"],
        "CORRUPT",
        Some("R-SEG-01"),
    );
    assert!(!folder.at("other.html").exists());
}

#[test]
fn inspect_writes_a_page_with_the_documents_of_a_chain() {
    let folder = Folder::new();
    folder.run(&["init", "chain"]).good();
    for number in 0..2 {
        folder.run(&["publish", "chain", &step(number)]).good();
    }
    let inspect = ["inspect", "chain", "--html", "page.html"];
    let said = folder.json(&inspect);
    let page = String::from_utf8(folder.read("page.html")).unwrap();
    assert_eq!(said["bytes"], page.len());
    assert_eq!(said["chain"], "chain");
    let mut found = BTreeMap::new();
    for element in page
        .split("<script type=\"text/plain\" class=\"data\" data-name=\"")
        .skip(1)
    {
        let (name, rest) = element.split_once('"').unwrap();
        let (more, rest) = rest.split_once('>').unwrap();
        let is_named = more == " data-chain=\"chain\"";
        assert_eq!(is_named, name == "chain.json", "{more}");
        let (inside, _) = rest.split_once("</script>").unwrap();
        found.insert(name.to_owned(), Base64::decode_vec(inside).unwrap());
    }
    // There are no routes documents and no notes in this chain.
    let names = [
        "chain.json",
        "commits/00000000000000000000.json",
        "commits/00000000000000000001.json",
    ];
    let expected: BTreeMap<_, _> = names
        .map(|name| (name.to_owned(), folder.read(&format!("chain/{name}"))))
        .into();
    assert_eq!(found, expected);
    folder.refused(&inspect, "USAGE", None);
    folder.json(&[&inspect[..], &["--force"]].concat());
    // A page never gets into the chain, and not over one of its objects.
    for page in [
        "chain/page.html",
        "chain/files/page.html",
        "chain/chain.json",
        "chain",
    ] {
        let inspect = ["inspect", "chain", "--html", page, "--force"];
        folder.refused(&inspect, "USAGE", None);
    }
    assert_eq!(folder.read("chain/chain.json"), expected["chain.json"]);
    // The setting of a store says nothing about a link.
    folder
        .run(&["diff", &step(0), &step(1), "-o", "1.dcf"])
        .good();
    folder.refused(&["inspect", "1.dcf", "--store", "region=x"], "USAGE", None);
    // Without a page, other commands show a chain.
    let refused = folder.refused(&["inspect", "chain"], "USAGE", None);
    assert!(refused.to_string().contains("use log or show"), "{refused}");
    std::fs::create_dir(folder.at("empty")).unwrap();
    let empty = ["inspect", "empty", "--html", "other.html"];
    folder.refused(&empty, "CHAIN", Some("R-CHN-01"));
    assert!(!folder.at("other.html").exists());
}

#[test]
fn colours_are_optional() {
    for (variable, is_coloured) in [("CLICOLOR_FORCE", true), ("NO_COLOR", false)] {
        let ran = Command::new(TOOL)
            .arg("demo")
            .env(variable, "1")
            .output()
            .unwrap();
        assert!(
            ran.status.success() && ran.stdout.contains(&0x1b) == is_coloured,
            "{variable}"
        );
    }
}

#[test]
fn many_tensors_are_no_burden() {
    let folder = Folder::new();
    let names: Vec<String> = (0..20_000)
        .map(|number| format!("layer.{number}.weight"))
        .collect();
    let tensors = |data: &'static [u8]| {
        names
            .iter()
            .map(|name| (name.as_str(), data))
            .collect::<Vec<_>>()
    };
    folder.write("base", bytes_file(&tensors(b"12345678")));
    folder.write("target", bytes_file(&tensors(b"12345679")));
    folder.run(&["diff", "base", "target", "-o", "link"]).good();
    assert_eq!(
        folder.json(&["inspect", "link"])["tensors"]
            .as_array()
            .unwrap()
            .len(),
        names.len()
    );
    assert!(folder.run(&["inspect", "link"]).good().lines().count() > names.len());
}

#[test]
fn digests_are_printed() {
    let folder = Folder::new();
    let state = folder.json(&["digest", &step(0)]);
    assert_eq!(state.as_object().unwrap().len(), 1);
    let hex = state["state"].as_str().unwrap();
    assert_eq!(hex.len(), 64);
    assert_eq!(folder.run(&["digest", &step(0)]).good(), format!("{hex}\n"));
    assert_eq!(
        folder.run(&["digest", &step(0), "--quiet"]).good(),
        format!("{hex}\n")
    );
    let all = folder.json(&["digest", &step(0), "--tensors"]);
    assert_eq!(
        (
            all["state"].as_str(),
            all["tensors"].as_object().unwrap().len()
        ),
        (Some(hex), 6)
    );
    assert_ne!(state, folder.json(&["digest", &step(1)]));
}

#[test]
fn verify_checks_with_and_without_a_base() {
    let folder = Folder::new();
    chain(&folder, "compact");
    assert_eq!(folder.json(&["verify", "1.dcf"])["checked"], "link");
    let checked = folder.json(&["verify", "1.dcf", "--base", &step(0)]);
    assert_eq!(checked["checked"], "target");
    assert_eq!(
        checked["target"],
        folder.json(&["digest", &step(1)])["state"]
    );
    assert!(folder.run(&["verify", "1.dcf"]).good().contains("sound"));
    assert_eq!(folder.run(&["verify", "1.dcf", "-q"]).good(), "");
    let error = folder.refused(
        &["verify", "1.dcf", "--base", &step(1)],
        "WRONG_BASE",
        Some("R-APP-01"),
    );
    assert_eq!(error["file"], "1.dcf");
    assert!(error["advice"].as_str().unwrap().contains("base"));
}

#[test]
fn the_demo_shows_exact_links() {
    let folder = Folder::new();
    let demo = folder.json(&["demo", "--keep", "here it is"]);
    assert!(
        demo["links"]
            .as_array()
            .unwrap()
            .iter()
            .all(|link| link["exact"] == true)
    );
    assert_eq!(demo["chain"]["exact"], true);
    // The program contains the first checkpoint, and links to the others.
    for number in 0..4 {
        let name = format!("here it is/step{number}.safetensors");
        assert!(
            folder.read(&name) == std::fs::read(step(number)).unwrap(),
            "{name}"
        );
    }
    let [published, early] =
        ["published", "early"].map(|key| demo["in_store"][key].as_array().unwrap());
    for (number, (published, followed)) in published.iter().zip(early).enumerate() {
        assert_eq!(
            (&published["version"], &followed["version"]),
            (&number.into(), &number.into())
        );
        assert_eq!(published["state"], followed["state"]);
    }
    assert_eq!(
        (
            published.len(),
            demo["in_store"]["late"]["version"].as_u64()
        ),
        (4, Some(3))
    );
    let rules: Vec<&str> = demo["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|refusal| refusal["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["R-APP-01", "R-SEG-01"]);
    folder.json(&[
        "verify",
        "here it is/0-1.dcf",
        "--base",
        "here it is/step0.safetensors",
    ]);
    folder.refused(&["demo", "--keep", "here it is"], "USAGE", None);
    assert!(folder.run(&["demo"]).good().contains("byte for byte"));
}

#[test]
fn help_and_version_are_there() {
    let folder = Folder::new();
    assert!(folder.run(&["--help"]).good().contains("Examples:"));
    assert!(folder.run(&["--version"]).good().starts_with("deltachain "));
    for command in [
        "diff", "snapshot", "apply", "inspect", "verify", "digest", "demo",
    ] {
        let help = folder.run(&[command, "--help"]).good();
        assert!(
            help.contains("--json") && (command == "demo" || help.contains("Example")),
            "{help}"
        );
        // Without arguments a command says what is missing. The demo needs none.
        if command != "demo" {
            assert_eq!(folder.run(&[command]).code, Some(2));
            let ran = folder.run(&[command, "--json"]);
            assert_eq!(
                (ran.code, ran.json()["error"]["class"].as_str()),
                (Some(2), Some("USAGE"))
            );
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = Folder::new();
    chain(&folder, "compact");
    let mut child = Command::new(TOOL)
        .args(["inspect", "1.dcf"])
        .current_dir(folder.at(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), &b""[..])
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_a_failure() {
    let ran = Folder::new().run_in_shell(r#"exec "$0" "$@" > /dev/full"#, &["digest", &step(0)]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.starts_with("error: IO: "), "{ran:?}");
}
