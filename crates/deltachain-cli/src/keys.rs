//! Keys from the command line: in files, in the environment, and elsewhere, for a command that
//! signs. No error contains a text that may be a secret key.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use deltachain::chain::{Signer, SigningKey, Trust, TrustedKey, VerifierKey};
use deltachain::{Error, FileSource, Result};
use serde_json::{Value, json};

use crate::inputs::require;
use crate::interrupt;
use crate::operation::command::{CommandResult, PATIENCE, run, shell};
use crate::signature_args::{SignArgs, TrustArgs};

/// Environment variable with the content of a key file, for systems that pass secrets without
/// files.
pub(crate) const VARIABLE: &str = "DELTACHAIN_SIGNING_KEY";
/// The prefix of every secret key.
const SECRET: &str = "PRIVATE+KEY+";
/// Number of bytes of a key file that are read at most.
const MOST_BYTES: u64 = 1 << 20;

/// The content of a key file.
#[derive(Debug)]
pub(crate) enum Keys {
    Secret(Box<SigningKey>),
    Public(Vec<TrustedKey>),
}

impl Keys {
    /// Parses the text of a key file: a secret key, or public keys. Skips empty lines, comments
    /// that begin with `#`, and white space around keys.
    fn parse(text: &str) -> Result<Self> {
        let lines = text.trim_start_matches('\u{feff}').lines().enumerate();
        let lines = lines.map(|(place, line)| {
            (
                place + 1,
                line.split(" #").next().unwrap_or_default().trim(),
            )
        });
        let lines: Vec<(usize, &str)> = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .collect();
        match lines.as_slice() {
            [] => Err(Error::usage(
                "there is no key in it: `deltachain key new` makes one",
            )),
            [(_, line)] if line.starts_with(SECRET) => {
                SigningKey::parse(line).map(Box::new).map(Self::Secret)
            }
            lines if lines.iter().any(|(_, line)| line.contains(SECRET)) => Err(Error::usage(
                "a secret key must be the only key in its file: keep public keys in another file",
            )),
            lines => {
                // The error does not show the line, which may be a damaged secret key.
                let refused = |place| {
                    Error::usage(format!(
                        "line {place} is not a public key (NAME+ID+KEY), or is damaged"
                    ))
                };
                let keys = lines
                    .iter()
                    .map(|(place, line)| line.parse().map_err(|_| refused(place)));
                keys.collect::<Result<_>>().map(Self::Public)
            }
        }
    }

    /// Reads a key file; `-` is standard input.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return from_input().and_then(|text| Self::parse(&text));
        }
        if path.to_str().is_some_and(|text| text.starts_with(SECRET)) {
            return Err(Error::usage(format!(
                "this is a secret key: give the file that holds it, or set {VARIABLE}"
            )));
        }
        require([path])?;
        let source = FileSource::open(path)?;
        text_of(source.file())
            .and_then(|text| Self::parse(&text))
            .map_err(|error| error.in_file(path))
    }

    /// Returns the public keys, with the chains that are listed beside them.
    pub(crate) fn public(self) -> Vec<TrustedKey> {
        match self {
            Self::Secret(key) => vec![key.public().clone().into()],
            Self::Public(keys) => keys,
        }
    }
}

fn text_of(from: impl Read) -> Result<String> {
    let mut text = String::new();
    let read = from.take(MOST_BYTES).read_to_string(&mut text);
    match read {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Error::usage("this is not a text file with keys"))
        }
        read => read
            .map(|_| text)
            .map_err(|error| Error::io("reading", error)),
    }
}

/// Reads all of standard input. Ctrl-C ends the wait.
fn from_input() -> Result<String> {
    let (sender, receiver) = mpsc::channel();
    let read = move || drop(sender.send(text_of(io::stdin().lock())));
    thread::Builder::new()
        .spawn(read)
        .map_err(|error| Error::io("starting a thread", error))?;
    loop {
        match receiver.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => interrupt::check()?,
            result => {
                return result.map_err(|error| Error::io("reading", io::Error::other(error)))?;
            }
        }
    }
}

/// Writes a new secret key into a new file, which only its owner may read.
///
/// # Errors
/// USAGE if the name is invalid or the file exists; IO.
pub(crate) fn make(name: &str, path: &Path) -> Result<VerifierKey> {
    if crate::output::printable(name) != name {
        return Err(Error::usage(
            "the name of the key contains an invisible character: choose another name",
        ));
    }
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| Error::io("asking for random bytes", io::Error::other(error)))?;
    let key = SigningKey::from_seed(name, seed)?;
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::usage("the file exists; `key new` never overwrites").in_file(path)
        }
        _ => Error::io("creating", error).in_file(path),
    })?;
    let written = writeln!(file, "{}", key.to_text()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // A partly written key is of no use.
        let _ = std::fs::remove_file(path);
        return Err(Error::io("writing", error).in_file(path));
    }
    Ok(key.public().clone())
}

pub(crate) fn as_json(TrustedKey { key, chains }: &TrustedKey) -> Value {
    let chains: Vec<String> = chains.iter().map(ToString::to_string).collect();
    json!({ "name": key.name(), "id": key.id(), "key": key.to_string(), "chains": chains })
}

impl SignArgs {
    /// Returns the signers; none if no key is given.
    ///
    /// # Errors
    /// USAGE if a key cannot be used; IO.
    pub(crate) fn signers(&self) -> Result<Vec<Arc<dyn Signer>>> {
        if self.sign_key.is_empty() {
            return Ok(from_environment()?.into_iter().collect());
        }
        let (mut signers, mut asked): (Vec<Arc<dyn Signer>>, _) = (Vec::new(), Vec::new());
        for path in &self.sign_key {
            match Keys::read(path)? {
                Keys::Secret(key) => {
                    refuse_open(path)?;
                    signers.push(Arc::new(*key));
                }
                Keys::Public(keys) if self.sign_command.is_some() => asked.extend(keys),
                Keys::Public(_) => {
                    let text = "this is a public key: give the file of the secret key, or \
                                --sign-command if the secret key is elsewhere";
                    return Err(Error::usage(text).in_file(path));
                }
            }
        }
        let Some(command) = &self.sign_command else {
            return Ok(signers);
        };
        let [public] = asked.as_slice() else {
            let text = format!(
                "--sign-command signs for exactly one public key of --sign-key, but there are {}",
                asked.len()
            );
            return Err(Error::usage(text));
        };
        let timeout = self.sign_timeout;
        signers.push(Arc::new(CommandSigner {
            public: public.key.clone(),
            command: command.clone(),
            timeout,
        }));
        Ok(signers)
    }
}

/// Reads the key in the environment. Returns `None` if the variable is not set.
///
/// # Errors
/// USAGE if the variable has anything but the text of a secret key. An empty variable is an error,
/// too: it probably means that a secret was not passed on, and publishing without a signature would
/// break a signed chain.
fn from_environment() -> Result<Option<Arc<dyn Signer>>> {
    let Some(value) = env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let refused = |why: &str| Error::usage(format!("{VARIABLE} {why}"));
    let Some(text) = value.to_str() else {
        return Err(refused("is not text"));
    };
    if text.trim().is_empty() {
        return Err(refused(
            "is empty: set it to the text of the secret key, or remove it to sign nothing",
        ));
    }
    match Keys::parse(text) {
        Ok(Keys::Secret(key)) => Ok(Some(Arc::new(*key))),
        Ok(Keys::Public(_)) => Err(refused("has a public key: set it to the secret key")),
        Err(_) if Path::new(text.trim()).exists() => Err(refused(
            "has the path of a file: set it to the text of the key, or give the file as --sign-key",
        )),
        Err(error) => Err(refused(&format!("has no secret key: {}", error.message()))),
    }
}

/// Refuses a file that other users may access.
///
/// # Errors
/// USAGE if other users may access the file; IO.
#[cfg(unix)]
fn refuse_open(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata =
        std::fs::metadata(path).map_err(|error| Error::io("reading", error).in_file(path))?;
    let mode = metadata.mode() & 0o777;
    if !metadata.is_file() || mode & 0o077 == 0 {
        return Ok(());
    }
    let is_root = metadata.uid() == 0;
    if is_root && mode & !0o440 == 0 && is_own_group(metadata.gid()) {
        // Kubernetes mounts secrets with this mode for a pod with `fsGroup`.
        return Ok(());
    }
    let advice = if metadata.uid() == rustix::process::geteuid().as_raw() {
        "run chmod 600, and consider the key compromised"
    } else {
        "mount it with mode 0400, or with 0440 for a group of this process \
         (Kubernetes: defaultMode and fsGroup)"
    };
    let text = format!("others can use this secret key (mode {mode:03o}): {advice}");
    Err(Error::usage(text).in_file(path))
}

/// True if this process is in the group.
#[cfg(unix)]
fn is_own_group(group: u32) -> bool {
    rustix::process::getegid().as_raw() == group
        || rustix::process::getgroups()
            .is_ok_and(|groups| groups.iter().any(|own| own.as_raw() == group))
}

#[cfg(not(unix))]
fn refuse_open(_: &Path) -> Result<()> {
    Ok(())
}

/// The value of `--trust` that means no key.
const NO_TRUST: &str = "none";

impl TrustArgs {
    /// True if the directory must forget its trust.
    pub(crate) fn forgets(&self) -> bool {
        self.trust.iter().any(|given| given == NO_TRUST)
    }

    /// Returns the keys to trust; `None` if no key is given.
    ///
    /// # Errors
    /// USAGE if a key cannot be read, is given twice, or the quorum cannot be reached; IO.
    pub(crate) fn trust(&self) -> Result<Option<Trust>> {
        let mut keys = Vec::new();
        for given in self.trust.iter().filter(|given| *given != NO_TRUST) {
            if let Ok(key) = given.parse() {
                keys.push(key);
                continue;
            }
            // A text with two `+` that is not the path of a file is more likely a damaged key. It
            // may be a secret key, so the error does not show it.
            let path = Path::new(given);
            let is_path = path.extension().is_some_and(|extension| extension == "pub")
                || given.matches('+').count() < 2;
            if !is_path && !path.exists() {
                return Err(Error::usage(
                    "a key of --trust is not a public key (NAME+ID+KEY), or is damaged",
                ));
            }
            match Keys::read(path)? {
                Keys::Public(read) => keys.extend(read),
                Keys::Secret(_) => {
                    let text = "this is a secret key: --trust takes public keys, which `deltachain \
                                key show` prints";
                    return Err(Error::usage(text).in_file(given));
                }
            }
        }
        if keys.is_empty() {
            Ok(None)
        } else {
            Trust::new(keys, self.quorum.unwrap_or(1)).map(Some)
        }
    }
}

/// Signer that runs a command.
struct CommandSigner {
    public: VerifierKey,
    command: String,
    timeout: Duration,
}

impl fmt::Debug for CommandSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandSigner")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

impl Signer for CommandSigner {
    fn public(&self) -> &VerifierKey {
        &self.public
    }

    fn sign(&self, text: &[u8]) -> Result<[u8; 64]> {
        let failed = |error| Error::io("running the command of --sign-command", error);
        let said = self.ask(text).map_err(failed)?;
        interrupt::check()?;
        let said = said.map_err(|reason| failed(io::Error::other(reason)))?;
        let signature = str::from_utf8(said.trim_ascii())
            .ok()
            .and_then(|text| Base64::decode_vec(text).ok()?.try_into().ok());
        let other = || failed(io::Error::other("it did not print 64 bytes in base64"));
        signature.ok_or_else(other)
    }
}

impl CommandSigner {
    /// Runs the command. Returns what it prints, or the reason why it did not succeed.
    fn ask(&self, text: &[u8]) -> io::Result<Result<Vec<u8>, String>> {
        // Files instead of pipes, because a command that does not read, or leaves a child process
        // behind, would block a pipe.
        let (mut question, mut answer) = (tempfile::tempfile()?, tempfile::tempfile()?);
        question.write_all(text)?;
        question.seek(SeekFrom::Start(0))?;
        let mut shell = shell(&self.command);
        shell
            .env_remove(VARIABLE)
            .stdin(Stdio::from(question))
            .stdout(Stdio::from(answer.try_clone()?));
        match run(&mut shell, Some(self.timeout), &interrupt::happened)? {
            CommandResult::Succeeded => {}
            CommandResult::Failed(reason) | CommandResult::TimedOut(reason) => {
                return Ok(Err(reason));
            }
            CommandResult::Interrupted => return Ok(Err("interrupted".to_owned())),
        }
        let mut said = Vec::new();
        answer.seek(SeekFrom::Start(0))?;
        answer.take(1024).read_to_end(&mut said)?;
        Ok(Ok(said))
    }
}
