//! A testee for the tests of the runner, with the fault that its first argument names.

use std::io::{self, BufRead};
use std::{env, fs, process, thread, time};

use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mode = arguments.first().map_or("", String::as_str);
    let given: Value = arguments.get(1).map_or(Value::Null, |text| {
        serde_json::from_str(text).expect("JSON")
    });
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        if request["operation"] == "hello" {
            let mut hello = json!({ "testee": "fake", "protocol": 2, "operations": ["check", "apply", "plan"], "without": ["zstd"] });
            if mode == "minimal" {
                hello["profile"] = json!("minimal-chain");
            }
            if mode == "routes" {
                hello["routes"] = json!(true);
            }
            println!(
                "{}",
                if mode == "hello" || mode == "die" {
                    &given
                } else {
                    &hello
                }
            );
            continue;
        }
        let mut answer = given.clone();
        if answer.is_object() {
            answer["case"] = request["case"].clone();
        }
        match mode {
            "answer" | "minimal" | "routes" => println!("{answer}"),
            "answer-twice" => println!("{answer}\n{answer}"),
            "answer-another" => println!("{}", json!({ "case": "another", "result": "valid" })),
            "write-and-answer" => {
                fs::write(
                    request["output"].as_str().expect("an output"),
                    "not a state",
                )
                .expect("written");
                println!("{answer}");
            }
            "say" => println!("{}", given.as_str().expect("a text")),
            "die" => {
                eprintln!("these are my last words: {request}");
                process::exit(3);
            }
            "be-silent" => thread::sleep(time::Duration::from_mins(10)),
            other => panic!("there is no mode {other}"),
        }
    }
}
