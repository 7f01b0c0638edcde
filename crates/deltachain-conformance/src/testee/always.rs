//! Testees that ignore their requests: their answers have the right form, and every run must fail
//! them.

use serde_json::{Value, json};

use crate::args::Always;

/// Returns an answer to any request.
pub(super) fn answer(always: Always, operation: &str, case: &Value) -> Value {
    let mut answer = match always {
        Always::Invalid => json!({ "result": "invalid", "class": "MALFORMED" }),
        Always::Valid => valid(operation),
    };
    answer["case"] = case.clone();
    answer
}

fn valid(operation: &str) -> Value {
    let digest = "0".repeat(64);
    let mut answer = match operation {
        "check" => json!({ "base": digest, "target": digest }),
        "apply" | "in-place" => json!({ "digest": digest }),
        "patches" => json!({ "patches": [] }),
        "sums" => json!({ "sums": [] }),
        "plan" => json!({ "version": 0, "bytes": 0, "path": [], "routes": [] }),
        "replay" => json!({ "version": 0, "digest": digest }),
        _ => json!({}),
    };
    answer["result"] = json!("valid");
    answer
}
