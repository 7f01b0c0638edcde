//! `doctor`: tests whether a store or a directory supports what chains and followers need. The
//! program fails if something required is missing.

use deltachain::Result;
use deltachain_store::{Finding, doctor};
use serde_json::json;

use crate::chain_args::DoctorArgs;
use crate::failure;
use crate::numbers::counted;
use crate::output::{Output, printable};

pub(crate) fn run(args: &DoctorArgs, output: Output) -> Result<u8> {
    let findings = doctor(&args.chain.open()?)?;
    let missing = findings.iter().filter(|finding| finding.is_fatal()).count();
    let url = args.chain.name();
    output.result(
        || as_text(&url, missing, &findings),
        || json!({ "url": url, "missing": missing, "findings": findings }),
    )?;
    Ok(failure::code(missing == 0))
}

fn as_text(url: &str, missing: usize, findings: &[Finding]) -> String {
    let mut lines: Vec<String> = findings.iter().map(line).collect();
    let url = printable(url);
    lines.push(match missing {
        0 => format!("{url}: everything needed is there"),
        missing => format!(
            "{url}: {} that is needed",
            counted(missing, "thing is missing", "things are missing")
        ),
    });
    lines.join("\n")
}

fn line(finding: &Finding) -> String {
    let Finding {
        tried,
        says,
        breaks,
        ..
    } = finding;
    let says = printable(says);
    match finding.works {
        true if says.is_empty() => format!("good     {tried}"),
        true => format!("good     {tried}: {says}"),
        false => {
            let verdict = if finding.is_needed {
                "missing"
            } else {
                "warning"
            };
            format!("{verdict}  {tried}: {says}\n         without it: {breaks}")
        }
    }
}
