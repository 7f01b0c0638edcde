//! `cargo xtask endurance`: long runs of the store under kills, faults, bad networks and other writers, and of the bridge to
//! inference servers; and the store at another server than the one of the tests. `cargo xtask ci` does the same for short.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::Result;
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{cargo, target};

/// The test programs of the store and of the tool.
const STORE: &str = "chains";
const TOOL: &str = "cli";

/// A variable of the environment, and its value.
type Setting = (&'static str, &'static str);

/// What a long run sets, by module of a test program.
const LONG: [(&str, &str, &[Setting]); 6] = [
    (
        STORE,
        "interleaving",
        &[("DELTACHAIN_ORDERS", "0"), ("DELTACHAIN_SLEEPY_ORDERS", "10000"), ("DELTACHAIN_LATE_ORDERS", "100")],
    ),
    (STORE, "kill", &[("DELTACHAIN_KILLS", "130")]),
    (STORE, "faults", &[("DELTACHAIN_FAULT_ROUNDS", "300")]),
    (STORE, "proxy", &[("DELTACHAIN_STORMS", "100")]),
    (STORE, "publisher", &[("DELTACHAIN_RACES", "1000")]),
    (TOOL, "engines_drawn", &[("DELTACHAIN_ENGINE_STORMS", "300")]),
];

const REQUIREMENTS: [&str; 1] = ["crates/deltachain-store/tests/requirements.txt"];

/// How often it is looked whether the server answers, and how long that may take.
const LOOKS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// The test that needs a server.
const ANOTHER_SERVER: &str = "another_server";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The tests to run; all of them if none is given
    #[arg(value_parser = PossibleValuesParser::new(LONG.iter().map(|(_, test, _)| *test).chain([ANOTHER_SERVER])))]
    tests: Vec<String>,
}

pub(crate) fn run(Arguments { tests }: &Arguments) -> Result {
    let is_chosen = |name: &str| tests.is_empty() || tests.iter().any(|chosen| chosen == name);
    let mut steps = Steps::default();
    for (program, test, settings) in LONG.iter().filter(|(_, test, _)| is_chosen(test)) {
        steps.run(test, || execute(module(program, test)?.envs(settings.iter().copied())));
    }
    if is_chosen(ANOTHER_SERVER) {
        steps.run(ANOTHER_SERVER, another_server);
    }
    steps.finish()
}

/// One module of a test program, with what it counts. As part of the whole workspace, so that nothing is built twice.
fn module(program: &str, name: &str) -> Result<Command> {
    let tests = format!("{name}::");
    cargo(&["test", "--workspace", "--test", program, "--", &tests, "--nocapture", "--test-threads", "2"])
}

/// The store at moto's server.
pub(crate) fn another_server() -> Result {
    let python = Python::with("moto-venv", &REQUIREMENTS)?;
    let server = Server::start(&python)?;
    execute(module(STORE, ANOTHER_SERVER)?.env("DELTACHAIN_S3", format!("http://{}", server.address)))
}

/// A server that is ended when this is dropped.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(python: &Python) -> Result<Self> {
        // A port that was free just now.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let program = python.path().with_file_name(if cfg!(windows) { "moto_server.exe" } else { "moto_server" });
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.current_dir(target()?).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { process: command.spawn()?, address };
        for _ in 0..LOOKS {
            if let Ok(answer) = server.make_bucket() {
                return if answer.starts_with("HTTP/1.1 200") { Ok(server) } else { Err(answer.into()) };
            }
            thread::sleep(PAUSE);
        }
        Err("moto's server does not answer".into())
    }

    fn make_bucket(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        write!(
            stream,
            "PUT /bucket HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
