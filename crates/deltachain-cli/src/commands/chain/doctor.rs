//! `doctor`: tries whether a place can do what chains and followers need. The program fails if something needed is
//! missing.

use deltachain::Result;
use deltachain_store::{Finding, doctor};
use serde_json::json;

use crate::chain_args::DoctorArgs;
use crate::failure::{FAILURE, SUCCESS};
use crate::numbers::counted;
use crate::output::{Output, printable};

pub(crate) fn run(args: &DoctorArgs, output: Output) -> Result<u8> {
    let findings = doctor(&args.chain.url, args.chain.store.options())?;
    let missing = findings.iter().filter(|finding| finding.is_fatal()).count();
    output.result(
        || {
            let mut lines: Vec<String> = findings.iter().map(line).collect();
            lines.push(match missing {
                0 => format!("{}: everything needed is there", printable(&args.chain.url)),
                _ => format!(
                    "{}: {} that is needed",
                    printable(&args.chain.url),
                    counted(missing, "thing is missing", "things are missing")
                ),
            });
            lines.join("\n")
        },
        || {
            let findings = findings.iter().map(|finding| {
                json!({
                    "tried": finding.tried,
                    "works": finding.works,
                    "needed": finding.is_needed,
                    "says": finding.says,
                    "breaks": finding.breaks,
                })
            });
            json!({ "url": args.chain.url, "missing": missing, "findings": findings.collect::<Vec<_>>() })
        },
    )?;
    Ok(if missing == 0 { SUCCESS } else { FAILURE })
}

fn line(finding: &Finding) -> String {
    let Finding { tried, says, breaks, .. } = finding;
    let says = printable(says);
    match finding.works {
        true if says.is_empty() => format!("good     {tried}"),
        true => format!("good     {tried}: {says}"),
        false => {
            let verdict = if finding.is_needed { "missing" } else { "warning" };
            format!("{verdict}  {tried}: {says}\n         without it: {breaks}")
        }
    }
}
