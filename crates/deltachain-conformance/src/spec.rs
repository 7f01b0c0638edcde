//! Parses SPEC.md and its additions: their sections and rules, each rule with the section that
//! defines it and the steps in which readers check it.

use serde::Serialize;

/// The texts with which this program was built, one after another.
const TEXT: &str = concat!(
    include_str!("../../../SPEC.md"),
    "\n",
    include_str!("../../../spec/publishing.md"),
    "\n",
    include_str!("../../../spec/signatures.md"),
    "\n",
    include_str!("../../../spec/in-place.md"),
    "\n",
    include_str!("../../../spec/layouts.md"),
    "\n",
    include_str!("../../../spec/worked-files.md"),
    "\n",
    include_str!("../../../spec/registry.md")
);

/// The words that rules have instead of a class if no file can break them: for the rules of
/// writers, and for the conduct of readers.
const NOT_CLASSES: [&str; 2] = ["writer", "conduct"];

/// The section with the order of steps for readers of links, in part 1 of the text.
const OF_LINKS: &str = "10";
/// The section with the order of steps for readers of chains, in part 2.
const OF_CHAINS: &str = "19";
const SECTIONS_OF_CHAINS: [&str; 4] = ["17", "18", "19", "22"];

/// A section that stands in another text than SPEC.md.
struct Addition {
    section: &'static str,
    name: &'static str,
    /// The section with the order of steps for readers.
    order: &'static str,
}

const ADDITIONS: [Addition; 5] = [
    Addition {
        section: "20",
        name: "spec/publishing.md",
        order: OF_CHAINS,
    },
    Addition {
        section: "21",
        name: "spec/publishing.md",
        order: OF_CHAINS,
    },
    Addition {
        section: "23",
        name: "spec/signatures.md",
        order: "23.3",
    },
    Addition {
        section: "24",
        name: "spec/in-place.md",
        order: "24.6",
    },
    Addition {
        section: "25",
        name: "spec/layouts.md",
        order: "25.2",
    },
];

/// Rules that steps describe in words instead of naming them: prefixes of their ids.
const IN_WORDS: [(&str, &[&str]); 5] = [
    ("index fields", &["R-INT-"]),
    ("its fields", &["R-INT-01", "R-INT-02", "R-INT-03"]),
    ("varints (R-INT)", &["R-INT-01", "R-INT-02", "R-INT-03"]),
    ("the stream", &["R-STR-02", "R-STR-03"]),
    ("checked as a document", &["R-LIM-05", "R-DOC-", "R-LIM-07"]),
];
/// Sections whose rules are meant by these words, except for rules that a step names.
const FIELDS: [(&str, &[&str]); 2] = [
    ("index fields", &["6", "6.1", "6.2"]),
    ("its fields", &["7.1"]),
];

/// The sections and rules of a specification.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Number and title of each section, such as `6.1` and `Segment entry`.
    sections: Vec<(String, String)>,
    /// The rules that readers check, in the order of the text.
    pub(crate) rules: Vec<SpecRule>,
    /// The rules that no file can break.
    pub(crate) writer_rules: Vec<SpecRule>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SpecRule {
    pub(crate) id: String,
    /// The error class, `writer` or `conduct`.
    class: String,
    /// Number of the section that defines the rule.
    pub(crate) section: String,
    /// The steps in which readers check the rule: of section 10, of section 19 for the rules of
    /// part 2, and for the rules of an addition, of its section about the order.
    steps: Vec<String>,
    /// The requirement, in one line.
    text: String,
}

/// A paragraph or an item of a list, in one line.
#[derive(Debug, Default)]
struct Block {
    section: String,
    /// Numbers of the items that contain it: `8.3` for the third below the eighth.
    step: String,
    text: String,
}

impl Spec {
    pub(crate) fn new() -> Self {
        Self::parse(TEXT)
    }

    fn parse(text: &str) -> Self {
        let (sections, blocks) = divide(text);
        let mut rules: Vec<SpecRule> = blocks.iter().flat_map(defined_in).collect();
        for rule in rules
            .iter_mut()
            .filter(|rule| !NOT_CLASSES.contains(&rule.class.as_str()))
        {
            rule.steps = steps(rule, &blocks);
        }
        let (writer_rules, rules) = rules
            .into_iter()
            .partition(|rule| NOT_CLASSES.contains(&rule.class.as_str()));
        Self {
            sections,
            rules,
            writer_rules,
        }
    }

    /// Describes a section: `SPEC.md section 6.1 (Segment entry)`.
    pub(crate) fn describe(&self, section: &str) -> String {
        let text = addition(section).map_or("SPEC.md", |addition| addition.name);
        match self.title(section) {
            Some(title) => format!("{text} section {section} ({title})"),
            None => format!("{text} section {section}"),
        }
    }

    pub(crate) fn title(&self, section: &str) -> Option<&str> {
        self.sections
            .iter()
            .find(|(number, _)| number == section)
            .map(|(_, title)| title.as_str())
    }
}

/// Returns the addition that has this section, if it is not in SPEC.md.
fn addition(section: &str) -> Option<&'static Addition> {
    ADDITIONS
        .iter()
        .find(|addition| section.split('.').next() == Some(addition.section))
}

/// Divides a text into its sections, and its paragraphs and items.
fn divide(text: &str) -> (Vec<(String, String)>, Vec<Block>) {
    let mut sections: Vec<(String, String)> = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    // The open items: the indentation of each, and its number if it has one.
    let mut items: Vec<(usize, Option<&str>)> = Vec::new();
    let mut is_open = false;
    let mut in_code = false;
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        in_code ^= words.starts_with("```");
        if in_code || words.is_empty() || words.starts_with("```") {
            is_open = false;
        } else if let Some(heading) = line.strip_prefix("##") {
            let heading = heading.trim_start_matches('#').trim();
            let (number, title) = heading.split_once(' ').unwrap_or((heading, ""));
            let number = number.trim_end_matches('.');
            if number.starts_with(|c: char| c.is_ascii_digit()) {
                sections.push((number.to_owned(), title.to_owned()));
            }
            items.clear();
            is_open = false;
        } else {
            let number = numbered(words);
            let is_item = number.is_some() || words.starts_with("- ");
            if is_item || !is_open {
                items.retain(|(outer, _)| *outer < indent);
                items.extend(is_item.then_some((indent, number)));
                let step: Vec<&str> = items.iter().filter_map(|(_, number)| *number).collect();
                let section = sections
                    .last()
                    .map_or_else(String::new, |(number, _)| number.clone());
                blocks.push(Block {
                    section,
                    step: step.join("."),
                    text: String::new(),
                });
                is_open = true;
            }
            if let Some(block) = blocks.last_mut() {
                let blank = if block.text.is_empty() { "" } else { " " };
                block.text = format!("{}{blank}{}", block.text, words.trim_end());
            }
        }
    }
    (sections, blocks)
}

/// Returns the number of an item of a numbered list.
fn numbered(words: &str) -> Option<&str> {
    let (number, _) = words.split_once(". ")?;
    (!number.is_empty() && number.chars().all(|c| c.is_ascii_digit())).then_some(number)
}

/// Returns the rules that a block defines: `**R-IDX-05** (MALFORMED)`. A mere mention has no class.
fn defined_in(block: &Block) -> Vec<SpecRule> {
    let text = block.text.as_str();
    let mut rules = Vec::new();
    for (start, _) in text.match_indices("**R-") {
        let Some((id, rest)) = text[start + 2..].split_once("**") else {
            continue;
        };
        let Some((class, rest)) = rest
            .strip_prefix(" (")
            .and_then(|rest| rest.split_once(')'))
        else {
            continue;
        };
        if !NOT_CLASSES.contains(&class)
            && (class.len() < 2 || !class.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        {
            continue;
        }
        // A definition is before the sentences with its requirement, or after them.
        let before = text[..start].trim_start_matches("- ");
        let demands = if before.is_empty() || before.ends_with(". ") {
            demand_after(rest)
        } else {
            demand_before(before)
        };
        rules.push(SpecRule {
            id: id.to_owned(),
            class: class.to_owned(),
            section: block.section.clone(),
            steps: Vec::new(),
            text: demands,
        });
    }
    rules
}

/// Returns the sentences up to the last one with MUST, SHOULD or MAY.
fn demand_after(text: &str) -> String {
    let mut end = 0;
    let mut read = 0;
    for sentence in text.split_inclusive(". ") {
        read += sentence.len();
        if ["MUST", "SHOULD", "MAY"]
            .iter()
            .any(|word| sentence.contains(word))
        {
            end = read;
        }
    }
    text[..if end == 0 { read } else { end }].trim().to_owned()
}

/// Returns the text before a definition at its end, without the definitions in it.
fn demand_before(text: &str) -> String {
    let text = text.trim_end().trim_end_matches(':');
    let start = ["; ", ". "]
        .iter()
        .filter_map(|end| text.rfind(end))
        .max()
        .map_or(0, |place| place + 2);
    let mut demand = String::new();
    for (place, part) in text[start..].split("**").enumerate() {
        // The text between the asterisks is an id, and its class follows.
        if place == 0 {
            demand.push_str(part.trim_end_matches([':', ' ']));
        } else if place % 2 == 0 {
            demand.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
        }
    }
    let demand = demand.strip_prefix("and ").unwrap_or(&demand);
    let first = demand.chars().next().map_or(0, char::len_utf8);
    format!("{}{}.", demand[..first].to_uppercase(), &demand[first..])
}

/// Returns the steps that name a rule, or describe it in words.
fn steps(rule: &SpecRule, blocks: &[Block]) -> Vec<String> {
    let order = match (addition(&rule.section), rule.section.as_str()) {
        (Some(addition), _) => addition.order,
        (None, section) if SECTIONS_OF_CHAINS.contains(&section) => OF_CHAINS,
        _ => OF_LINKS,
    };
    let blocks = blocks
        .iter()
        .filter(|block| block.section == order && !block.step.is_empty());
    let steps = |means: &dyn Fn(&str) -> bool| {
        let mut steps: Vec<String> = blocks
            .clone()
            .filter(|block| means(&block.text))
            .map(|block| block.step.clone())
            .collect();
        steps.dedup();
        steps
    };
    let begins = |begin: &&str| rule.id.starts_with(begin);
    let is_meant = |text: &str| {
        IN_WORDS
            .iter()
            .any(|(words, ids)| text.contains(words) && ids.iter().any(begins))
    };
    let named = steps(&|text| text.contains(&rule.id) || is_meant(text));
    if !named.is_empty() {
        return named;
    }
    let in_section = |sections: &[&str]| sections.contains(&rule.section.as_str());
    steps(&|text| {
        FIELDS
            .iter()
            .any(|(words, sections)| text.contains(words) && in_section(sections))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "\
# Part 1
## 1. One
such as **R-AAA-01** and
- **R-AAA-01** (CORRUPT) It is
  small. It MUST be good
  (always). It is not bad.

  ```
  **R-AAA-09** (CORRUPT) code
  ```
- **R-AAA-05** (writer) May be.
### 1.2 Two
1. It MUST be there; it MUST be one: **R-AAA-02** (NOT_DCF), or two: **R-AAA-04** (CHAIN). More
   (**R-AAA-03**, a gap).

An end. **R-AAA-06** (LIMIT) It MAY be long.
## 10. Order
1. magic (R-AAA-01),
   **R-AAA-02**
2. segments
   1. the stream
   - R-AAA-04

R-AAA-04 is last.
";

    fn rule(id: &str, class: &str, section: &str, steps: &[&str], text: &str) -> SpecRule {
        let steps = steps.iter().map(|step| (*step).to_owned()).collect();
        SpecRule {
            id: id.to_owned(),
            class: class.to_owned(),
            section: section.to_owned(),
            steps,
            text: text.to_owned(),
        }
    }

    #[test]
    fn rules_are_found_with_section_steps_and_demand() {
        let spec = Spec::parse(SMALL);
        let expected = [
            rule(
                "R-AAA-01",
                "CORRUPT",
                "1",
                &["1"],
                "It is small. It MUST be good (always).",
            ),
            rule("R-AAA-02", "NOT_DCF", "1.2", &["1"], "It MUST be one."),
            rule(
                "R-AAA-04",
                "CHAIN",
                "1.2",
                &["2"],
                "It MUST be one, or two.",
            ),
            rule("R-AAA-06", "LIMIT", "1.2", &[], "It MAY be long."),
        ];
        assert_eq!(spec.rules, expected);
        assert_eq!(
            spec.writer_rules,
            [rule("R-AAA-05", "writer", "1", &[], "May be.")]
        );
        assert_eq!(spec.describe("1.2"), "SPEC.md section 1.2 (Two)");
        assert_eq!(
            (spec.describe("7"), spec.describe("2")),
            ("SPEC.md section 7".into(), "SPEC.md section 2".into())
        );
        assert_eq!(spec.describe("20"), "spec/publishing.md section 20");
        assert_eq!(spec.describe("23.2"), "spec/signatures.md section 23.2");
        assert_eq!(spec.describe("24"), "spec/in-place.md section 24");
    }

    #[test]
    fn the_rules_of_the_library_are_there() {
        let spec = Spec::new();
        let steps = |id| {
            let rule = spec.rules.iter().find(|rule| rule.id == id).unwrap();
            (rule.section.as_str(), rule.steps.join(" "))
        };
        assert_eq!(steps("R-SIG-01"), ("23.3", "2 3".to_owned()));
        assert_eq!(
            (steps("R-SUM-03"), steps("R-SUM-04")),
            (("24.6", "3".to_owned()), ("24.6", "3".to_owned()))
        );
        assert_eq!(
            (spec.title("23.3"), spec.title("24.6")),
            (Some("Reading with trust"), Some("The operation"))
        );
        for rule in deltachain::RULES {
            let known: Vec<_> = spec
                .rules
                .iter()
                .filter(|known| known.id == rule.id)
                .collect();
            assert_eq!(known.len(), 1, "{}", rule.id);
            assert_eq!(known[0].class, rule.class.name(), "{}", rule.id);
            // The rules about sequences of links and the limits of whole segments belong to no
            // step.
            assert!(
                !known[0].steps.is_empty() || rule.id == "R-APP-06",
                "{} is in no step",
                rule.id
            );
        }
    }
}
