//! What SPEC.md says about itself: its sections, and the rules that readers check with the section that each stands in.

/// The text that this program was built with.
const TEXT: &str = include_str!("../../../SPEC.md");

/// The sections and rules of a specification.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Number and title, `6.1` and `Segment entry`.
    sections: Vec<(String, String)>,
    pub(crate) rules: Vec<SpecRule>,
}

/// A rule that a reader checks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpecRule {
    pub(crate) id: String,
    /// Number of the section that defines it.
    pub(crate) section: String,
}

impl Spec {
    pub(crate) fn new() -> Self {
        Self::parse(TEXT)
    }

    fn parse(text: &str) -> Self {
        let mut spec = Self { sections: Vec::new(), rules: Vec::new() };
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("##") {
                let heading = heading.trim_start_matches('#').trim();
                let (number, title) = heading.split_once(' ').unwrap_or((heading, ""));
                let number = number.trim_end_matches('.');
                if number.starts_with(|c: char| c.is_ascii_digit()) {
                    spec.sections.push((number.to_owned(), title.to_owned()));
                }
            }
            let section = spec.sections.last().map_or("", |(number, _)| number);
            spec.rules.extend(defined_in(line).map(|id| SpecRule { id: id.to_owned(), section: section.to_owned() }));
        }
        spec
    }

    /// `section 6.1 (Segment entry)`.
    pub(crate) fn describe(&self, section: &str) -> String {
        match self.title(section) {
            Some(title) => format!("section {section} ({title})"),
            None => format!("section {section}"),
        }
    }

    pub(crate) fn title(&self, section: &str) -> Option<&str> {
        self.sections.iter().find(|(number, _)| number == section).map(|(_, title)| title.as_str())
    }
}

/// The rules that a line defines for readers: `**R-IDX-05** (MALFORMED)`. Those for writers have `(writer)` there, and a
/// mere mention has nothing.
fn defined_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("**R-").filter_map(move |(start, _)| {
        let (id, rest) = line[start + 2..].split_once("**")?;
        let (class, _) = rest.strip_prefix(" (")?.split_once(')')?;
        let is_class = class.len() > 1 && class.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        is_class.then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_belong_to_the_section_that_defines_them() {
        let spec = Spec::parse(
            "# Part 1\n## 1. One\nsuch as **R-AAA-01** and\n- **R-AAA-01** (CORRUPT) It MUST.\n### 1.2 Two\n\
             1. a: **R-AAA-02** (NOT_DCF), **R-AAA-03** (a gap), **R-AAA-04** (CHAIN)\n- **R-AAA-05** (writer) x\n",
        );
        let rule = |id: &str, section: &str| SpecRule { id: id.to_owned(), section: section.to_owned() };
        assert_eq!(spec.rules, [rule("R-AAA-01", "1"), rule("R-AAA-02", "1.2"), rule("R-AAA-04", "1.2")]);
        assert_eq!(spec.describe("1.2"), "section 1.2 (Two)");
        assert_eq!(spec.describe("7"), "section 7");
    }

    #[test]
    fn the_rules_of_the_library_are_there() {
        let spec = Spec::new();
        for rule in deltachain::RULES {
            assert_eq!(spec.rules.iter().filter(|known| known.id == rule.id).count(), 1, "{}", rule.id);
        }
    }
}
