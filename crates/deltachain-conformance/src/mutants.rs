//! `mutants`: shows which small changes of the reference library the vectors notice.
//!
//! `tasks/judge.py` builds this program from a copy of the library that contains all changes, the
//! mutants, each selected by its number. A mutant is a testee; it gets the cases that reach the
//! function that it changes, until one answer differs.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use crate::args::MutantsArgs;
use crate::cases::{Case, cases};
use crate::judge::Verdict;
use crate::problem::{Problem, Result};
use crate::report::human::show;
use crate::run::meter;
use crate::session::Session;
use crate::suite::Suite;
use crate::testee;
use crate::workshop::Workshop;

/// A mutant may compute or read forever; that counts as noticed, too.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Number of the library without a mutant.
const NO_MUTANT: u32 = 0;
/// Cases that take longer come last.
const LONG: Duration = Duration::from_millis(50);

/// A line of the list of mutants.
#[derive(Debug, Deserialize)]
struct Mutant {
    number: u32,
    /// Number of the changed function.
    function: usize,
    /// The folder or file that contains the function.
    module: String,
}

/// The library's answers without a mutant.
struct Trace {
    /// The cases that reach each function, as indexes, in the order in which mutants get them.
    reaching: Vec<Vec<usize>>,
}

/// The result of judging a mutant.
struct Judged {
    /// The case whose answer differs, and how; `None` if the mutant survives.
    noticed: Option<(usize, String)>,
    asked: usize,
}

/// Judges all mutants of the list, and prints a line of JSON for each.
pub(crate) fn run(args: &MutantsArgs) -> Result<ExitCode> {
    let suite = Suite::load(args.vectors.as_deref())?;
    let cases = cases(&suite);
    let mutants = read(&args.list)?;
    let functions = mutants.iter().map(|mutant| mutant.function + 1).max();
    let trace = Trace::new(&cases, &suite, functions.unwrap_or(0))?;
    let court = Court {
        suite: &suite,
        cases: &cases,
        modules: trace.of_modules(&mutants),
        trace,
        known: Mutex::default(),
    };
    let queue = Mutex::new(mutants.iter());
    thread::scope(|scope| {
        let judges: Vec<_> = (0..args.threads.get())
            .map(|_| scope.spawn(|| court.sit(&queue)))
            .collect();
        judges.into_iter().try_for_each(|judge| {
            judge
                .join()
                .unwrap_or_else(|_| Err(Problem::failed("a thread has panicked")))
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Vec<Mutant>> {
    let text = fs::read_to_string(path).map_err(Problem::with_file(path))?;
    serde_json::from_str(&text).map_err(Problem::with_file(path))
}

impl Trace {
    /// Answers all cases in this process, without a mutant.
    fn new(cases: &[Case<'_>], suite: &Suite, functions: usize) -> Result<Self> {
        let mut workshop = Workshop::new(suite)?;
        let mut reaching = vec![Vec::new(); functions];
        let mut order = Vec::with_capacity(cases.len());
        let bar = meter("trace", cases.len());
        for (index, case) in cases.iter().enumerate() {
            let request = workshop.request(case)?;
            deltachain::mutants::forget();
            let start = Instant::now();
            testee::answer(case.operation.name(), &request.json);
            order.push((start.elapsed() > LONG, hash(&case.id)));
            for function in deltachain::mutants::reached() {
                if let Some(cases) = reaching.get_mut(function) {
                    cases.push(index);
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        for cases in &mut reaching {
            cases.sort_by_key(|&index| order[index]);
        }
        Ok(Self { reaching })
    }

    /// Returns, for each module, the cases that reach any of its functions.
    fn of_modules(&self, mutants: &[Mutant]) -> HashMap<String, Vec<usize>> {
        let mut found: HashMap<String, Vec<usize>> = HashMap::new();
        for mutant in mutants {
            let cases = found.entry(mutant.module.clone()).or_default();
            cases.extend(&self.reaching[mutant.function]);
        }
        for cases in found.values_mut() {
            cases.sort_unstable();
            cases.dedup();
        }
        found
    }
}

/// Starts this program as a testee with the mutant of this number.
fn start(mutant: u32) -> Result<Session> {
    let program = std::env::current_exe().map_err(Problem::failed)?;
    let program = program
        .to_str()
        .ok_or_else(|| Problem::failed("the path of this program is not Unicode"))?;
    let number = mutant.to_string();
    let words = [program, "testee", "--mutant", &number];
    Session::start(&shlex::try_join(words).map_err(Problem::failed)?, TIMEOUT)
}

/// Returns a number that mixes the cases of different folders, in the same order each time.
fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Judges mutants in several threads.
struct Court<'a> {
    suite: &'a Suite,
    cases: &'a [Case<'a>],
    trace: Trace,
    modules: HashMap<String, Vec<usize>>,
    /// Cases that have noticed other mutants of a function, the latest first.
    known: Mutex<HashMap<usize, Vec<usize>>>,
}

impl Court<'_> {
    /// Judges one mutant after another until the queue is empty.
    fn sit<'m>(&self, queue: &Mutex<impl Iterator<Item = &'m Mutant>>) -> Result {
        let mut workshop = Workshop::new(self.suite)?;
        let mut library = start(NO_MUTANT)?;
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(mutant) = next else {
                return Ok(());
            };
            let judged = self.judge(mutant, &mut workshop)?;
            let (case, how) = match judged.noticed {
                Some((index, how)) => {
                    self.check_library(&mut library, index, &mut workshop)?;
                    self.remember(mutant.function, index);
                    (Some(&self.cases[index].id), Some(how))
                }
                None => (None, None),
            };
            let line =
                json!({ "number": mutant.number, "case": case, "how": how, "asked": judged.asked });
            show(&line.to_string())?;
        }
    }

    /// Fails unless the library, built with all mutants but running none, passes a case that has
    /// noticed a mutant.
    fn check_library(
        &self,
        library: &mut Session,
        index: usize,
        workshop: &mut Workshop<'_>,
    ) -> Result {
        let case = &self.cases[index];
        match library.ask(case, workshop)?.verdict {
            Verdict::Right => Ok(()),
            other => Err(Problem::failed(format!(
                "{}: the library without a mutant does not pass: {other:?}",
                case.id
            ))),
        }
    }

    fn judge(&self, mutant: &Mutant, workshop: &mut Workshop<'_>) -> Result<Judged> {
        let mut asked = 0;
        let mut session = start(mutant.number)?;
        for index in self.questions(mutant) {
            asked += 1;
            let how = match session.ask(&self.cases[index], workshop)?.verdict {
                Verdict::Right => continue,
                Verdict::OtherRule(rule) => rule.unwrap_or_else(|| "no rule".to_owned()),
                Verdict::Wrong(how) => how,
            };
            let noticed = Some((index, how));
            return Ok(Judged { noticed, asked });
        }
        let noticed = None;
        Ok(Judged { noticed, asked })
    }

    /// Returns the cases that can notice a mutant, beginning with those that have noticed others of
    /// its function.
    fn questions(&self, mutant: &Mutant) -> Vec<usize> {
        let reaching = &self.trace.reaching[mutant.function];
        // A process fills a `LazyLock` only once, so only the first case reaches a function that
        // does this.
        let reaching = match (reaching.len(), self.modules.get(&mutant.module)) {
            (1, Some(of_module)) => of_module,
            _ => reaching,
        };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut questions = known.get(&mutant.function).cloned().unwrap_or_default();
        for &index in reaching {
            if !questions.contains(&index) {
                questions.push(index);
            }
        }
        questions
    }

    fn remember(&self, function: usize, index: usize) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let cases = known.entry(function).or_default();
        cases.retain(|&known| known != index);
        cases.insert(0, index);
    }
}
