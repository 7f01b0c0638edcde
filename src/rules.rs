//! Every rule of SPEC.md and its additions that a reader checks, with its class.
// A check in the code reads `ensure(condition, &rules::IDX_05, || message)`. A test compares this
// table with SPEC.md.

use crate::error::{Error, ErrorClass, Result};

/// A requirement of SPEC.md with its stable id and the class of its violation.
#[derive(Debug)]
pub struct Rule {
    /// Stable id, as in SPEC.md: `R-IDX-05`.
    pub id: &'static str,
    /// Class of a violation.
    pub class: ErrorClass,
}

/// Passes if `holds`, otherwise reports `rule` as broken.
pub(crate) fn ensure(
    holds: bool,
    rule: &'static Rule,
    message: impl FnOnce() -> String,
) -> Result<()> {
    if holds || is_off(rule) {
        Ok(())
    } else {
        Err(Error::broken(rule, message()))
    }
}

#[cfg(deltachain_rule_switch)]
static SWITCHED_OFF: std::sync::OnceLock<&'static Rule> = std::sync::OnceLock::new();

/// Switches off the check of the rule with this id, permanently, to see whether any test notices.
/// If the library cannot continue without the rule, it reports USAGE, which is never the right
/// error for a file.
///
/// # Errors
/// USAGE if the rule does not exist, or if another one has been switched off before.
#[cfg(deltachain_rule_switch)]
pub fn switch_off(id: &str) -> Result<()> {
    let rule = RULES
        .iter()
        .find(|rule| rule.id == id)
        .ok_or_else(|| Error::usage(format!("there is no rule {id}")))?;
    SWITCHED_OFF
        .set(rule)
        .map_err(|_| Error::usage("only one rule can be switched off"))
}

/// Whether the check of the rule is switched off, which happens only in tests of tests.
#[cfg(deltachain_rule_switch)]
pub(crate) fn is_off(rule: &Rule) -> bool {
    SWITCHED_OFF.get().is_some_and(|off| off.id == rule.id)
}

/// Whether the check of the rule is switched off: never.
#[cfg(not(deltachain_rule_switch))]
pub(crate) const fn is_off(_: &Rule) -> bool {
    false
}

macro_rules! rules {
    ($($name:ident $id:literal $class:ident;)*) => {
        $(
            pub(crate) const $name: Rule = Rule { id: $id, class: ErrorClass::$class };
        )*
        /// All rules, in the order of SPEC.md's sections.
        pub const RULES: &[Rule] = &[$($name),*];
    };
}

rules! {
    INT_01 "R-INT-01" NonCanonical;
    INT_02 "R-INT-02" Malformed;
    INT_03 "R-INT-03" Malformed;
    INT_04 "R-INT-04" Malformed;
    HDR_01 "R-HDR-01" NotDcf;
    HDR_02 "R-HDR-02" Truncated;
    HDR_03 "R-HDR-03" Corrupt;
    HDR_04 "R-HDR-04" Unsupported;
    HDR_05 "R-HDR-05" Unsupported;
    HDR_06 "R-HDR-06" Malformed;
    HDR_08 "R-HDR-08" Malformed;
    HDR_09 "R-HDR-09" Truncated;
    HDR_10 "R-HDR-10" Malformed;
    STR_01 "R-STR-01" NonCanonical;
    STR_02 "R-STR-02" Malformed;
    STR_03 "R-STR-03" Limit;
    STR_04 "R-STR-04" Malformed;
    STR_05 "R-STR-05" NonCanonical;
    STR_06 "R-STR-06" Malformed;
    IDX_01 "R-IDX-01" Corrupt;
    IDX_02 "R-IDX-02" Malformed;
    IDX_03 "R-IDX-03" NonCanonical;
    IDX_05 "R-IDX-05" Malformed;
    IDX_06 "R-IDX-06" NonCanonical;
    IDX_07 "R-IDX-07" Malformed;
    IDX_08 "R-IDX-08" Malformed;
    IDX_09 "R-IDX-09" Malformed;
    IDX_10 "R-IDX-10" Malformed;
    IDX_11 "R-IDX-11" Malformed;
    IDX_12 "R-IDX-12" Malformed;
    IDX_14 "R-IDX-14" Malformed;
    IDX_16 "R-IDX-16" Malformed;
    IDX_17 "R-IDX-17" Malformed;
    IDX_18 "R-IDX-18" Malformed;
    IDX_19 "R-IDX-19" Malformed;
    IDX_20 "R-IDX-20" Malformed;
    SEG_01 "R-SEG-01" Corrupt;
    SEG_02 "R-SEG-02" Malformed;
    SEG_03 "R-SEG-03" Malformed;
    SEG_04 "R-SEG-04" Malformed;
    SEG_05 "R-SEG-05" Malformed;
    SEG_06 "R-SEG-06" Malformed;
    SEG_07 "R-SEG-07" Malformed;
    SEG_08 "R-SEG-08" Malformed;
    SEG_09 "R-SEG-09" Malformed;
    POS_01 "R-POS-01" Malformed;
    POS_02 "R-POS-02" Malformed;
    VAL_01 "R-VAL-01" Malformed;
    VAL_02 "R-VAL-02" Malformed;
    APP_01 "R-APP-01" WrongBase;
    APP_02 "R-APP-02" Malformed;
    APP_04 "R-APP-04" StateMismatch;
    APP_05 "R-APP-05" StateMismatch;
    APP_06 "R-APP-06" WrongBase;
    LAY_01 "R-LAY-01" Malformed;
    LAY_03 "R-LAY-03" StateMismatch;
    LIM_01 "R-LIM-01" Limit;
    LIM_02 "R-LIM-02" Limit;
    LIM_03 "R-LIM-03" Limit;
    LIM_04 "R-LIM-04" Limit;
    LIM_05 "R-LIM-05" Limit;
    LIM_06 "R-LIM-06" Limit;
    LIM_08 "R-LIM-08" Limit;
    DOC_01 "R-DOC-01" Malformed;
    DOC_02 "R-DOC-02" Unsupported;
    DOC_03 "R-DOC-03" Malformed;
    DOC_04 "R-DOC-04" Malformed;
    DOC_05 "R-DOC-05" Malformed;
    DOC_06 "R-DOC-06" Malformed;
    DOC_07 "R-DOC-07" Unsupported;
    DOC_08 "R-DOC-08" Malformed;
    LIM_07 "R-LIM-07" Limit;
    CHN_01 "R-CHN-01" Chain;
    CHN_02 "R-CHN-02" Chain;
    CHN_03 "R-CHN-03" Chain;
    CHN_04 "R-CHN-04" Chain;
    CHN_05 "R-CHN-05" Chain;
    CHN_06 "R-CHN-06" Chain;
    CHN_07 "R-CHN-07" Chain;
    CHN_08 "R-CHN-08" Chain;
    CHN_09 "R-CHN-09" Chain;
    CHN_10 "R-CHN-10" Corrupt;
    CHN_11 "R-CHN-11" StateMismatch;
    CHN_12 "R-CHN-12" StateMismatch;
    CHN_13 "R-CHN-13" Chain;
    CHN_14 "R-CHN-14" Chain;
    CHN_15 "R-CHN-15" Chain;
    CHN_16 "R-CHN-16" Corrupt;
    CHN_17 "R-CHN-17" Chain;
    SIG_01 "R-SIG-01" Chain;
    SIG_05 "R-SIG-05" Chain;
    SUM_03 "R-SUM-03" StateMismatch;
    SUM_04 "R-SUM-04" StateMismatch;
}

// Rules that bind writers, which no reader checks: they are not among `RULES`.
pub(crate) const PUB_01: Rule = Rule {
    id: "R-PUB-01",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_03: Rule = Rule {
    id: "R-PUB-03",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_04: Rule = Rule {
    id: "R-PUB-04",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_06: Rule = Rule {
    id: "R-PUB-06",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_08: Rule = Rule {
    id: "R-PUB-08",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_09: Rule = Rule {
    id: "R-PUB-09",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_10: Rule = Rule {
    id: "R-PUB-10",
    class: ErrorClass::Chain,
};
pub(crate) const PUB_11: Rule = Rule {
    id: "R-PUB-11",
    class: ErrorClass::Chain,
};
pub(crate) const RET_01: Rule = Rule {
    id: "R-RET-01",
    class: ErrorClass::Chain,
};
pub(crate) const RET_05: Rule = Rule {
    id: "R-RET-05",
    class: ErrorClass::Chain,
};
pub(crate) const SIG_02: Rule = Rule {
    id: "R-SIG-02",
    class: ErrorClass::Chain,
};
pub(crate) const SIG_03: Rule = Rule {
    id: "R-SIG-03",
    class: ErrorClass::Chain,
};
