//! `testee`: the reference library behind the protocol of `conformance/protocol.md`, like any other
//! implementation.
//!
//! Each file next to this one implements the operations of a part of SPEC.md.

mod always;
mod chain;
mod in_place;
mod link;
mod request;
mod shard;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use deltachain::Error;
use serde_json::{Value, json};

use crate::args::TesteeArgs;
use crate::index::ADDITIONS;
use crate::problem::{Problem, Result};
use crate::session::PROTOCOL;
use crate::testee::request::Request;

/// Carries out a request; returns the members of the valid answer.
type Operation = fn(&Request) -> deltachain::Result<Value>;

/// The operations that the reference library supports.
const SUPPORTED: [(&str, Operation); 10] = [
    ("check", link::check),
    ("apply", link::apply),
    ("patches", link::patches),
    ("sums", in_place::sums),
    ("in-place", in_place::in_place),
    ("encode", link::encode),
    ("document", chain::document),
    ("plan", chain::plan),
    ("replay", chain::replay),
    ("replay-in-place", chain::replay_in_place),
];

/// Answers requests until the input ends.
pub(crate) fn serve(args: &TesteeArgs) -> Result<ExitCode> {
    #[cfg(deltachain_rule_switch)]
    if let Some(rule) = &args.without_rule {
        deltachain::switch_off(rule).map_err(Problem::usage)?;
    }
    #[cfg(deltachain_mutants)]
    if let Some(mutant) = args.mutant {
        deltachain::mutants::choose(mutant);
    }
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Problem::failed)?;
        let request: Value = serde_json::from_str(&line).map_err(Problem::failed)?;
        let name = request["operation"].as_str().unwrap_or_default();
        let answer = match (name, args.always) {
            ("hello", _) => hello(),
            (_, Some(always)) => always::answer(always, name, &request["case"]),
            (_, None) => answer(name, &request),
        };
        writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .map_err(Problem::failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn hello() -> Value {
    let operations = SUPPORTED.map(|(name, _)| name);
    let name = concat!("deltachain ", env!("CARGO_PKG_VERSION"));
    json!({ "testee": name, "protocol": PROTOCOL, "operations": operations, "without": [], "additions": ADDITIONS, "routes": true })
}

/// Answers one request.
pub(crate) fn answer(name: &str, request: &Value) -> Value {
    let operation = SUPPORTED.iter().find(|(supported, _)| *supported == name);
    let done = match operation {
        Some((_, operation)) => operation(&Request::new(request)),
        None => Err(Error::usage(format!(
            "the operation {name:?} is not supported"
        ))),
    };
    let mut answer = done.unwrap_or_else(|error| refusal(&error));
    if answer["result"].is_null() {
        answer["result"] = json!("valid");
    }
    answer["case"] = request["case"].clone();
    answer
}

fn refusal(error: &Error) -> Value {
    let mut answer = json!({ "result": "invalid", "class": error.class().name(), "message": format!("{error:#}") });
    if let Some(rule) = error.rule() {
        answer["rule"] = json!(rule);
    }
    answer
}
