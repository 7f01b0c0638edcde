//! `doctor`: tries whether a place can do what chains and followers need. The program fails if something needed is
//! missing.

use deltachain::Result;
use deltachain_store::{Finding, doctor};
use serde_json::{Value, json};

use crate::chain_args::DoctorArgs;
use crate::commands::chain::report::{Access, Report};
use crate::numbers::counted;
use crate::output::printable;

/// What works.
pub(crate) struct DoctorReport {
    url: String,
    findings: Vec<Finding>,
}

impl DoctorReport {
    pub(crate) fn of(args: &DoctorArgs, access: &Access) -> Result<Self> {
        let findings = doctor(&args.chain.url, access.options(&args.chain)?, &access.stop)?;
        Ok(Self { url: args.chain.name(), findings })
    }

    fn missing(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_fatal()).count()
    }
}

impl Report for DoctorReport {
    fn text(&self) -> String {
        let mut lines: Vec<String> = self.findings.iter().map(line).collect();
        let url = printable(&self.url);
        lines.push(match self.missing() {
            0 => format!("{url}: everything needed is there"),
            missing => {
                format!("{url}: {} that is needed", counted(missing, "thing is missing", "things are missing"))
            }
        });
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let findings = self.findings.iter().map(|finding| {
            json!({
                "tried": finding.tried,
                "works": finding.works,
                "needed": finding.is_needed,
                "says": finding.says,
                "breaks": finding.breaks,
            })
        });
        json!({ "url": self.url, "missing": self.missing(), "findings": findings.collect::<Vec<_>>() })
    }

    fn is_good(&self) -> bool {
        self.missing() == 0
    }
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
