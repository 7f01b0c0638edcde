//! Reports for machines.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Vectors, fake};

#[test]
fn reports_name_every_case() {
    let vectors = Vectors::tiny();
    let answer = json!({ "result": "invalid", "class": "CORRUPT", "message": "<&>" });
    let ran = vectors.run(
        &fake("answer", &answer),
        &["--json", "report.json", "--junit", "report.xml"],
    );
    ran.says(1, &["2 passed, 2 failed, 2 skipped"]);

    let report: Value =
        serde_json::from_slice(&fs::read(vectors.path("report.json")).unwrap()).unwrap();
    assert_eq!(report["good"], false);
    assert_eq!(report["summary"], ran.summary(1));
    let counts = &report["counts"];
    assert_eq!(
        (&counts["cases"], &counts["failed"], &counts["no_rule"]),
        (&json!(6), &json!(2), &json!(2))
    );
    let cases = report["cases"].as_array().unwrap();
    let status = |id: &str| cases.iter().find(|case| case["case"] == id).unwrap()["status"].clone();
    assert_eq!(status("links/tiny/good#check"), "failed");
    assert_eq!(status("links/tiny/bad#apply"), "passed");
    assert_eq!(status("links/tiny/good#encode-direct"), "skipped");
    let rules = report["rules"].as_array().unwrap();
    let shown: Vec<&Value> = rules
        .iter()
        .filter(|rule| rule["passed"] != 0)
        .map(|rule| &rule["rule"])
        .collect();
    assert_eq!(shown, ["R-SEG-01"]);

    let xml = fs::read_to_string(vectors.path("report.xml")).unwrap();
    assert!(
        xml.contains("tests=\"6\" failures=\"2\" errors=\"0\" skipped=\"2\""),
        "{xml}"
    );
    assert!(
        xml.contains("<testcase classname=\"links/tiny\" name=\"good#check\""),
        "{xml}"
    );
    assert!(xml.contains("CORRUPT: &lt;&amp;&gt;"), "{xml}");
    assert_eq!(xml.matches("<testcase ").count(), 6);
}
