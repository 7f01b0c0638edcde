//! `follow`: keeps a directory at the newest version of a chain.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use deltachain::{Error, ErrorClass, Result};
use deltachain_engines::{AttemptResult, Fleet, News, Target};
use deltachain_store::{
    Directory, FollowEvent, FollowOptions, FollowStatus, Follower, Health, HeldVersion, MaxLag,
    Observer, Phase, Records, ServersRecord, SwitchReport, Time,
};
use serde_json::{Value, json};

use crate::chain_args::FollowArgs;
use crate::commands::chain::pull::{
    as_json, describe, describe_held, held_as_json, open, signed_by, with_signers,
};
use crate::engine_args::EngineKind;
use crate::interrupt;
use crate::operation::command::{CommandOptions, CommandResult, Commander};
use crate::operation::http::{Answer, HttpServer, Page, Port};
use crate::operation::metrics::Metrics;
use crate::operation::readiness::{self, Readiness, ServerReadiness};
use crate::operation::service;
use crate::output::{Output, printable};
use crate::process;
use crate::watcher::Watcher;

/// Interval at which servers are checked while this waits for them.
const PATIENCE: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &FollowArgs, output: Output) -> Result<()> {
    let watcher = Watcher::of_service(output);
    service::stays_alive().map_err(|error| Error::io("starting threads", error))?;
    // The port is opened first, so that nothing starts if it is not available.
    let port = open_port(args)?;
    let has_tensors = !args.directory.no_tensors && needs_tensors(args, &watcher)?;
    let mut follower = open(&args.chain, &args.directory, has_tensors)?;
    let mut operation = Operation::new(args, &watcher, has_tensors, port)?;
    let (poll, longest) = args.poll;
    let options = FollowOptions::default().poll(poll).poll_longest(longest);
    let result = follower.follow(&options, &watcher, &mut |follower, event| {
        operation.happened(follower, event)
    });
    service::ends();
    operation.servers_end()?;
    let Err(error) = result else { return Ok(()) };
    if !interrupt::happened() {
        operation.ends_with(&error);
        return Err(error);
    }
    // An interrupt is the normal end of following.
    if args.once { Err(error) } else { Ok(()) }
}

/// True if the directory needs tensors, because servers read it or there are no servers. If no
/// server answers, uses the record of the last run.
fn needs_tensors(args: &FollowArgs, watcher: &Watcher) -> Result<bool> {
    let Some(kind) = args.engine.engine else {
        return Ok(true);
    };
    let records = Records::in_directory(&args.directory.directory);
    let before = || (servers_before(&records, kind).download, "before, a server");
    let (downloads, who) = args.engine.downloads()?.unwrap_or_else(before);
    if downloads {
        watcher.remark(&format!(
            "{who} downloads the chain itself, so no tensors are kept here (--no-tensors)"
        ));
    }
    Ok(!downloads)
}

/// Reads the record of the servers of this engine. An unreadable record counts as none, so that
/// each server is updated once more.
fn servers_before(records: &Records, kind: EngineKind) -> ServersRecord {
    let engine = kind
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned());
    let before = records
        .servers()
        .ok()
        .flatten()
        .filter(|before| before.engine == engine);
    before.unwrap_or_else(|| ServersRecord {
        engine,
        ..ServersRecord::default()
    })
}

/// Returns the runner of the command of --exec, if there is one.
fn new_commander(args: &FollowArgs, watcher: &Watcher, records: &Records) -> Option<Commander> {
    let options = CommandOptions {
        command: args.exec.command.clone()?,
        timeout: args.exec.exec_timeout,
        pause: args.poll.0,
        to_stderr: watcher.takes_json(),
    };
    Some(Commander::new(options, records))
}

/// Starts a thread for each server of --engine. Without an engine, removes the record of the
/// servers.
fn start_fleet(
    args: &FollowArgs,
    records: &Records,
    has_tensors: bool,
) -> Result<Option<Arc<Fleet>>> {
    let Some(kind) = args.engine.engine else {
        records.write_servers(None)?;
        return Ok(None);
    };
    let (poll, _) = args.poll;
    let engine = args
        .engine
        .engine(kind, records.directory(), has_tensors, poll)?;
    let before = ServersRecord {
        download: !has_tensors,
        ..servers_before(records, kind)
    };
    let servers = args.engine.servers()?;
    let fleet = Fleet::start(engine, servers, records.clone(), before, poll)?;
    Ok(Some(Arc::new(fleet)))
}

/// Returns the last recorded status, updated for the start of this process.
fn new_status(records: &Records, commander: Option<&Commander>) -> FollowStatus {
    // An unreadable status is replaced.
    let mut status = records.status().ok().flatten().unwrap_or_default();
    status.begins();
    status.command = commander.map(|commander| commander.status(None, false));
    status
}

/// Serves the pages, and prints their addresses.
fn serve(port: Port, pages: Vec<Page>, watcher: &Watcher) -> Result<HttpServer> {
    for page in &pages {
        watcher.remark(&format!("serving http://{}{}", port.address, page.path));
    }
    port.serve(pages)
}

/// Returns the page `/healthz`, which reports the same problems as `status`.
fn health_page(records: &Records, max_lag: MaxLag) -> Page {
    let directory = records.directory().to_owned();
    let show = move || match Health::of(&directory, Some(max_lag)) {
        Ok(health) => Answer::of_health(&health.problems),
        Err(error) => Answer::of_health(&[format!("{error:#}")]),
    };
    Page {
        path: "/healthz",
        show: Box::new(show),
    }
}

/// Returns the page `/status`, which is `status --json`: what `fleet` reads.
fn status_page(records: &Records, max_lag: MaxLag) -> Page {
    let directory = records.directory().to_owned();
    let show = move || match Health::of(&directory, Some(max_lag)) {
        Ok(health) => Answer::of_json(&json!(health)),
        Err(error) => Answer::of_health(&[format!("{error:#}")]),
    };
    Page {
        path: "/status",
        show: Box::new(show),
    }
}

/// Opens the port of --listen, if it is given.
fn open_port(args: &FollowArgs) -> Result<Option<Port>> {
    let (_, longest) = args.poll;
    if args.listen.is_some()
        && args.engine.engine.is_some()
        && matches!(args.max_lag, MaxLag::Time(most) if most <= longest)
    {
        let text = format!(
            "--max-lag must be longer than the maximum of --poll ({} s)",
            longest.as_secs_f64()
        );
        return Err(Error::usage(text));
    }
    args.listen.map(Port::open).transpose()
}

/// The work besides keeping the directory at the newest version.
struct Operation<'a> {
    args: &'a FollowArgs,
    has_tensors: bool,
    /// True if only signed versions are followed.
    has_trust: bool,
    watcher: &'a Watcher,
    records: Records,
    status: FollowStatus,
    commander: Option<Commander>,
    fleet: Option<Arc<Fleet>>,
    readiness: Option<Arc<Readiness>>,
    metrics: Metrics,
    /// The server of --listen, which answers until it is dropped.
    _http: Option<HttpServer>,
    /// True for each server that was last reported as ready for requests.
    ready: Vec<bool>,
    is_ready: bool,
    /// The reason why the last record could not be written, if it could not.
    unwritten: Option<String>,
    /// The lock that shows that this process follows.
    lock: Option<File>,
}

impl<'a> Operation<'a> {
    fn new(
        args: &'a FollowArgs,
        watcher: &'a Watcher,
        has_tensors: bool,
        port: Option<Port>,
    ) -> Result<Self> {
        let records = Records::in_directory(&args.directory.directory);
        let commander = new_commander(args, watcher, &records);
        let fleet = start_fleet(args, &records, has_tensors)?;
        let status = new_status(&records, commander.as_ref());
        let readiness = fleet.as_ref().map(|fleet| {
            Arc::new(Readiness::new(
                Arc::clone(fleet),
                args.max_lag,
                status.clone(),
            ))
        });
        let metrics = Metrics::default();
        let mut pages = vec![metrics.page(), health_page(&records, args.max_lag)];
        pages.extend(readiness.as_ref().map(Readiness::page));
        pages.push(status_page(&records, args.max_lag));
        let http = port.map(|port| serve(port, pages, watcher)).transpose()?;
        Ok(Self {
            args,
            has_tensors,
            has_trust: args.directory.trust.trust()?.is_some(),
            watcher,
            lock: records.lock(),
            records,
            status,
            commander,
            fleet,
            readiness,
            metrics,
            _http: http,
            ready: vec![false; args.engine.servers.len()],
            is_ready: false,
            unwritten: None,
        })
    }

    /// Handles an event.
    fn happened(
        &mut self,
        follower: &Follower<Directory>,
        event: FollowEvent,
    ) -> Result<ControlFlow<()>> {
        process::reap_orphans();
        let held = follower.held();
        let is_pause = matches!(event, FollowEvent::Pause);
        if !is_pause {
            self.status.observe(follower);
            self.status.command = self
                .commander
                .as_ref()
                .map(|commander| commander.status(held, false));
        }
        match event {
            FollowEvent::Switched(switched) => self.switched(&switched)?,
            FollowEvent::Newest => self.newest(held)?,
            FollowEvent::Failed(error) => {
                self.failed(held, &error);
                if self.args.once {
                    return Err(error);
                }
            }
            // Nothing new.
            _ => {}
        }
        if let Some(held) = held {
            let is_signed = self.has_trust.then(|| self.status.unsigned.is_none());
            self.metrics.holds(held, is_signed);
            if !self.is_ready {
                service::is_ready(held.version);
                self.is_ready = true;
            }
            self.run_command(held)?;
            self.bring_servers(held)?;
            let is_reached = self.args.until.is_some_and(|until| held.version >= until)
                && self
                    .commander
                    .as_ref()
                    .is_none_or(|commander| commander.has_succeeded(held))
                && self.fleet.as_ref().is_none_or(|fleet| fleet.has());
            self.tell_of_readiness()?;
            if self.args.once && !is_pause {
                return self.once(held);
            }
            if is_reached {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn switched(&mut self, switched: &SwitchReport) -> Result<()> {
        // The whole directory may have been removed and created again.
        if !self.records.has_lock() {
            self.lock = self.records.lock();
        }
        let lag = switched.lag.unwrap_or_default();
        self.status.switched(switched);
        self.metrics.switched(switched);
        self.metrics.command_is_new();
        service::says(&format!("at version {}", switched.version));
        // SPEC section 24.5 defines this metadata.
        let is_whole =
            switched.from.is_some() && !switched.metadata.contains_key("deltachain.in-place");
        let whole = (is_whole && !self.has_tensors && self.fleet.is_some()).then(|| {
            let why = "it was published without --profile local, or its tensors are not those of \
                       the version before";
            format!(
                "version {} has no links that can be taken in place, so servers load it as a \
                 whole: {why}",
                switched.version
            )
        });
        let before = std::mem::replace(&mut self.status.whole, whole);
        if let Some(text) = &self.status.whole
            && before.is_none()
        {
            self.watcher.remark(text);
        }
        self.found(
            switched.version,
            &switched.state.to_string(),
            switched.version.saturating_add(lag.versions),
        );
        let went_back = switched.from.filter(|from| *from > switched.version);
        if let Some(from) = went_back {
            self.watcher.remark(&format!(
                "the chain was rolled back: from version {from} to {}",
                switched.version
            ));
        }
        let event = if went_back.is_some() {
            "rolled-back"
        } else {
            "switched"
        };
        let time = Time::now();
        let signed_by = signed_by(&self.args.directory)?;
        self.watcher.event(
            || {
                format!(
                    "{}\n  time   {time}",
                    describe_with_lag(self.records.directory(), switched)
                )
            },
            || {
                let mut json = with_signers(as_json(switched), signed_by);
                json["event"] = event.into();
                json["time"] = time.to_string().into();
                json
            },
        )
    }

    /// Handles a poll that found nothing new.
    fn newest(&mut self, held: Option<&HeldVersion>) -> Result<()> {
        let Some(held) = held else { return Ok(()) };
        self.found(held.version, &held.state.to_string(), held.version);
        if !self.args.once {
            return Ok(());
        }
        let signed_by = signed_by(&self.args.directory)?;
        self.watcher.event(
            || describe_held(self.records.directory(), held),
            || {
                let mut json = with_signers(held_as_json(held), signed_by);
                json["event"] = "newest".into();
                json["time"] = Time::now().to_string().into();
                json
            },
        )
    }

    /// Records a successful poll, in which `head` was the newest version.
    fn found(&mut self, held: u64, state: &str, head: u64) {
        self.status.found(held, state, head);
        self.write(Some(held));
    }

    fn failed(&mut self, held: Option<&HeldVersion>, error: &Error) {
        self.metrics.failed(error);
        self.status.failed(error);
        self.status.last_look = Some(Time::now());
        service::says(&format!("will retry: {error:#}"));
        self.write(held.map(|held| held.version));
    }

    /// Records the error that ends following, if it is of class USAGE: such an error ends following
    /// without an event, which would have recorded it.
    fn ends_with(&mut self, error: &Error) {
        if error.class() == ErrorClass::Usage {
            self.status.failed(error);
            self.write_status();
        }
    }

    /// Updates the records of `status`, the metrics and the readiness after a poll.
    fn write(&mut self, held: Option<u64>) {
        // An error is dropped here: `status` reads the directory again, and shows it.
        let shown = Health::of(self.records.directory(), None).ok();
        self.status.unsigned = shown.and_then(|shown| shown.trust?.problem());
        self.metrics.looked(held, &self.status);
        self.readiness
            .iter()
            .for_each(|readiness| readiness.polled(&self.status));
        self.write_status();
    }

    fn write_status(&mut self) {
        let unwritten = self
            .records
            .write_status(&self.status)
            .err()
            .map(|error| format!("{error:#}"));
        self.complain(unwritten);
    }

    fn complain(&mut self, unwritten: Option<String>) {
        // Each reason is shown once. Following continues without the record.
        if unwritten != self.unwritten {
            unwritten.iter().for_each(|text| self.watcher.remark(text));
            self.unwritten = unwritten;
        }
    }

    /// Runs the command for the held version, if it is due.
    fn run_command(&mut self, held: &HeldVersion) -> Result<()> {
        let Some(commander) = self
            .commander
            .as_mut()
            .filter(|commander| commander.is_due(held))
        else {
            return Ok(());
        };
        self.status.command = Some(commander.status(Some(held), true));
        self.write_status();
        let Some(commander) = &mut self.commander else {
            return Ok(());
        };
        let began = Instant::now();
        // `run` checks for interrupts itself.
        let result = commander.run(held, &interrupt::happened);
        self.status.command = Some(commander.status(Some(held), false));
        let pause = commander.pause().unwrap_or_default();
        if result == CommandResult::Succeeded {
            // The command has succeeded even if that cannot be recorded.
            commander
                .record()
                .unwrap_or_else(|error| self.watcher.remark(&format!("{error:#}")));
        }
        self.write_status();
        let (result, text) = match result {
            CommandResult::Interrupted => return self.watcher.advance(Phase::Wait, 0),
            CommandResult::Succeeded => ("succeeded", None),
            CommandResult::Failed(text) => ("failed", Some(text)),
            CommandResult::TimedOut(text) => ("timed-out", Some(text)),
        };
        self.metrics.ran(result, began.elapsed());
        if let Some(text) = text {
            let again = if self.args.once {
                String::new()
            } else {
                format!("; retrying in {:.1} s", pause.as_secs_f64())
            };
            self.watcher.remark(&format!(
                "the command of --exec for version {}: {text}{again}",
                held.version
            ));
        }
        Ok(())
    }

    /// Sets the version that the servers are updated to, and reports what happened to them.
    fn bring_servers(&mut self, held: &HeldVersion) -> Result<()> {
        let Some(fleet) = &self.fleet else {
            return Ok(());
        };
        let commit = held.commit.to_string();
        if !fleet.wants(&commit) {
            fleet.bring_to(Target::new(held)?);
        }
        // A server may still read the files of an older version, which the next version but one
        // replaces.
        while fleet.is_at_an_older_version() || self.args.once && !fleet.has_been_tried() {
            self.watcher.advance(Phase::Wait, 0)?;
            thread::sleep(PATIENCE);
        }
        self.tell_of_servers()
    }

    fn tell_of_servers(&mut self) -> Result<()> {
        let Some(fleet) = &self.fleet else {
            return Ok(());
        };
        let news = fleet.news();
        let unwritten = fleet.unwritten();
        self.complain(unwritten);
        news.iter().try_for_each(|news| self.tell_of_server(news))
    }

    /// Reports the end of an attempt to update a server: to people as a remark, unless it has
    /// succeeded.
    fn tell_of_server(&self, news: &News) -> Result<()> {
        let News {
            server,
            version,
            result,
            ..
        } = news;
        let time = Time::now();
        let text = match result {
            AttemptResult::Has(paused) => {
                self.metrics.server_has(server, *version, *paused);
                let stood = paused
                    .map(|time| format!(", paused for {:.2} s", time.as_secs_f64()))
                    .unwrap_or_default();
                format!(
                    "server {} has version {version}{stood}\n  time   {time}",
                    printable(server)
                )
            }
            AttemptResult::Unchecked(why) => {
                format!(
                    "version {version} is sent to {} unchecked: {why}",
                    printable(server)
                )
            }
            AttemptResult::Failed {
                text,
                stays_paused,
                is_waited_for,
                is_repeated,
                pause,
            } => {
                self.metrics.server_failed(server);
                if *is_repeated {
                    return Ok(());
                }
                let paused = if *stays_paused {
                    "; it stays paused"
                } else {
                    ""
                };
                let again = if *is_waited_for {
                    "; waits for the server".to_owned()
                } else {
                    format!("; retrying in {:.1} s", pause.as_secs_f64())
                };
                format!("not updated to version {version}: {text}{paused}{again}")
            }
        };
        if self.watcher.takes_json() || matches!(result, AttemptResult::Has(_)) {
            return self.watcher.event(|| text, || news_as_json(news, time));
        }
        self.watcher.remark(&text);
        Ok(())
    }

    /// Waits for servers that are being updated, and reports the results.
    fn servers_end(&mut self) -> Result<()> {
        self.readiness.iter().for_each(|readiness| readiness.ends());
        self.fleet.iter().for_each(|fleet| fleet.stop());
        self.tell_of_servers()
    }

    /// Reports which servers are ready for requests, if that has changed.
    fn tell_of_readiness(&mut self) -> Result<()> {
        let Some(readiness) = &self.readiness else {
            return Ok(());
        };
        let servers = readiness.last();
        self.metrics.servers_are(&servers, &self.status);
        let ready: Vec<_> = servers.iter().map(ServerReadiness::is_ready).collect();
        if ready == self.ready {
            return Ok(());
        }
        self.ready = ready;
        let mut json = readiness::as_json(&servers);
        json["event"] = "readiness".into();
        json["time"] = Time::now().to_string().into();
        let lines: Vec<_> = servers.iter().map(readiness_as_text).collect();
        let text = lines.join("\n");
        self.watcher.event(|| text, || json)
    }

    /// Ends `follow --once` after its poll, with an error if the command or the servers have
    /// failed.
    fn once(&self, held: &HeldVersion) -> Result<ControlFlow<()>> {
        if let Some(commander) = self
            .commander
            .as_ref()
            .filter(|commander| !commander.has_succeeded(held))
        {
            let text = commander
                .status(Some(held), false)
                .last_failure
                .unwrap_or_default();
            return Err(Error::io(
                "running the command of --exec",
                io::Error::other(text),
            ));
        }
        if let Some(fleet) = self.fleet.as_ref().filter(|fleet| !fleet.has()) {
            let text = fleet.failure().unwrap_or_default();
            return Err(Error::io("updating the servers", io::Error::other(text)));
        }
        Ok(ControlFlow::Break(()))
    }
}

fn news_as_json(news: &News, time: Time) -> Value {
    let mut json = json!({
        "event": "server",
        "time": time.to_string(),
        "server": news.server,
        "version": news.version,
        "seconds": news.took.as_secs_f64(),
    });
    match &news.result {
        AttemptResult::Has(paused) => {
            json["result"] = "updated".into();
            json["paused_seconds"] = paused.map(|time| time.as_secs_f64()).into();
        }
        AttemptResult::Unchecked(why) => {
            json["result"] = "unchecked".into();
            json["message"] = why.as_str().into();
        }
        AttemptResult::Failed {
            text,
            stays_paused,
            pause,
            ..
        } => {
            json["result"] = "failed".into();
            json["message"] = text.as_str().into();
            json["stays_paused"] = (*stays_paused).into();
            json["again_seconds"] = pause.as_secs_f64().into();
        }
    }
    json
}

fn readiness_as_text(ServerReadiness { server, unready }: &ServerReadiness) -> String {
    match unready {
        None => format!("server {} is ready", printable(&server.url)),
        Some(reason) => format!(
            "server {} is not ready: {}",
            printable(&server.url),
            printable(reason)
        ),
    }
}

fn describe_with_lag(directory: &Path, switched: &SwitchReport) -> String {
    let lag = switched.lag.unwrap_or_default();
    let behind = match (lag.versions, lag.seconds) {
        (0, Some(seconds)) => {
            format!("none: it is the newest, built {seconds:.1} s after its commit")
        }
        (0, None) => "none: it is the newest".to_owned(),
        (versions, _) => format!("{versions} behind the newest"),
    };
    format!("{}\n  lag    {behind}", describe(directory, switched))
}
